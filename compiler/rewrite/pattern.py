"""Patterns over values, matched with backtracking.

    Op("add", Any("x"), Op("mul", Any("x"), Scalar("c")))    x + x * c, in any order of the operands

A name stands for one value (or one attribute, or one dim) in the whole pattern: where it occurs twice, both must
be the same. Operands of commutative ops are tried in every order, nested ones too. `find` yields every way in
which a value matches. Given a `Trace`, it also notes how far the attempts came and what refused them.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any as Anything
from typing import NamedTuple, TypeVar

from kernels_hub.compiler.ir import ops
from kernels_hub.compiler.ir.dims import Expr
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.op import Op as OpRow
from kernels_hub.compiler.ir.op import Trait
from kernels_hub.compiler.ir.proofs import proves_equal

T = TypeVar("T")
Test = Callable[[Value], str | None]
"""A condition on a value: None where it holds, else the reason why not."""

VIEWS_OF_ONE = frozenset({"broadcast", "reshape", "permute"})


@dataclass
class Trace:
    """The attempt that came furthest: how many nodes of the pattern it had matched, and what then refused."""

    matched: int = -1
    condition: bool = False
    value: Value | None = None
    reason: str = "no value has the op that the pattern begins with"

    def miss(self, matched: int, value: Value, reason: str, *, condition: bool) -> None:
        """Note a refusal, if no attempt came further; of equals, that of a condition, not of another op."""
        if (matched, condition) > (self.matched, self.condition):
            self.matched, self.condition, self.value, self.reason = matched, condition, value, reason


@dataclass(frozen=True)
class Scope:
    """What a match may ask of the graph around it: how often a value is used, whether it is an output."""

    uses: Callable[[Value], int]
    is_output: Callable[[Value], bool]
    trace: Trace | None = None

    def refuse(self, found: PartialMatch, value: Value, reason: str, *, condition: bool = False) -> None:
        """Note why an attempt ends here."""
        if self.trace is not None:
            self.trace.miss(len(found.inside), value, reason, condition=condition)


class PartialMatch(NamedTuple):
    """A match so far: values and facts (attributes, dims) by name, and the values inside the pattern."""

    values: Mapping[str, Value]
    facts: Mapping[str, Anything]
    inside: tuple[Value, ...]

    def past(self, value: Value) -> PartialMatch:
        """With one more value inside the pattern."""
        return PartialMatch(self.values, self.facts, (*self.inside, value))

    def bind(self, name: str, value: Value) -> PartialMatch | None:
        """With a name bound, or None where it stands for another value."""
        if not name:
            return self
        known = self.values.get(name)
        if known is not None:
            return self if known is value else None
        return PartialMatch({**self.values, name: value}, self.facts, self.inside)

    def learn(self, name: str, fact: Anything) -> PartialMatch | None:
        """With an attribute or a dim bound, or None where the name stands for another."""
        if name in self.facts:
            return self if same_fact(self.facts[name], fact) else None
        return PartialMatch(self.values, {**self.facts, name: fact}, self.inside)


NOTHING = PartialMatch({}, {}, ())
"""Before anything has matched."""


def same_fact(a: Anything, b: Anything) -> bool:
    """Equality of attributes; of dims, where it can be proved."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(same_fact, a, b))
    return bool(a == b) or (_is_dim(a) and _is_dim(b) and proves_equal(a, b))


def _is_dim(one: Anything) -> bool:
    return isinstance(one, (int, Expr)) and not isinstance(one, bool)


