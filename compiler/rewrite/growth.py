"""A pass that grows what it looks for beside the graph: an op at a time, by rules that each see little of it.

    f(known(x, y, whole), z)  ->  known(x, y, z, f(whole, z))     most rules: beside the graph, for other rules alone
    f(known(x, y, whole), z)  ->  what stands for f(whole, z)     rules that end a growth: in the graph

What has been grown is a call, under a name, of its operands by name; a rule sees no more of it. The last operand,
`whole`, is what the call stands for, and its result. So nothing has to be undone: values that are known as something
stay as they are, and a graph in which no growth ends does, too. A rule is offered a node on its operands as they are
known, and else as they are. Nodes are offered once, from inputs to outputs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from kernels_hub.compiler.errors import GraphError
from kernels_hub.compiler.ir.graph import Graph, Node, Value
from kernels_hub.compiler.ir.op import TensorType
from kernels_hub.compiler.ir.operators import same_shapes
from kernels_hub.compiler.ir.transform import rebuild
from kernels_hub.compiler.rewrite.engine import Index, Rules, first_match
from kernels_hub.compiler.rewrite.outline import recognised
from kernels_hub.compiler.rewrite.pattern import Op, Pattern, Scope
from kernels_hub.compiler.rewrite.rule import Options, PassResult, Rule

WHOLE = "whole"
MOST_CALLEES = 512


def known_as(name: str, root: Value, given: Mapping[str, Value]) -> Value:
    """What a rule's root is known as from then on: a call under a name, of operands by name."""
    operands = {key: plain(one) for key, one in given.items() if key != WHOLE} | {WHOLE: plain_root(root)}
    callee = _gives_whole(name, tuple((key, one.type) for key, one in operands.items()))
    return root.graph.apply("call", *operands.values(), callee=callee)


@lru_cache(MOST_CALLEES)
def _gives_whole(name: str, inputs: tuple[tuple[str, TensorType], ...]) -> Graph:
    callee = Graph(name)
    made = {key: callee.input(key, of.shape, of.dtype) for key, of in inputs}
    callee.output("y", made[WHOLE])
    return callee


def grown(*names: str) -> Pattern:
    """What is known under one of these names; bound to `grown`."""
    return Op("call", name="grown").where(recognised(*names))


def is_known(value: Value) -> bool:
    """Whether a value is what another is known as."""
    return value.op_name == "call" and WHOLE in value.attrs["callee"].inputs


def plain(value: Value) -> Value:
    """A value as it is in the graph."""
    return value.operands[-1] if is_known(value) else value


def plain_root(root: Value) -> Value:
    """A rule's root as it is in the graph, where its operands are known as nothing."""
    if not any(map(is_known, root.operands)):
        return root
    return root.graph.apply(root.op, *map(plain, root.operands), **root.attrs)


def parts(known: Value) -> dict[str, Value]:
    """The operands of what has been grown by name, without the whole."""
    return dict(zip(known.attrs["callee"].inputs, known.operands[:-1], strict=False))


@dataclass(frozen=True)
class Growth(Rules):
    """ends: names of rules that end a growth. begins: nodes where one may begin. pays: whether to look at a graph.

    A graph in which no growth begins, or pays, is left alone.
    """

    ends: frozenset[str] = frozenset()
    begins: Callable[[Graph], set[Node]] = lambda graph: set(graph.nodes)
    pays: Callable[[Graph], bool] = lambda _: True

    def run(self, graph: Graph, options: Options) -> PassResult:
        """The graph, and how often each rule fired; as it was where no growth ended."""
        index = self._indices[options.rounding]
        if not self.pays(graph) or not any(map(index.of, self.begins(graph))):
            return PassResult(graph)
        growing = _Growing(_live(graph), self, index)
        found = rebuild(growing.graph, growing.visit).graph
        ended = any(growing.fired[name] for name in self.ends)
        return PassResult(found, growing.fired) if ended else PassResult(graph)

    def attempts(self, graph: Graph) -> list[Attempt]:
        """All values that rules may look at, as they are offered to them."""
        growing = _Growing(_live(graph), self, self._indices[True])
        rebuild(growing.graph, growing.visit)
        return [
            growing.attempts.get(value) or Attempt(value, value, growing.scope)
            for value in growing.graph.values
            if len(value.node.results) == 1
        ]

    def before(self, rule: Rule) -> tuple[Rule, ...]:
        """The rules that a rule builds on: those that end nothing for one that ends a growth, none for others."""
        return tuple(one for one in self.rules if rule.name in self.ends and one.name not in self.ends)


