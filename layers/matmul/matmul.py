"""Triton: x w^T with bias and activation applied before the result leaves registers.

    linear_kernel    y = activation(x w^T + b), and the pre-activation where a backward will need it

Products accumulate in float32. Tiles come from a small table keyed on the size of the problem: no
tuning at run time. Programs are grouped so that neighbours share rows of x and w in the L2 cache
(Source: the Triton tutorial "Matrix Multiplication").
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.knobs import runtime

from .triton_launches import cdiv, launch

# Offsets inside a tile are 32-bit: a tile has at most 128 rows, so rows may be 2**23 elements apart.
LARGEST_ROW = 2**23


@dataclass(frozen=True)
class ProductTile:
    """How a problem is cut: rows, columns and depth of a tile, and what runs it."""

    m: int
    n: int
    k: int
    warps: int
    stages: int
    group: int = 8

    @property
    def constants(self) -> dict[str, int]:
        """What a launch takes of it; GROUP is not every kernel's."""
        return {
            "BLOCK_M": self.m,
            "BLOCK_N": self.n,
            "BLOCK_K": self.k,
            "num_warps": self.warps,
            "num_stages": self.stages,
        }


def tile_for(
    m: int, n: int, dtype: torch.dtype, *, aligned: bool, tf32: bool = False, hip: bool = False
) -> ProductTile:
    """The tile for a product with m rows and n columns.

    Few rows are bound by reading the weight: thin tiles, deep in k, many programs. Many rows want
    square tiles as large as registers allow. float32 without TF32 runs on the ordinary FMA units,
    where more than 64 x 64 only costs registers; so does loading rows that are not `aligned` to 16
    elements, one element at a time.
    """
    stages = 2 if hip else 3  # 64 KiB of local memory on gfx942, at least 99 KiB on NVIDIA
    on_fma = dtype is torch.float32 and not tf32
    wide = 1 if dtype is torch.float32 else 2
    if m <= 16:
        return (
            ProductTile(16, 32, 64 if on_fma else 64 * wide, 4, stages)
            if aligned
            else ProductTile(32, 32, 32, 4, stages)
        )
    if on_fma or not aligned:
        return ProductTile(64, 64, 16 if on_fma else 32, 8, stages)
    if m <= 64:
        return ProductTile(64, 32, 32 * wide, 4, stages)
    if m * n <= 1024 * 2048:  # fewer large tiles than a large GPU has multiprocessors
        return ProductTile(64, 64, 32 * wide, 4, stages)
    return ProductTile(128, 128, 32 * wide, 8, stages)


@triton.jit
def activate(x, ACTIVATION: tl.constexpr):  # type: ignore[no-untyped-def]
    """The activation of a float32 value; NaN stays NaN."""
    if ACTIVATION == "relu":
        x = tl.where(x < 0.0, 0.0, x)
    elif ACTIVATION == "silu":
        x = x * tl.sigmoid(x)
    elif ACTIVATION == "gelu":
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif ACTIVATION == "gelu_tanh":  # (1 + tanh(u)) / 2 is sigmoid(2 u)
        x = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    elif ACTIVATION == "quick_gelu":
        x = x * tl.sigmoid(1.702 * x)
    return x


