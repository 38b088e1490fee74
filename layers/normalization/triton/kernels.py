"""The Triton backend: tiles, grids and launches."""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from . import layout, reference
from .direct import is_unwatched
from .forms import Form, GatedForm
from .gated_kernels import gated_backward_tile, gated_forward_tile
from .norm_kernels import (
    norm_backward_columns,
    norm_backward_looped,
    norm_backward_tile,
    norm_forward_looped,
    norm_forward_tile,
)
from .releases import longest_row, other_fields
from .triton_launches import cdiv, launch, next_power_of_2

# ROCm's devices are "CUDA" to the dispatcher. Triton's interpreter runs on the CPU's memory.
DISPATCH_KEYS = ("CUDA", "CPU") if triton.knobs.runtime.interpret else ("CUDA",)

# The longest rows held in registers: what fits without spilling on every architecture.
FORWARD_WIDTH = 16384
BACKWARD_WIDTH = longest_row("norm backward", 8192)
GATED_WIDTH = 8192
GATED_BACKWARD_WIDTH = 4096

_DTYPES = frozenset((torch.float32, torch.bfloat16, torch.float16))

LOOP_BLOCK = 2048
LOOP_WARPS = 8
COLUMNS = 256
COLUMN_ROWS = 8
COLUMN_WARPS = 4

# Programs of the backward pass a multiprocessor: enough to hide latency, few enough partial rows.
_PROGRAMS = 4


class RowTile(NamedTuple):
    """How rows are cut: `rows` of them in a program, `width` the power of two from theirs up."""

    rows: int
    width: int
    warps: int


@cache
def forward_tile(width: int) -> RowTile:
    """16 elements a thread, and 2048 at least a program: short rows share one."""
    return _tile(width, 2048, 16)


def gated_tile(width: int) -> RowTile:
    """32 elements a thread in long rows: with 16, ptxas holds to a register count that spills."""
    return _tile(width, 2048, 32)


def backward_tile(width: int, *, gated: bool = False) -> RowTile:
    """8 elements a thread: four values of each are alive."""
    tile = _tile(width, 1024, 8)
    return tile._replace(**other_fields("gated norm backward" if gated else "norm backward", tile.width))


