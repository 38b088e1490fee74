"""Extracts the best few different graphs from an e-graph, counting shared parts once.

A graph is a choice of one term in each class that is reached. The search begins at the graph that was given, and at
the choice that is cheapest where nothing is shared; from each choice in the beam it tries every other term of each
class, and every class that several others could be made of, all of them at once (that is how products with the same
operand become one). Deterministic; `seed` only decides in which order terms that cost the same are met.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kernels_hub.compiler.errors import CompilerError
from kernels_hub.compiler.ir.graph import Graph, Value
from kernels_hub.compiler.ir.op import Trait
from kernels_hub.compiler.ir.operators import same_shapes
from kernels_hub.compiler.ir.ops import op
from kernels_hub.compiler.ir.transform import rebuild
from kernels_hub.compiler.plan.heuristics import middling
from kernels_hub.compiler.rewrite.engine import Rules
from kernels_hub.compiler.rewrite.rule import Options
from kernels_hub.compiler.rewrite.views import CANCEL
from kernels_hub.compiler.search.candidate import SearchError
from kernels_hub.compiler.search.cost import AssumedRates, TermCosts
from kernels_hub.compiler.search.saturate import Class, Space, Term

BEAM = 12
STEPS = 24
"""How wide and how far it is looked around."""
MOST_SEEN = 20_000
"""Choices that are priced at most."""

_TIDY = Rules("tidy", CANCEL)

_OTHER = 1e-10
"""What a term costs that the graph did not have itself: of equals, the given one is the first."""


@dataclass(frozen=True)
class Extracted:
    """A graph, and seconds by the cost of its terms."""

    graph: Graph
    cost: float


def best(
    space: Space, count: int, rates: AssumedRates, *, sizes: Mapping[str, int] | None = None, seed: int = 0
) -> list[Extracted]:
    """At most `count` different graphs of the space, the cheapest first; the given one is among them.

    sizes: of the symbols; middling ones for those that are not named.
    """
    if count < 1:
        raise SearchError(f"at least one graph is to be found, not {count}")
    priced = _Priced(space, rates, {**middling(space.graph), **(sizes or {})})
    numbered = priced.number()
    given = Extracted(rebuild(space.graph).graph, priced.given())
    found = {str(_in_order(given.graph)): given}
    for cost, picks in _Search(numbered, seed).run(4 * count):
        graph = _graph_of(space, numbered, picks)
        if graph is not None:
            found.setdefault(str(graph), Extracted(graph, cost))
    ranked = sorted(found.values(), key=lambda one: (one.cost, str(one.graph)))
    kept = ranked[:count]
    if given not in kept:
        kept[-1] = given
    return kept


class _Priced:
    """Every term as a value on typical operands: whether it may be, and what it costs."""

    def __init__(self, space: Space, rates: AssumedRates, sizes: Mapping[str, int]) -> None:
        self.space = space
        self.costs: dict[Term, float] = {}
        self.refused: dict[Term, str] = {}
        scratch = Graph(space.graph.name)
        scratch.symbols = dict(space.graph.symbols)
        for value in (*space.graph.inputs.values(), *space.graph.parameters.values()):
            scratch.copy(value.node, ())
        costs = TermCosts(sizes, rates)
        typical: dict[Class, Value] = {}
        static: set[Class] = set()
        waiting = [(one, term) for one, members in space.classes.items() for term in members]
        waiting.sort(key=lambda pair: space.original.get(pair[0]) != pair[1])
        while waiting:
            left = []
            for of, term in waiting:
                if all(not isinstance(argument, Class) or argument in typical for argument in term.args):
                    self._price(of, term, scratch, typical, static, costs)
                else:
                    left.append((of, term))
            if len(left) == len(waiting):
                break
            waiting = left
        self.members = {
            of: tuple(term for term in terms if term in self.costs) for of, terms in space.classes.items()
        }

    def _price(
        self,
        of: Class,
        term: Term,
        scratch: Graph,
        typical: dict[Class, Value],
        static: set[Class],
        costs: TermCosts,
    ) -> None:
        args = [typical[argument] if isinstance(argument, Class) else argument for argument in term.args]
        try:
            value = self.space.terms.build(scratch, term.op, args)
        except CompilerError as error:
            self.refused[term] = str(error)
            return
        known = typical.setdefault(of, value)
        if known.dtype is not value.dtype or not same_shapes(known.shape, value.shape):
            self.refused[term] = f"it is {value.type}, what it should equal {known.type}"
            return
        operands = [argument for argument in term.args if isinstance(argument, Class)]
        leaf = value.op_name in {"parameter", "constant"}
        mine = leaf or (bool(operands) and all(operand in static for operand in operands))
        if mine:
            static.add(of)
        self.costs[term] = costs.of(value, static=mine)

    def given(self) -> float:
        """Of the graph as it was given."""
        terms = {term for _, term in self.space.given.values()}
        return math.fsum(self.costs.get(term, math.inf) for term in terms)

    def number(self) -> _Numbered:
        """The same with numbers for names, of terms that may be; of two that only commute, one."""
        places = {of: index for index, of in enumerate(self.members)}
        terms, children, costs, original = [], [], [], []
        for of, members in self.members.items():
            given = self.space.original.get(of)
            kept: dict[Term, Term] = {}
            for term in sorted(members, key=lambda member: member != given):
                kept.setdefault(_uncommuted(term), term)
            mine = [one for one in kept.values() if all(arg in places for arg in _classes(one))]
            terms.append(mine)
            children.append([tuple(places[arg] for arg in dict.fromkeys(_classes(one))) for one in mine])
            costs.append([self.costs[one] + (one != given) * _OTHER for one in mine])
            original.append(mine.index(given) if given in mine else None)
        roots = [places[of] for of in self.space.outputs.values() if of in places]
        return _Numbered(list(self.members), terms, children, costs, original, roots)


def _classes(term: Term) -> list[Class]:
    return [argument for argument in term.args if isinstance(argument, Class)]


def _uncommuted(term: Term) -> Term:
    """The one term that stands for both orders of operands."""
    if term.op != "Bin" or Trait.COMMUTATIVE not in op(str(term.args[0])).traits:
        return term
    return Term("Bin", (term.args[0], *sorted(_classes(term), key=lambda kind: kind.name)))


@dataclass(frozen=True)
class _Numbered:
    """Classes and, for each, terms, with the classes that these need and what they cost, by place."""

    classes: Sequence[Class]
    terms: Sequence[Sequence[Term]]
    children: Sequence[Sequence[tuple[int, ...]]]
    costs: Sequence[Sequence[float]]
    original: Sequence[int | None]
    roots: Sequence[int]

    def reached(self, picks: Picks) -> list[int] | None:
        """Classes that the outputs need, operands first; None where one needs itself, or has no term."""
        order: list[int] = []
        state: dict[int, bool] = {}
        for root in self.roots:
            stack = [root]
            while stack:
                one = stack[-1]
                if state.get(one):
                    stack.pop()
                    continue
                if one in state:
                    state[one] = True
                    order.append(one)
                    stack.pop()
                    continue
                pick = picks[one]
                if pick is None:
                    return None
                state[one] = False
                for child in self.children[one][pick]:
                    known = state.get(child)
                    if known is None:
                        stack.append(child)
                    elif not known:
                        return None
        return order


Picks = Sequence[int | None]
"""For each class, by place, the place of a term."""

Found = tuple[float, Picks]


class _Search:
    """A beam of picks."""

    def __init__(self, space: _Numbered, seed: int) -> None:
        self.space = space
        self.random = random.Random(seed)  # noqa: S311  (an order, no secret)
        self.seen: dict[tuple[int, ...], Found] = {}
        self.cheapest = self._cheapest()
        pairs = zip(space.original, self.cheapest, strict=True)
        self.first = self._visit([cheap if one is None else one for one, cheap in pairs])
        """The graph itself, or near it: where two of its values are equal it has one of them."""
        self.users: dict[int, list[tuple[int, int]]] = {}
        for of, members in enumerate(space.children):
            for index, needs in enumerate(members):
                for need in needs:
                    self.users.setdefault(need, []).append((of, index))

    def run(self, count: int) -> list[Found]:
        """The cheapest picks, the cheapest first."""
        beam = [one for one in (self.first, self._visit(self.cheapest)) if one is not None]
        for _ in range(STEPS):
            before = self._first(count)
            around = (self._visit(other) for _, picks in beam for other in self._around(picks))
            fresh = [one for one in around if one is not None]
            beam = sorted(fresh, key=lambda one: one[0])[:BEAM]
            if not beam or (self._first(count) == before and beam[0][0] > before[-1][0]):
                break
        return self._first(count)

    def _first(self, count: int) -> list[Found]:
        return heapq.nsmallest(count, self.seen.values(), key=lambda one: one[0])

    def _visit(self, picks: Picks) -> Found | None:
        """Picks with what they cost, if they are new and no circle."""
        order = self.space.reached(picks) if len(self.seen) < MOST_SEEN else None
        if order is None:
            return None
        key = tuple(item for of in sorted(order) for item in (of, picks[of] or 0))
        if key in self.seen:
            return None
        cost = math.fsum(self.space.costs[of][picks[of] or 0] for of in order)
        self.seen[key] = (cost, picks)
        return self.seen[key]

    def _around(self, picks: Picks) -> Iterator[Picks]:
        order = self.space.reached(picks) or []
        for of in order:
            places = list(range(len(self.space.terms[of])))
            self.random.shuffle(places)
            for place in places:
                if place != picks[of]:
                    yield _with(picks, {of: place})
        here = set(order)
        for users in self.users.values():
            changed = {of: place for of, place in users if of in here and place != picks[of]}
            if len(changed) > 1:
                yield _with(picks, changed)

    def _cheapest(self) -> Picks:
        """The cheapest term of each class, were all of it a tree."""
        space = self.space
        cost = [math.inf] * len(space.classes)
        chosen: list[int | None] = [None] * len(space.classes)
        changed = True
        while changed:
            changed = False
            for of, members in enumerate(space.children):
                for index, needs in enumerate(members):
                    total = space.costs[of][index] + sum(cost[need] for need in needs)
                    if total < cost[of] * (1 - 1e-12):
                        cost[of], chosen[of], changed = total, index, True
        return chosen


def _with(picks: Picks, changed: Mapping[int, int]) -> Picks:
    made = list(picks)
    for of, place in changed.items():
        made[of] = place
    return made


def _graph_of(space: Space, numbered: _Numbered, picks: Picks) -> Graph | None:
    """The graph of picks, with the signature of the given one; None where a term has another type there."""
    given = space.graph
    graph = Graph(given.name)
    graph.symbols = dict(given.symbols)
    for value in (*given.inputs.values(), *given.parameters.values()):
        graph.copy(value.node, ())
    made: dict[Class, Value] = {}
    try:
        for of in numbered.reached(picks) or ():
            term = numbered.terms[of][picks[of] or 0]
            args = [made[argument] if isinstance(argument, Class) else argument for argument in term.args]
            made[numbered.classes[of]] = space.terms.build(graph, term.op, args)
    except CompilerError:
        return None
    for name, value in given.outputs.items():
        new = made.get(space.outputs[name])
        if new is None or new.dtype is not value.dtype or not same_shapes(new.shape, value.shape):
            return None
        graph.output(name, new)
    return _in_order(_TIDY.run(graph, Options()).graph)


def _in_order(graph: Graph) -> Graph:
    """The graph with its nodes in the order in which outputs need them: the same text for the same graph."""
    made = Graph(graph.name)
    made.symbols = dict(graph.symbols)
    mapped: dict[Value, Value] = {}
    for value in graph.inputs.values():
        mapped[value] = made.copy(value.node, ()).results[0]
    for root in graph.outputs.values():
        stack = [root]
        while stack:
            node = stack[-1].node
            waiting = [operand for operand in node.operands if operand not in mapped]
            stack += reversed(waiting)
            if not waiting:
                stack.pop()
                if node.results[0] not in mapped:
                    results = made.copy(node, tuple(mapped[operand] for operand in node.operands)).results
                    mapped.update(zip(node.results, results, strict=True))
    for name, value in graph.outputs.items():
        made.output(name, mapped[value])
    return rebuild(made).graph
