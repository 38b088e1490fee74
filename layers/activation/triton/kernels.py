"""The CUDA and ROCm backend, in Triton: one pass over memory, arithmetic in float32.

A program takes a tile of rows and columns; a tensor without gaps is one long row. Other dtypes than
float32, bfloat16 and float16 run as `reference`.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.knobs import runtime

from . import reference
from .layout import packed_rows, rows_of
from .triton_launches import launch

# Under TRITON_INTERPRET=1 the kernels run on the CPU.
DISPATCH_KEYS = ("CUDA", "CPU") if runtime.interpret else ("CUDA",)

# Inputs of fewer elements run in PyTorch: (without a gradient, with one), by kind. It has one operator for each of
# the first three, at full bandwidth, and calling that takes a third of the time that starting a Triton kernel
# takes. Below a million elements a GPU is done before either. QuickGELU is three operators, and gates are two, which
# one row of 14,336 starts in 28 microseconds, and a Triton kernel in 40 (H200, PyTorch 2.11).
SMALL = ((1 << 20, 1 << 20), (1 << 20, 1 << 20), (1 << 20, 1 << 20), (0, 1 << 18))
SMALL_GATED = (1 << 20, 1 << 18)
SMALL_STRIDED_GELU = SMALL[1]

NUM_WARPS = 4

_TYPES = (torch.float32, torch.bfloat16, torch.float16)


def forward_in_place(x: Tensor, kind: int) -> bool:
    """PyTorch's own is as fast where nothing is allocated."""
    return False


@triton.jit
def _exponential_of(x, KIND: tl.constexpr):
    """e^-u, where the activation is x sigmoid(u). The kinds are numbered in kinds.py."""
    if KIND == 0:  # SiLU
        u = x
    elif KIND == 2:  # GELU's tanh approximation: u = 2 sqrt(2/pi) (x + 0.044715 x^3)
        u = x * (1.5957691216057308 + 0.07135481627159472 * x * x)
    else:  # QuickGELU
        tl.static_assert(KIND == 3)
        u = 1.702 * x
    return tl.exp(-u)


@triton.jit
def value(x, KIND: tl.constexpr):
    if KIND == 1:  # GELU: x Phi(x)
        return x * (0.5 + 0.5 * tl.erf(x * 0.7071067811865476))
    else:
        return x / (1 + _exponential_of(x, KIND))


@triton.jit
def value_and_slope(x, KIND: tl.constexpr):
    if KIND == 1:
        phi = 0.5 + 0.5 * tl.erf(x * 0.7071067811865476)
        y = x * phi
        slope = phi + x * 0.3989422804014327 * tl.exp(-0.5 * x * x)
    else:
        s = 1 / (1 + _exponential_of(x, KIND))
        y = x * s
        if KIND == 0:
            slope = s + y * (1 - s)
        elif KIND == 2:
            # y (1 - s) is 0 where the square overflows: a finite one keeps their product from being a NaN.
            inner = 1.5957691216057308 + 0.21406444881478417 * tl.minimum(x * x, 1e30)
            slope = s + y * (1 - s) * inner
        else:
            slope = s + y * (1.702 * (1 - s))
    return y, slope


@triton.jit
def _tile(rows, columns, BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr):
    """(row numbers (R, 1), column numbers (1, C), mask (R, C)) of this program; 64 bits wide."""
    program = tl.program_id(0).to(tl.int64)
    across = tl.cdiv(columns, BLOCK_COLUMNS)
    row = program // across * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]
    column = program % across * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)[None, :]
    return row, column, (row < rows) & (column < columns)


