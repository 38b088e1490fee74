"""The Triton backend: a product over all experts is one launch, whatever number of tokens each has.

Rows are sorted by expert. Tiles of rows belong to one expert each; which, and where it begins, is
computed on the device, so that nobody waits for the counts: there are at most P / BLOCK_M + E tiles,
and those that are left over return at once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import matmul, reference
from .blocks import FORMULAS
from .matmul import ProductTile
from .routing import route
from .triton_launches import cdiv, launch, next_power_of_2

__all__ = ["DISPATCH_KEYS", "gated_experts", "grouped_outer", "grouped_product", "top_k_softmax"]

# Under the interpreter kernels run on CPU tensors.
DISPATCH_KEYS = ("CUDA", "CPU") if triton.knobs.runtime.interpret else ("CUDA",)

_TYPES = (torch.float32, torch.bfloat16, torch.float16)


def blocks_for(rows: int, experts: int, dtype: torch.dtype, hip: bool = False) -> ProductTile:
    """The tile for rows (P) over a number of experts: thin where each has few."""
    stages = 2 if hip else 3
    if dtype is torch.float32:
        return (
            ProductTile(16, 32, 32, 4, stages) if rows <= 16 * experts else ProductTile(64, 64, 16, 8, stages)
        )
    return ProductTile(16, 64, 64, 4, stages) if rows <= 16 * experts else ProductTile(64, 64, 64, 4, stages)


@triton.jit
def grouped_product_kernel(  # type: ignore[no-untyped-def]
    a_ptr,
    w_ptr,
    y_ptr,
    expert_ptr,
    start_ptr,
    end_ptr,
    N,
    K,
    stride_a,
    stride_we,
    stride_wn,
    stride_wk,
    EXPERTS: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """y (P, N) = a (P, K) w[e]^T for BLOCK_M rows of one expert; w (E, N, K) with any strides."""
    tile = tl.program_id(0)
    expert = tl.load(expert_ptr + tile)
    if expert < EXPERTS:
        row = tl.load(start_ptr + tile)
        end = tl.load(end_ptr + expert)
        rows = row + tl.arange(0, BLOCK_M)
        columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
        ks = tl.arange(0, BLOCK_K)
        # Rows and columns beyond the edge read the tile's first one; their results are never stored.
        a_rows = tl.where(rows < end, rows, row).to(tl.int64)
        w_rows = tl.where(columns < N, columns, 0).to(tl.int64)
        a_ptrs = a_ptr + a_rows[:, None] * stride_a + ks[None, :]
        w_ptrs = (
            w_ptr + expert.to(tl.int64) * stride_we + w_rows[None, :] * stride_wn + ks[:, None] * stride_wk
        )
        total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for k in range(0, K, BLOCK_K):
            a = tl.load(a_ptrs, mask=ks[None, :] < K - k, other=0.0)
            w = tl.load(w_ptrs, mask=ks[:, None] < K - k, other=0.0)
            if UPCAST:
                a, w = a.to(tl.float32), w.to(tl.float32)
            total = tl.dot(a, w, total, input_precision=PRECISION)
            a_ptrs += BLOCK_K
            w_ptrs += BLOCK_K * stride_wk
        at = rows.to(tl.int64)[:, None] * N + columns[None, :]
        inside = (rows < end)[:, None] & (columns < N)[None, :]
        tl.store(y_ptr + at, total.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def grouped_outer_kernel(  # type: ignore[no-untyped-def]
    a_ptr,
    b_ptr,
    out_ptr,
    end_ptr,
    N,
    K,
    stride_a,
    stride_b,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    """out[e] (N, K) = a^T b over the rows of expert program_id(0); a (P, N), b (P, K)."""
    expert = tl.program_id(0)
    begin = tl.load(end_ptr + expert - 1, mask=expert > 0, other=0)
    end = tl.load(end_ptr + expert)
    ns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.program_id(2) * BLOCK_K + tl.arange(0, BLOCK_K)
    ps = tl.arange(0, BLOCK_P)
    total = tl.zeros((BLOCK_N, BLOCK_K), dtype=tl.float32)
    for p in range(begin, end, BLOCK_P):
        rows = (p + ps).to(tl.int64)
        a = tl.load(
            a_ptr + rows[None, :] * stride_a + ns[:, None],
            mask=(rows < end)[None, :] & (ns < N)[:, None],
            other=0.0,
        )
        b = tl.load(
            b_ptr + rows[:, None] * stride_b + ks[None, :],
            mask=(rows < end)[:, None] & (ks < K)[None, :],
            other=0.0,
        )
        if UPCAST:
            a, b = a.to(tl.float32), b.to(tl.float32)
        total = tl.dot(a, b, total, input_precision=PRECISION)
    at = (expert.to(tl.int64) * N + ns[:, None]) * K + ks[None, :]
    tl.store(out_ptr + at, total.to(out_ptr.dtype.element_ty), mask=(ns < N)[:, None] & (ks < K)[None, :])


@triton.jit
def top_k_softmax_kernel(  # type: ignore[no-untyped-def]
    logits_ptr,
    score_ptr,
    index_ptr,
    experts,
    stride,
    K: tl.constexpr,
    RENORMALISE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The K largest of softmax(logits) of row program_id(0), and where they are; the first of equal ones."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    x = tl.load(logits_ptr + row * stride + columns, mask=columns < experts, other=float("-inf")).to(
        tl.float32
    )
    e = tl.exp(x - tl.max(x, axis=0))
    p = e / tl.sum(e, axis=0)
    left = tl.where(columns < experts, p, -1.0)
    share = 0.0
    for rank in tl.static_range(K):
        best = tl.max(left, axis=0)
        at = tl.min(tl.where(left == best, columns, experts - 1), axis=0)  # NaN equals nothing: the last
        share += best
        tl.store(index_ptr + row * K + rank, at.to(tl.int64))
        if not RENORMALISE:
            tl.store(score_ptr + row * K + rank, best.to(score_ptr.dtype.element_ty))
        left = tl.where(columns == at, -1.0, left)
    if RENORMALISE:
        left = tl.where(columns < experts, p, -1.0)
        for rank in tl.static_range(K):
            best = tl.max(left, axis=0)
            at = tl.min(tl.where(left == best, columns, experts - 1), axis=0)
            tl.store(score_ptr + row * K + rank, (best / share).to(score_ptr.dtype.element_ty))
            left = tl.where(columns == at, -1.0, left)


def tiles_of(ends: Tensor, rows: int, block: int) -> tuple[Tensor, Tensor]:
    """(expert, first row) of each tile of `block` rows, int32; expert E for tiles that are left over."""
    experts = ends.shape[0]
    begins = torch.cat((ends.new_zeros(1), ends[:-1]))
    last = ((ends - begins + block - 1) // block).cumsum(0)
    tile = torch.arange(cdiv(rows, block) + experts, device=ends.device)
    expert = torch.searchsorted(last, tile, right=True)
    known = expert.clamp(max=experts - 1)
    before = torch.cat((last.new_zeros(1), last[:-1]))[known]
    start = begins[known] + (tile - before) * block
    return expert.to(torch.int32), start.to(torch.int32)


def grouped_product(rows: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """See `reference.grouped_product`."""
    if rows.dtype not in _TYPES or rows.numel() == 0 or weight.numel() == 0:
        return reference.grouped_product(rows, weight, ends)
    rows = rows if rows.stride(1) == 1 else rows.contiguous()
    (count, depth), (experts, columns, _) = rows.shape, weight.shape
    blocks = blocks_for(count, experts, rows.dtype, torch.version.hip is not None)
    expert, start = tiles_of(ends, count, blocks.m)
    y = rows.new_zeros(count, columns)  # rows of no expert stay 0
    launch(
        grouped_product_kernel,
        (expert.shape[0], cdiv(columns, blocks.n)),
        (rows, weight, y, expert, start, ends, columns, depth, rows.stride(0), *weight.stride()),
        EXPERTS=experts,
        PRECISION=matmul.precision_of(rows.dtype),
        UPCAST=matmul.upcasts(rows.dtype),
        **blocks.constants,
    )
    return y


def grouped_outer(left: Tensor, right: Tensor, ends: Tensor) -> Tensor:
    """See `reference.grouped_outer`."""
    if left.dtype not in _TYPES or left.numel() == 0 or right.numel() == 0:
        return reference.grouped_outer(left, right, ends)
    left, right = (t if t.stride(1) == 1 else t.contiguous() for t in (left, right))
    experts, n, k = ends.shape[0], left.shape[1], right.shape[1]
    out = left.new_empty(experts, n, k)
    narrow = left.dtype is not torch.float32
    launch(
        grouped_outer_kernel,
        (experts, cdiv(n, 64), cdiv(k, 64)),
        (left, right, out, ends, n, k, left.stride(0), right.stride(0)),
        PRECISION=matmul.precision_of(left.dtype),
        UPCAST=matmul.upcasts(left.dtype),
        BLOCK_N=64,
        BLOCK_K=64,
        BLOCK_P=32 if narrow else 16,
        num_warps=4 if narrow else 8,
        num_stages=2,
    )
    return out


def gated_experts(
    x: Tensor, gate_up: Tensor, down: Tensor, index: Tensor, weight: Tensor, activation: str
) -> Tensor:
    """See `functional.gated_experts`."""
    routing = route(index, gate_up.shape[0])
    gate, up = grouped_product(routing.gather(x), gate_up, routing.ends).chunk(2, dim=-1)
    y = grouped_product(FORMULAS[activation](gate) * up, down, routing.ends)
    return routing.sum((y * weight.flatten()[routing.order][:, None]).to(x.dtype))


def clamped_experts(
    x: Tensor,
    gate_up: Tensor,
    gate_up_bias: Tensor,
    down: Tensor,
    down_bias: Tensor,
    index: Tensor,
    weight: Tensor,
    alpha: float,
    limit: float,
) -> Tensor:
    """See `functional.clamped_experts`; the grouped products take weights with any strides."""
    experts = gate_up.shape[0]
    routing = route(index, experts)
    expert = index.flatten()[routing.order]
    absent, expert = expert == experts, expert.clamp(max=experts - 1)
    pre = grouped_product(routing.gather(x), gate_up.transpose(1, 2), routing.ends) + gate_up_bias[expert]
    hidden = reference.clamped_gate(pre, alpha, limit)
    y = grouped_product(hidden, down.transpose(1, 2), routing.ends) + down_bias[expert]
    share = weight.flatten()[routing.order].masked_fill(absent, 0)
    return routing.sum((y * share[:, None]).to(x.dtype))


def top_k_softmax(logits: Tensor, k: int, renormalise: bool, rounded: bool) -> tuple[Tensor, Tensor]:
    """See `functional.top_k_softmax`."""
    experts = logits.shape[-1]
    if logits.dtype not in _TYPES or not logits.numel() or k > 16 or experts > 4096:
        return reference.top_k_softmax(logits, k, renormalise, rounded)
    rows = logits.reshape(-1, experts)
    rows = rows if rows.stride(1) == 1 else rows.contiguous()
    shape = (*logits.shape[:-1], k)
    score = logits.new_empty(shape, dtype=logits.dtype if rounded else torch.float32)
    index = logits.new_empty(shape, dtype=torch.int64)
    block = next_power_of_2(experts)
    launch(
        top_k_softmax_kernel,
        (rows.shape[0],),
        (rows, score, index, experts, rows.stride(0)),
        K=k,
        RENORMALISE=renormalise,
        BLOCK=block,
        num_warps=max(1, min(8, block // 256)),
    )
    return score, index
