"""Generate text with a Llama: eager, kernelized, and compiled by hand, token for token the same.

Run with `python examples/generate_text_with_llama.py`, which builds a Llama with random weights, or with
`--weights FOLDER` (or a name on the Hub) for real ones. `kernelize` with the mapping `compiled` makes graphs of the
model as it is called, with transformers' own cache; `model.generate()` runs on them, too. By hand, two graphs are
compiled with the head in them, for all lengths each: the prefill takes the prompt, the step one token with the keys
and values of all before it, and returns them one longer. To append is to copy them, here as in eager PyTorch; that is
little beside the weights that each step reads.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.export import Dim
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, LlamaConfig, LlamaForCausalLM
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.utils import logging

from kernels_hub import Mode, compiler, kernelize, load_kernel_mapping, restore, use_kernel_mapping

PROMPT = "A layer that was compiled once, and published under a version, is"

CACHE = (
    "cache" if hasattr(BaseModelOutputWithPast, "cache") else "past_key_values"
)  # renamed in transformers 5.24
Past = list[tuple[torch.Tensor, torch.Tensor]]
"""Keys and values of each layer, (batch, heads, tokens, width)."""

Prefill = Callable[[torch.Tensor], tuple[torch.Tensor, Past]]
"""Token ids (batch, tokens) -> logits of the last one (batch, 1, vocabulary), and the past."""

Step = Callable[[torch.Tensor, Past], tuple[torch.Tensor, Past]]
"""The newest token ids (batch, 1), and the past -> the same."""


class LlamaPrefill(nn.Module):
    """A language model's first call: the prompt in, its last logits and the cache out."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, Past]:
        cache: Any = DynamicCache()
        found = self.model(input_ids=ids, **{CACHE: cache}, use_cache=True, logits_to_keep=1)
        return found.logits, [(layer.keys, layer.values) for layer in cache.layers]


class LlamaStep(nn.Module):
    """A language model's further calls: one token, with the cache as argument and result."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, past: Past) -> tuple[torch.Tensor, Past]:
        cache: Any = DynamicCache()
        for layer, (keys, values) in enumerate(past):
            cache.update(keys, values, layer)
        found = self.model(input_ids=ids, **{CACHE: cache}, use_cache=True)
        return found.logits, [(layer.keys, layer.values) for layer in cache.layers]


@dataclass(frozen=True)
class Generated:
    """What one way of running the model said, and how long that took. Times are the best of the rounds."""

    tokens: list[int]
    prefill_seconds: float
    step_seconds: float
    """Median of the steps of a round."""


@dataclass(frozen=True)
class GenerationFigures:
    """All of one run of the example."""

    greedy: dict[str, Generated]
    """"eager", "kernelized", "kernelized whole" and "compiled", each taking the likeliest token."""
    sampled: dict[str, list[int]]
    """Tokens that "eager" and "compiled" draw by the same seed."""
    prefill: compiler.Executable
    step: compiler.Executable


def pick(logits: torch.Tensor, temperature: float, generator: torch.Generator) -> torch.Tensor:
    """The next token ids (batch, 1): the likeliest at temperature 0, else drawn."""
    last = logits[:, -1]
    if temperature == 0:
        return last.argmax(-1, keepdim=True)
    return torch.multinomial(torch.softmax(last / temperature, -1), 1, generator=generator)


def generate(
    prefill: Prefill, step: Step, prompt: torch.Tensor, count: int, temperature: float = 0.0, seed: int = 0
) -> tuple[list[int], float, list[float]]:
    """`count` tokens after the prompt; seconds of the prefill; seconds of each step after it."""
    generator = torch.Generator().manual_seed(seed)
    start = time.perf_counter()
    logits, past = prefill(prompt)
    prefill_seconds = time.perf_counter() - start
    tokens, seconds = [pick(logits, temperature, generator)], []
    for _ in range(count - 1):
        start = time.perf_counter()
        logits, past = step(tokens[-1], past)
        seconds.append(time.perf_counter() - start)
        tokens.append(pick(logits, temperature, generator))
    return [int(token) for token in tokens], prefill_seconds, seconds


def measured(prefill: Prefill, step: Step, prompt: torch.Tensor, count: int, rounds: int) -> Generated:
    """Greedy decoding, timed; one round to warm up is not counted."""
    tokens, _, _ = generate(prefill, step, prompt, count)
    timed = [generate(prefill, step, prompt, count) for _ in range(rounds)]
    return Generated(
        tokens,
        min(prefill_seconds for _, prefill_seconds, _ in timed),
        min(statistics.median(seconds) for _, _, seconds in timed),
    )


def compiled(model: Any, prompt: torch.Tensor) -> tuple[compiler.Executable, compiler.Executable]:
    """The model's prefill and step, compiled for any length of prompt and past."""
    longest = model.config.max_position_embeddings
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.export's own
        first = LlamaPrefill(model)
        prefill = compiler.compile((first, (prompt,)), "cpu", dims=({1: Dim("length", min=1, max=longest)},))
        _, past = first(prompt)
        # The formula; the other implementations tell torch.export things about the length that it cannot keep.
        implementation = model.config._attn_implementation
        model.set_attn_implementation("eager")
        growing = [({2: Dim.AUTO}, {2: Dim.AUTO}) for _ in past]
        step = compiler.compile((LlamaStep(model), (prompt[:, :1], past)), "cpu", dims=(None, growing))
        model.set_attn_implementation(implementation)
    return prefill, step