def products_below(nodes: Iterable[Node], passed: frozenset[str]) -> set[Node]:
    """The products that the operands of nodes are made of, with ops of these names between."""
    stack = [operand.node for node in nodes for operand in node.operands]
    seen, found = set(stack), set[Node]()
    while stack:
        node = stack.pop()
        if node.op.name == "matmul":
            found.add(node)
        elif node.op.name in passed:
            above = {operand.node for operand in node.operands} - seen
            seen |= above
            stack += above
    return found


def _live(graph: Graph) -> Graph:
    return graph if len(graph.live()) == len(graph.nodes) else rebuild(graph).graph


@dataclass(frozen=True)
class Attempt:
    """A value of a graph, and how it was offered to rules: on operands as they are known.

    fired: the rule that took it. grown: how many ops have gone into what its operands are known as.
    """

    value: Value
    offered: Value
    scope: Scope
    fired: str = ""
    grown: int = 0


class _Growing:
    """One rebuild of a graph, all of it live, in which values are known as what has been grown of them."""

    def __init__(self, graph: Graph, growth: Growth, index: Index) -> None:
        self.graph = graph
        self.fired: Counter[str] = Counter()
        self.attempts: dict[Value, Attempt] = {}
        """By values of the old graph: those that were offered."""
        self._ends, self._begins, self._index = growth.ends, growth.begins(graph), index
        self._known: dict[Value, Value] = {}
        self._grown: dict[Value, int] = {}
        self._old: dict[Value, Value] = {}
        """What has been built, offered and is known so far -> values of the old graph."""
        self.scope = Scope(self._uses, self._is_output)

    def visit(self, new: Graph, node: Node, operands: tuple[Value, ...]) -> Sequence[Value] | None:
        """What stands for a node's results in the new graph where a growth ends; others are copied."""
        known = self._known
        self._old.update(zip(operands, node.operands, strict=True))
        goes_on, begins = not known.keys().isdisjoint(operands), node in self._begins
        if not (goes_on or begins) or len(node.results) != 1:
            return None
        (value,), (old,) = new.copy(node, operands).results, node.results
        self._old[value] = old
        if goes_on:
            on_known = new.copy(node, tuple([known.get(one, one) for one in operands])).results[0]
            made = self._offer(on_known, old)
            if made is None and begins:
                made = self._offer(value, old)
        else:
            made = self._offer(value, old)
        if made is None:
            return None
        self._old[made] = old
        if self.attempts[old].fired in self._ends:
            return (made,)
        known[value], self._grown[made] = made, self.attempts[old].grown + 1
        return None

    def _offer(self, offered: Value, old: Value) -> Value | None:
        """What the first rule that matches makes of a value."""
        grown = max([self._grown.get(one, 0) for one in offered.operands], default=0)
        self.attempts[old] = Attempt(old, offered, self.scope, grown=grown)
        for rule in self._index.of(offered.node):
            match = first_match(rule, offered, self.scope)
            if match is not None:
                made = rule.replace(match)
                if made.dtype is not old.dtype or not same_shapes(made.shape, old.shape):
                    raise GraphError(
                        f"rule {rule.name} makes {made} of {old} ({old.node!r}), of another type"
                    )
                self.fired[rule.name] += 1
                self.attempts[old] = Attempt(old, offered, self.scope, rule.name, grown)
                return made
        return None

    def _uses(self, value: Value) -> int:
        value = self._old.get(value, value)
        return value.graph.uses(value)

    def _is_output(self, value: Value) -> bool:
        value = self._old.get(value, value)
        return value.graph.is_output(value)
