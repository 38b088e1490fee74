"""Activations by every name, and blocks of transformers: what `linear` and `mlp` are compared with."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from transformers import activations

FORMULAS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "none": lambda x: x,
    "relu": F.relu,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
}

ACTIVATIONS: dict[str, tuple[Callable[[], object], str | None]] = {
    "nn.SiLU": (nn.SiLU, "silu"),
    "nn.ReLU": (nn.ReLU, "relu"),
    "nn.GELU": (nn.GELU, "gelu"),
    "nn.GELU tanh": (lambda: nn.GELU(approximate="tanh"), "gelu_tanh"),
    "F.gelu": (lambda: F.gelu, "gelu"),
    "F.silu": (lambda: F.silu, "silu"),
    "SiLUActivation": (activations.SiLUActivation, "silu"),
    "GELUActivation": (activations.GELUActivation, "gelu"),
    "GELUActivation python": (lambda: activations.GELUActivation(use_gelu_python=True), "gelu"),
    "GELUTanh": (activations.GELUTanh, "gelu_tanh"),
    "GELUTanh python": (lambda: activations.GELUTanh(use_gelu_tanh_python=True), "gelu_tanh"),
    "NewGELUActivation": (activations.NewGELUActivation, "gelu_tanh"),
    "FastGELUActivation": (activations.FastGELUActivation, "gelu_tanh"),
    "AccurateGELUActivation": (activations.AccurateGELUActivation, "gelu_tanh"),
    "QuickGELUActivation": (activations.QuickGELUActivation, "quick_gelu"),
    "ReLUSquaredActivation": (activations.ReLUSquaredActivation, None),
    "ClippedGELUActivation": (lambda: activations.ClippedGELUActivation(-1.0, 1.0), None),
    "nn.Tanh": (nn.Tanh, None),
    "a lambda": (lambda: lambda x: x * x, None),
}


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


class Doubled(nn.Linear):
    """A Linear whose forward is another one, as an adapter's is."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(input)
