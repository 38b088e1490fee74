"""Derives equations of equality saturation from pointwise rewrite rules, by applying them to made-up operands.

What the rule's pattern asks for is built on inputs, matched (its guard included), and replaced; where both sides are
terms of those inputs alone, the rule holds of any, and is an equation for that dtype.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kernels_hub.compiler.errors import CompilerError
from kernels_hub.compiler.ir.graph import Graph, Value
from kernels_hub.compiler.rewrite.algebra import ALGEBRA
from kernels_hub.compiler.rewrite.clamp import CLAMP
from kernels_hub.compiler.rewrite.engine import first_match
from kernels_hub.compiler.rewrite.pattern import Any, OneOf, Op, Pattern, Scope, Where
from kernels_hub.compiler.rewrite.rule import Rule
from kernels_hub.compiler.search.equations import Equation
from kernels_hub.compiler.search.terms import Terms

SHARED = (*ALGEBRA, *CLAMP)
"""Tables that are asked."""


def derived(dtypes: Iterable[str], rules: Iterable[Rule] = SHARED) -> list[Equation]:
    """Equations of those rules that are about pointwise ops without numbers, for values of these dtypes."""
    names = sorted(dtypes)
    equations = []
    for rule in rules:
        texts = tuple(dict.fromkeys(text for name in names for text in _texts(rule, name)))
        if texts:
            equations.append(Equation(rule.name, rule.doc, texts, rule.exact))
    return equations


def _texts(rule: Rule, dtype: str) -> Iterator[str]:
    count = 0
    while True:
        graph = Graph("pattern")
        picks = _Picks(count)
        try:
            value = _instance(rule.pattern, graph, dtype, {}, picks)
        except CompilerError:
            value = None
        if picks.is_over or picks.unknown:
            return
        count += 1
        if value is None or value.op_name == "input":
            continue
        match = first_match(rule, value, Scope(lambda _: 1, lambda _: False))
        if match is None:
            continue
        replaced = rule.replace(match)
        graph.output("before", value)
        graph.output("after", replaced)
        terms = Terms(graph)
        sides = [_pattern(terms, one) for one in (value, replaced)]
        if None not in sides and replaced.dtype is value.dtype:
            yield f'(= s {sides[0]}) (= "{dtype}" (dtype s)) => (union s {sides[1]})'


class _Picks:
    """Which of several ops, or patterns, to take: the digits of a number, each in its own base."""

    def __init__(self, number: int) -> None:
        self._left, self.unknown = number, False

    def of(self, count: int) -> int:
        """One of so many."""
        self._left, digit = divmod(self._left, count)
        return digit

    @property
    def is_over(self) -> bool:
        """Whether the number has more digits than there were choices."""
        return self._left > 0


def _instance(
    pattern: Pattern, graph: Graph, dtype: str, bound: dict[str, Value], picks: _Picks
) -> Value | None:
    if isinstance(pattern, Where):
        return _instance(pattern.inner, graph, dtype, bound, picks)
    if isinstance(pattern, OneOf):
        return _instance(pattern.choices[picks.of(len(pattern.choices))], graph, dtype, bound, picks)
    if isinstance(pattern, Any) and pattern.shape is None:
        name = pattern.name or f"any{len(bound)}"
        if name not in bound:
            bound[name] = graph.input(name, (2, 3), dtype)
        return bound[name]
    if isinstance(pattern, Op) and pattern.operands and not pattern.attrs and len(pattern.operands) <= 2:
        names = sorted(pattern.names)
        op = names[picks.of(len(names))]
        operands = [_instance(operand, graph, dtype, bound, picks) for operand in pattern.operands]
        given = [operand for operand in operands if operand is not None]
        return graph.apply(op, *given) if len(given) == len(operands) else None
    picks.unknown = True
    return None


def _pattern(terms: Terms, value: Value) -> str | None:
    """A value as a pattern over inputs; None where it is more than pointwise ops of these."""
    constructor, args = terms.made[value]
    if value.op_name == "input":
        return f"x{value.id}"
    if constructor not in {"Un", "Bin"}:
        return None
    inner = [_pattern(terms, argument) for argument in args[1:]]
    return None if None in inner else f'({constructor} "{args[0]}" {" ".join(map(str, inner))})'
