"""The CPU backend: `activation.cpp` through ctypes, on the memory of the tensors themselves.

Where the C++ cannot be built, or for other dtypes, `reference` runs.
"""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from . import reference
from .layout import packed_rows, rows_of
from .native import load, when_built

DISPATCH_KEYS = ("CPU",)

# Inputs of fewer elements run as fast or faster in PyTorch: (without a gradient, with one), by kind. Its GELU goes
# through oneDNN, which takes longer to start than this does; QuickGELU is three operators, and gates are two.
SMALL = ((16384, 131072), (0, 65536), (2048, 16384), (0, 32768))
SMALL_GATED = (0, 16384)
_SMALL_IN_PLACE = 4096
SMALL_STRIDED_GELU = (65536, 131072)
"""A row of SMALL, for GELU of what is not contiguous, such as half of a row: PyTorch computes it without oneDNN."""

_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}

# The records of activation.cpp, field for field.
_FORWARD = struct.Struct("=2q2Q3q")
_BACKWARD = struct.Struct("=2q3Q4q")
_GATED_FORWARD = struct.Struct("=2q3Q4q")
_GATED_BACKWARD = struct.Struct("=2q5Q6q")


@when_built
def _library() -> ctypes.CDLL | None:
    library = load(Path(__file__).with_name("activation.cpp"))
    if library is not None:
        for name in ("activation_forward", "activation_backward"):
            for function in (getattr(library, name), getattr(library, f"gated_{name}")):
                function.argtypes, function.restype = (ctypes.c_char_p,), None
    return library


def forward(x: Tensor, kind: int) -> Tensor:
    """See `reference.forward`."""
    library, dtype = _library(), _TYPES.get(x.dtype)
    if library is None or dtype is None:
        return reference.forward(x, kind)
    y = torch.empty_like(x)
    rows, columns, ((x, x_stride),) = rows_of(y, x)
    library.activation_forward(
        _FORWARD.pack(kind, dtype, x.data_ptr(), y.data_ptr(), rows, columns, x_stride)
    )
    return y


def forward_in_place(x: Tensor, kind: int) -> bool:
    """Write `forward` to x itself, of which every element is in memory once; whether that was done."""
    library, dtype = _library(), _TYPES.get(x.dtype)
    size = x.numel()
    is_dense = x.is_contiguous() or (x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last))
    if library is None or dtype is None or not is_dense or size < _SMALL_IN_PLACE:
        return False
    library.activation_forward(_FORWARD.pack(kind, dtype, x.data_ptr(), x.data_ptr(), 1, size, size))
    increment_version(x)
    return True


def backward(grad: Tensor, x: Tensor, kind: int) -> Tensor:
    """See `reference.backward`."""
    library, dtype = _library(), _TYPES.get(x.dtype)
    if library is None or dtype is None or grad.dtype != x.dtype:
        return reference.backward(grad, x, kind)
    dx = torch.empty_like(x)
    rows, columns, ((grad, grad_stride), (x, x_stride)) = rows_of(dx, grad, x)
    library.activation_backward(
        _BACKWARD.pack(
            kind, dtype, grad.data_ptr(), x.data_ptr(), dx.data_ptr(), rows, columns, grad_stride, x_stride
        )
    )
    return dx


def gated_forward(gate: Tensor, up: Tensor, kind: int) -> Tensor:
    """See `reference.gated_forward`."""
    library, dtype = _library(), _TYPES.get(gate.dtype)
    if library is None or dtype is None:
        return reference.gated_forward(gate, up, kind)
    y = torch.empty_like(gate)
    rows, columns, ((gate, gate_stride), (up, up_stride)) = rows_of(y, gate, up)
    library.gated_activation_forward(
        _GATED_FORWARD.pack(
            kind, dtype, gate.data_ptr(), up.data_ptr(), y.data_ptr(), rows, columns, gate_stride, up_stride
        )
    )
    return y


def gated_backward(grad: Tensor, gate: Tensor, up: Tensor, kind: int) -> tuple[Tensor, Tensor]:
    """See `reference.gated_backward`."""
    library, dtype = _library(), _TYPES.get(gate.dtype)
    if library is None or dtype is None or grad.dtype != gate.dtype:
        return reference.gated_backward(grad, gate, up, kind)
    dgate, dup = torch.empty_like(gate), torch.empty_like(gate)
    rows, columns, ((grad, grad_stride), (gate, gate_stride), (up, up_stride)) = rows_of(
        dgate, grad, gate, up
    )
    library.gated_activation_backward(
        _GATED_BACKWARD.pack(
            kind,
            dtype,
            grad.data_ptr(),
            gate.data_ptr(),
            up.data_ptr(),
            dgate.data_ptr(),
            dup.data_ptr(),
            rows,
            columns,
            grad_stride,
            gate_stride,
            up_stride,
            columns,
        )
    )
    return dgate, dup


def packed_forward(x: Tensor, kind: int) -> Tensor:
    """See `reference.packed_forward`."""
    library, dtype = _library(), _TYPES.get(x.dtype)
    if library is None or dtype is None:
        return reference.packed_forward(x, kind)
    rows, columns, x, stride = packed_rows(x)
    y = x.new_empty((*x.shape[:-1], columns))
    gate = x.data_ptr()
    up = gate + columns * x.element_size()
    library.gated_activation_forward(
        _GATED_FORWARD.pack(kind, dtype, gate, up, y.data_ptr(), rows, columns, stride, stride)
    )
    return y


def packed_backward(grad: Tensor, x: Tensor, kind: int) -> Tensor:
    """See `reference.packed_backward`."""
    library, dtype = _library(), _TYPES.get(x.dtype)
    if library is None or dtype is None or grad.dtype != x.dtype:
        return reference.packed_backward(grad, x, kind)
    rows, columns, x, stride = packed_rows(x)
    grad = grad.contiguous()
    dx = x.new_empty(x.shape)
    gate, dgate, second = x.data_ptr(), dx.data_ptr(), columns * x.element_size()
    library.gated_activation_backward(
        _GATED_BACKWARD.pack(
            kind,
            dtype,
            grad.data_ptr(),
            gate,
            gate + second,
            dgate,
            dgate + second,
            rows,
            columns,
            columns,
            stride,
            stride,
            2 * columns,
        )
    )
    return dx
