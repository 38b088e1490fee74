"""The cases of `python -m benchmarks.layers`: each layer against the module that it replaces."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from transformers import activations

Case = tuple[str, Callable[[], nn.Module], tuple[Tensor, ...]]

# MiniLM and ViT MLPs, one token of a small model; on a GPU, the MLPs of 8-billion-parameter models.
SHAPES = {
    "cpu": ((1024, 1536), (128, 1376), (8, 128, 3072), (1, 512)),
    "cuda": ((8192, 14336), (2048, 11008), (1, 14336)),
}


class Gated(nn.Module):
    """act(first half) * second half, as models write it."""

    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.act = act

    def forward(self, input: Tensor) -> Tensor:
        """`input` (…, 2d); returns (…, d)."""
        gate, up = input.chunk(2, dim=-1)
        return self.act(gate) * up


# layer -> (original, how many times wider its input is)
LAYERS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "SiLU": (nn.SiLU, 1),
    "GELU": (nn.GELU, 1),
    "GeluTanh": (activations.GELUTanh, 1),
    "FastGELU": (activations.FastGELUActivation, 1),
    "NewGELU": (activations.NewGELUActivation, 1),
    "QuickGELU": (activations.QuickGELUActivation, 1),
    "SiluAndMul": (lambda: Gated(nn.SiLU()), 2),
    "GeluAndMul": (lambda: Gated(nn.GELU()), 2),
    "GeluTanhAndMul": (lambda: Gated(nn.GELU(approximate="tanh")), 2),
}


def cases(device: str, dtype: torch.dtype) -> list[Case]:
    """(layer and shape, factory of the original module, example inputs) for each layer and shape."""
    make = partial(torch.randn, device=device, dtype=dtype)
    return [
        (f"{layer} {'x'.join(map(str, shape))}", original, (make((*shape[:-1], wider * shape[-1])),))
        for layer, (original, wider) in LAYERS.items()
        for shape in SHAPES[device]
    ]
