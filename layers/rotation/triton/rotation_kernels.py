"""The Triton backend: queries and keys of a position, all heads, in one launch."""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import rotation_reference as reference
from .rotation_shapes import contiguous_rows, fits
from .triton_launches import cdiv, launch, next_power_of_2

# Under the interpreter kernels run on CPU tensors.
DISPATCH_KEYS = ("CUDA", "CPU") if triton.knobs.runtime.interpret else ("CUDA",)

SMALL_PART = 0
"""Elements of the queries below which PyTorch rotates a part of each head: a launch replaces a dozen."""

_TILE = 2048
"""Pairs of one program: with both halves, cosines and sines in float32, well inside the registers of 4 warps."""


@triton.jit
def rotary_kernel(
    q_ptr,
    k_ptr,
    q_out_ptr,
    k_out_ptr,
    cos_ptr,
    sin_ptr,
    positions,
    q_heads,
    k_heads,
    half,
    q_batch,
    q_head,
    q_position,
    k_batch,
    k_head,
    k_position,
    q_out_batch,
    q_out_head,
    q_out_position,
    k_out_batch,
    k_out_head,
    k_out_position,
    cos_batch,
    cos_position,
    sin_batch,
    sin_position,
    INTERLEAVED: tl.constexpr,
    INVERSE: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
):
    """Program (row, group): position `row` of all batches, HEADS heads of q's and then k's.

    Pairs (a, b) lie `half` apart, or next to one another if INTERLEAVED:
    a' = a cos_a - b sin_a, b' = b cos_b + a sin_b; INVERSE applies the transpose.
    """
    row = tl.program_id(0)
    batch = (row // positions).to(tl.int64)
    position = (row % positions).to(tl.int64)
    pair = tl.arange(0, HALF)
    inside = pair < half
    if INTERLEAVED:
        a_at = 2 * pair
        b_at = 2 * pair + 1
    else:
        a_at = pair
        b_at = pair + half

    cos = cos_ptr + batch * cos_batch + position * cos_position
    sin = sin_ptr + batch * sin_batch + position * sin_position
    cos_a = tl.load(cos + a_at, mask=inside, other=0.0).to(tl.float32)[None, :]
    cos_b = tl.load(cos + b_at, mask=inside, other=0.0).to(tl.float32)[None, :]
    sin_a = tl.load(sin + a_at, mask=inside, other=0.0).to(tl.float32)[None, :]
    sin_b = tl.load(sin + b_at, mask=inside, other=0.0).to(tl.float32)[None, :]
    if INVERSE:
        swap = sin_a
        sin_a = -sin_b
        sin_b = -swap

    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    is_q = (head < q_heads)[:, None] & inside[None, :]
    is_k = ((head >= q_heads) & (head < q_heads + k_heads))[:, None] & inside[None, :]
    k_index = (head - q_heads).to(tl.int64)
    q_index = head.to(tl.int64)

    q = q_ptr + batch * q_batch + position * q_position + (q_index * q_head)[:, None]
    k = k_ptr + batch * k_batch + position * k_position + (k_index * k_head)[:, None]
    # A head is q's or k's: the other load is masked to zero.
    a = tl.load(q + a_at[None, :], mask=is_q, other=0.0) + tl.load(k + a_at[None, :], mask=is_k, other=0.0)
    b = tl.load(q + b_at[None, :], mask=is_q, other=0.0) + tl.load(k + b_at[None, :], mask=is_k, other=0.0)
    a = a.to(tl.float32)
    b = b.to(tl.float32)
    kind: tl.constexpr = q_ptr.dtype.element_ty
    a_cos, a_sin, b_cos, b_sin = a * cos_a, a * sin_b, b * cos_b, b * sin_a
    if not INTERLEAVED and not INVERSE and kind == cos_ptr.dtype.element_ty:  # the original rounds them
        a_cos, a_sin = a_cos.to(kind).to(tl.float32), a_sin.to(kind).to(tl.float32)
        b_cos, b_sin = b_cos.to(kind).to(tl.float32), b_sin.to(kind).to(tl.float32)
    out_a = a_cos - b_sin
    out_b = b_cos + a_sin

    q_out = q_out_ptr + batch * q_out_batch + position * q_out_position + (q_index * q_out_head)[:, None]
    k_out = k_out_ptr + batch * k_out_batch + position * k_out_position + (k_index * k_out_head)[:, None]
    tl.store(q_out + a_at[None, :], out_a.to(q_out_ptr.dtype.element_ty), mask=is_q)
    tl.store(q_out + b_at[None, :], out_b.to(q_out_ptr.dtype.element_ty), mask=is_q)
    tl.store(k_out + a_at[None, :], out_a.to(k_out_ptr.dtype.element_ty), mask=is_k)
    tl.store(k_out + b_at[None, :], out_b.to(k_out_ptr.dtype.element_ty), mask=is_k)


@cache
def tile(heads: int, width: int) -> tuple[int, int]:
    """(HEADS, HALF) of a program."""
    half = next_power_of_2(max(width // 2, 1))
    return min(next_power_of_2(max(heads, 1)), max(_TILE // half, 1)), half


def rotate_pair(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, inverse: bool
) -> tuple[Tensor, Tensor]:
    """See `reference.rotate_pair`; returns q's and k's dtypes."""
    if not fits(q, k, cos, sin) or q.shape[3] > 2 * _TILE:
        dtype = q.dtype
        q, k = reference.rotate_pair(q, k, cos, sin, interleaved, inverse)
        return q.to(dtype), k.to(dtype)
    q, k, cos, sin = map(contiguous_rows, (q, k, cos, sin))
    q_out, k_out = torch.empty_like(q), torch.empty_like(k)
    batches, q_heads, positions, width = q.shape
    k_heads = k.shape[1]
    heads, half = tile(q_heads + k_heads, width)
    if batches * positions == 0:
        return q_out, k_out
    launch(
        rotary_kernel,
        (batches * positions, cdiv(q_heads + k_heads, heads)),
        (
            q,
            k,
            q_out,
            k_out,
            cos,
            sin,
            positions,
            q_heads,
            k_heads,
            width // 2,
            *q.stride()[:3],
            *k.stride()[:3],
            *q_out.stride()[:3],
            *k_out.stride()[:3],
            cos.stride(0) if cos.shape[0] > 1 else 0,
            cos.stride(2),
            sin.stride(0) if sin.shape[0] > 1 else 0,
            sin.stride(2),
        ),
        INTERLEAVED=interleaved,
        INVERSE=inverse,
        HEADS=heads,
        HALF=half,
        num_warps=4,
    )
    return q_out, k_out