def build(options: argparse.Namespace) -> tuple[Any, torch.Tensor, Any]:
    """The model, the prompt's token ids, and the tokenizer where there are real weights."""
    if options.weights:
        model = AutoModelForCausalLM.from_pretrained(options.weights, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(options.weights)
        return model.eval(), tokenizer(options.prompt, return_tensors="pt").input_ids, tokenizer
    torch.manual_seed(options.seed)
    config = LlamaConfig(
        vocab_size=options.vocabulary,
        hidden_size=options.width,
        num_hidden_layers=options.layers,
        num_attention_heads=options.width // 64,
        num_key_value_heads=max(1, options.width // 128),
        intermediate_size=options.width * 43 // 16,
    )
    return LlamaForCausalLM(config).eval(), torch.randint(0, options.vocabulary, (1, options.length)), None


def main(arguments: Sequence[str] = ()) -> GenerationFigures:
    parser = argparse.ArgumentParser(description="Generate text with a Llama, eager and compiled.")
    parser.add_argument("--layers", type=int, default=4, help="of the model with random weights")
    parser.add_argument("--width", type=int, default=512, help="a multiple of 128")
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--length", type=int, default=128, help="of its prompt, in tokens")
    parser.add_argument("--weights", help="a folder, or a name on the Hub, with a Llama and its tokenizer")
    parser.add_argument("--prompt", default=PROMPT, help="the text to go on with, where there are weights")
    parser.add_argument("--tokens", type=int, default=64, help="how many to generate")
    parser.add_argument("--temperature", type=float, default=0.8, help="of the tokens that are drawn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=3, help="how often each is timed")
    options = parser.parse_args(arguments)

    logging.set_verbosity_error()
    model, prompt, tokenizer = build(options)
    start = time.perf_counter()
    prefill, step = compiled(model, prompt)
    print(f"compiled prefill and step in {time.perf_counter() - start:.1f} s: {prefill.plan}, {step.plan}")

    eager: tuple[Prefill, Step] = LlamaPrefill(model), LlamaStep(model)
    fast: tuple[Prefill, Step] = prefill, step
    with torch.inference_mode():
        greedy = {"eager": measured(*eager, prompt, options.tokens, options.rounds)}
        kernelize(model, mode=Mode.INFERENCE)
        greedy["kernelized"] = measured(*eager, prompt, options.tokens, options.rounds)
        restore(model)
        with use_kernel_mapping(load_kernel_mapping("compiled"), inherit_mapping=False):
            kernelize(model, mode=Mode.INFERENCE, wait=True)
        greedy["kernelized whole"] = measured(*eager, prompt, options.tokens, options.rounds)
        restore(model)
        greedy["compiled"] = measured(*fast, prompt, options.tokens, options.rounds)
        sampled = {
            name: generate(*calls, prompt, options.tokens, options.temperature, options.seed)[0]
            for name, calls in (("eager", eager), ("compiled", fast))
        }

    first = greedy["eager"]
    for name, one in greedy.items():
        same = sum(a == b for a, b in zip(one.tokens, first.tokens, strict=True))
        print(
            f"{name:16s} prefill {prompt.shape[1] / one.prefill_seconds:7.0f} tokens/s "
            f"({first.prefill_seconds / one.prefill_seconds:.2f} times eager), decoding "
            f"{1 / one.step_seconds:6.1f} tokens/s ({first.step_seconds / one.step_seconds:.2f} times eager), "
            f"{same} of {len(first.tokens)} tokens as eager's"
        )
    for name, tokens in sampled.items():
        print(f"drawn, {name}: {tokenizer.decode(tokens) if tokenizer else tokens}")
    return GenerationFigures(greedy, sampled, prefill, step)


if __name__ == "__main__":
    main(sys.argv[1:])
