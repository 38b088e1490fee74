"""Triton: the gradients of attention, from the statistics of its rows; no atomics, so they are deterministic.

    P = exp(S - maximum) / sum       dP = dO V^T       dS = P (dP - delta) c       delta = rowsum(dO O)
    dV = P^T dO                      dK = scale dS^T Q                             dQ = scale dS K

One kernel owns blocks of queries, the other blocks of keys; both compute S anew. (c: the derivative of a
softcap.) Source: arXiv 2205.14135.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .forward_kernels import load_rows, multiply, scores_of, store_rows


@triton.jit
def weights_and_changes(
    q,
    k,
    v,
    grad,
    mask,
    row,
    column,
    maximum,
    share,
    delta,
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
    """(P, dS) of rows with columns."""
    scores, turned = scores_of(
        q, k, mask, row, column, lq, lk, offset, mask_i, mask_j, scale, softcap,
        CAUSAL, MASK, SOFTCAP, PRECISION, UPCAST,
    )  # fmt: skip
    weights = tl.exp(scores - maximum[:, None]) * share[:, None]
    zero = tl.zeros((q.shape[0], k.shape[0]), dtype=tl.float32)
    changes = weights * (multiply(grad, tl.trans(v), zero, PRECISION, UPCAST) - delta[:, None])
    if SOFTCAP:
        changes *= 1.0 - turned * turned
    return weights, changes


@triton.jit
def query_gradient_kernel(
    grad_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    mask_ptr,
    statistics_ptr,
    delta_ptr,
    dq_ptr,
    heads,
    group,
    lq,
    lk,
    width,
    values,
    offset,
    scale,
    softcap,
    grad_batch,
    grad_head,
    grad_row,
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
    dq_batch,
    dq_head,
    dq_row,
    CAUSAL: tl.constexpr,
    MASK: tl.constexpr,
    SOFTCAP: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
    EVEN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr,
    VALUES: tl.constexpr,
):
    """Program (block, batch x head): ROWS queries of one head."""
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
    grad_base = grad_ptr + batch * grad_batch + head * grad_head
    grad = load_rows(grad_base, first, lq, grad_row, values, ROWS, VALUES, EVEN)
    place = tl.program_id(1).to(tl.int64) * lq + row
    rows = tl.num_programs(1).to(tl.int64) * lq
    maximum = tl.load(statistics_ptr + place, mask=row < lq, other=0.0)
    share = tl.load(statistics_ptr + rows + place, mask=row < lq, other=0.0)
    delta = tl.load(delta_ptr + place, mask=row < lq, other=0.0)
    dq = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    end = lk
    if CAUSAL:
        end = tl.minimum(lk, first + ROWS + offset)
    for start in range(0, end, COLUMNS):
        k = load_rows(k_base, start, lk, k_row, width, COLUMNS, WIDTH, EVEN)
        v = load_rows(v_base, start, lk, v_row, values, COLUMNS, VALUES, EVEN)
        column = start + tl.arange(0, COLUMNS)
        _, changes = weights_and_changes(
            q, k, v, grad, mask, row, column, maximum, share, delta, lq, lk, offset, mask_i, mask_j, scale, softcap,
            CAUSAL, MASK, SOFTCAP, PRECISION, UPCAST,
        )  # fmt: skip
        dq = multiply(changes.to(k.dtype), k, dq, PRECISION, UPCAST)
    store_rows(
        dq_ptr + batch * dq_batch + head * dq_head, first, lq, dq_row, width, dq * scale, ROWS, WIDTH, EVEN
    )


@triton.jit
def key_gradient_kernel(
    grad_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    mask_ptr,
    statistics_ptr,
    delta_ptr,
    dk_ptr,
    dv_ptr,
    shared_heads,
    group,
    lq,
    lk,
    width,
    values,
    offset,
    scale,
    softcap,
    grad_batch,
    grad_head,
    grad_row,
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
    dk_batch,
    dk_head,
    dk_row,
    dv_batch,
    dv_head,
    dv_row,
    CAUSAL: tl.constexpr,
    MASK: tl.constexpr,
    SOFTCAP: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
    EVEN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr,
    VALUES: tl.constexpr,
):
    """Program (block, batch x head of keys): COLUMNS keys, with all queries of all heads that share them."""
    first = tl.program_id(0) * COLUMNS
    batch = (tl.program_id(1) // shared_heads).to(tl.int64)
    shared = (tl.program_id(1) % shared_heads).to(tl.int64)
    column = first + tl.arange(0, COLUMNS)
    k = load_rows(k_ptr + batch * k_batch + shared * k_head, first, lk, k_row, width, COLUMNS, WIDTH, EVEN)
    v = load_rows(v_ptr + batch * v_batch + shared * v_head, first, lk, v_row, values, COLUMNS, VALUES, EVEN)
    dk = tl.zeros((COLUMNS, WIDTH), dtype=tl.float32)
    dv = tl.zeros((COLUMNS, VALUES), dtype=tl.float32)
    begin = 0
    if CAUSAL:  # the first block of queries of which one sees one of these keys
        begin = tl.maximum(first - offset, 0) // ROWS * ROWS
    rows = tl.num_programs(1).to(tl.int64) * group * lq
    for member in range(group):
        head = shared * group + member
        mask = mask_ptr
        if MASK > 0:
            mask = mask_ptr + batch * mask_batch + head * mask_head
        place = (batch * shared_heads * group + head) * lq
        for start in range(begin, lq, ROWS):
            row = start + tl.arange(0, ROWS)
            q_base = q_ptr + batch * q_batch + head * q_head
            q = load_rows(q_base, start, lq, q_row, width, ROWS, WIDTH, EVEN)
            grad_base = grad_ptr + batch * grad_batch + head * grad_head
            grad = load_rows(grad_base, start, lq, grad_row, values, ROWS, VALUES, EVEN)
            maximum = tl.load(statistics_ptr + place + row, mask=row < lq, other=0.0)
            share = tl.load(statistics_ptr + rows + place + row, mask=row < lq, other=0.0)
            delta = tl.load(delta_ptr + place + row, mask=row < lq, other=0.0)
            weights, changes = weights_and_changes(
                q, k, v, grad, mask, row, column, maximum, share, delta, lq, lk, offset, mask_i, mask_j,
                scale, softcap, CAUSAL, MASK, SOFTCAP, PRECISION, UPCAST,
            )  # fmt: skip
            dv = multiply(tl.trans(weights.to(grad.dtype)), grad, dv, PRECISION, UPCAST)
            dk = multiply(tl.trans(changes.to(q.dtype)), q, dk, PRECISION, UPCAST)
    dk_base, dv_base = (
        dk_ptr + batch * dk_batch + shared * dk_head,
        dv_ptr + batch * dv_batch + shared * dv_head,
    )
    store_rows(dk_base, first, lk, dk_row, width, dk * scale, COLUMNS, WIDTH, EVEN)
    store_rows(dv_base, first, lk, dv_row, values, dv, COLUMNS, VALUES, EVEN)
