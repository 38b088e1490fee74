"""Why a rule does not fire: the attempt that came nearest, and what refused it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernels_hub.compiler.ir.graph import Graph, Value
from kernels_hub.compiler.rewrite.engine import first_match
from kernels_hub.compiler.rewrite.pattern import Scope, Trace
from kernels_hub.compiler.rewrite.rule import Rule


@dataclass(frozen=True)
class Explanation:
    """What a rule would do to a graph as it is: the values where it matches, or the nearest miss.

    matched: how many nodes of the pattern the nearest miss had matched. root: where that attempt began.
    """

    rule: str
    matches: tuple[Value, ...]
    root: Value | None
    matched: int
    reason: str

    def __str__(self) -> str:
        if self.matches:
            places = ", ".join(f"%{value.id}" for value in self.matches)
            return f"{self.rule}: matches at {places}"
        if self.root is None:
            return f"{self.rule}: no match: {self.reason}"
        origin = f" (from {self.root.node.origin})" if self.root.node.origin else ""
        return (
            f"{self.rule}: no match; nearest at %{self.root.id}{origin}, "
            f"{self.matched} nodes matched, then: {self.reason}"
        )


def explain_rule(graph: Graph, rule: Rule) -> Explanation:
    """Where a rule matches in a graph, or how near it came, and which condition refused."""
    names = rule.pattern.roots
    matches: list[Value] = []
    nearest, root = Trace(), None
    for node in graph.live():
        if len(node.results) != 1 or (names is not None and node.op.name not in names):
            continue
        trace = Trace()
        value = node.results[0]
        if first_match(rule, value, Scope(graph.uses, graph.is_output, trace)) is not None:
            matches.append(value)
        elif (trace.matched, trace.condition) > (nearest.matched, nearest.condition):
            nearest, root = trace, value
    return Explanation(rule.name, tuple(matches), root, max(nearest.matched, 0), nearest.reason)


def explain_rules(graph: Graph, rules: Sequence[Rule]) -> list[Explanation]:
    """The same for several rules."""
    return [explain_rule(graph, rule) for rule in rules]
