"""Scalar expressions in C++20, with the runtime's `scalar.h`."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from kernels_hub.compiler.codegen.c_scalar import CScalars
from kernels_hub.compiler.codegen.cpp.spellings import SPELLINGS
from kernels_hub.compiler.errors import EngineError
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.types import DType
from kernels_hub.compiler.schedule.kernel import Compute

_LIMITS = {"maximum": "<", "minimum": ">"}
"""Op -> how a value compares to the limit that takes its place."""
_LITERAL = re.compile(r"\(?-?\d[\d.]*(e[+-]?\d+)?f?\)?")

_STORAGE = {
    "float16": "kh::f16", "bfloat16": "kh::bf16",
    "int4": "std::int8_t", "int2": "std::int8_t", "uint4": "std::uint8_t", "uint2": "std::uint8_t",
}  # fmt: skip

SUPPORTED = {
    name
    for name, row in types.DTYPES.items()
    if name in _STORAGE or (row.bits >= 8 and row.module == "numpy")
}
"""Dtypes that C++ kernels load and store."""


def storage_type(dtype: DType) -> str:
    """The C++ type of an element in memory. Raises EngineError for a dtype that has none."""
    if dtype.name not in SUPPORTED:
        raise EngineError(f"C++ kernels have no element type for {dtype}")
    return _STORAGE.get(dtype.name) or str(dtype.cpp)


def value_type(dtype: DType) -> str:
    """The C++ type of a value in an expression."""
    return storage_type(dtype.compute)


class Cpp(CScalars):
    """See the module."""

    spellings = SPELLINGS
    language = "C++"
    lowest = "INT64_MIN"
    bit_cast = "std::bit_cast"

    def storage_type(self, dtype: DType) -> str:
        """The type of an element in memory."""
        return storage_type(dtype)

    def special(self, number: float, kind: str) -> str:
        """NaN or an infinity of a type."""
        text = f"std::numeric_limits<{kind}>::{'quiet_NaN' if math.isnan(number) else 'infinity'}()"
        return f"(-{text})" if number == -math.inf else text

    def compute(self, one: Compute, args: Sequence[str], dtypes: Sequence[DType]) -> str:
        """A pointwise op of variables and literals. A float's limit takes one comparison: a literal is no NaN."""
        name = one.op.name
        if name in _LIMITS and one.dtype.is_float and not (self.round_ops and one.dtype.bits < 32):
            value, limit = args if _LITERAL.fullmatch(args[1]) else args[::-1]
            if _LITERAL.fullmatch(limit) and not _LITERAL.fullmatch(value):
                return f"({value} {_LIMITS[name]} {limit} ? {limit} : {value})"
        return super().compute(one, args, dtypes)

    def clamp(self, text: str, low: str, high: str) -> str:
        """A float between two numbers."""
        return f"kh::clamp({text}, {low}, {high})"

    def extremum(self, kind: str, args: Sequence[str]) -> str:
        """min or max of several."""
        return f"kh::{kind}<std::int64_t>({{{', '.join(args)}}})"
