"""One printer of scalar expressions, in two dialects: C++ and Triton.

A statement of a schedule becomes an expression over names that are variables already, so that nothing is computed
twice. How an op is spelled stands in its row of the op table; here stand only the rules that no template can express:
literals, casts, divisions that must not trap, and index arithmetic.

Floats narrower than float32 are float32 between a load and a store: inside a kernel nothing is rounded but by a cast
that the model asks for. With `round_ops` each op rounds as the oracle does.
"""

from __future__ import annotations

import hashlib
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kernels_hub.compiler.errors import EngineError
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.dims import Dim, Expr, Monomial, Opaque, Symbol
from kernels_hub.compiler.ir.proofs import proves_le
from kernels_hub.compiler.ir.types import BOOL, FLOAT32, FLOAT64, INT64, DType
from kernels_hub.compiler.schedule.index import Ranges
from kernels_hub.compiler.schedule.kernel import Compute, Guard
from kernels_hub.escaping import Identifier

_DIVISIONS = {"div", "floordiv", "mod", "fmod"}
"""Of integers: by zero they give 0, and the least number by -1 wraps around."""

_MATH = (
    "exp", "exp2", "expm1", "log", "log2", "log1p", "tanh", "erf", "sigmoid", "sin", "cos", "rsqrt",
)  # fmt: skip

_CPP_CALLS = {
    **{(name, "float"): f"kh::{name}({{0}})" for name in _MATH},
    ("pow", "float"): "kh::pow({0}, {1})",
    ("floordiv", "float"): "kh::floor_divide({0}, {1})",
    ("mod", "float"): "kh::remainder({0}, {1})",
    ("pow", "int"): "kh::power({0}, {1})",
    ("pow", "uint"): "kh::power({0}, {1})",
}
"""Spelled by a function of the runtime: vectorised, or exact as no short expression is."""

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


class Indices(ABC):
    """Dims and places as text. `ranges`: of the loop variables, by which divisions are known to be of naturals."""

    def __init__(self, ranges: Ranges | None = None) -> None:
        self.ranges = ranges or Ranges()

    def index(self, dim: Dim) -> str:
        """A dim or place as an expression of 64-bit integers."""
        if not isinstance(dim, Expr):
            return self.integer(int(dim))
        pieces: list[str] = []
        for monomial, coefficient in sorted(dim.terms, key=lambda term: (not term[0], term[1] < 0)):
            text = self._term(monomial, abs(coefficient))
            sign = "-" if coefficient < 0 else "+"
            pieces.append(f" {sign} {text}" if pieces else (f"-{text}" if coefficient < 0 else text))
        return "".join(pieces)

    def factor(self, dim: Dim) -> str:
        """As `index`, in parentheses where a product needs them."""
        text = self.index(dim)
        return text if not isinstance(dim, Expr) or dim.only_symbol is not None else f"({text})"

    def integer(self, number: int) -> str:
        """A number in index arithmetic."""
        return str(number)

    def variable(self, one: Symbol) -> str:
        """A loop variable, a loaded value or a size."""
        return variable_name(one.name) if one.name.startswith("$") else size_name(one.name)

    def _term(self, monomial: Monomial, coefficient: int) -> str:
        factors = [self._atom(one) for one, power in monomial for _ in range(power)]
        if coefficient != 1 or not factors:
            factors.append(self.integer(coefficient))
        return " * ".join(factors)

    def _atom(self, one: Any) -> str:
        if isinstance(one, Symbol):
            return self.variable(one)
        assert isinstance(one, Opaque)
        if one.kind in {"min", "max"}:
            return self.extremum(one.kind, [self.index(arg) for arg in one.args])
        a, b = one.args
        low, _ = self.ranges.bounds(a)
        natural = low is not None and proves_le(0, low) and not _has_loaded(a)
        return self.quotient(one.kind, self.factor(a), self.factor(b), natural=natural)

    @abstractmethod
    def extremum(self, kind: str, args: Sequence[str]) -> str:
        """min or max of several."""

    @abstractmethod
    def quotient(self, kind: str, a: str, b: str, *, natural: bool) -> str:
        """floordiv or mod, rounded down; natural: a is known not to be negative."""


