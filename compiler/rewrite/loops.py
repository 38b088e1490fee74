"""Loops: what every turn does alike is done once, before the loop, and a loop over places becomes a scan over elements.

1. a state that no turn changes is read where it lies; a state or a stacked result that nothing needs is left out; a
   counter is made of the turn's number
2. a loop of as many turns as a sequence has elements, which reads one of them in each turn, is a scan
3. what does not depend on the turn is computed before the loop; products of elements with the same matrix in each turn
   are one product of all of them
4. the body itself is rewritten, and so are the graphs of a branch
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernels_hub.compiler.ir.counters import Counter, counter_of, step_of
from kernels_hub.compiler.ir.dims import Dim
from kernels_hub.compiler.ir.graph import Graph, Node, Value
from kernels_hub.compiler.ir.op import Trait
from kernels_hub.compiler.ir.transform import rebuild
from kernels_hub.compiler.rewrite.rule import Options, Pass, PassResult

_REGIONS = frozenset({"if", "loop", "scan"})


@dataclass(frozen=True)
class Loops:
    """See the module. passes: for bodies."""

    passes: tuple[Pass, ...]
    name: str = "loops"

    def run(self, graph: Graph, options: Options) -> PassResult:
        """The graph with every loop simplified, and every branch."""
        fired: collections.Counter[str] = collections.Counter()
        if not any(node.op.name in _REGIONS for node in graph.live()):
            return PassResult(graph, fired)

        def visit(new: Graph, node: Node, operands: tuple[Value, ...]) -> Sequence[Value] | None:
            if node.op.name not in _REGIONS:
                return None
            if node.op.name == "if":
                parts = {name: self._body(part, options, fired) for name, part in node.attrs.items()}
                for part in parts.values():
                    part.freeze()
                return new.add("if", operands, parts).results
            made = _Turns(new, node, operands, fired)
            made.drop_constant_states()
            made.count()
            made.drop_unneeded()
            made.scan()
            made.hoist(rounding=options.rounding)
            return made.built(lambda body: self._body(body, options, fired))

        return PassResult(rebuild(graph, visit).graph, fired)

    def _body(self, body: Graph, options: Options, fired: collections.Counter[str]) -> Graph:
        """A body after all passes; loops in it are simplified, too."""
        for one in (self, *self.passes):
            found = one.run(body, options)
            body = found.graph
            fired.update(found.fired)
        return body


@dataclass
class _State:
    """A carried value: before a turn and after it, inside; before the loop, outside; which result of the loop it is."""

    inside: Value
    outside: Value
    result: Value
    place: int


class _Turns:
    """A loop taken apart: what its body gets and gives, and what that is outside, in the new graph."""

    def __init__(
        self, new: Graph, node: Node, operands: Sequence[Value], fired: collections.Counter[str]
    ) -> None:
        self.new, self.node, self.fired = new, node, fired
        body, attrs = node.attrs["body"], node.attrs
        inputs, results = list(body.inputs.values()), list(body.outputs.values())
        self.body: Graph = body
        self.is_scan = node.op.name == "scan"
        if self.is_scan:
            carried, sequences = attrs["states"], attrs["sequences"]
            self.number: Value | None = None
            self.flag: Value | None = None
            self.trips: Value | None = None
            self.condition: Value | None = None
            rest = list(operands)
        else:
            carried, sequences = attrs["carried"], 0
            self.number, *inputs = inputs
            self.flag, *results = results
            self.trips, self.condition, *rest = operands
        self.length: Dim | None = rest[carried].shape[0] if self.is_scan else None
        self.states = [
            _State(*four) for four in zip(inputs, rest, results[:carried], range(carried), strict=False)
        ]
        middle = carried + sequences
        self.elements = list(zip(inputs[carried:middle], rest[carried:middle], strict=True))
        self.captured = dict(zip(inputs[middle:], rest[middle:], strict=True))
        self.stacks = list(zip(results[carried:], range(carried, len(node.results)), strict=True))
        self.made: dict[int, Value] = {}
        """Results of the loop that are known without it."""
        self.counters: dict[Value, Counter] = {}

    # -- what a loop carries

    def drop_constant_states(self) -> None:
        """States that no turn changes."""
        for state in list(self.states):
            if state.result is state.inside:
                self.states.remove(state)
                self.captured[state.inside] = state.outside
                self.made[state.place] = state.outside
                self.fired["unchanged_state"] += 1

    def count(self) -> None:
        """States that are counters, where nothing outside needs to know how far they came."""
        if self.number is None:
            return
        for state in list(self.states):
            step, start = step_of(state.inside, state.result), state.outside.scalar
            if step is None or start is None or not self._is_unused(state.place):
                continue
            self.states.remove(state)
            self.counters[state.inside] = Counter(int(start), step)
            self.made[state.place] = state.outside
            self.fired["counter"] += 1

    def drop_unneeded(self) -> None:
        """States and stacked results that nothing needs."""
        kept = [one for one in self.stacks if not self._is_unused(one[1])]
        self.fired["unneeded"] += len(self.stacks) - len(kept)
        if kept or not self.stacks:
            needed = self._needed([value for value, _ in kept])
            for state in list(self.states):
                if state.inside not in needed and self._is_unused(state.place):
                    self.states.remove(state)
                    self.made[state.place] = state.outside
                    self.fired["unneeded"] += 1
        for _, place in self.stacks:
            if not any(place == other for _, other in kept):
                self.made[place] = _nothing(self.new, self.node.results[place])
        self.stacks = kept

    def _needed(self, results: list[Value]) -> set[Value]:
        """What the results of a turn depend on, through turns."""
        following = {state.inside: state.result for state in self.states}
        waiting = [*results, *(state.result for state in self.states if not self._is_unused(state.place))]
        waiting += [self.flag] if self.flag is not None else []
        needed = set(waiting)
        while waiting:
            top = waiting.pop()
            for one in (*top.operands, *([following[top]] if top in following else [])):
                if one not in needed:
                    needed.add(one)
                    waiting.append(one)
        return needed

    def _is_unused(self, place: int) -> bool:
        result = self.node.results[place]
        return not result.users and not result.graph.is_output(result)

    # -- a scan

    def scan(self) -> None:
        """A loop that makes as many turns as it says."""
        if self.is_scan or self.flag is None or self.flag.scalar is not True:
            return
        if self.condition is None or self.condition.scalar is not True or self.trips is None:
            return
        length = self.trips.attrs["value"] if self.trips.op_name == "size" else self.trips.scalar
        if length is None or (isinstance(length, int) and not 0 < length < 1 << 31):
            return
        if self.node.op.name == "loop" and self.stacks and self.node.attrs["count"] != length:
            return
        read = {node: found for node in self.body.live() if (found := self._read(node, length)) is not None}
        if not read:
            return
        self.is_scan, self.length = True, length
        self.trips = self.condition = self.flag = None
        for node, (x, backwards) in read.items():
            outside = self.captured[x]
            self.elements.append((node.results[0], outside.flip(0) if backwards else outside))
        self.fired["loop_to_scan"] += 1

    def _read(self, node: Node, length: Dim) -> tuple[Value, bool] | None:
        """The sequence that a node reads an element of, and whether backwards."""
        if node.op.name != "gather" or node.attrs["axis"] != 0:
            return None
        x, place = node.operands
        if x not in self.captured or place.rank or self.captured[x].shape[0] != length:
            return None
        found = self._counted(place)
        if found == Counter(0, 1):
            return x, False
        if found is not None and found.step == -1 and found.start + 1 == length:
            return x, True
        return None

    def _counted(self, value: Value) -> Counter | None:
        """A value as a counter."""
        known = dict(self.counters)
        if self.number is not None:
            known[self.number] = Counter(0, 1)
        return counter_of(value, known)

    # -- what is computed before the loop

    def hoist(self, *, rounding: bool) -> None:
        """What is the same in each turn, and products of elements."""
        outside, whole = dict(self.captured), dict(self.elements) if rounding else {}
        same: set[Value] = set()
        products: set[Value] = set()
        elements = {value for value, _ in self.elements}
        for node in self.body.live():
            if len(node.results) != 1 or Trait.REGION in node.op.traits or node.op.defines is not None:
                continue
            (value,) = node.results
            if node.op.name in {"input", "random_bits"} or value in elements:
                continue
            if _never_fails(node) and all(operand in outside for operand in node.operands):
                operands = tuple(outside[operand] for operand in node.operands)
                outside[value] = self.new.copy(node, operands).results[0]
                if any(one in same or one in self.captured for one in node.operands):
                    same.add(value)
            elif self.length is not None and all(one in outside or one in whole for one in node.operands):
                of_all = _of_all(self.new, node, self.length, outside, whole)
                if of_all is not None:
                    whole[value] = of_all
                    if node.op.name == "matmul" or any(operand in products for operand in node.operands):
                        products.add(value)
        for value in self._border(same):
            self.captured[value] = outside[value]
            self.fired["same_in_each_turn"] += 1
        for value in self._border(products):
            self.elements.append((value, whole[value]))
            self.fired["product_of_elements"] += 1

    def _border(self, computed: set[Value]) -> list[Value]:
        """Of values that are computed outside those that the body reads: none that it may make itself by a view."""
        return [
            value
            for value in self._used(stop=lambda one: one in computed and Trait.VIEW not in one.op.traits)
            if value in computed and Trait.VIEW not in value.op.traits
        ]

    def _results(self) -> list[Value]:
        """What a turn gives, inside."""
        flag = [self.flag] if self.flag is not None else []
        return [*flag, *(state.result for state in self.states), *(value for value, _ in self.stacks)]

    def _used(self, stop: Callable[[Value], bool] = lambda _: False) -> list[Value]:
        """Values of the body that a turn needs, in order; where `stop` holds, not what they are made of."""
        given = {*self.captured, *self.counters, *(value for value, _ in self.elements)}
        wanted, seen = self._results(), set[Value]()
        while wanted:
            value = wanted.pop()
            if value not in seen:
                seen.add(value)
                wanted += () if value in given or stop(value) else value.operands
        return sorted(seen, key=lambda one: one.id)

    # -- the loop again

    def built(self, rewritten: Callable[[Graph], Graph]) -> Sequence[Value]:
        """The results of the loop, made anew in the new graph. rewritten: a body after other passes."""
        used = self._used()
        if self.is_scan and self.number is not None:
            assert self.length is not None
            self.elements.append((self.number, self.new.iota(self.length)))
        needed = {*used, *([self.number] if any(one in self.counters for one in used) else [])}
        elements = [one for one in self.elements if one[0] in needed] or self.elements[:1]
        captured = [value for value in self.captured if value in needed]
        inputs = [] if self.is_scan or self.number is None else [self.number]
        inputs += [*(state.inside for state in self.states), *(value for value, _ in elements), *captured]
        body = Graph(self.body.name)
        mapped = {
            value: body.input(f"in{place}", value.shape, value.dtype) for place, value in enumerate(inputs)
        }
        for value in used:
            if value in mapped:
                continue
            if (counter := self.counters.get(value)) is not None:
                assert self.number is not None
                counted = mapped[self.number] * counter.step + counter.start
                mapped[value] = counted.cast(value.dtype)
                continue
            copied = body.copy(value.node, tuple(mapped[operand] for operand in value.operands))
            mapped.update(zip(value.node.results, copied.results, strict=True))
        for place, value in enumerate(self._results()):
            body.output(str(place), mapped[value])
        body = rewritten(body)
        body.freeze()
        outside = [state.outside for state in self.states] + [one for _, one in elements]
        outside += [self.captured[value] for value in captured]
        attrs: dict[str, Any] = {"body": body}
        if self.is_scan:
            attrs |= {"states": len(self.states), "sequences": len(elements)}
            made = self.new.add("scan", outside, attrs).results
        else:
            assert self.trips is not None and self.condition is not None
            attrs |= {"carried": len(self.states), "count": self.node.attrs["count"] if self.stacks else 0}
            made = self.new.add("loop", (self.trips, self.condition, *outside), attrs).results
        places = [*(state.place for state in self.states), *(place for _, place in self.stacks)]
        found = self.made | dict(zip(places, made, strict=True))
        return [found[place] for place in range(len(self.node.results))]


def _never_fails(node: Node) -> bool:
    """Whether a node may be computed though no turn asks for it."""
    of_integers = node.op.name in {"div", "floordiv", "mod", "fmod"} and node.results[0].dtype.is_integer
    return Trait.INDEXING not in node.op.traits and not of_integers


def _nothing(graph: Graph, result: Value) -> Value:
    """For a result that nothing reads."""
    return graph.constant(0, result.dtype).broadcast_to(result.shape)


def _of_all(
    graph: Graph, node: Node, length: Dim, outside: Mapping[Value, Value], whole: Mapping[Value, Value]
) -> Value | None:
    """What a node computes in all turns, along a new first dim; None where that is no single op.

    outside: values that are the same in each turn; whole: those of all turns, along a first dim.
    """
    name, attrs, shape = node.op.name, node.attrs, node.results[0].shape
    if Trait.POINTWISE in node.op.traits:
        every = tuple(range(1, len(shape) + 1))
        operands = [
            whole[one] if one in whole else outside[one].broadcast((length, *shape), every)
            for one in node.operands
        ]
        return graph.add(node.op, operands, attrs).results[0]
    x = whole.get(node.operands[0])
    if x is None:
        return None
    if name == "broadcast":
        return x.broadcast((length, *shape), (0, *(axis + 1 for axis in attrs["axes"])))
    if name == "reshape":
        return x.reshape(length, *shape)
    if name == "permute":
        return x.permute(0, *(axis + 1 for axis in attrs["order"]))
    if name == "matmul" and (b := outside.get(node.operands[1])) is not None and x.rank == 3:
        rows = x.reshape(length * x.shape[1], x.shape[2])
        return graph.add(node.op, (rows, b), attrs).results[0].reshape(length, *shape)
    return None
