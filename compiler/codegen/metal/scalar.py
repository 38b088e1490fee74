"""Scalar expressions in the Metal Shading Language, a dialect of C++14."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kernels_hub.compiler.codegen.c_scalar import CScalars
from kernels_hub.compiler.codegen.metal.spellings import SPELLINGS
from kernels_hub.compiler.errors import EngineError
from kernels_hub.compiler.ir.types import DType

TYPES = {
    "bool": "bool", "float32": "float", "float16": "half", "bfloat16": "bfloat",
    **{f"{sign}int{bits}": f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}  # fmt: skip
"""Dtypes of the IR -> types of Metal, which has no double."""


class MetalScalars(CScalars):
    """See the module."""

    spellings = SPELLINGS
    language = "Metal"
    lowest = "(-9223372036854775807 - 1)"
    bit_cast = "as_type"

    def storage_type(self, dtype: DType) -> str:
        """The type of an element in memory. Raises EngineError for a dtype that Metal does not have."""
        if dtype.name not in TYPES:
            raise EngineError(f"Metal has no element type for {dtype}")
        return TYPES[dtype.name]

    def special(self, number: float, kind: str) -> str:
        """NaN or an infinity; `kind` is float."""
        text = f"static_cast<{kind}>({'NAN' if math.isnan(number) else 'INFINITY'})"
        return f"(-{text})" if number == -math.inf else text

    def clamp(self, text: str, low: str, high: str) -> str:
        """A float between two numbers; NaN stays."""
        return f"kh::clamped({text}, {low}, {high})"

    def extremum(self, kind: str, args: Sequence[str]) -> str:
        """min or max of several."""
        text = f"static_cast<int64_t>({args[0]})"
        for arg in args[1:]:
            text = f"metal::{kind}({text}, static_cast<int64_t>({arg}))"
        return text