@triton.jit
def forward_kernel(
    x,
    y,
    rows,
    columns,
    x_stride,
    y_stride,
    KIND: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """y = act(x)."""
    row, column, mask = _tile(rows, columns, BLOCK_ROWS, BLOCK_COLUMNS)
    wide = tl.load(x + row * x_stride + column, mask=mask).to(tl.float32)
    tl.store(y + row * y_stride + column, value(wide, KIND).to(y.dtype.element_ty), mask=mask)


@triton.jit
def backward_kernel(
    dy,
    x,
    dx,
    rows,
    columns,
    dy_stride,
    x_stride,
    dx_stride,
    KIND: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """dx = dy act'(x)."""
    row, column, mask = _tile(rows, columns, BLOCK_ROWS, BLOCK_COLUMNS)
    grad = tl.load(dy + row * dy_stride + column, mask=mask).to(tl.float32)
    wide = tl.load(x + row * x_stride + column, mask=mask).to(tl.float32)
    _, slope = value_and_slope(wide, KIND)
    tl.store(dx + row * dx_stride + column, (grad * slope).to(dx.dtype.element_ty), mask=mask)


@triton.jit
def gated_forward_kernel(
    gate,
    up,
    y,
    rows,
    columns,
    gate_stride,
    up_stride,
    y_stride,
    KIND: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """y = act(gate) up."""
    row, column, mask = _tile(rows, columns, BLOCK_ROWS, BLOCK_COLUMNS)
    wide = tl.load(gate + row * gate_stride + column, mask=mask).to(tl.float32)
    factor = tl.load(up + row * up_stride + column, mask=mask).to(tl.float32)
    tl.store(y + row * y_stride + column, (value(wide, KIND) * factor).to(y.dtype.element_ty), mask=mask)


@triton.jit
def gated_backward_kernel(
    dy,
    gate,
    up,
    dgate,
    dup,
    rows,
    columns,
    dy_stride,
    gate_stride,
    up_stride,
    d_stride,
    KIND: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """dgate = dy up act'(gate), dup = dy act(gate)."""
    row, column, mask = _tile(rows, columns, BLOCK_ROWS, BLOCK_COLUMNS)
    grad = tl.load(dy + row * dy_stride + column, mask=mask).to(tl.float32)
    wide = tl.load(gate + row * gate_stride + column, mask=mask).to(tl.float32)
    factor = tl.load(up + row * up_stride + column, mask=mask).to(tl.float32)
    y, slope = value_and_slope(wide, KIND)
    offsets = row * d_stride + column
    tl.store(dgate + offsets, (grad * factor * slope).to(dgate.dtype.element_ty), mask=mask)
    tl.store(dup + offsets, (grad * y).to(dup.dtype.element_ty), mask=mask)


def tile_of(rows: int, columns: int) -> tuple[int, int]:
    """(BLOCK_ROWS, BLOCK_COLUMNS): 1024 elements, 2048 of a large tensor, and few of them beyond the columns.

    1024 elements are two 16-byte loads of float32 for each of 128 threads; more in flight helps where there
    are enough tiles for every processor.
    """
    elements = 2048 if rows * columns >= 1 << 20 else 1024
    width = elements
    while width > 16 and -(-columns // width) * width * 8 > columns * 9:
        width //= 2
    return elements // width, width


def _launch(
    kernel: Any, rows: int, columns: int, kind: int, tensors: tuple[Tensor, ...], strides: tuple[int, ...]
) -> None:
    if rows * columns == 0:
        return
    if rows == 1:
        strides = (0,) * len(strides)  # known to be a multiple of 16, which a length need not be
    block_rows, block_columns = tile_of(rows, columns)
    grid = (-(-rows // block_rows) * -(-columns // block_columns),)
    launch(
        kernel,
        grid,
        (*tensors, rows, columns, *strides, kind, block_rows, block_columns),
        num_warps=NUM_WARPS,
    )


def forward(x: Tensor, kind: int) -> Tensor:
    """See `reference.forward`."""
    if x.dtype not in _TYPES:
        return reference.forward(x, kind)
    y = torch.empty_like(x)
    rows, columns, ((x, x_stride),) = rows_of(y, x)
    _launch(forward_kernel, rows, columns, kind, (x, y), (x_stride, columns))
    return y


def backward(grad: Tensor, x: Tensor, kind: int) -> Tensor:
    """See `reference.backward`."""
    if x.dtype not in _TYPES:
        return reference.backward(grad, x, kind)
    dx = torch.empty_like(x)
    rows, columns, ((grad, grad_stride), (x, x_stride)) = rows_of(dx, grad, x)
    _launch(backward_kernel, rows, columns, kind, (grad, x, dx), (grad_stride, x_stride, columns))
    return dx


def gated_forward(gate: Tensor, up: Tensor, kind: int) -> Tensor:
    """See `reference.gated_forward`."""
    if gate.dtype not in _TYPES:
        return reference.gated_forward(gate, up, kind)
    y = torch.empty_like(gate)
    rows, columns, ((gate, gate_stride), (up, up_stride)) = rows_of(y, gate, up)
    _launch(gated_forward_kernel, rows, columns, kind, (gate, up, y), (gate_stride, up_stride, columns))
    return y


def gated_backward(grad: Tensor, gate: Tensor, up: Tensor, kind: int) -> tuple[Tensor, Tensor]:
    """See `reference.gated_backward`."""
    if gate.dtype not in _TYPES:
        return reference.gated_backward(grad, gate, up, kind)
    dgate, dup = torch.empty_like(gate), torch.empty_like(gate)
    rows, columns, ((grad, grad_stride), (gate, gate_stride), (up, up_stride)) = rows_of(
        dgate, grad, gate, up
    )
    strides = (grad_stride, gate_stride, up_stride, columns)
    _launch(gated_backward_kernel, rows, columns, kind, (grad, gate, up, dgate, dup), strides)
    return dgate, dup


def packed_forward(x: Tensor, kind: int) -> Tensor:
    """See `reference.packed_forward`."""
    if x.dtype not in _TYPES:
        return reference.packed_forward(x, kind)
    rows, columns, x, stride = packed_rows(x)
    y = x.new_empty((*x.shape[:-1], columns))
    _launch(gated_forward_kernel, rows, columns, kind, (x, x[..., columns:], y), (stride, stride, columns))
    return y


def packed_backward(grad: Tensor, x: Tensor, kind: int) -> Tensor:
    """See `reference.packed_backward`."""
    if x.dtype not in _TYPES:
        return reference.packed_backward(grad, x, kind)
    rows, columns, x, stride = packed_rows(x)
    grad = grad.contiguous()
    dx = x.new_empty(x.shape)
    tensors = (grad, x, x[..., columns:], dx, dx[..., columns:])
    _launch(gated_backward_kernel, rows, columns, kind, tensors, (columns, stride, stride, 2 * columns))
    return dx
