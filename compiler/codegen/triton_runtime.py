"""What generated Triton modules call: reductions along rows, index checks, and arithmetic of launches.

Reductions take blocks [rows, columns] and give [rows, 1]. Under TRITON_INTERPRET=1 those that the interpreter would
run element by element are NumPy's.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.knobs import runtime as _runtime

INTERPRETED = bool(_runtime.interpret)
"""Whether kernels run on the CPU: decided when Triton is imported."""

MOST_INT32 = (1 << 31) - (1 << 20)
"""Positions up to this are 32 bits wide; what is left above it is for the ends of blocks."""


@triton.jit
def _max(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _min(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _prod(a, b):
    return a * b


@triton.jit
def row_sum(x):
    """Of the dtype of x, also where that is a narrow integer."""
    return tl.sum(x, 1, keep_dims=True).to(x.dtype)


@triton.jit
def row_max(x):
    """NaN where one is among them."""
    return tl.reduce(x, 1, _max, keep_dims=True)


@triton.jit
def row_min(x):
    """NaN where one is among them."""
    return tl.reduce(x, 1, _min, keep_dims=True)


@triton.jit
def row_prod(x):
    """The product."""
    return tl.reduce(x, 1, _prod, keep_dims=True)


@triton.jit
def max_of(a, b):
    """The greater; NaN if either is."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def min_of(a, b):
    """The lesser; NaN if either is."""
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def first_place(x, best, places, none):
    """The least of the places where x is the best of its row (or NaN, where that is); `none` stands for no place."""
    found = (x == best) | ((x != x) & (best != best))
    return tl.min(tl.where(found, places, none), 1, keep_dims=True)


@triton.jit
def dot(a, b, total, PRECISION: tl.constexpr = "ieee"):
    """total + a @ b. PRECISION: of float32 operands, "ieee" or "tf32"."""
    return tl.dot(a, b, total, input_precision=PRECISION)


@triton.jit
def bounded(index, extent):
    """An index counted from the start of a dim; 0 for one that is out of range."""
    counted = tl.where(index < 0, index + extent, index)
    return tl.where((counted >= 0) & (counted < extent), counted, 0)


@triton.jit
def is_out_of_range(index, extent):
    """Whether an index is not in -extent..extent-1."""
    return (index < -extent) | (index >= extent)


if INTERPRETED:
    import numpy as np

    from kernels_hub.compiler.codegen.triton_interpreted import libdevice, reduction

    def dot(a, b, total, PRECISION="ieee"):  # the interpreter multiplies the bits of bfloat16
        return tl.dot(a.to(tl.float32), b.to(tl.float32), total)

    row_max, row_min, row_prod = reduction(np.maximum), reduction(np.minimum), reduction(np.multiply)
else:
    from triton.language.extra import libdevice  # noqa: F401  (of generated modules)


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def power_of_two(number: int) -> int:
    """The least power of two that is not less."""
    return 1 << max(number - 1, 0).bit_length()


def index_type(*counts: int) -> tl.dtype:
    """How wide positions among so many elements are."""
    return tl.int32 if max(counts, default=0) <= MOST_INT32 else tl.int64