def _tile(width: int, least: int, each: int) -> RowTile:
    wide = max(next_power_of_2(width), 16)
    rows = max(1, least // wide)
    return RowTile(rows, wide, min(16, max(4, rows * wide // (32 * each))))


def rms_norm_directly(
    x: Tensor, weight: Tensor, eps: float, offset: float, round_first: bool
) -> Tensor | None:
    """RMSNorm of contiguous rows past the dispatcher, without gradient; None where the operator is to be called."""
    if not is_unwatched(DISPATCH_KEYS, x, weight):
        return None
    dtype, width = x.dtype, weight.shape[0] if weight.dim() == 1 else 0
    if (
        dtype not in _DTYPES
        or weight.dtype not in _DTYPES
        or (round_first and weight.dtype is not dtype)
        or not 0 < width <= FORWARD_WIDTH
        or not x.dim()
        or x.shape[-1] != width
        or not x.is_contiguous()
        or not weight.is_contiguous()
    ):
        return None
    y = torch.empty_like(x)
    rows, tile = x.numel() // width, forward_tile(width)
    if rows:
        launch(
            norm_forward_tile,
            (cdiv(rows, tile.rows),),
            (x, None, weight, None, y, None, None, None, rows, width, width, 0, eps, offset),
            CENTERED=False,
            ROUND_FIRST=round_first,
            ROWS=tile.rows,
            WIDTH=tile.width,
            num_warps=tile.warps,
        )
    return y


def forward(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, form: Form, save: bool
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """See `reference.forward`."""
    if not layout.fits(x, residual, weight, bias):
        return reference.forward(x, residual, weight, bias, form, save)
    if x.is_contiguous() or form.centered or save:
        # The backward pass takes rows, and their statistics, in the order of the dims.
        y, total, mean, rstd = _forward_rows(x, residual, weight, bias, form, save)
        return y if form.centered else layout.like(y, x), layout.like(total, x), mean, rstd
    laid, total = layout.in_layout_of(
        x, residual, lambda x, residual: _forward_rows(x, residual, weight, bias, form, False)[:2]
    )
    assert laid is not None
    return laid, total, None, None


def _forward_rows(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, form: Form, save: bool
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    y = torch.empty_like(x, dtype=form.result_dtype(x, weight), memory_format=torch.contiguous_format)
    total = mean = rstd = None
    residual_stride = 0
    if residual is not None:
        total = torch.empty_like(x, memory_format=torch.contiguous_format)
        residual, residual_stride = layout.rows(residual)
    x, x_stride = layout.rows(x)
    rows, width = math.prod(x.shape[:-1]), x.shape[-1]
    if save:
        rstd = x.new_empty(rows, dtype=torch.float32)
        mean = torch.empty_like(rstd) if form.centered else None
    if not x.numel():
        return y, total, mean, rstd
    weight, bias = layout.vector(weight), layout.vector(bias)
    pointers = (x, residual, weight, bias, y, total, mean, rstd)
    if width <= FORWARD_WIDTH:
        tile = forward_tile(width)
        launch(
            norm_forward_tile,
            (cdiv(rows, tile.rows),),
            (*pointers, rows, width, x_stride, residual_stride, form.eps, form.offset),
            CENTERED=form.centered,
            ROUND_FIRST=form.round_first,
            ROWS=tile.rows,
            WIDTH=tile.width,
            num_warps=tile.warps,
        )
    else:
        launch(
            norm_forward_looped,
            (rows,),
            (*pointers, width, x_stride, residual_stride, form.eps, form.offset),
            CENTERED=form.centered,
            ROUND_FIRST=form.round_first,
            BLOCK=LOOP_BLOCK,
            num_warps=LOOP_WARPS,
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
    if not layout.fits(x, grad_total, weight, bias) or not x.numel():
        return reference.backward(grad, grad_total, x, weight, bias, mean, rstd, form)
    grad, weight = grad.contiguous(), layout.vector(weight)
    grad_total = None if grad_total is None else grad_total.contiguous()
    dx = torch.empty_like(x, memory_format=torch.contiguous_format)
    x, x_stride = layout.rows(x)
    rows, width = math.prod(x.shape[:-1]), x.shape[-1]
    tiled = width <= BACKWARD_WIDTH
    tile = backward_tile(width) if tiled else RowTile(COLUMN_ROWS, COLUMNS, COLUMN_WARPS)
    programs = max(1, _processors(x.device) * _PROGRAMS // (1 if tiled else cdiv(width, COLUMNS)))
    programs = min(programs, cdiv(rows, tile.rows))
    dweight = None if weight is None else x.new_empty((programs, width), dtype=torch.float32)
    dbias = None if bias is None else x.new_empty((programs, width), dtype=torch.float32)
    if tiled:
        launch(
            norm_backward_tile,
            (programs,),
            (
                grad,
                grad_total,
                x,
                weight,
                mean,
                rstd,
                dx,
                dweight,
                dbias,
                rows,
                width,
                x_stride,
                form.offset,
            ),
            ROWS=tile.rows,
            WIDTH=tile.width,
            num_warps=tile.warps,
        )
    else:
        launch(
            norm_backward_looped,
            (rows,),
            (grad, grad_total, x, weight, mean, rstd, dx, width, x_stride, form.offset),
            BLOCK=LOOP_BLOCK,
            num_warps=LOOP_WARPS,
        )
        if dweight is not None or dbias is not None:
            launch(
                norm_backward_columns,
                (cdiv(width, COLUMNS), programs),
                (grad, x, mean, rstd, dweight, dbias, rows, width, x_stride),
                ROWS=COLUMN_ROWS,
                COLUMNS=COLUMNS,
                num_warps=COLUMN_WARPS,
            )
    return dx, _sum(dweight, weight), _sum(dbias, bias)


def gated_forward(x: Tensor, gate: Tensor | None, weight: Tensor | None, form: GatedForm) -> Tensor:
    """See `reference.gated_forward`; groups longer than GATED_WIDTH run it."""
    width, rest = divmod(x.shape[-1], form.groups)
    if not layout.fits(x, gate, weight) or rest or width > GATED_WIDTH or not x.numel():
        return reference.gated_forward(x, gate, weight, form)

    def run(x: Tensor, gate: Tensor | None) -> tuple[Tensor]:
        y = torch.empty_like(x, dtype=form.result_dtype(x, weight), memory_format=torch.contiguous_format)
        x, x_stride = layout.rows(x)
        gate_stride = 0
        if gate is not None:
            gate, gate_stride = layout.rows(gate)
        rows, tile = math.prod(x.shape[:-1]), gated_tile(width)
        launch(
            gated_forward_tile,
            (cdiv(rows, tile.rows), form.groups),
            (x, gate, layout.vector(weight), y, rows, width, x_stride, gate_stride, form.eps),
            SIGMOID=form.activation == "sigmoid",
            GATE_FIRST=form.gate_first,
            ROUND_FIRST=form.round_first,
            ROUND_PRODUCT=form.product_dtype(x, weight) == x.dtype,
            ROWS=tile.rows,
            WIDTH=tile.width,
            num_warps=tile.warps,
        )
        return (y,)

    (y,) = layout.in_layout_of(x, gate, run)
    assert y is not None
    return y


def gated_backward(
    grad: Tensor, x: Tensor, gate: Tensor | None, weight: Tensor | None, form: GatedForm
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """See `reference.gated_backward`; groups longer than GATED_BACKWARD_WIDTH run it."""
    width, rest = divmod(x.shape[-1], form.groups)
    if not layout.fits(x, gate, weight) or rest or width > GATED_BACKWARD_WIDTH or not x.numel():
        return reference.gated_backward(grad, x, gate, weight, form)
    grad, weight = grad.contiguous(), layout.vector(weight)
    dx = torch.empty_like(x, memory_format=torch.contiguous_format)
    dgate = None if gate is None else torch.empty_like(gate, memory_format=torch.contiguous_format)
    x, x_stride = layout.rows(x)
    gate_stride = 0
    if gate is not None:
        gate, gate_stride = layout.rows(gate)
    rows, tile = math.prod(x.shape[:-1]), backward_tile(width, gated=True)
    programs = max(1, _processors(x.device) * _PROGRAMS // form.groups)
    programs = min(programs, cdiv(rows, tile.rows))
    dweight = None if weight is None else x.new_empty((programs, x.shape[-1]), dtype=torch.float32)
    launch(
        gated_backward_tile,
        (programs, form.groups),
        (grad, x, gate, weight, dx, dgate, dweight, rows, width, x_stride, gate_stride, form.eps),
        SIGMOID=form.activation == "sigmoid",
        GATE_FIRST=form.gate_first,
        ROWS=tile.rows,
        WIDTH=tile.width,
        num_warps=tile.warps,
    )
    return dx, dgate, _sum(dweight, weight)


def _sum(partials: Tensor | None, parameter: Tensor | None) -> Tensor | None:
    return None if partials is None or parameter is None else partials.sum(0).to(parameter.dtype)


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