class Pattern(ABC):
    """Something that a value may match."""

    def find(self, value: Value, found: PartialMatch, scope: Scope) -> Iterator[PartialMatch]:
        """Every way in which the value matches, given what is bound already."""
        return self._find(value, found, scope)

    @cached_property
    def roots(self) -> frozenset[str] | None:
        """Names of the ops that a match may begin with; None for any."""
        return self._roots()

    def admits(self, value: Value) -> bool:
        """Whether the value's op is one that a match may begin with."""
        return self.roots is None or value.node.op.name in self.roots

    def allows(self, op: OpRow, operands: Sequence[str]) -> bool:
        """Whether a node of an op, on operands made by ops of these names, may match: for all that ops tell."""
        del operands
        return self.roots is None or op.name in self.roots

    @abstractmethod
    def _find(self, value: Value, match: PartialMatch, scope: Scope) -> Iterator[PartialMatch]:
        """What kinds of patterns differ in."""

    def _roots(self) -> frozenset[str] | None:
        return None

    def where(self, *tests: Test) -> Pattern:
        """With conditions on the value."""
        return Where(self, tests)

    def once(self) -> Pattern:
        """Only a value that one place uses, and that is no output."""
        return Once(self)

    def hidden(self) -> Pattern:
        """Only a value that is no output; any number of places may use it."""
        return Once(self, most=None)


@dataclass(frozen=True)
class Any(Pattern):
    """Any value. shape: its dims: numbers, names that are bound across the pattern, None for any; or rank alone."""

    name: str = ""
    shape: tuple[int | str | None, ...] | None = None

    def _find(self, value: Value, match: PartialMatch, scope: Scope) -> Iterator[PartialMatch]:
        bound = match.bind(self.name, value)
        if bound is None:
            if scope.trace is not None:
                scope.refuse(match, value, f"{self.name} is {match.values[self.name]} already, not {value}")
            return
        if self.shape is not None:
            bound = self._shaped(value, bound, scope)
        if bound is not None:
            yield bound

    def _shaped(self, value: Value, match: PartialMatch, scope: Scope) -> PartialMatch | None:
        assert self.shape is not None
        if value.rank != len(self.shape):
            scope.refuse(match, value, f"{value} has rank {value.rank}, not {len(self.shape)}")
            return None
        now: PartialMatch | None = match
        for wanted, dim in zip(self.shape, value.shape, strict=True):
            assert now is not None
            if isinstance(wanted, int) and not proves_equal(wanted, dim):
                scope.refuse(match, value, f"the dim {dim} of {value} is not {wanted}")
                return None
            if isinstance(wanted, str):
                known = now.facts.get(wanted)
                now = now.learn(wanted, dim)
                if now is None:
                    scope.refuse(match, value, f"{wanted} is {known} already, not {dim} of {value}")
                    return None
        return now


@dataclass(frozen=True)
class Scalar(Pattern):
    """A value that is one known number everywhere, through broadcasts, reshapes and permutes.

    number: the number it must be: bit for bit (0.0 is not -0.0), or within a relative tolerance. The name is bound to
    the constant that stands behind the views.
    """

    name: str = ""
    number: float | None = None
    tolerance: float = 0.0

    def _find(self, value: Value, match: PartialMatch, scope: Scope) -> Iterator[PartialMatch]:
        source = value
        while source.op_name in VIEWS_OF_ONE:
            source = source.operands[0]
        number = source.scalar
        if number is None:
            if scope.trace is None:
                return None
            return scope.refuse(match, value, f"{value} is no known number")
        if self.number is not None and not same_number(number, self.number, self.tolerance):
            return scope.refuse(match, value, f"{value} is {number!r}, not {self.number!r}", condition=True)
        bound = match.bind(self.name, source)
        if bound is not None:
            yield bound
        else:
            scope.refuse(match, value, f"{self.name} is another constant already")
        return None

    def _roots(self) -> frozenset[str]:
        return VIEWS_OF_ONE | {"constant"}


def same_number(number: Anything, wanted: float, tolerance: float = 0.0) -> bool:
    """Equality that tells 0.0 from -0.0 (of floats), or closeness."""
    if isinstance(number, complex):
        return False
    if tolerance:
        return math.isclose(number, wanted, rel_tol=tolerance)
    return bool(number == wanted) and (
        number != 0 or not isinstance(number, float) or math.copysign(1, number) == math.copysign(1, wanted)
    )


