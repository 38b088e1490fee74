"""Triton: attention for a block of queries, running through the keys with an online softmax.

    best'  = max(best, max(scores));  total' = total exp(best - best') + sum(exp(scores - best'))
    out'   = out exp(best - best') + exp(scores - best') v;  the result is out / total

Keys that a causal mask hides from all queries of a block are not read. Products accumulate in float32.
Sources: arXiv 1805.02867, 2205.14135.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_rows(
    base,
    start,
    count,
    stride,
    width,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    EVEN: tl.constexpr,
):
    """(ROWS, WIDTH) from row `start` of (count, width) on, zeros beyond the edges. EVEN: width is WIDTH."""
    row, column = start + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    inside = (row < count)[:, None]
    if not EVEN:
        inside = inside & (column < width)[None, :]
    pointers = base + row.to(tl.int64)[:, None] * stride + column[None, :]
    return tl.load(pointers, mask=inside, other=0.0)


@triton.jit
def store_rows(
    base,
    start,
    count,
    stride,
    width,
    values,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    EVEN: tl.constexpr,
):
    """The inverse of `load_rows`."""
    row, column = start + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    inside = (row < count)[:, None]
    if not EVEN:
        inside = inside & (column < width)[None, :]
    pointers = base + row.to(tl.int64)[:, None] * stride + column[None, :]
    tl.store(pointers, values.to(base.dtype.element_ty), mask=inside)


@triton.jit
def multiply(a, b, total, PRECISION: tl.constexpr, UPCAST: tl.constexpr):
    """total + a b. UPCAST is for the interpreter, which multiplies bfloat16's bit patterns."""
    if UPCAST:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), total, input_precision=PRECISION)
    return tl.dot(a, b, total, input_precision=PRECISION)


@triton.jit
def scores_of(
    q,
    k,
    mask,
    row,
    column,
    lq,
    lk,
    offset,
    mask_i,
    mask_j,
    scale,
    softcap,
    CAUSAL: tl.constexpr,
    MASK: tl.constexpr,
    SOFTCAP: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """(scores of rows with columns, tanh of the capped ones). MASK: 0 none, 1 bool as bytes, 2 added."""
    zero = tl.zeros((q.shape[0], k.shape[0]), dtype=tl.float32)
    scores = multiply(q, tl.trans(k), zero, PRECISION, UPCAST) * scale
    turned = scores
    if SOFTCAP:
        falling = tl.exp(-2.0 * tl.abs(scores) / softcap)
        turned = (1.0 - falling) / (1.0 + falling)
        turned = tl.where(scores < 0.0, -turned, turned)
        scores = softcap * turned
    seen = (column < lk)[None, :]
    if CAUSAL:
        seen = seen & (column[None, :] <= row[:, None] + offset)
    if MASK > 0:
        inside = (row < lq)[:, None] & (column < lk)[None, :]
        pointers = mask + row.to(tl.int64)[:, None] * mask_i + column.to(tl.int64)[None, :] * mask_j
        if MASK == 1:
            seen = seen & (tl.load(pointers, mask=inside, other=0) != 0)
        else:
            scores += tl.load(pointers, mask=inside, other=0.0)
    return tl.where(seen, scores, float("-inf")), turned


@triton.jit
def attention_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    mask_ptr,
    out_ptr,
    statistics_ptr,
    heads,
    group,
    lq,
    lk,
    width,
    values,
    offset,
    scale,
    softcap,
    q_batch,
    q_head,
    q_row,
    k_batch,
    k_head,
    k_row,
    v_batch,
    v_head,
    v_row,
    mask_batch,
    mask_head,
    mask_i,
    mask_j,
    out_batch,
    out_head,
    out_row,
    CAUSAL: tl.constexpr,
    MASK: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SAVE: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
    EVEN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr,
    VALUES: tl.constexpr,
):
    """Program (block, batch x head): ROWS queries of one head."""
    # The last block of a causal mask has most to do, and goes first.
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * ROWS
    batch, head = (tl.program_id(1) // heads).to(tl.int64), (tl.program_id(1) % heads).to(tl.int64)
    shared = head // group
    k_base = k_ptr + batch * k_batch + shared * k_head
    v_base = v_ptr + batch * v_batch + shared * v_head
    mask = mask_ptr
    if MASK > 0:
        mask = mask_ptr + batch * mask_batch + head * mask_head
    row = first + tl.arange(0, ROWS)
    q = load_rows(q_ptr + batch * q_batch + head * q_head, first, lq, q_row, width, ROWS, WIDTH, EVEN)
    best = tl.full((ROWS,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((ROWS,), dtype=tl.float32)
    out = tl.zeros((ROWS, VALUES), dtype=tl.float32)
    end = lk
    if CAUSAL:
        end = tl.minimum(lk, first + ROWS + offset)
    for start in range(0, end, COLUMNS):
        k = load_rows(k_base, start, lk, k_row, width, COLUMNS, WIDTH, EVEN)
        column = start + tl.arange(0, COLUMNS)
        scores, _ = scores_of(
            q, k, mask, row, column, lq, lk, offset, mask_i, mask_j, scale, softcap,
            CAUSAL, MASK, SOFTCAP, PRECISION, UPCAST,
        )  # fmt: skip
        better = tl.maximum(best, tl.max(scores, 1))
        least = tl.where(better == float("-inf"), 0.0, better)
        powers = tl.exp(scores - least[:, None])
        fade = tl.exp(best - least)
        total = total * fade + tl.sum(powers, 1)
        v = load_rows(v_base, start, lk, v_row, values, COLUMNS, VALUES, EVEN)
        out = multiply(powers.to(v.dtype), v, out * fade[:, None], PRECISION, UPCAST)
        best = better
    blank = total == 0.0
    share = tl.where(blank, 0.0, 1.0 / tl.where(blank, 1.0, total))
    out_base = out_ptr + batch * out_batch + head * out_head
    store_rows(out_base, first, lq, out_row, values, out * share[:, None], ROWS, VALUES, EVEN)
    if SAVE:
        place = tl.program_id(1).to(tl.int64) * lq + row
        rows = tl.num_programs(1).to(tl.int64) * lq
        tl.store(statistics_ptr + place, tl.where(best == float("-inf"), 0.0, best), mask=row < lq)
        tl.store(statistics_ptr + rows + place, share, mask=row < lq)
