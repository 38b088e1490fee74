"""Printer of scalar expressions, of which each target has a dialect.

A statement of a schedule becomes an expression over names that are variables already, so that nothing is computed
twice. How an op is spelled stands in its row of the op table, or in the target's own table; dialects state only what no
template can express: literals, casts, divisions that must not trap, and index arithmetic.

Floats narrower than float32 are float32 between a load and a store: inside a kernel nothing is rounded but by a cast
that the model asks for. With `round_ops` each op rounds as the oracle does.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from kernels_hub.compiler.ir.dims import Dim, Expr, Monomial, Opaque, Symbol
from kernels_hub.compiler.ir.proofs import proves_le
from kernels_hub.compiler.ir.types import INT64, DType
from kernels_hub.compiler.schedule.index import Ranges
from kernels_hub.compiler.schedule.kernel import Compute, Guard
from kernels_hub.escaping import Identifier

DIVISIONS = {"div", "floordiv", "mod", "fmod"}
"""Of integers: by zero they give 0, and the least number by -1 wraps around."""


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
    return isinstance(dim, Expr) and any(symbol.name.startswith("$v") for symbol in dim.symbols)
