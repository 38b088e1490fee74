"""Train a small model with kernels: the loss curve is that of eager PyTorch.

Run with `python examples/train_a_kernelized_model.py`. Two copies of one Llama see the same
batches; one of them runs on the kernels that are registered for training.
"""

from __future__ import annotations

import copy

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from kernels_hub import Mode, kernelize, report

STEPS = 20


def train(model: nn.Module, batches: list[torch.Tensor]) -> list[float]:
    """Losses of a few AdamW steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for tokens in batches:
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def main() -> tuple[list[float], list[float]]:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=172,
        num_hidden_layers=2,
        num_attention_heads=4,
        use_cache=False,
    )
    eager = LlamaForCausalLM(config).train()
    model = kernelize(copy.deepcopy(eager), mode=Mode.TRAINING)
    print(report(model))

    # Sequences that count upwards: something to learn.
    batches = [(torch.randint(0, 64, (8, 1)) + torch.arange(16)) % 64 for _ in range(STEPS)]
    expected, losses = train(eager, batches), train(model, batches)
    for step in range(0, STEPS, 5):
        print(f"step {step:2d}: eager {expected[step]:.6f}, kernelized {losses[step]:.6f}")
    print(f"largest difference {max(abs(a - b) for a, b in zip(expected, losses, strict=True)):.1e}")
    return expected, losses


if __name__ == "__main__":
    main()
