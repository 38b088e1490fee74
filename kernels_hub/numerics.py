"""Numerical tolerances by dtype, and the errors that they bound: what is rounding, and what is wrong.

Errors are measured over the finite elements, in float64 (complex128): `norm_error` is relative to the norm of what is
expected, `largest_error` is in units of its largest magnitude. Both take torch tensors or NumPy arrays. Bounds that
are derived from a graph, element by element, are those of `kernels_hub.compiler.judging`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

Array: TypeAlias = Any
"""A torch tensor or a NumPy array: what both offer is all that is used of them."""


@dataclass(frozen=True)
class Tolerance:
    """The largest errors of a result of one dtype that count as rounding.

    kernel: `norm_error` of a kernel against the forward that it replaces, on the same inputs. About 2^8 units in the
      last place for float32 and 8 for the short ones: two right implementations that add in another order, or round
      once where the other rounds twice, stay well below.
    element: the error of one element of it, in units of its own magnitude plus the root mean square of its row (what
      lies along the last dim): the sums that made an element are not known, but are of the size of their neighbours.
    program: `norm_error` of a compiled program against the oracle, which computes in float64, on ordinary inputs.
    layer: `largest_error` of a published layer against the original, or of one of its kernels against the oracle.
    """

    kernel: float
    element: float
    program: float
    layer: float


TOLERANCES: Mapping[str, Tolerance] = {
    "float64": Tolerance(kernel=1e-10, element=4e-10, program=1e-9, layer=1e-10),
    "float32": Tolerance(kernel=2e-5, element=8e-5, program=1e-4, layer=1e-4),
    "float16": Tolerance(kernel=8e-3, element=3e-2, program=1e-2, layer=1e-2),
    "bfloat16": Tolerance(kernel=4e-2, element=1.6e-1, program=6e-2, layer=4e-2),
    "complex128": Tolerance(kernel=1e-10, element=4e-10, program=1e-9, layer=1e-10),
    "complex64": Tolerance(kernel=2e-5, element=8e-5, program=1e-4, layer=1e-4),
}
"""By the name of a result's dtype. Complex numbers have the tolerances of their parts, which kernels compute."""

EXACT = Tolerance(0.0, 0.0, 0.0, 0.0)
"""Of integers, bools, and whatever no table names: equal, or wrong."""


_FLUSHED: Mapping[str, float] = {
    "float64": 2.0**-970, "float32": 2.0**-103, "bfloat16": 2.0**-103, "complex128": 2.0**-970, "complex64": 2.0**-103,
}  # fmt: skip
"""What errors are relative to at the least: the smallest normal number over the spacing of the dtype (of bfloat16, of
float32, in which it is computed). Numbers below the smallest normal one may be kept or flushed to zero, of which a
result of this magnitude sees one spacing; of the tiny results of an untrained network it may be all."""


def tolerance(dtype: object) -> Tolerance:
    """The tolerance of a dtype of torch or NumPy, or of its name; `EXACT` for one that is not in the table.

    >>> tolerance("float16").layer
    0.01
    """
    return TOLERANCES.get(str(dtype).removeprefix("torch."), EXACT)


def norm_error(actual: Array, expected: Array) -> float:
    """‖actual - expected‖ / ‖expected‖, or the numerator where the denominator is 0. See `_FLUSHED` for tiny results.

    Infinite where NaN or an infinity stands in one of them alone.
    """
    return _relative(actual, expected, _norm)


def largest_error(actual: Array, expected: Array) -> float:
    """max|actual - expected| / max|expected|, or the numerator where the denominator is 0. See `_FLUSHED`.

    Infinite where NaN or an infinity stands in one of them alone.
    """
    return _relative(actual, expected, _largest)


def _relative(actual: Array, expected: Array, measure: Callable[[Array], float]) -> float:
    a, e = _finite(actual, expected)
    if a is None:
        return math.inf
    error, magnitude = measure(a - e), measure(e)
    least = _FLUSHED.get(str(actual.dtype).removeprefix("torch."), 0.0)
    return error / max(magnitude, least) if magnitude else error


def _finite(actual: Array, expected: Array) -> tuple[Array, Array] | tuple[None, None]:
    """Both in double precision, where they are finite; None where only one is, or an infinity or NaN is another."""
    a, e = _wide(actual), _wide(expected)
    finite = abs(e) < math.inf
    if not bool(((abs(a) < math.inf) == finite).all()):
        return None, None
    special_a, special_e = a[~finite], e[~finite]
    same = (special_a == special_e) | ((special_a != special_a) & (special_e != special_e))  # noqa: PLR0124 (NaN)
    return (a[finite], e[finite]) if bool(same.all()) else (None, None)


def _wide(array: Array) -> Array:
    if hasattr(array, "detach"):
        import torch

        return array.detach().to(torch.complex128 if array.is_complex() else torch.float64)
    return array.astype("complex128" if array.dtype.kind == "c" else "float64")


def _norm(array: Array) -> float:
    return math.sqrt(float((abs(array) ** 2).sum()))


def _largest(array: Array) -> float:
    return float(abs(array).max()) if math.prod(array.shape) else 0.0
