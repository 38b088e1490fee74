"""Whether outputs are equal up to rounding, in the norm: for comparing forms of one graph on ordinary numbers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.ops.conversion import widened
from kernels_hub.compiler.ir.types import Array
from kernels_hub.compiler.judging.roundoff import program_tolerance
from kernels_hub.numerics import norm_error

_OTHER_BITS = 1e-3
"""Share of integers and bools that may differ, where they come from floats that were rounded otherwise."""


def difference(actual: Mapping[str, Array], expected: Mapping[str, Array]) -> str | None:
    """None where outputs are close enough (see `program_tolerance`), else which is not, and by how much."""
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
        error = norm_error(widened(got), widened(reference))
        if not error <= program_tolerance(row.name):
            return f"wrong: output {name!r} differs from the oracle's by {error:.2g} of its norm"
    return None