@triton.jit
def tile_origin(M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr):  # type: ignore[no-untyped-def]
    """Row and column of this program's tile: down GROUP tiles of one column, then the next column."""
    program = tl.program_id(0)
    rows = tl.cdiv(M, BLOCK_M)
    in_group = GROUP * tl.cdiv(N, BLOCK_N)
    first = (program // in_group) * GROUP
    height = tl.minimum(rows - first, GROUP)
    row = first + (program % in_group) % height
    column = (program % in_group) // height
    return row * BLOCK_M, column * BLOCK_N


@triton.jit
def linear_kernel(  # type: ignore[no-untyped-def]
    x_ptr,
    w_ptr,
    b_ptr,
    y_ptr,
    pre_ptr,
    M,
    N,
    K,
    stride_x,
    stride_w,
    ACTIVATION: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SAVE_PRE: tl.constexpr,
    EVEN_K: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    """x (M, K) and w (N, K), rows stride_x and stride_w apart; b (N,); y and pre (M, N) contiguous."""
    row, column = tile_origin(M, N, BLOCK_M, BLOCK_N, GROUP)
    rows, columns, ks = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    # Rows and columns beyond the edge read the tile's first one; their results are never stored.
    x_rows = tl.where(row + rows < M, rows, 0)
    w_rows = tl.where(column + columns < N, columns, 0)
    x_ptrs = x_ptr + row.to(tl.int64) * stride_x + (x_rows[:, None] * stride_x + ks[None, :])
    w_ptrs = w_ptr + column.to(tl.int64) * stride_w + (w_rows[None, :] * stride_w + ks[:, None])
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        if EVEN_K:
            x = tl.load(x_ptrs)
            w = tl.load(w_ptrs)
        else:
            x = tl.load(x_ptrs, mask=ks[None, :] < K - k, other=0.0)
            w = tl.load(w_ptrs, mask=ks[:, None] < K - k, other=0.0)
        if UPCAST:
            x, w = x.to(tl.float32), w.to(tl.float32)
        total = tl.dot(x, w, total, input_precision=PRECISION)
        x_ptrs += BLOCK_K
        w_ptrs += BLOCK_K
    if HAS_BIAS:
        bias = tl.load(b_ptr + column + columns, mask=column + columns < N, other=0.0)
        total += bias.to(tl.float32)[None, :]
    offsets = row.to(tl.int64) * N + column + (rows[:, None] * N + columns[None, :])
    inside = (row + rows < M)[:, None] & (column + columns < N)[None, :]
    if SAVE_PRE:
        tl.store(pre_ptr + offsets, total.to(pre_ptr.dtype.element_ty), mask=inside)
    tl.store(y_ptr + offsets, activate(total, ACTIVATION).to(y_ptr.dtype.element_ty), mask=inside)


def fits(x: Tensor, *weights: Tensor) -> bool:
    """Whether the kernels take these shapes: not empty, and rows near enough to one another."""
    return x.numel() > 0 and all(
        weight.numel() > 0 and max(weight.shape) < LARGEST_ROW and weight.stride(0) < LARGEST_ROW
        for weight in weights
    )


def as_rows(x: Tensor) -> Tensor:
    """x (..., K) as (M, K) with elements of a row side by side; copied only where it must be."""
    rows = x.reshape(-1, x.shape[-1])
    return rows if rows.stride(1) == 1 and rows.stride(0) < LARGEST_ROW else rows.contiguous()


def are_aligned(k: int, *rows: Tensor) -> bool:
    """Whether every row of every operand starts, and ends, at a multiple of 16 elements."""
    return k % 16 == 0 and all(operand.stride(0) % 16 == 0 for operand in rows)


def precision_of(dtype: torch.dtype) -> str:
    """How float32 is multiplied: as torch.matmul would, by the user's setting."""
    if dtype is torch.float32 and torch.version.hip is None:
        return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee"
    return "ieee"


def upcasts(dtype: torch.dtype) -> bool:
    """Whether tiles go to float32 before they are multiplied: Triton's interpreter cannot multiply bfloat16."""
    return dtype is torch.bfloat16 and bool(runtime.interpret)


def run_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, save: bool
) -> tuple[Tensor, Tensor]:
    """(activation(x weight^T + bias), the pre-activation where `save`, else an empty tensor)."""
    rows, weight = as_rows(x), as_rows(weight)
    (m, k), n = rows.shape, weight.shape[0]
    y = x.new_empty((*x.shape[:-1], n))
    pre = torch.empty_like(y) if save else x.new_empty(0)
    precision = precision_of(x.dtype)
    aligned = are_aligned(k, rows, weight)
    tile = tile_for(
        m, n, x.dtype, aligned=aligned, tf32=precision == "tf32", hip=torch.version.hip is not None
    )
    launch(
        linear_kernel,
        (cdiv(m, tile.m) * cdiv(n, tile.n),),
        (
            rows,
            weight,
            bias if bias is not None else y,
            y,
            pre if save else y,
            m,
            n,
            k,
            rows.stride(0),
            weight.stride(0),
        ),
        ACTIVATION=activation,
        HAS_BIAS=bias is not None,
        SAVE_PRE=save,
        EVEN_K=k % tile.k == 0,
        PRECISION=precision,
        UPCAST=upcasts(x.dtype),
        GROUP=tile.group,
        **tile.constants,
    )
    return y, pre
