"""Whether outputs are equal up to rounding, in the norm: for comparing forms of one graph on ordinary numbers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.ops.conversion import widened
from kernels_hub.compiler.ir.types import Array
from kernels_hub.compiler.judging.judge import TOLERANCE

_OTHER_BITS = 1e-3
"""Share of integers and bools that may differ, where they come from floats that were rounded otherwise."""


def difference(actual: Mapping[str, Array], expected: Mapping[str, Array]) -> str | None:
    """None where outputs are close enough (see `TOLERANCE`), else which is not, and by how much."""
    for name, reference in expected.items():
        got = actual[name]
        if got.dtype != reference.dtype or got.shape != reference.shape:
            return f"wrong: output {name!r} is {got.dtype}{got.shape}, expected {reference.dtype}{reference.shape}"
        row = types.dtype(reference.dtype)
        if row.kind in {"bool", "int", "uint"}:
            share = float(np.mean(got != reference)) if got.size else 0.0
            if share > _OTHER_BITS:
                return f"wrong: {share:.2%} of output {name!r} differ from the oracle's"
            continue
        error = _error(widened(got), widened(reference))
        if not error <= TOLERANCE.get(row.name, 4 * TOLERANCE["bfloat16"]):
            return f"wrong: output {name!r} differs from the oracle's by {error:.2g} of its norm"
    return None


def _error(actual: Array, expected: Array) -> float:
    """Relative, in the norm, over the finite elements; infinite where others are elsewhere."""
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    a, e = actual.astype(wide), expected.astype(wide)
    special = ~np.isfinite(e)
    if not np.array_equal(special, ~np.isfinite(a)) or not np.array_equal(
        a[special], e[special], equal_nan=True
    ):
        return float("inf")
    a, e = a[~special], e[~special]
    norm = float(np.linalg.norm(e))
    return float(np.linalg.norm(a - e)) / (norm or 1.0)
