"""Train a Llama whose logits are never held: the loss curve of eager PyTorch, in less memory.

Run with `python examples/train_a_llama_block_with_fused_loss.py`, which trains a small Llama with random
weights, or with `--weights FOLDER` (or a name on the Hub) for real ones. Two copies see the same batches, step
by step in turn. One runs on the shipped mapping `fused_loss`: bundled kernels for training, and a loss that is
computed from the hidden states, a chunk of rows at a time. With it `model(…).logits` is None in training.

The curves differ by rounding only, which training then carries on: by less than 1e-3 of the loss in 50 steps
of float32, as two eager runs with another order of summation would. Memory is the most that tensors take at
once in a step, weights and optimizer aside; time is the median of the steps.

A training loop of one's own has the loss as a function:

    from kernels_hub import BundledLayerRepository

    linear_cross_entropy = BundledLayerRepository("loss", layer_name="linear_cross_entropy").load("cpu")
    loss = linear_cross_entropy(hidden, lm_head.weight, targets)        # (…, H), (V, H), (…)
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from kernels_hub import Mode, kernelize, load_kernel_mapping, report, use_kernel_mapping

CURVE_TOLERANCE = 1e-3
"""Largest difference of the two losses of a step, as a share of the loss."""


@dataclass
class Run:
    """One model's training. Losses a step; seconds a step; MiB that a step takes beside the weights."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    peak_mib: float = 0.0

    def step(self, tokens: torch.Tensor) -> None:
        """One AdamW step on a batch (sequences, tokens)."""
        start = time.perf_counter()
        loss = self.model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.seconds.append(time.perf_counter() - start)
        self.losses.append(loss.item())

    def gradients(self, tokens: torch.Tensor) -> None:
        """Forward and backward only, for their memory."""
        self.model(input_ids=tokens, labels=tokens).loss.backward()
        self.optimizer.zero_grad()


@dataclass(frozen=True)
class TrainingFigures:
    """Both trainings, and the largest difference of their curves as a share of the loss."""

    eager: Run
    fused: Run

    @property
    def difference(self) -> float:
        pairs = zip(self.eager.losses, self.fused.losses, strict=True)
        return max(abs(ours - theirs) / abs(theirs) for theirs, ours in pairs)


def peak_mib(function: Callable[[], Any]) -> float:
    """The most MiB of tensors that live at once during a call, beyond what lived before (CPU)."""
    activity = torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[activity], profile_memory=True) as profile:
        function()
    events = profile.profiler.kineto_results.events()
    now = most = 0
    for _, size in sorted(
        (event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"
    ):
        now += size
        most = max(most, now)
    return most / 2**20


def build(options: argparse.Namespace) -> PreTrainedModel:
    """The model to train: real weights, or a small Llama with random ones."""
    if options.weights:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(options.weights)
        return model
    config = LlamaConfig(
        vocab_size=options.vocabulary,
        hidden_size=options.width,
        intermediate_size=2 * options.width,
        num_hidden_layers=options.layers,
        num_attention_heads=max(1, options.width // 64),
        num_key_value_heads=max(1, options.width // 64),
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def main(arguments: list[str] | None = None) -> TrainingFigures:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--weights", help="a folder, or a name on the Hub: real weights of a causal language model"
    )
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--vocabulary", type=int, default=16000)
    parser.add_argument("--sequences", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--steps", type=int, default=50)
    options = parser.parse_args(arguments)

    torch.manual_seed(0)
    model = build(options)
    model.train()
    other = copy.deepcopy(model)
    with use_kernel_mapping(load_kernel_mapping("fused_loss"), inherit_mapping=False):
        kernelize(other, mode=Mode.TRAINING)
    print(report(other))
    first = report(other).rows[0]
    if not first.swapped:
        raise SystemExit(f"{type(other).__name__} keeps its loss: {first.reason}")
    eager, fused = (Run(one, torch.optim.AdamW(one.parameters(), lr=1e-3)) for one in (model, other))

    # Sequences that count upwards: something to learn.
    size: int = model.config.vocab_size
    starts = torch.randint(0, size, (options.steps, options.sequences, 1))
    batches = (starts + torch.arange(options.tokens)) % min(size, 512)
    for run in (eager, fused):
        run.gradients(batches[0])  # what is built at first use
        run.peak_mib = peak_mib(lambda run=run: run.gradients(batches[0]))  # type: ignore[misc]
    for tokens in batches:
        for run in (eager, fused):
            run.step(tokens)

    figures = TrainingFigures(eager, fused)
    for step in range(0, options.steps, max(1, options.steps // 10)):
        print(f"step {step:3d}: eager {eager.losses[step]:.6f}, fused {fused.losses[step]:.6f}")
    print(f"largest difference {figures.difference:.1e} of the loss")
    for name, run in (("eager", eager), ("fused", fused)):
        print(f"{name}: {run.peak_mib:.0f} MiB, {statistics.median(run.seconds) * 1e3:.0f} ms a step")
    return figures


if __name__ == "__main__":
    main()
