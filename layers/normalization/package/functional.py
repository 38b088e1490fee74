"""The normalizations as functions of tensors.

Under transforms of torch.func and forward-mode differentiation they run PyTorch's formulas.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import kernels, operators, reference
from .direct import is_transformed, is_unwatched
from .forms import Form, GatedForm

_ACTIVATIONS = {"silu": "silu", "swish": "silu", "sigmoid": "sigmoid"}


def rms_norm(
    x: Tensor, weight: Tensor | None, eps: float = 1e-6, *, offset: float = 0.0, round_first: bool = True
) -> Tensor:
    """x / sqrt(mean(x²) + eps) * (weight + offset), over the last dim.

    x (…, H) float; weight (H,) or None; computed in float32. `round_first` rounds the normalized x
    to its dtype before the product with weight, whose dtype is the promoted one (Llama); otherwise
    there is one rounding, to x's dtype (torch.nn.RMSNorm, Gemma). Source: arXiv 1910.07467.
    """
    if weight is not None:
        y = kernels.rms_norm_directly(x, weight, eps, offset, round_first)
        if y is not None:
            return y
    if is_transformed():
        return reference.forward(x, None, weight, None, Form(eps, False, offset, round_first), save=False)[0]
    if _needs_gradient(x, weight):
        return operators.rms_norm(x, weight, eps, offset, round_first)[0]
    return operators.rms_norm_inference(x, weight, eps, offset, round_first)


def add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    eps: float = 1e-6,
    *,
    offset: float = 0.0,
    round_first: bool = True,
) -> tuple[Tensor, Tensor]:
    """(rms_norm(x + residual, …), x + residual), the sum rounded to its dtype first."""
    if x.shape != residual.shape or x.dtype != residual.dtype or is_transformed():
        total = x + residual
        return rms_norm(total, weight, eps, offset=offset, round_first=round_first), total
    if _needs_gradient(x, residual, weight):
        y, total, _ = operators.add_rms_norm(x, residual, weight, eps, offset, round_first)
        return y, total
    if is_unwatched(kernels.DISPATCH_KEYS, x, residual, weight):
        return _of_sum(x, residual, weight, None, Form(eps, False, offset, round_first))
    return operators.add_rms_norm_inference(x, residual, weight, eps, offset, round_first)


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float = 1e-5) -> Tensor:
    """(x - mean(x)) / sqrt(var(x) + eps) * weight + bias, over the last dim.

    x (…, H) float; weight, bias (H,) or None; returns like x, contiguous; computed in float32.
    Source: arXiv 1607.06450, torch.nn.functional.layer_norm.
    """
    if is_transformed():
        return reference.forward(x, None, weight, bias, Form(eps, True), save=False)[0]
    if _needs_gradient(x, weight, bias):
        return operators.layer_norm(x, weight, bias, eps)[0]
    if is_unwatched(kernels.DISPATCH_KEYS, x, weight, bias):
        return kernels.forward(x, None, weight, bias, Form(eps, True), save=False)[0]
    return operators.layer_norm_inference(x, weight, bias, eps)


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float = 1e-5
) -> tuple[Tensor, Tensor]:
    """(layer_norm(x + residual, …), x + residual), the sum rounded to its dtype first."""
    if x.shape != residual.shape or x.dtype != residual.dtype or is_transformed():
        total = x + residual
        return layer_norm(total, weight, bias, eps), total
    if _needs_gradient(x, residual, weight, bias):
        y, total, _, _ = operators.add_layer_norm(x, residual, weight, bias, eps)
        return y, total
    if is_unwatched(kernels.DISPATCH_KEYS, x, residual, weight, bias):
        return _of_sum(x, residual, weight, bias, Form(eps, True))
    return operators.add_layer_norm_inference(x, residual, weight, bias, eps)


def rms_norm_gated(
    x: Tensor,
    gate: Tensor | None,
    weight: Tensor | None,
    eps: float = 1e-6,
    *,
    activation: str = "silu",
    gate_first: bool = False,
    round_first: bool = True,
    groups: int = 1,
) -> Tensor:
    """rms_norm(x) * weight * activation(gate), or with `gate_first` weight * rms_norm(x * activation(gate)).

    x, gate (…, H) float; weight (H,); the norm runs over `groups` equal parts of the last dim.
    Computed in float32. `round_first` as in `rms_norm`; the result has x's dtype, or with
    `gate_first` and `round_first` the promoted dtype of x and weight.
    Source: arXiv 2405.21060 (Mamba 2), arXiv 2412.06464 (gated delta networks).

    Raises ValueError for an activation other than silu (swish) and sigmoid.
    """
    if activation not in _ACTIVATIONS:
        raise ValueError(f"rms_norm_gated: activation {activation!r}, expected {', '.join(_ACTIVATIONS)}")
    form = GatedForm(eps, _ACTIVATIONS[activation], gate_first, round_first, groups)
    if is_transformed():
        return reference.gated_forward(x, gate, weight, form)
    if _needs_gradient(x, gate, weight):
        return operators.rms_norm_gated(x, gate, weight, *form)  # type: ignore[no-any-return]
    if is_unwatched(kernels.DISPATCH_KEYS, x, gate, weight):
        return kernels.gated_forward(x, gate, weight, form)
    return operators.rms_norm_gated_inference(x, gate, weight, *form)  # type: ignore[no-any-return]


def _of_sum(
    x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, form: Form
) -> tuple[Tensor, Tensor]:
    y, total, _, _ = kernels.forward(x, residual, weight, bias, form, save=False)
    assert total is not None
    return y, total


def _needs_gradient(*tensors: Tensor | None) -> bool:
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return True
    return False
