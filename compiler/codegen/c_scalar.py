"""Scalar expressions in C++ and its dialects: what C++ for the CPU and Metal share."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from kernels_hub.compiler.codegen.scalar import DIVISIONS, Scalars
from kernels_hub.compiler.codegen.target import Spellings
from kernels_hub.compiler.errors import EngineError
from kernels_hub.compiler.ir.types import BOOL, FLOAT32, FLOAT64, DType
from kernels_hub.compiler.schedule.kernel import Compute


class CScalars(Scalars):
    """Expressions in C++ or a dialect of it, over functions of the namespace kh that the target's text brings along."""

    spellings: ClassVar[Spellings]
    language: ClassVar[str]
    """What messages call it."""
    lowest: ClassVar[str]
    """The least number of 64 bits."""
    bit_cast: ClassVar[str]

    @abstractmethod
    def storage_type(self, dtype: DType) -> str:
        """The type of an element in memory. Raises EngineError for a dtype that has none."""

    @abstractmethod
    def special(self, number: float, kind: str) -> str:
        """NaN or an infinity of a type."""

    @abstractmethod
    def clamp(self, text: str, low: str, high: str) -> str:
        """A float between two numbers."""

    def value_type(self, dtype: DType) -> str:
        """The type of a value in an expression."""
        return self.storage_type(dtype.compute)

    def quotient(self, kind: str, a: str, b: str, *, natural: bool) -> str:
        """floordiv or mod, rounded down."""
        if natural:
            return f"({a} {'/' if kind == 'floordiv' else '%'} {b})"
        return f"kh::floor_{'div' if kind == 'floordiv' else 'mod'}({a}, {b})"

    def literal(self, value: Any, dtype: DType) -> str:
        """A number of a dtype, exactly."""
        kind = self.value_type(dtype)
        if dtype.is_complex:
            part = FLOAT32 if dtype.bits == 64 else FLOAT64
            return f"{kind}({self.literal(value.real, part)}, {self.literal(value.imag, part)})"
        if dtype is BOOL:
            return "true" if value else "false"
        if dtype.is_integer:
            whole = int(value)
            if whole == -(1 << 63):
                return self.lowest
            return f"{kind}{{{whole}{'u' if whole > (1 << 63) - 1 else ''}}}"
        number = float(np.asarray(value).astype(dtype.numpy).astype(dtype.compute.numpy))
        if math.isnan(number) or math.isinf(number):
            return self.special(number, kind)
        text = str(np.float32(number)) if dtype.compute is FLOAT32 else repr(number)
        text = text if "." in text or "e" in text else f"{text}.0"
        text += "f" if dtype.compute is FLOAT32 else ""
        return f"({text})" if text.startswith("-") else text

    def conjunction(self, tests: Sequence[str]) -> str:
        """All of some comparisons."""
        return " && ".join(tests) if tests else "true"

    def cast(self, text: str, source: DType, to: DType, *, saturate: bool = False) -> str:
        """A value of one dtype as another."""
        if source is to:
            return text
        if to is BOOL:
            return f"{text} != {self.literal(0, source)}"
        if source.is_complex and not to.is_complex:
            part = FLOAT32 if source.bits == 64 else FLOAT64
            return self.cast(f"({text}).real()", part, to, saturate=saturate)
        target = self.value_type(to)
        if to.is_integer:
            low, high = (self.literal(limit, to) for limit in to.limits)
            if saturate and source is not BOOL:
                return f"kh::saturate_cast<{target}>({text}, {low}, {high})"
            whole = (
                f"kh::to_integer<{target}>({text})" if source.is_float else f"static_cast<{target}>({text})"
            )
            return self._wrapped(whole, to)
        if to.is_float and to.bits < 32:
            if saturate and source is not BOOL:
                low, high = (self.literal(limit, to) for limit in to.limits)
                text = self.clamp(f"static_cast<float>({text})", low, high)
            return f"kh::rounded<{self.storage_type(to)}>({text})"
        if to.is_complex and not source.is_complex:
            real = "float" if to.bits == 64 else "double"
            return f"{target}(static_cast<{real}>({text}))"
        return f"static_cast<{target}>({text})"

    def compute(self, one: Compute, args: Sequence[str], dtypes: Sequence[DType]) -> str:
        """A pointwise op of variables and literals."""
        name, first = one.op.name, dtypes[0]
        if name == "cast":
            return self.cast(args[0], first, one.dtype, saturate=bool(one.attrs.get("saturate")))
        if name == "bitcast":
            stored = f"static_cast<{self.storage_type(first)}>({args[0]})"
            bits = f"{self.bit_cast}<{self.storage_type(one.dtype)}>({stored})"
            return f"static_cast<{self.value_type(one.dtype)}>({bits})"
        template = self.spellings.of(one.op, first.kind)
        if template is None:
            raise EngineError(f"{name} of {first} has no {self.language} spelling")
        text = template.format(*args, dtype=self.value_type(one.dtype))
        if name in DIVISIONS and first.is_integer:
            zero = self.literal(0, first)
            if first.kind == "int":
                by_minus_one = f"-{args[0]}" if name in {"div", "floordiv"} else zero
                text = f"{args[1]} == -1 ? {by_minus_one} : {text}"
            text = f"({args[1]} == 0 ? {zero} : {text})"
        if one.dtype.is_float and one.dtype.bits < 32 and self.round_ops:
            return f"kh::rounded<{self.storage_type(one.dtype)}>({text})"
        return self._wrapped(text, one.dtype)

    def _wrapped(self, text: str, dtype: DType) -> str:
        """Numbers of four or two bits live in eight."""
        if not dtype.is_integer or dtype.bits >= 8:
            return text
        return f"kh::wrapped<{dtype.bits}, {self.value_type(dtype)}>({text})"
