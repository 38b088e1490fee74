"""Explains why a rule does not fire: the nearest attempt and the condition that refused; and where rules fire."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kernels_hub.compiler.ir.graph import Graph, Value
from kernels_hub.compiler.rewrite.engine import Rules, first_match
from kernels_hub.compiler.rewrite.growth import Growth
from kernels_hub.compiler.rewrite.pattern import Scope, Trace
from kernels_hub.compiler.rewrite.pipeline import PIPELINE, rewrite
from kernels_hub.compiler.rewrite.rule import Match, Pass, Rule


@dataclass(frozen=True)
class Explanation:
    """What a rule does to a graph: the values that it replaces, or the nearest miss.

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
    """Where a rule matches in a graph as it is, or how near it came, and which condition refused.

    >>> from kernels_hub.compiler.rewrite.pipeline import SIMPLIFY
    >>> graph = Graph("negated once")
    >>> output = graph.output("y", -graph.input("x", ("n",), "float32"))
    >>> rule = next(rule for rule in SIMPLIFY.rules if rule.name == "inverse_twice")
    >>> print(explain_rule(graph, rule))
    inverse_twice: no match; nearest at %1, 1 nodes matched, then: %0: float32[n] is made by input, not by neg
    """
    growth = next((one for one in PIPELINE if isinstance(one, Growth) and rule in one.rules), None)
    if growth is not None:
        return _explain_growth(graph, rule, growth)
    found = _explain_alone(graph, rule)
    if not found.matches:
        for one in rule.follows:
            before = _explain_alone(graph, one)
            if not before.matches and before.matched >= found.matched:
                found = replace(before, rule=rule.name, reason=f"{before.reason} ({one.name})")
    return found


def _explain_alone(graph: Graph, rule: Rule) -> Explanation:
    """The same of a rule that looks at the graph as it is."""
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


def _explain_growth(graph: Graph, rule: Rule, growth: Growth) -> Explanation:
    """The same of a rule that looks at what others have grown: the nearest miss may be one of theirs."""
    matches: list[Value] = []
    nearest, matched, root, step = Trace(), -1, None, rule
    for attempt in growth.attempts(graph):
        if attempt.fired:
            matches += [attempt.value] if attempt.fired == rule.name else []
            continue
        for one in (*growth.before(rule), rule):
            if not one.pattern.admits(attempt.offered):
                continue
            trace = Trace()
            scope = replace(attempt.scope, trace=trace)
            if first_match(one, attempt.offered, scope) is not None:
                continue
            size = trace.matched + attempt.grown
            if (size, trace.condition) > (matched, nearest.condition):
                nearest, matched, root, step = trace, size, attempt.value, one
    reason = nearest.reason if step is rule else f"{nearest.reason} ({step.name})"
    return Explanation(rule.name, tuple(matches), root, max(matched, 0), reason)


def explain_rules(graph: Graph, rules: Sequence[Rule]) -> list[Explanation]:
    """The same for several rules."""
    return [explain_rule(graph, rule) for rule in rules]


def explain_firing(graph: Graph, rule: Rule, passes: Sequence[Pass] = PIPELINE) -> Explanation:
    """Where a rule fires while the passes run; if nowhere, its nearest miss after the last pass that has it.

    The values are of graphs on the way: read their types and `node.origin`, not their ids.
    """
    fired: list[Value] = []

    def watched(match: Match) -> Value:
        value = rule.replace(match)
        if value is not match.root:
            fired.append(match.root)
        return value

    watching, last = replace(rule, replace=watched), 0
    steps: list[Pass] = []
    for one in passes:
        steps.append(one)
        if isinstance(one, Rules) and rule in one.rules:
            steps[-1] = replace(one, rules=tuple(watching if other is rule else other for other in one.rules))
            last = len(steps)
    after = rewrite(graph, steps[:last]).graph
    return Explanation(rule.name, tuple(fired), None, 0, "") if fired else explain_rule(after, rule)


def rule_passes(passes: Sequence[Pass] = PIPELINE) -> dict[str, tuple[Rule, str]]:
    """Every rule by its name, with the name of the first pass that has it; in order."""
    found: dict[str, tuple[Rule, str]] = {}
    for one in passes:
        for rule in one.rules if isinstance(one, Rules) else ():
            found.setdefault(rule.name, (rule, one.name))
    return found
