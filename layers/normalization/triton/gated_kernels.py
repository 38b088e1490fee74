"""Triton kernels of RMSNorm with a gate: tiles of whole rows (or groups of a row) in registers."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _gate_activation(gate, SIGMOID: tl.constexpr):
    """The gate's activation and its derivative."""
    opened = 1.0 / (1.0 + tl.exp(-gate))
    slope = opened * (1.0 - opened)
    if not SIGMOID:
        slope = opened * (1.0 + gate * (1.0 - opened))
        opened = gate * opened
    return opened, slope


@triton.jit
def gated_forward_tile(
    x,
    gate,
    weight,
    y,
    rows,
    width,
    x_stride,
    gate_stride,
    eps,
    SIGMOID: tl.constexpr,
    GATE_FIRST: tl.constexpr,
    ROUND_FIRST: tl.constexpr,
    ROUND_PRODUCT: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """ROWS rows of one group: axis 1 of the grid counts the groups, `width` is a group's."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    group = tl.program_id(1) * width
    column = tl.arange(0, WIDTH)
    inside = column < width
    mask = (row < rows)[:, None] & inside[None, :]
    start = row.to(tl.int64)[:, None]
    columns = group + column[None, :]
    kept = tl.load(x + start * x_stride + columns, mask=mask, other=0.0)
    values = kept.to(tl.float32)
    if gate is not None:
        opened, _ = _gate_activation(
            tl.load(gate + start * gate_stride + columns, mask=mask, other=0.0).to(tl.float32), SIGMOID
        )
        if GATE_FIRST:
            values = values * opened
    scale = tl.rsqrt(tl.sum(values * values, axis=1) / width + eps)
    values = values * scale[:, None]
    if ROUND_FIRST:
        values = values.to(kept.dtype).to(tl.float32)
    if weight is not None:
        values = values * tl.load(weight + group + column, mask=inside, other=0.0).to(tl.float32)[None, :]
    if ROUND_PRODUCT:
        values = values.to(kept.dtype).to(tl.float32)
    if gate is not None:
        if not GATE_FIRST:
            values = values * opened
    target = y + start * width * tl.num_programs(1) + columns
    tl.store(target, values.to(y.dtype.element_ty), mask=mask)


@triton.jit
def gated_backward_tile(
    grad,
    x,
    gate,
    weight,
    dx,
    dgate,
    dweight,
    rows,
    width,
    x_stride,
    gate_stride,
    eps,
    SIGMOID: tl.constexpr,
    GATE_FIRST: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Every n-th tile of rows of one group; dweight (programs, groups * width) takes a partial sum each."""
    program = tl.program_id(0)
    group = tl.program_id(1) * width
    row_width = (width * tl.num_programs(1)).to(tl.int64)
    column = tl.arange(0, WIDTH)
    inside = column < width
    columns = group + column[None, :]
    factor = tl.full([WIDTH], 1.0, tl.float32)
    if weight is not None:
        factor = tl.load(weight + group + column, mask=inside, other=0.0).to(tl.float32)
    sums = tl.zeros([ROWS, WIDTH], tl.float32)
    for tile in range(program, tl.cdiv(rows, ROWS), tl.num_programs(0)):
        row = tile * ROWS + tl.arange(0, ROWS)
        mask = (row < rows)[:, None] & inside[None, :]
        start = row.to(tl.int64)[:, None]
        given = tl.load(x + start * x_stride + columns, mask=mask, other=0.0).to(tl.float32)
        incoming = tl.load(grad + start * row_width + columns, mask=mask, other=0.0).to(tl.float32)
        values = given
        if gate is not None:
            opened, slope = _gate_activation(
                tl.load(gate + start * gate_stride + columns, mask=mask, other=0.0).to(tl.float32), SIGMOID
            )
            if GATE_FIRST:
                values = values * opened
        scale = tl.rsqrt(tl.sum(values * values, axis=1) / width + eps)[:, None]
        normal = values * scale
        if gate is not None:
            if not GATE_FIRST:
                slope = slope * incoming * normal * factor[None, :]
                incoming = incoming * opened
        sums += incoming * normal
        weighted = incoming * factor[None, :]
        result = scale * (weighted - normal * (tl.sum(weighted * normal, axis=1) / width)[:, None])
        if gate is not None:
            if GATE_FIRST:
                slope = slope * result * given
                result = result * opened
            tl.store(dgate + start * row_width + columns, slope.to(dgate.dtype.element_ty), mask=mask)
        tl.store(dx + start * row_width + columns, result.to(dx.dtype.element_ty), mask=mask)
    if dweight is not None:
        tl.store(dweight + program * row_width + group + column, tl.sum(sums, axis=0), mask=inside)