class Scalars(Indices):
    """Values, too: what the dialects share."""

    def __init__(self, ranges: Ranges | None = None, *, round_ops: bool = False) -> None:
        super().__init__(ranges)
        self.round_ops = round_ops

    @abstractmethod
    def literal(self, value: Any, dtype: DType) -> str:
        """A number of a dtype, exactly."""

    @abstractmethod
    def cast(self, text: str, source: DType, to: DType, *, saturate: bool = False) -> str:
        """A value of one dtype as another, as `ops.conversion.convert` does it."""

    def position(self, place: Dim, dtype: DType) -> str:
        """An index expression as a number."""
        return self.cast(
            self.index(place) if isinstance(place, Expr) else self.literal(place, INT64), INT64, dtype
        )

    def test(self, guards: Sequence[Guard]) -> str:
        """Whether all hold. What is known to hold is left out."""
        found: dict[str, None] = {}
        for guard in guards:
            low, high = self.ranges.bounds(guard.place)
            loaded = _has_loaded(guard.place)
            if loaded or low is None or not proves_le(guard.low, low):
                found[f"{self.index(guard.low)} <= {self.index(guard.place)}"] = None
            if loaded or high is None or not proves_le(high, guard.high - 1):
                found[f"{self.index(guard.place)} < {self.index(guard.high)}"] = None
        return self.conjunction(list(found))

    @abstractmethod
    def conjunction(self, tests: Sequence[str]) -> str:
        """All of some comparisons."""

    @abstractmethod
    def compute(self, one: Compute, args: Sequence[str], dtypes: Sequence[DType]) -> str:
        """A pointwise op of variables and literals. Raises EngineError where it has no spelling."""


class Cpp(Scalars):
    """C++20, with the runtime's `scalar.h`."""

    def extremum(self, kind: str, args: Sequence[str]) -> str:
        """min or max of several."""
        return f"std::{kind}<std::int64_t>({{{', '.join(args)}}})"

    def quotient(self, kind: str, a: str, b: str, *, natural: bool) -> str:
        """floordiv or mod, rounded down."""
        if natural:
            return f"({a} {'/' if kind == 'floordiv' else '%'} {b})"
        return f"kh::floor_{'div' if kind == 'floordiv' else 'mod'}({a}, {b})"

    def literal(self, value: Any, dtype: DType) -> str:
        """A number of a dtype, exactly."""
        kind = value_type(dtype)
        if dtype.is_complex:
            part = FLOAT32 if dtype.bits == 64 else FLOAT64
            return f"{kind}({self.literal(value.real, part)}, {self.literal(value.imag, part)})"
        if dtype is BOOL:
            return "true" if value else "false"
        if dtype.is_integer:
            whole = int(value)
            if whole == -(1 << 63):
                return "INT64_MIN"
            return f"{kind}{{{whole}{'u' if whole > (1 << 63) - 1 else ''}}}"
        number = float(np.asarray(value).astype(dtype.numpy).astype(dtype.compute.numpy))
        if math.isnan(number) or math.isinf(number):
            word = "quiet_NaN" if math.isnan(number) else "infinity"
            text = f"std::numeric_limits<{kind}>::{word}()"
            return f"(-{text})" if number == -math.inf else text
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
        target = value_type(to)
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
                text = f"std::clamp(static_cast<float>({text}), {low}, {high})"
            return f"kh::rounded<{storage_type(to)}>({text})"
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
            bits = f"std::bit_cast<{storage_type(one.dtype)}>(static_cast<{storage_type(first)}>({args[0]}))"
            return f"static_cast<{value_type(one.dtype)}>({bits})"
        template = _CPP_CALLS.get((name, first.kind)) or one.op.spell("cpp", first.kind)
        if template is None:
            raise EngineError(f"{name} of {first} has no C++ spelling")
        text = template.format(*args, dtype=value_type(one.dtype))
        if name in _DIVISIONS and first.is_integer:
            zero = self.literal(0, first)
            if first.kind == "int":
                by_minus_one = f"-{args[0]}" if name in {"div", "floordiv"} else zero
                text = f"{args[1]} == -1 ? {by_minus_one} : {text}"
            text = f"({args[1]} == 0 ? {zero} : {text})"
        if one.dtype.is_float and one.dtype.bits < 32 and self.round_ops:
            return f"kh::rounded<{storage_type(one.dtype)}>({text})"
        return self._wrapped(text, one.dtype)

    def _wrapped(self, text: str, dtype: DType) -> str:
        """Numbers of four or two bits live in eight."""
        if not dtype.is_integer or dtype.bits >= 8:
            return text
        return f"kh::wrapped<{dtype.bits}, {value_type(dtype)}>({text})"


