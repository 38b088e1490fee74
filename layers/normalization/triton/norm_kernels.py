"""Triton kernels of RMSNorm and LayerNorm, with or without a residual added first.

Rows up to a limit are held in registers: a program reads a tile of whole rows once and writes it
once. Longer rows are read again by loops over blocks. Pointers that may be absent are None, which
Triton makes a constant. Arithmetic is float32; row offsets are 64-bit.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def norm_forward_tile(
    x,
    residual,
    weight,
    bias,
    y,
    total,
    mean,
    rstd,
    rows,
    width,
    x_stride,
    residual_stride,
    eps,
    offset,
    CENTERED: tl.constexpr,
    ROUND_FIRST: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """One tile of ROWS rows; WIDTH is the power of two from `width` up."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    row_mask = row < rows
    mask = row_mask[:, None] & (column < width)[None, :]
    start = row.to(tl.int64)[:, None]
    columns = column[None, :]
    kept = tl.load(x + start * x_stride + columns, mask=mask, other=0.0)
    if residual is not None:
        added = tl.load(residual + start * residual_stride + columns, mask=mask, other=0.0)
        kept = (kept.to(tl.float32) + added.to(tl.float32)).to(kept.dtype)
        tl.store(total + start * width + columns, kept, mask=mask)
    values = kept.to(tl.float32)
    if CENTERED:
        average = tl.sum(values, axis=1) / width
        values = tl.where(mask, values - average[:, None], 0.0)
        if mean is not None:
            tl.store(mean + row, average, mask=row_mask)
    scale = tl.rsqrt(tl.sum(values * values, axis=1) / width + eps)
    if rstd is not None:
        tl.store(rstd + row, scale, mask=row_mask)
    values = values * scale[:, None]
    if ROUND_FIRST:
        values = values.to(kept.dtype).to(tl.float32)
    if weight is not None:
        factor = tl.load(weight + column, mask=column < width, other=0.0).to(tl.float32) + offset
        values = values * factor[None, :]
    if bias is not None:
        values = values + tl.load(bias + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
    tl.store(y + start * width + columns, values.to(y.dtype.element_ty), mask=mask)


@triton.jit
def norm_forward_looped(
    x,
    residual,
    weight,
    bias,
    y,
    total,
    mean,
    rstd,
    width,
    x_stride,
    residual_stride,
    eps,
    offset,
    CENTERED: tl.constexpr,
    ROUND_FIRST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row, in blocks; the passes after the first find it in the cache."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.arange(0, BLOCK)
    x += row * x_stride
    y += row * width
    if residual is not None:
        residual += row * residual_stride
        total += row * width
        for begin in range(0, width, BLOCK):
            column = begin + block
            mask = column < width
            value = tl.load(x + column, mask=mask, other=0.0)
            added = tl.load(residual + column, mask=mask, other=0.0)
            tl.store(total + column, (value.to(tl.float32) + added.to(tl.float32)).to(value.dtype), mask=mask)
        tl.debug_barrier()  # the sums are read again, maybe by other threads
        x = total
    average = 0.0
    if CENTERED:
        sums = tl.zeros([BLOCK], tl.float32)
        for begin in range(0, width, BLOCK):
            column = begin + block
            sums += tl.load(x + column, mask=column < width, other=0.0).to(tl.float32)
        average = tl.sum(sums, axis=0) / width
        if mean is not None:
            tl.store(mean + row, average)
    squares = tl.zeros([BLOCK], tl.float32)
    for begin in range(0, width, BLOCK):
        column = begin + block
        mask = column < width
        value = tl.load(x + column, mask=mask, other=0.0).to(tl.float32)
        if CENTERED:
            value = tl.where(mask, value - average, 0.0)
        squares += value * value
    scale = tl.rsqrt(tl.sum(squares, axis=0) / width + eps)
    if rstd is not None:
        tl.store(rstd + row, scale)
    for begin in range(0, width, BLOCK):
        column = begin + block
        mask = column < width
        kept = tl.load(x + column, mask=mask, other=0.0)
        value = (kept.to(tl.float32) - average) * scale
        if ROUND_FIRST:
            value = value.to(kept.dtype).to(tl.float32)
        if weight is not None:
            value = value * (tl.load(weight + column, mask=mask, other=0.0).to(tl.float32) + offset)
        if bias is not None:
            value = value + tl.load(bias + column, mask=mask, other=0.0).to(tl.float32)
        tl.store(y + column, value.to(y.dtype.element_ty), mask=mask)


@triton.jit
def norm_backward_tile(
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
    offset,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Every n-th tile of rows; the parameters' gradients are summed in registers, one partial row a program.

    `mean` is None for RMSNorm. dweight, dbias (programs, width) float32 or None.
    """
    program = tl.program_id(0)
    column = tl.arange(0, WIDTH)
    inside = column < width
    columns = column[None, :]
    factor = tl.full([WIDTH], 1.0, tl.float32)
    if weight is not None:
        factor = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32) + offset
    weight_sums = tl.zeros([ROWS, WIDTH], tl.float32)
    bias_sums = tl.zeros([ROWS, WIDTH], tl.float32)
    for tile in range(program, tl.cdiv(rows, ROWS), tl.num_programs(0)):
        row = tile * ROWS + tl.arange(0, ROWS)
        row_mask = row < rows
        mask = row_mask[:, None] & inside[None, :]
        start = row.to(tl.int64)[:, None]
        incoming = tl.load(grad + start * width + columns, mask=mask, other=0.0).to(tl.float32)
        normal = tl.load(x + start * x_stride + columns, mask=mask, other=0.0).to(tl.float32)
        scale = tl.load(rstd + row, mask=row_mask, other=0.0)
        if mean is not None:
            normal = tl.where(mask, normal - tl.load(mean + row, mask=row_mask, other=0.0)[:, None], 0.0)
        normal = normal * scale[:, None]
        weighted = incoming * factor[None, :]
        result = weighted - normal * (tl.sum(weighted * normal, axis=1) / width)[:, None]
        if mean is not None:
            result = result - (tl.sum(weighted, axis=1) / width)[:, None]
        result = result * scale[:, None]
        if grad_total is not None:
            result += tl.load(grad_total + start * width + columns, mask=mask, other=0.0).to(tl.float32)
        tl.store(dx + start * width + columns, result.to(dx.dtype.element_ty), mask=mask)
        if dweight is not None:
            weight_sums += incoming * normal
        if dbias is not None:
            bias_sums += incoming
    partial = program.to(tl.int64) * width + column
    if dweight is not None:
        tl.store(dweight + partial, tl.sum(weight_sums, axis=0), mask=inside)
    if dbias is not None:
        tl.store(dbias + partial, tl.sum(bias_sums, axis=0), mask=inside)


@triton.jit
def norm_backward_looped(
    grad, grad_total, x, weight, mean, rstd, dx, width, x_stride, offset, BLOCK: tl.constexpr
):
    """dx of one long row, in blocks; its parameters' gradients are `norm_backward_columns`."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.arange(0, BLOCK)
    grad += row * width
    x += row * x_stride
    dx += row * width
    scale = tl.load(rstd + row)
    average = 0.0
    if mean is not None:
        average = tl.load(mean + row)
    first = tl.zeros([BLOCK], tl.float32)
    second = tl.zeros([BLOCK], tl.float32)
    for begin in range(0, width, BLOCK):
        column = begin + block
        mask = column < width
        weighted = tl.load(grad + column, mask=mask, other=0.0).to(tl.float32)
        if weight is not None:
            weighted = weighted * (tl.load(weight + column, mask=mask, other=0.0).to(tl.float32) + offset)
        value = tl.load(x + column, mask=mask, other=0.0).to(tl.float32) - average
        first += weighted  # zero outside the row, so the shifted value there does not count
        second += weighted * value
    push = tl.sum(first, axis=0) / width
    pull = tl.sum(second, axis=0) / width * scale * scale
    for begin in range(0, width, BLOCK):
        column = begin + block
        mask = column < width
        result = tl.load(grad + column, mask=mask, other=0.0).to(tl.float32)
        if weight is not None:
            result = result * (tl.load(weight + column, mask=mask, other=0.0).to(tl.float32) + offset)
        value = tl.load(x + column, mask=mask, other=0.0).to(tl.float32) - average
        result = result - value * pull
        if mean is not None:
            result = result - push
        result = result * scale
        if grad_total is not None:
            result += tl.load(grad_total + row * width + column, mask=mask, other=0.0).to(tl.float32)
        tl.store(dx + column, result.to(dx.dtype.element_ty), mask=mask)


@triton.jit
def norm_backward_columns(
    grad,
    x,
    mean,
    rstd,
    dweight,
    dbias,
    rows,
    width,
    x_stride,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Sums over every n-th tile of rows, for COLUMNS columns: partial rows, one a program of axis 1."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    program = tl.program_id(1)
    inside = column < width
    columns = column[None, :]
    weight_sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    bias_sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for tile in range(program, tl.cdiv(rows, ROWS), tl.num_programs(1)):
        row = tile * ROWS + tl.arange(0, ROWS)
        row_mask = row < rows
        mask = row_mask[:, None] & inside[None, :]
        start = row.to(tl.int64)[:, None]
        incoming = tl.load(grad + start * width + columns, mask=mask, other=0.0).to(tl.float32)
        if dweight is not None:
            normal = tl.load(x + start * x_stride + columns, mask=mask, other=0.0).to(tl.float32)
            if mean is not None:
                normal = normal - tl.load(mean + row, mask=row_mask, other=0.0)[:, None]
            weight_sums += incoming * normal * tl.load(rstd + row, mask=row_mask, other=0.0)[:, None]
        if dbias is not None:
            bias_sums += incoming
    partial = program.to(tl.int64) * width + column
    if dweight is not None:
        tl.store(dweight + partial, tl.sum(weight_sums, axis=0), mask=inside)
    if dbias is not None:
        tl.store(dbias + partial, tl.sum(bias_sums, axis=0), mask=inside)
