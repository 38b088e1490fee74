"""Applies rules to a graph until none fires.

A sweep is one rebuild of the graph from inputs to outputs: each node, on operands that are rewritten already, is
offered to the rules that its op is the root of; what a rule builds is offered again at once. So a chain that
collapses step by step does so in one sweep. Only two things call for another: a value that has fewer uses now than
a rule was told, and a node that set off more than it may. Sweeps are bounded, and so is what one node may set off.

A graph is matched as it is before it is rebuilt: where nothing fires, it is not, and up to the first place where
something does, nodes are copied and not offered again.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from kernels_hub.compiler.errors import GraphError
from kernels_hub.compiler.ir.graph import Graph, Node, Value
from kernels_hub.compiler.ir.operators import same_shapes
from kernels_hub.compiler.ir.transform import Rebuilt, rebuild
from kernels_hub.compiler.rewrite.pattern import NOTHING, Scope
from kernels_hub.compiler.rewrite.rule import Match, Options, PassResult, Rule

MOST_SWEEPS = 8
MOST_STEPS = 64
"""How many rules may fire for one node of the old graph, with all that they build."""


class Index:
    """Rules, in order, by the ops of a node and of its operands: what most nodes are not offered to at all."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._rules = tuple(rules)
        self._by_ops: dict[tuple[str, ...], tuple[Rule, ...]] = {}

    def of(self, node: Node) -> tuple[Rule, ...]:
        """The rules that the node may be the root of."""
        operands = [operand.node.op.name for operand in node.operands]
        key = (node.op.name, *operands)
        found = self._by_ops.get(key)
        if found is None:
            found = tuple(rule for rule in self._rules if rule.pattern.allows(node.op, operands))
            self._by_ops[key] = found
        return found


@dataclass(frozen=True)
class Rules:
    """A pass: rules, tried in order, to fixpoint."""

    name: str
    rules: tuple[Rule, ...]

    @cached_property
    def _indices(self) -> dict[bool, Index]:
        exact = tuple(rule for rule in self.rules if rule.exact)
        return {True: Index(self.rules), False: Index(exact)}

    def run(self, graph: Graph, options: Options) -> PassResult:
        """The graph after the rules, and how often each fired."""
        return _to_fixpoint(graph, self._indices[options.rounding])


def apply_rules(graph: Graph, rules: Sequence[Rule], options: Options | None = None) -> PassResult:
    """Rules to fixpoint. Raises GraphError where a rule builds something of another type than what it replaces."""
    return Rules("rules", tuple(rules)).run(graph, options or Options())


def _to_fixpoint(graph: Graph, index: Index) -> PassResult:
    fired: Counter[str] = Counter()
    if len(graph.live()) < len(graph.nodes):
        graph = rebuild(graph).graph
    for _ in range(MOST_SWEEPS):
        sweep = _Sweep(graph, index, fired)
        if not sweep.finds_a_match():
            break
        rebuilt = rebuild(graph, sweep.visit)
        graph = rebuilt.graph
        if not sweep.calls_for_another(rebuilt):
            break
    return PassResult(graph, fired)


