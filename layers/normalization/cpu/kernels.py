"""The CPU backend: `normalization.cpp` through ctypes, on the memory of the tensors themselves."""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from . import layout, reference
from .direct import is_unwatched
from .forms import Form, GatedForm
from .native import load, when_built

DISPATCH_KEYS = ("CPU",)

_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}

# The records of normalization.cpp, field for field.
_FORWARD = struct.Struct("=8Q 10q 2d")
_BACKWARD = struct.Struct("=9Q 6q d")
_GATED = struct.Struct("=8Q 12q d")


@when_built
def _library() -> ctypes.CDLL | None:
    library = load(Path(__file__).with_name("normalization.cpp"))
    if library is not None:
        for function in (
            library.norm_forward,
            library.norm_backward,
            library.gated_forward,
            library.gated_backward,
        ):
            function.argtypes, function.restype = (ctypes.c_char_p,), None
    return library


def rms_norm_directly(
    x: Tensor, weight: Tensor, eps: float, offset: float, round_first: bool
) -> Tensor | None:
    """RMSNorm of contiguous rows past the dispatcher, without gradient; None where the operator is to be called."""
    if not is_unwatched(DISPATCH_KEYS, x, weight):
        return None
    dtype, width = x.dtype, weight.numel()
    library = _library()
    if (
        library is None
        or dtype not in _TYPES
        or weight.dtype not in _TYPES
        or (round_first and weight.dtype is not dtype)
        or not x.dim()
        or x.shape[-1] != width
        or not x.is_contiguous()
        or not weight.is_contiguous()
        or weight.dim() != 1
        or not width
    ):
        return None
    y = torch.empty_like(x)
    addresses = (x.data_ptr(), 0, weight.data_ptr(), 0, y.data_ptr(), 0, 0, 0)
    sizes = (x.numel() // width, width, width, 0)
    types = (_TYPES[dtype], _TYPES[dtype], _TYPES[weight.dtype], 0)
    library.norm_forward(_FORWARD.pack(*addresses, *sizes, *types, False, round_first, eps, offset))
    return y


def forward(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, form: Form, save: bool
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """See `reference.forward`."""
    library = _library()
    if library is None or not layout.fits(x, residual, weight, bias):
        return reference.forward(x, residual, weight, bias, form, save)
    if x.is_contiguous() or form.centered or save:
        # The backward pass takes rows, and their statistics, in the order of the dims.
        y, total, mean, rstd = _forward_rows(library, x, residual, weight, bias, form, save)
        return y if form.centered else layout.like(y, x), layout.like(total, x), mean, rstd
    laid, total = layout.in_layout_of(
        x, residual, lambda x, residual: _forward_rows(library, x, residual, weight, bias, form, False)[:2]
    )
    assert laid is not None
    return laid, total, None, None


def _forward_rows(
    library: ctypes.CDLL,
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    form: Form,
    save: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    y_dtype = form.result_dtype(x, weight)
    y = torch.empty_like(x, dtype=y_dtype, memory_format=torch.contiguous_format)
    total = mean = rstd = None
    residual_stride = 0
    if residual is not None:
        total = torch.empty_like(x, memory_format=torch.contiguous_format)
        residual, residual_stride = layout.rows(residual)
    x, x_stride = layout.rows(x)
    count = math.prod(x.shape[:-1])
    if save:
        rstd = torch.empty(count, dtype=torch.float32)
        mean = torch.empty_like(rstd) if form.centered else None
    weight, bias = layout.vector(weight), layout.vector(bias)
    library.norm_forward(
        _FORWARD.pack(
            x.data_ptr(),
            _pointer(residual),
            _pointer(weight),
            _pointer(bias),
            y.data_ptr(),
            _pointer(total),
            _pointer(mean),
            _pointer(rstd),
            count,
            x.shape[-1],
            x_stride,
            residual_stride,
            _TYPES[x.dtype],
            _TYPES[y_dtype],
            _type(weight),
            _type(bias),
            form.centered,
            form.round_first,
            form.eps,
            form.offset,
        )
    )
    return y, total, mean, rstd


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
    """See `reference.backward`."""
    library = _library()
    if library is None or not layout.fits(x, grad_total, weight, bias):
        return reference.backward(grad, grad_total, x, weight, bias, mean, rstd, form)
    x, grad, weight = x.contiguous(), grad.contiguous(), layout.vector(weight)
    if grad_total is not None:
        grad_total = grad_total.contiguous()
    width = x.shape[-1]
    dx = torch.empty_like(x)
    dweight = None if weight is None else torch.empty(width, dtype=torch.float32, device="cpu")
    dbias = None if bias is None else torch.empty(width, dtype=torch.float32, device="cpu")
    library.norm_backward(
        _BACKWARD.pack(
            grad.data_ptr(),
            _pointer(grad_total),
            x.data_ptr(),
            _pointer(weight),
            _pointer(mean),
            rstd.data_ptr(),
            dx.data_ptr(),
            _pointer(dweight),
            _pointer(dbias),
            math.prod(x.shape[:-1]),
            width,
            _TYPES[x.dtype],
            _TYPES[grad.dtype],
            _type(weight),
            form.centered,
            form.offset,
        )
    )
    return dx, _as(dweight, weight), _as(dbias, bias)


def gated_forward(x: Tensor, gate: Tensor | None, weight: Tensor | None, form: GatedForm) -> Tensor:
    """See `reference.gated_forward`."""
    library = _library()
    if library is None or not layout.fits(x, gate, weight) or x.shape[-1] % form.groups:
        return reference.gated_forward(x, gate, weight, form)

    def run(x: Tensor, gate: Tensor | None) -> tuple[Tensor]:
        y = torch.empty_like(x, dtype=form.result_dtype(x, weight), memory_format=torch.contiguous_format)
        _gated(library.gated_forward, None, x, gate, weight, y, None, None, None, form)
        return (y,)

    (y,) = layout.in_layout_of(x, gate, run)
    assert y is not None
    return y


def gated_backward(
    grad: Tensor, x: Tensor, gate: Tensor | None, weight: Tensor | None, form: GatedForm
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """See `reference.gated_backward`."""
    library = _library()
    if library is None or not layout.fits(x, gate, weight) or x.shape[-1] % form.groups:
        return reference.gated_backward(grad, x, gate, weight, form)
    grad = grad.contiguous()
    dx = torch.empty_like(x, memory_format=torch.contiguous_format)
    dgate = None if gate is None else torch.empty_like(gate, memory_format=torch.contiguous_format)
    dweight = None if weight is None else torch.empty(x.shape[-1], dtype=torch.float32, device="cpu")
    _gated(library.gated_backward, grad, x, gate, weight, None, dx, dgate, dweight, form)
    return dx, dgate, _as(dweight, weight)


def _gated(
    function: Callable[[bytes], None],
    grad: Tensor | None,
    x: Tensor,
    gate: Tensor | None,
    weight: Tensor | None,
    y: Tensor | None,
    dx: Tensor | None,
    dgate: Tensor | None,
    dweight: Tensor | None,
    form: GatedForm,
) -> None:
    product = form.product_dtype(x, weight)
    x, x_stride = layout.rows(x)
    gate_stride = 0
    if gate is not None:
        gate, gate_stride = layout.rows(gate)
    weight = layout.vector(weight)
    result = y if grad is None else grad
    function(
        _GATED.pack(
            _pointer(grad),
            x.data_ptr(),
            _pointer(gate),
            _pointer(weight),
            _pointer(y),
            _pointer(dx),
            _pointer(dgate),
            _pointer(dweight),
            math.prod(x.shape[:-1]),
            form.groups,
            x.shape[-1] // form.groups,
            x_stride,
            gate_stride,
            _TYPES[x.dtype],
            _type(result),
            _type(weight),
            form.activation == "sigmoid",
            form.gate_first,
            form.round_first,
            product == x.dtype,
            form.eps,
        )
    )


def _pointer(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _type(tensor: Tensor | None) -> int:
    return 0 if tensor is None else _TYPES[tensor.dtype]


def _as(gradient: Tensor | None, parameter: Tensor | None) -> Tensor | None:
    return None if gradient is None or parameter is None else gradient.to(parameter.dtype)
