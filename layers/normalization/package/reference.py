"""The formulas in plain PyTorch: what the kernels are compared with, and what runs where none is.

Computed in float32, or in float64 for float64 inputs. The four functions are the interface of a
backend: `kernels.py` of each has the same four.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .direct import is_transformed
from .forms import Form, GatedForm


def forward(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, form: Form, save: bool
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """x (…, H), residual like x, weight and bias (H,) -> (result, x + residual, mean, 1 / deviation).

    The second is None without a residual; the last two are (rows,) float32, None unless `save`
    (the mean also unless `form.centered`).
    """
    total = None
    if residual is not None:
        x = total = _like(x + residual, x, torch.promote_types(x.dtype, residual.dtype), contiguous=False)
    wide = _wide(x)
    values = wide
    mean = None
    if form.centered:
        mean = wide.mean(-1, keepdim=True)
        values = wide - mean
    rstd = torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + form.eps)
    values = values * rstd
    if form.round_first:
        values = values.to(x.dtype)
    if weight is not None:
        values = values * (weight if form.round_first else _wide(weight) + form.offset)
    if bias is not None:
        values = values + _wide(bias)
    y = _like(values, x, form.result_dtype(x, weight), contiguous=form.centered)
    if not save:
        return y, total, None, None
    return y, total, None if mean is None else mean.flatten(), rstd.flatten()


def backward(
    grad: Tensor,
    grad_total: Tensor | None,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    rstd: Tensor,
    form: Form,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Gradients of x, weight and bias (None where there is none) from that of the result.

    x: what was normalized (with the residual); grad_total: a gradient that reaches x by another way,
    added to the result.
    """
    values, scale, incoming = _wide(x), rstd.to(_wide(x).dtype).reshape(*x.shape[:-1], 1), _wide(grad)
    if mean is not None:
        values = values - mean.to(values.dtype).reshape(*x.shape[:-1], 1)
    normal = values * scale
    weighted = incoming if weight is None else incoming * (_wide(weight) + form.offset)
    first = weighted.mean(-1, keepdim=True) if form.centered else 0.0
    dx = scale * (weighted - first - normal * (weighted * normal).mean(-1, keepdim=True))
    if grad_total is not None:
        dx = dx + grad_total
    dweight = None if weight is None else _sum_rows(incoming * normal).to(weight.dtype)
    dbias = None if bias is None else _sum_rows(incoming).to(bias.dtype)
    return dx.to(x.dtype).contiguous(), dweight, dbias


def gated_forward(x: Tensor, gate: Tensor | None, weight: Tensor | None, form: GatedForm) -> Tensor:
    """x and gate (…, H), weight (H,) -> like x."""
    values, opened, _ = _open(x, gate, form)
    normal = (values * _group_rstd(values, form)).flatten(-2)
    if form.round_first:
        normal = normal.to(x.dtype)
    if weight is not None:
        normal = normal * (weight if form.round_first else _wide(weight))
    if opened is not None and not form.gate_first:
        normal = normal * opened
    return _like(normal, x, form.result_dtype(x, weight), contiguous=False)


def gated_backward(
    grad: Tensor, x: Tensor, gate: Tensor | None, weight: Tensor | None, form: GatedForm
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Gradients of x, gate and weight (None where there is none)."""
    values, opened, slope = _open(x, gate, form)
    rstd = _group_rstd(values, form)
    normal = (values * rstd).flatten(-2)
    incoming = _wide(grad)
    product = normal if weight is None else normal * _wide(weight)
    dopened = incoming * product
    if opened is not None and not form.gate_first:
        incoming = incoming * opened
    dweight = None if weight is None else _sum_rows(incoming * normal).to(weight.dtype)
    weighted = (incoming if weight is None else incoming * _wide(weight)).unflatten(-1, (form.groups, -1))
    unit = values * rstd
    dvalues = (rstd * (weighted - unit * (weighted * unit).mean(-1, keepdim=True))).flatten(-2)
    dx = dvalues
    if opened is not None and form.gate_first:
        dx, dopened = dvalues * opened, dvalues * x
    dgate = None if gate is None or slope is None else (dopened * slope).to(gate.dtype).contiguous()
    return dx.to(x.dtype).contiguous(), dgate, dweight


def _open(x: Tensor, gate: Tensor | None, form: GatedForm) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """(what is normalized (…, groups, H / groups), activation of the gate, its derivative)."""
    values = _wide(x)
    opened = slope = None
    if gate is not None:
        g = _wide(gate)
        s = torch.sigmoid(g)
        if form.activation == "silu":
            opened, slope = torch.nn.functional.silu(g), s * (1 + g * (1 - s))
        else:
            opened, slope = s, s * (1 - s)
        if form.gate_first:
            values = values * opened
    return values.unflatten(-1, (form.groups, -1)), opened, slope


def _group_rstd(values: Tensor, form: GatedForm) -> Tensor:
    return torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + form.eps)


def _sum_rows(values: Tensor) -> Tensor:
    return values.reshape(math.prod(values.shape[:-1]), values.shape[-1]).sum(0)


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.to(torch.float32)


def _like(values: Tensor, x: Tensor, dtype: torch.dtype, contiguous: bool) -> Tensor:
    """`values` in the dtype and the layout that a result has, in memory of its own."""
    # torch.vmap may batch the weight alone: nothing that is like x holds the result then.
    if is_transformed():
        result = values.to(dtype)
        return result.contiguous() if contiguous else result
    memory_format = torch.contiguous_format if contiguous else torch.preserve_format
    return torch.empty_like(x, dtype=dtype, memory_format=memory_format).copy_(values)