class _Sweep:
    """One pass over a graph, all of it live. Knows of each new value how often those it stands for are used."""

    def __init__(self, old: Graph, index: Index, fired: Counter[str]) -> None:
        self.old, self.index, self.fired = old, index, fired
        self._old_uses = Counter(itertools.chain.from_iterable(node.operands for node in old.nodes))
        self._old_uses.update(old.outputs.values())
        self._old_outputs = set(old.outputs.values())
        self._first = 0
        self._noted: set[Value] = set()
        self._uses: dict[Value, int] = {}
        self._outputs: set[Value] = set()
        self._told: dict[Value, int] = {}
        self._became: dict[Value, Value] = {}
        """New values that were rewritten -> what stands for them: another replacement may build them again."""
        self._steps = 0
        self._cut_short = False
        self.scope = Scope(self._count, self._outputs.__contains__)

    def finds_a_match(self) -> bool:
        """Whether a rule matches anywhere in the graph as it is; notes where first."""
        scope = Scope(lambda value: self._tell(value, self._old_uses[value]), self._old_outputs.__contains__)
        for node in self.old.nodes:
            if len(node.results) == 1:
                for rule in self.index.of(node):
                    if first_match(rule, node.results[0], scope) is not None:
                        self._first = node.id
                        return True
        return False

    def visit(self, new: Graph, node: Node, operands: tuple[Value, ...]) -> Sequence[Value]:
        """What stands for a node's results in the new graph."""
        for old, value in zip(node.operands, operands, strict=True):
            if not old.operands:
                self._note(old, value)
        copied = new.copy(node, operands)
        self._steps = 0
        results = copied.results if node.id < self._first else self._rewrite(copied)
        for old, value in zip(node.results, results, strict=True):
            self._note(old, value)
        return results

    def calls_for_another(self, rebuilt: Rebuilt) -> bool:
        """Whether something may fire in the new graph that did not yet."""
        new = rebuilt.graph
        left = set(new.values)
        told = ((rebuilt.values.get(value, value), count) for value, count in self._told.items())
        return self._cut_short or any(value in left and new.uses(value) < count for value, count in told)

    def _note(self, old: Value, new: Value) -> None:
        if old not in self._noted:
            self._noted.add(old)
            self._uses[new] = self._uses.get(new, 0) + self._old_uses[old]
            if old in self._old_outputs:
                self._outputs.add(new)

    def _count(self, value: Value) -> int:
        known = self._uses.get(value)
        return self._tell(value, known if known is not None else max(1, value.graph.uses(value)))

    def _tell(self, value: Value, count: int) -> int:
        if count > 1:
            self._told[value] = max(count, self._told.get(value, 0))
        return count

    def _rewrite(self, node: Node) -> tuple[Value, ...]:
        """What stands for a node's results after all rules that fire at it, and at what they build."""
        if len(node.results) != 1:
            return node.results
        value, before = node.results[0], []
        while value not in self._became:
            first = len(value.graph.nodes)
            replaced = self._fire(value)
            if replaced is None:
                break
            before.append(value)
            value = self._settle(first, replaced)
            if value.node.id < first or len(value.node.results) != 1:
                break
        value = self._became.get(value, value)
        self._became.update((one, value) for one in before if one is not value)
        return (value,)

    def _fire(self, value: Value) -> Value | None:
        if self._steps >= MOST_STEPS:
            self._cut_short = True
            return None
        for rule in self.index.of(value.node):
            match = first_match(rule, value, self.scope)
            if match is not None:
                replaced = rule.replace(match)
                if replaced is value:
                    continue
                if replaced.dtype is not value.dtype or not same_shapes(replaced.shape, value.shape):
                    raise GraphError(
                        f"rule {rule.name} replaces {value} ({value.node!r}) by {replaced}, of another type"
                    )
                self.fired[rule.name] += 1
                self._steps += 1
                return replaced
        return None

    def _settle(self, first: int, result: Value) -> Value:
        """Offer the nodes that a replacement has appended to the rules, in order."""
        graph, became = result.graph, self._became
        for node in graph.nodes[first:]:
            if len(node.results) != 1:
                continue
            before = node.results[0]
            again = graph.copy(node, tuple(became.get(operand, operand) for operand in node.operands))
            if before is result and again is node:
                return before  # the caller goes on with it
            (after,) = self._rewrite(again)
            if after is not before:
                became[before] = after
        return became.get(result, result)


def first_match(rule: Rule, value: Value, scope: Scope) -> Match | None:
    """The first way in which a rule matches and its guard agrees; None if there is none."""
    for found in rule.pattern.find(value, NOTHING, scope):
        match = Match(value, found, scope)
        reason = rule.guard(match)
        if reason is None:
            return match
        scope.refuse(found, value, reason, condition=True)
    return None