@dataclass(frozen=True)
class Bind:
    """An attribute that a name stands for."""

    name: str


@dataclass(frozen=True)
class Check:
    """An attribute that must pass a test."""

    test: Callable[[Anything], bool]
    reason: str


class Op(Pattern):
    """A node with one result: an op by name, by several names, or by trait, on operands that match.

    No operands given: any. name: bound to the result. attributes: numbers, `Bind`, or `Check`.
    """

    def __init__(
        self, which: str | Iterable[str] | Trait, *operands: Pattern, name: str = "", **attrs: Anything
    ) -> None:
        if isinstance(which, Trait):
            self.names = frozenset(row.name for row in ops.OPS.values() if which in row.traits)
        else:
            self.names = frozenset({which} if isinstance(which, str) else which)
        self.operands, self.name, self.attrs = operands, name, attrs

    def __repr__(self) -> str:
        names = "|".join(sorted(self.names)) if len(self.names) < 4 else "…"
        return f"{names}({', '.join(map(repr, self.operands))})"

    def _roots(self) -> frozenset[str] | None:
        return self.names

    def allows(self, op: OpRow, operands: Sequence[str]) -> bool:
        """As a pattern of this op says, and those of its operands."""
        return op.name in self.names and (
            not self.operands
            or any(
                all(
                    operand.roots is None or name in operand.roots
                    for operand, name in zip(self.operands, order, strict=False)
                )
                for order in _orders(op, operands)
            )
        )

    def _find(self, value: Value, match: PartialMatch, scope: Scope) -> Iterator[PartialMatch]:
        node = value.node
        if node.op.name not in self.names or len(node.results) != 1:
            if scope.trace is None:
                return None
            wanted = " or ".join(sorted(self.names)[:4])
            return scope.refuse(match, value, f"{value} is made by {node.op.name}, not by {wanted}")
        now: PartialMatch | None = match
        for key, wanted in self.attrs.items():
            assert now is not None
            given, before = node.attrs[key], now
            now = _attribute(wanted, given, before)
            if now is None:
                what = wanted.reason if isinstance(wanted, Check) else f"not {_shown(wanted, before)}"
                return scope.refuse(match, value, f"{key} of {node!r} is {given}: {what}")
        assert now is not None
        bound = now.bind(self.name, value)
        if bound is None:
            return scope.refuse(
                match, value, f"{self.name} is {match.values[self.name]} already, not {value}"
            )
        bound = bound.past(value)
        if not self.operands:
            yield bound
            return None
        if len(self.operands) != len(node.operands):
            return scope.refuse(
                match, value, f"{node!r} has {len(node.operands)} operands, not {len(self.operands)}"
            )
        for order in _orders(node.op, node.operands):
            if scope.trace is not None or all(map(Pattern.admits, self.operands, order)):
                yield from _each(self.operands, order, bound, scope)
        return None


def _attribute(wanted: Anything, given: Anything, match: PartialMatch) -> PartialMatch | None:
    if isinstance(wanted, Bind):
        return match.learn(wanted.name, given)
    if isinstance(wanted, Check):
        return match if wanted.test(given) else None
    return match if same_fact(wanted, given) else None


def _shown(wanted: Anything, match: PartialMatch) -> str:
    return f"{match.facts.get(wanted.name)} as before" if isinstance(wanted, Bind) else str(wanted)


def _orders(op: OpRow, operands: Sequence[T]) -> Iterable[Sequence[T]]:
    """Operands in each order that an op allows."""
    if len(operands) == 1 or Trait.COMMUTATIVE not in op.traits:
        return (operands,)
    return dict.fromkeys(itertools.permutations(operands))


