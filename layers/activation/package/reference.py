"""The activations in plain PyTorch: what runs where no kernel does, and what gives second derivatives.

Half-width inputs are computed in float32 and rounded once, as PyTorch's own activations do.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from .kinds import GELU, GELU_TANH, QUICK_GELU, SILU


def value(x: Tensor, kind: int) -> Tensor:
    """The activation of `x`, in its dtype.

    SiLU: x sigmoid(x) (arXiv 1702.03118). GELU: x Phi(x), its tanh approximation
    x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) and its sigmoid one x sigmoid(1.702 x) (arXiv 1606.08415).
    """
    if kind == SILU:
        return functional.silu(x)
    if kind == GELU:
        return functional.gelu(x)
    if kind == GELU_TANH:
        return functional.gelu(x, approximate="tanh")
    wide = _wide(x)
    return (wide * torch.sigmoid(1.702 * wide)).to(x.dtype)


def slope(x: Tensor, kind: int) -> Tensor:
    """The activation's derivative at `x` (float32 or float64), by operations that have derivatives."""
    if kind == GELU:
        density = torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
        return 0.5 * (1 + torch.erf(x / math.sqrt(2))) + x * density
    if kind == GELU_TANH:
        scale = 2 * math.sqrt(2 / math.pi)
        s = torch.sigmoid(scale * (x + 0.044715 * x * x * x))
        return s + x * s * (1 - s) * scale * (1 + 3 * 0.044715 * x * x)
    scale = 1.702 if kind == QUICK_GELU else 1.0
    s = torch.sigmoid(scale * x)
    return s + scale * x * s * (1 - s)


def forward(x: Tensor, kind: int) -> Tensor:
    """The operator `activation`: a new tensor like `x`."""
    return _like(value(x, kind), x)


def backward(grad: Tensor, x: Tensor, kind: int) -> Tensor:
    """The operator `activation_backward`: the gradient of `x`."""
    return _like((_wide(grad) * slope(_wide(x), kind)).to(x.dtype), x)


def gated_forward(gate: Tensor, up: Tensor, kind: int) -> Tensor:
    """The operator `activation_mul`: activation(gate) * up, like `gate`."""
    return _like((value(_wide(gate), kind) * _wide(up)).to(gate.dtype), gate)


def gated_backward(grad: Tensor, gate: Tensor, up: Tensor, kind: int) -> tuple[Tensor, Tensor]:
    """The operator `activation_mul_backward`: the gradients of `gate` and `up`, both like `gate`."""
    wide_grad, wide_gate = _wide(grad), _wide(gate)
    grad_gate = wide_grad * _wide(up) * slope(wide_gate, kind)
    grad_up = wide_grad * value(wide_gate, kind)
    return _like(grad_gate.to(gate.dtype), gate), _like(grad_up.to(gate.dtype), gate)


def packed_forward(x: Tensor, kind: int) -> Tensor:
    """The operator `activation_and_mul`: x (…, 2d) -> activation(x[…, :d]) * x[…, d:], contiguous."""
    gate, up = x.chunk(2, dim=-1)
    return gated_forward(gate, up, kind).contiguous()


def packed_backward(grad: Tensor, x: Tensor, kind: int) -> Tensor:
    """The operator `activation_and_mul_backward`: the gradient of `x`, contiguous."""
    gate, up = x.chunk(2, dim=-1)
    return torch.cat(gated_backward(grad, gate, up, kind), dim=-1).contiguous()


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _like(result: Tensor, x: Tensor) -> Tensor:
    """`result` in the layout of `torch.empty_like(x)`, which is what the operators promise."""
    target = torch.empty_like(x)
    return result if result.stride() == target.stride() else target.copy_(result)
