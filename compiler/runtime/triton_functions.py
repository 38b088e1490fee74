"""Functions that generated Triton modules call: row reductions, index checks, arithmetic of launches.

Reductions take blocks [rows, columns] and give [rows, 1]. Under TRITON_INTERPRET=1 those that the interpreter would
run element by element are NumPy's.
"""

from __future__ import annotations

from typing import TypeVar, cast

import triton
import triton.language as tl
from triton.knobs import runtime as _runtime

from .tiles import (  # noqa: F401  (of generated modules)
    attention_tile,
    block_tile,
    conv_tile,
    looped_tile,
    product_tile,
    whole_tile,
)

INTERPRETED = bool(_runtime.interpret)
"""Whether kernels run on the CPU: decided when Triton is imported."""

MOST_INT32 = (1 << 31) - (1 << 20)
"""Positions up to this are 32 bits wide; what is left above it is for the ends of blocks."""


F = TypeVar("F")


def _jit(function: F) -> F:
    return cast("F", triton.jit(function))


@_jit
def _max(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@_jit
def _min(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@_jit
def _sum(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    return a + b


@_jit
def _prod(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    return a * b


@_jit
def row_sum(x: tl.tensor) -> tl.tensor:
    """Of the dtype of x, also where that is a narrow integer."""
    return tl.sum(x, 1, keep_dims=True).to(x.dtype)


@_jit
def row_max(x: tl.tensor) -> tl.tensor:
    """NaN where one is among them."""
    return tl.reduce(x, 1, _max, keep_dims=True)


@_jit
def row_min(x: tl.tensor) -> tl.tensor:
    """NaN where one is among them."""
    return tl.reduce(x, 1, _min, keep_dims=True)


@_jit
def row_prod(x: tl.tensor) -> tl.tensor:
    """The product."""
    return tl.reduce(x, 1, _prod, keep_dims=True)


@_jit
def running_sum(x: tl.tensor) -> tl.tensor:
    """Of each element and all before it in its row, of the dtype of x."""
    return tl.associative_scan(x, 1, _sum)


@_jit
def running_prod(x: tl.tensor) -> tl.tensor:
    """As `running_sum`, multiplied."""
    return tl.associative_scan(x, 1, _prod)


@_jit
def running_max(x: tl.tensor) -> tl.tensor:
    """As `running_sum`, the greatest; NaN from the first NaN on."""
    return tl.associative_scan(x, 1, _max)


@_jit
def running_min(x: tl.tensor) -> tl.tensor:
    """As `running_max`, the least."""
    return tl.associative_scan(x, 1, _min)


@_jit
def max_of(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """The greater; NaN if either is."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@_jit
def min_of(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """The lesser; NaN if either is."""
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@_jit
def first_place(x: tl.tensor, best: tl.tensor, places: tl.tensor, none: tl.tensor) -> tl.tensor:
    """The least of the places where x is the best of its row (or NaN, where that is); `none` stands for no place."""
    found = (x == best) | ((x != x) & (best != best))  # noqa: PLR0124  (NaN)
    return tl.min(tl.where(found, places, none), 1, keep_dims=True)


_IEEE = tl.constexpr("ieee")  # wrapped, as Triton 3.6 takes defaults as they are


@_jit
def dot(a: tl.tensor, b: tl.tensor, total: tl.tensor, precision: tl.constexpr = _IEEE) -> tl.tensor:
    """total + a @ b. precision: of float32 operands, "ieee" or "tf32"."""
    return tl.dot(a, b, total, input_precision=precision)


@_jit
def remainder(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """a - floor(a / b) * b of floats, exactly, of the sign of b."""
    left = libdevice.fmod(a, b)
    return tl.where((left != 0) & ((left < 0) != (b < 0)), left + b, left)


@_jit
def floor_divide(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """a / b of floats, rounded down, as if by long division: no quotient is rounded up first. Source: NumPy."""
    whole = (a - remainder(a, b)) / b
    down = tl.floor(whole)
    return tl.where(b == 0, a / b, tl.where(whole - down > 0.5, down + 1, down))


@_jit
def bounded(index: tl.tensor, extent: tl.tensor) -> tl.tensor:
    """An index counted from the start of a dim; 0 for one that is out of range."""
    counted = tl.where(index < 0, index + extent, index)
    return tl.where((counted >= 0) & (counted < extent), counted, 0)


@_jit
def is_out_of_range(index: tl.tensor, extent: tl.tensor) -> tl.tensor:
    """Whether an index is not in -extent..extent-1."""
    return (index < -extent) | (index >= extent)


if INTERPRETED:
    from triton.runtime.interpreter import np

    from . import triton_interpreter as _interpreted

    libdevice = _interpreted.libdevice
    dot = _interpreted.dot
    row_max = _interpreted.reduction(np.maximum)  # type: ignore[assignment]
    row_min = _interpreted.reduction(np.minimum)  # type: ignore[assignment]
    row_prod = _interpreted.reduction(np.multiply)  # type: ignore[assignment]
    running_sum = _interpreted.scan(np.add)  # type: ignore[assignment]
    running_prod = _interpreted.scan(np.multiply)  # type: ignore[assignment]
    running_max = _interpreted.scan(np.maximum)  # type: ignore[assignment]
    running_min = _interpreted.scan(np.minimum)  # type: ignore[assignment]
else:
    from triton.language.extra import libdevice  # type: ignore[no-redef]


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def index_type(*counts: int) -> tl.dtype:
    """How wide positions among so many elements are."""
    return tl.int32 if max(counts, default=0) <= MOST_INT32 else tl.int64