def _each(
    patterns: Sequence[Pattern], values: Sequence[Value], match: PartialMatch, scope: Scope
) -> Iterator[PartialMatch]:
    if not patterns:
        yield match
        return
    for one in patterns[0].find(values[0], match, scope):
        yield from _each(patterns[1:], values[1:], one, scope)


@dataclass(frozen=True)
class OneOf(Pattern):
    """Any of several patterns; all that match are tried."""

    choices: tuple[Pattern, ...]

    def _find(self, value: Value, match: PartialMatch, scope: Scope) -> Iterator[PartialMatch]:
        for choice in self.choices:
            if scope.trace is not None or choice.admits(value):
                yield from choice.find(value, match, scope)

    def allows(self, op: OpRow, operands: Sequence[str]) -> bool:
        """As any of them says."""
        return any(choice.allows(op, operands) for choice in self.choices)

    def _roots(self) -> frozenset[str] | None:
        all_names: frozenset[str] = frozenset()
        for choice in self.choices:
            names = choice.roots
            if names is None:
                return None
            all_names |= names
        return all_names


def one_of(*choices: Pattern) -> Pattern:
    """Any of several patterns."""
    return OneOf(choices)


@dataclass(frozen=True)
class Through(Pattern):
    """A pattern behind any number of nodes of these ops (casts, reshapes …), none of them included."""

    names: frozenset[str]
    inner: Pattern

    def _find(self, value: Value, match: PartialMatch, scope: Scope) -> Iterator[PartialMatch]:
        yield from self.inner.find(value, match, scope)
        while value.op_name in self.names:
            match = match.past(value)
            value = value.operands[0]
            yield from self.inner.find(value, match, scope)

    def _roots(self) -> frozenset[str] | None:
        return None if self.inner.roots is None else self.inner.roots | self.names


def through(names: str | Iterable[str], inner: Pattern) -> Pattern:
    """A pattern behind any number of nodes of these ops, or none."""
    return Through(frozenset({names} if isinstance(names, str) else names), inner)


@dataclass(frozen=True)
class Where(Pattern):
    """A pattern with conditions on its value."""

    inner: Pattern
    tests: tuple[Test, ...]

    def _find(self, value: Value, match: PartialMatch, scope: Scope) -> Iterator[PartialMatch]:
        for one in self.inner.find(value, match, scope):
            reason = next((why for test in self.tests if (why := test(value)) is not None), None)
            if reason is None:
                yield one
            else:
                scope.refuse(one, value, reason, condition=True)

    def allows(self, op: OpRow, operands: Sequence[str]) -> bool:
        """As the pattern says."""
        return self.inner.allows(op, operands)

    def _roots(self) -> frozenset[str] | None:
        return self.inner.roots


@dataclass(frozen=True)
class Once(Pattern):
    """A pattern whose value is no output, and is used by so many places at most."""

    inner: Pattern
    most: int | None = 1

    def _find(self, value: Value, match: PartialMatch, scope: Scope) -> Iterator[PartialMatch]:
        for one in self.inner.find(value, match, scope):
            if scope.is_output(value):
                scope.refuse(one, value, f"{value} is an output", condition=True)
            elif self.most is not None and (uses := scope.uses(value)) > self.most:
                scope.refuse(one, value, f"{value} is used {uses} times", condition=True)
            else:
                yield one

    def allows(self, op: OpRow, operands: Sequence[str]) -> bool:
        """As the pattern says."""
        return self.inner.allows(op, operands)

    def _roots(self) -> frozenset[str] | None:
        return self.inner.roots


def floats(value: Value) -> str | None:
    """A condition: floats of any width."""
    return None if value.dtype.is_float else f"{value} is no float"


def integers(value: Value) -> str | None:
    """A condition: integers or bools, of which arithmetic is exact."""
    return None if value.dtype.is_integer or value.dtype.kind == "bool" else f"{value} is no integer"


def real(value: Value) -> str | None:
    """A condition: no complex numbers."""
    return f"{value} is complex" if value.dtype.is_complex else None
