"""Roundoff of dtypes, and of sums; the tolerance of whole programs."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.types import DType
from kernels_hub.numerics import tolerance

_NARROWEST = 4
"""Floats narrower than bfloat16 may err by as many times its tolerance."""


def unit(row: DType) -> float:
    """The unit roundoff of a dtype; 0 of what is not a float."""
    return _finfo(row)[0]


def largest(row: DType) -> float:
    """The largest finite number of a float dtype, or of the parts of a complex one."""
    return _finfo(row)[2]


def least(row: DType) -> float:
    """The smallest normal number: what lies below may be flushed to 0."""
    return _finfo(row)[1]


@functools.cache
def _finfo(row: DType) -> tuple[float, float, float]:
    if row.is_complex:
        row = types.FLOAT32 if row is types.COMPLEX64 else types.FLOAT64
    if not row.is_float:
        return 0.0, 0.0, math.inf
    if row.module == "numpy":
        info: Any = np.finfo(row.numpy)
    else:
        import ml_dtypes

        finfo: Any = ml_dtypes.finfo
        info = finfo(row.numpy)
    return float(info.eps) / 2, float(info.tiny), float(info.max)


def program_tolerance(dtype: str) -> float:
    """The largest error of a program's floats of a dtype, by its name, as a share of the largest magnitude."""
    return tolerance(dtype).program or _NARROWEST * tolerance("bfloat16").program


def depth(terms: float) -> float:
    """Roundoffs of a sum of so many terms, in any order: what it grows like, not what it may come to at worst."""
    return 1 + math.sqrt(terms) / 4 if terms > 1 else 1.0
