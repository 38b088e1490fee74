"""Cases for `benchmarks/layers.py`: each normalization as models write it, a few rows and many."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

Case = tuple[str, Callable[[], nn.Module], tuple[Tensor, ...]]


class RMSNorm(nn.Module):
    """Llama's, or with `rounded_once` GPT-OSS's, or with `zero_centered` Gemma's."""

    def __init__(self, width: int, rounded_once: bool = False, zero_centered: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width) if zero_centered else torch.ones(width))
        self.variance_epsilon = 1e-6
        self.rounded_once, self.zero_centered = rounded_once, zero_centered

    def forward(self, hidden_states: Tensor) -> Tensor:
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        if self.zero_centered:
            return (hidden_states * (1.0 + self.weight.float())).to(input_dtype)
        if self.rounded_once:
            return (self.weight * hidden_states).to(input_dtype)
        return self.weight * hidden_states.to(input_dtype)


class RMSNormGated(RMSNorm):
    """Qwen3-Next's, or with `float32` Kimi Linear's."""

    def __init__(self, width: int, float32: bool = False) -> None:
        super().__init__(width)
        self.float32, self.activation = float32, "silu"

    def forward(self, hidden_states: Tensor, gate: Tensor) -> Tensor:  # type: ignore[override]
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        if self.float32:
            hidden_states = self.weight.to(torch.float32) * hidden_states
        else:
            hidden_states = self.weight * hidden_states.to(input_dtype)
        return (hidden_states * functional.silu(gate.to(torch.float32))).to(input_dtype)


class MambaRMSNormGated(RMSNorm):
    """Mamba 2's, with two groups."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.group_size = width // 2

    def forward(self, hidden_states: Tensor, gate: Tensor) -> Tensor:  # type: ignore[override]
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32) * functional.silu(gate.to(torch.float32))
        groups = hidden_states.unflatten(-1, (-1, self.group_size))
        groups = groups * torch.rsqrt(groups.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * groups.flatten(-2).to(input_dtype)


class AddRMSNorm(RMSNorm):
    """A residual, then Llama's."""

    def forward(self, hidden_states: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        total = hidden_states + residual
        return super().forward(total), total


class AddLayerNorm(nn.LayerNorm):
    """A residual, then PyTorch's."""

    def forward(self, input: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        total = input + residual
        return super().forward(total), total


# layer -> (the original, the number of its inputs)
_ORIGINALS: dict[str, tuple[Callable[[int], nn.Module], int]] = {
    "RMSNorm": (RMSNorm, 1),
    "RMSNormRoundedOnce": (partial(RMSNorm, rounded_once=True), 1),
    "RMSNormZeroCentered": (partial(RMSNorm, zero_centered=True), 1),
    "TorchRMSNorm": (nn.RMSNorm, 1),
    "LayerNorm": (nn.LayerNorm, 1),
    "RMSNormGated": (RMSNormGated, 2),
    "RMSNormGatedFloat32": (partial(RMSNormGated, float32=True), 2),
    "MambaRMSNormGated": (MambaRMSNormGated, 2),
    "AddRMSNorm": (AddRMSNorm, 2),
    "AddLayerNorm": (AddLayerNorm, 2),
}


def cases(device: str, dtype: torch.dtype) -> list[Case]:
    """(layer and shape, factory of the original, inputs): a token, a sentence, and what fills the caches."""
    shapes = ((1, 512), (128, 512), (16384, 4096) if device == "cuda" else (2048, 1024))
    return [
        (
            f"{name} {shape}",
            partial(factory, shape[-1]),
            tuple(torch.randn(shape, device=device, dtype=dtype) for _ in range(inputs)),
        )
        for name, (factory, inputs) in _ORIGINALS.items()
        for shape in shapes
    ]
