"""The layers: `forward` runs with `self` being the module that is replaced.

`self.__dict__` is read directly where that module may lack an attribute: `getattr` with a default
costs 1.5 microseconds on an `nn.Module` that has none.
"""

from __future__ import annotations

import torch
from torch import nn

from . import functional


class SiLU(nn.Module):
    """x sigmoid(x): `torch.nn.SiLU`, `transformers.activations.SiLUActivation`. Any shape."""

    has_backward: bool = True
    can_torch_compile: bool = True

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if self.__dict__.get("inplace", False):
            return functional.silu_(input)
        return functional.silu(input)


class GELU(nn.Module):
    """x Phi(x), Phi the normal distribution: `torch.nn.GELU` ("tanh" included), `GELUActivation`. Any shape."""

    has_backward: bool = True
    can_torch_compile: bool = True

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return functional.gelu(input, self.__dict__.get("approximate", "none"))


class GeluTanh(nn.Module):
    """x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))): `transformers.activations.GELUTanh`. Any shape."""

    has_backward: bool = True
    can_torch_compile: bool = True

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return functional.gelu_tanh(input)


class FastGELU(nn.Module):
    """The formula of GeluTanh: `transformers.activations.FastGELUActivation`. Any shape."""

    has_backward: bool = True
    can_torch_compile: bool = True

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return functional.gelu_tanh(input)


class NewGELU(nn.Module):
    """The formula of GeluTanh: `transformers.activations.NewGELUActivation`. Any shape."""

    has_backward: bool = True
    can_torch_compile: bool = True

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return functional.gelu_tanh(input)


class QuickGELU(nn.Module):
    """x sigmoid(1.702 x): `transformers.activations.QuickGELUActivation`. Any shape."""

    has_backward: bool = True
    can_torch_compile: bool = True

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return functional.quick_gelu(input)


class SiluAndMul(nn.Module):
    """silu(input[…, :d]) * input[…, d:] for input (…, 2d); returns (…, d), contiguous."""

    has_backward: bool = True
    can_torch_compile: bool = True

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return functional.silu_and_mul(input)


class GeluAndMul(nn.Module):
    """gelu(input[…, :d]) * input[…, d:] for input (…, 2d); returns (…, d), contiguous."""

    has_backward: bool = True
    can_torch_compile: bool = True

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return functional.gelu_and_mul(input)


class GeluTanhAndMul(nn.Module):
    """gelu_tanh(input[…, :d]) * input[…, d:] for input (…, 2d); returns (…, d), contiguous."""

    has_backward: bool = True
    can_torch_compile: bool = True

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return functional.gelu_tanh_and_mul(input)