class Triton(Scalars):
    """Triton's language; float16 and bfloat16 are widened when they are loaded."""

    def extremum(self, kind: str, args: Sequence[str]) -> str:
        """min or max of several."""
        text = args[0]
        for arg in args[1:]:
            text = f"tl.{kind}imum({text}, {arg})"
        return text

    def quotient(self, kind: str, a: str, b: str, *, natural: bool) -> str:
        """floordiv or mod, rounded down."""
        if natural:
            return f"({a} {'//' if kind == 'floordiv' else '%'} {b})"
        below = f"(({a} - tl.where({a} < 0, {b} - 1, 0)) // {b})"  # Triton's // rounds towards zero
        return below if kind == "floordiv" else f"({a} - {below} * {b})"

    def literal(self, value: Any, dtype: DType) -> str:
        """A number of a dtype, exactly."""
        if dtype is BOOL:
            return "True" if value else "False"
        if dtype.is_integer:
            return f"({int(value)})" if value < 0 else str(int(value))
        number = float(np.asarray(value).astype(dtype.numpy).astype(np.float64))
        if math.isnan(number) or math.isinf(number):
            return f'float("{number}")'
        return f"({number!r})" if math.copysign(1, number) < 0 else repr(number)

    def conjunction(self, tests: Sequence[str]) -> str:
        """All of some comparisons."""
        return " & ".join(f"({test})" for test in tests) if tests else "True"

    def cast(self, text: str, source: DType, to: DType, *, saturate: bool = False) -> str:
        """A value of one dtype as another."""
        if source is to:
            return text
        if to is BOOL:
            return f"({text} != 0)"
        compute, target = to.compute.triton, to.triton
        if target is None:
            raise EngineError(f"Triton has no element type for {to}")
        if saturate and source is not BOOL and (to.is_integer or to.bits < 32):
            low, high = (self.literal(limit, to) for limit in to.limits)
            text = (
                f"tl.clamp({text}, {low}, {high})"
                if source.is_float
                else f"tl.minimum(tl.maximum({text}, {low}), {high})"
            )
        text = f"({text}).to({target})"
        return text if compute == target else f"{text}.to({compute})"

    def compute(self, one: Compute, args: Sequence[str], dtypes: Sequence[DType]) -> str:
        """A pointwise op of variables and literals."""
        name, first = one.op.name, dtypes[0]
        if name == "cast":
            return self.cast(args[0], first, one.dtype, saturate=bool(one.attrs.get("saturate")))
        target = one.dtype.compute.triton
        if name == "bitcast":
            narrow = args[0] if first.compute is first else f"({args[0]}).to({first.triton})"
            text = f"({narrow}).to({one.dtype.triton}, bitcast=True)"
            return text if one.dtype.compute is one.dtype else f"{text}.to({target})"
        template = one.op.spell("triton", first.kind)
        if template is None or target is None:
            raise EngineError(f"{name} of {first} has no Triton spelling")
        texts = list(args)
        divides = name in _DIVISIONS and first.is_integer
        if divides:
            texts[1] = f"tl.where({args[1]} == 0, 1, {args[1]})"
        text = template.format(*texts, dtype=target)
        if divides:
            text = f"tl.where({args[1]} == 0, 0, {text})"
        if self.round_ops and one.dtype.compute is not one.dtype:
            text = f"({text}).to({one.dtype.triton}).to({target})"
        return text


def size_name(symbol: str) -> Identifier:
    """The variable that holds a symbol of the graph; no two symbols share one."""
    if re.fullmatch(r"[A-Za-z0-9](?:[A-Za-z0-9_]{0,46}[A-Za-z0-9])?", symbol):
        return Identifier(f"n_{symbol}")
    digest = hashlib.sha256(symbol.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return Identifier(f"nx_{Identifier(symbol)[:24]}_{digest}")


_TAKEN = frozenset(
    {
        "acc", "batch", "begin", "block", "count", "end", "failure", "j", "l", "packed", "q_strides", "k_strides",
        "out_strides", "root", "row", "score", "scores", "shape", "space", "start", "stop", "strides",
        "v_strides", "w_strides", "width",
    }
)  # fmt: skip
"""Names that generated text gives to other things than loop variables."""


def variable_name(name: str) -> str:
    """The variable of a loop or a loaded value, from its name in index expressions."""
    text = name.removeprefix("$")
    return f"{text}_" if text in _TAKEN else text


def _has_loaded(dim: Dim) -> bool:
    """Whether a loaded value, of which nothing is known, stands in a place."""
    return isinstance(dim, Expr) and any(one.name.startswith("$v") for one in dim.symbols)


DIALECTS: Mapping[str, type[Scalars]] = {"cpp": Cpp, "triton": Triton}
