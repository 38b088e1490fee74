"""Partitions a graph among engines: pieces that each run as a whole, in topological order.

1. each node goes to the first engine, in the order of preference, that can make its results
2. nodes of one engine join into pieces as large as can be without a cycle: a node joins a piece unless something
   that it needs, in another piece, needs that piece; then pieces join, while nothing between two needs the one and
   is needed by the other
3. each piece is cut out as a graph of its own and shown to its engine; what that declines goes to the next engine,
   and all of it is done again

Parameters, constants and what views show of these belong to every piece that reads them. Regions are one node.
A piece that uses a size which no input of it shows gets that size as the shape of one more input, which is never read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kernels_hub.compiler.engines.engine import Decline, Support
from kernels_hub.compiler.errors import EngineError
from kernels_hub.compiler.ir.binding import linear
from kernels_hub.compiler.ir.dims import Expr, dim_symbols
from kernels_hub.compiler.ir.graph import Graph, Node, Value
from kernels_hub.compiler.ir.op import Trait
from kernels_hub.compiler.ir.types import BOOL

Check = Callable[[str, Graph], Support | Decline]
"""(name of an engine, graph) -> its answer."""


@dataclass(frozen=True)
class Piece:
    """A part of a graph for one engine, as a graph of its own.

    inputs: for each input of `part`, the value of the whole graph that it is; of one that only carries a size, the
    name of the symbol. outputs: for each output, the value that it is. nodes: what it computes, of the whole graph.
    """

    engine: str
    part: Graph
    inputs: tuple[Value | str, ...]
    outputs: tuple[Value, ...]
    nodes: tuple[Node, ...]
    support: Support = field(default_factory=Support)


@dataclass(frozen=True)
class Partition:
    """Pieces in an order that they can run in. declined: engine -> why it does not take all of the graph."""

    graph: Graph
    pieces: tuple[Piece, ...]
    declined: Mapping[str, str] = field(default_factory=dict)

    @property
    def engines(self) -> tuple[str, ...]:
        """Of each piece."""
        return tuple(piece.engine for piece in self.pieces)


def partition(graph: Graph, engines: Sequence[str], check: Check) -> Partition:
    """The graph divided among engines, the preferred ones first: whole, if the first takes it.

    Raises EngineError, with every engine's reason, where no engine makes some value.
    """
    answers: dict[str, Support | Decline] = {}
    for name in engines:
        answers[name] = answer = check(name, graph)
        if isinstance(answer, Support) and len(answers) == 1:
            return Partition(graph, (whole(graph, name, answer),))
    divided = _Divided(graph, answers)
    checked: dict[tuple[object, ...], tuple[_Cut, Support | Decline]] = {}
    while True:
        good: list[Piece] = []
        groups = divided.groups()
        for index, (engine, nodes) in enumerate(groups):
            last = index == len(groups) - 1
            key = (engine, nodes, last, len(divided.floating))
            if key not in checked:
                cut = _Cut(divided, nodes, f"{graph.name}_{index}", last=last)
                checked[key] = cut, check(engine, cut.part)
            cut, answer = checked[key]
            if isinstance(answer, Support):
                good.append(Piece(engine, cut.part, cut.inputs, cut.outputs, nodes, answer))
            else:
                divided.refuse(engine, answer, nodes, cut.values)
        if len(good) == len(groups):
            return Partition(graph, tuple(good), divided.declined)


def whole(graph: Graph, engine: str, support: Support) -> Piece:
    """All of a graph as a piece."""
    nodes = tuple(node for node in graph.live() if Trait.LEAF not in node.op.traits)
    return Piece(engine, graph, tuple(graph.inputs.values()), tuple(graph.outputs.values()), nodes, support)


class _Divided:
    """Which engine makes which node, as far as is known."""

    def __init__(self, graph: Graph, answers: Mapping[str, Support | Decline]) -> None:
        self.graph = graph
        self.declined = {
            name: refusal.reason for name, refusal in answers.items() if isinstance(refusal, Decline)
        }
        self._refused: dict[str, set[Value]] = {}
        for name, answer in answers.items():
            if isinstance(answer, Support):
                self._refused[name] = set()
            elif answer.values:
                known = {value for value in answer.values if 0 <= value < len(graph.values)}
                self._refused[name] = {graph.values[number] for number in known}
        self._nodes = graph.live()
        self.live = frozenset(self._nodes)
        self.floating: set[Node] = set()

    def refuse(
        self, engine: str, answer: Decline, nodes: Sequence[Node], values: Mapping[int, Value]
    ) -> None:
        """An engine does not take a piece: note which of its values are to blame, or all of them."""
        refused = self._refused[engine]
        own = {value for node in nodes for value in node.results}
        blamed = {values[value] for value in answer.values if value in values} - refused
        if not blamed:
            blamed = own - refused or own
        refused |= blamed
        self.declined.setdefault(engine, answer.reason)

    def groups(self) -> list[tuple[str, tuple[Node, ...]]]:
        """(engine, nodes) of each piece, in an order that they can run in."""
        self.floating = self._find_floating()
        work = [node for node in self._nodes if node.op.name != "input" and node not in self.floating]
        joined = _Joined()
        for node in work:
            joined.add(node, self._engine_of(node), self._needs(node))
        joined.merge()
        ordered = joined.in_order()
        loose = [value for value in self.graph.outputs.values() if value.node in self.floating]
        if loose and not ordered:
            (node, *_) = (value.node for value in loose)
            ordered = [(self._engine_of(node), ())]
        return ordered

    def _find_floating(self) -> set[Node]:
        """Nodes that are done again wherever they are read: leaves and views of leaves, which every engine makes."""
        nodes: set[Node] = set()
        refused = {value.node for values in self._refused.values() for value in values}
        for node in self._nodes:
            if node.op.name == "input" or node in refused:
                continue
            if any(symbol.name in self.graph.definers for symbol in node.symbols()):
                continue
            shown = Trait.VIEW in node.op.traits and all(operand.node in nodes for operand in node.operands)
            if Trait.LEAF in node.op.traits or (shown and node.operands):
                nodes.add(node)
        return nodes

    def _engine_of(self, node: Node) -> str:
        for name, refused in self._refused.items():
            if refused.isdisjoint(node.results):
                return name
        origin = f" (from {node.origin})" if node.origin else ""
        reasons = "".join(f"\n  {name}: {reason}" for name, reason in self.declined.items())
        raise EngineError(
            f"graph {self.graph.name}: no engine makes {node!r}{origin}:{reasons or ' there is none'}"
        )

    def _needs(self, node: Node) -> Iterable[Node]:
        """Nodes outside of all floating ones that have to run before."""
        for operand in node.operands:
            if operand.node not in self.floating and operand.node.op.name != "input":
                yield operand.node
        if self.graph.definers:
            for symbol in node.symbols():
                definer = self.graph.definers.get(symbol.name)
                if definer is not None and definer is not node:
                    yield definer


class _Joined:
    """Nodes joined into groups of one engine each; `needs`, `before`: as bit sets of groups."""

    def __init__(self) -> None:
        self.engines: list[str] = []
        self.members: list[list[Node]] = []
        self._needs: list[set[int]] = []
        """Groups whose values a group reads."""
        self._before: list[int] = []
        """All groups that have to run before a group."""
        self._group: dict[Node, int] = {}

    def add(self, node: Node, engine: str, needs: Iterable[Node]) -> None:
        """The next node, in topological order."""
        needed = {self._group[need] for need in needs}
        place = self._place(engine, needed)
        if place is None:
            place = len(self.engines)
            self.engines.append(engine)
            self.members.append([])
            self._needs.append(set())
            self._before.append(0)
        self.members[place].append(node)
        self._group[node] = place
        self._needs[place] |= needed - {place}
        more = 0
        for one in needed - {place}:
            more |= self._before[one] | 1 << one
        if more & ~self._before[place]:
            self._before[place] |= more
            for other, before in enumerate(self._before):
                if before >> place & 1:
                    self._before[other] |= self._before[place]

    def _place(self, engine: str, needed: set[int]) -> int | None:
        """The group of an engine that a node may join; one that it reads from before others, the latest first."""
        same = [index for index, name in enumerate(self.engines) if name == engine]
        for place in sorted(same, key=lambda one: (one in needed, one), reverse=True):
            if not any(self._before[number] >> place & 1 for number in needed if number != place):
                return place
        return None

    def merge(self) -> None:
        """Join groups of one engine that nothing of another lies between."""
        changed = True
        while changed:
            changed = False
            after = self._after()
            for a in range(len(self.engines)):
                for b in range(a + 1, len(self.engines)):
                    alike = self.engines[a] == self.engines[b] and self.members[a] and self.members[b]
                    if alike and not after[a] & self._before[b] and not after[b] & self._before[a]:
                        self._unite(a, b)
                        after = self._after()
                        changed = True

    def _after(self) -> list[int]:
        """Groups that have to run after each group."""
        after = [0] * len(self.engines)
        for index, before in enumerate(self._before):
            for one in range(before.bit_length()):
                if before >> one & 1:
                    after[one] |= 1 << index
        return after

    def _unite(self, a: int, b: int) -> None:
        self.members[a] = sorted(self.members[a] + self.members[b], key=lambda node: node.id)
        self.members[b] = []
        self._needs = [{a if need == b else need for need in needs} for needs in self._needs]
        self._needs[a] = (self._needs[a] | self._needs[b]) - {a}
        self._needs[b] = set()
        self._before = [0] * len(self.engines)
        grown = True
        while grown:
            grown = False
            for index, needs in enumerate(self._needs):
                before = self._before[index]
                for one in needs:
                    before |= self._before[one] | 1 << one
                grown |= before != self._before[index]
                self._before[index] = before

    def in_order(self) -> list[tuple[str, tuple[Node, ...]]]:
        """Groups such that each comes after all that it needs: these have fewer groups before them."""
        places = [index for index, members in enumerate(self.members) if members]
        places.sort(key=lambda number: (self._before[number].bit_count(), self.members[number][0].id))
        return [(self.engines[number], tuple(self.members[number])) for number in places]


class _Cut:
    """A group of nodes as a graph of its own. values: id in the part -> value of the whole graph."""

    def __init__(self, divided: _Divided, nodes: Sequence[Node], name: str, *, last: bool) -> None:
        graph, floating = divided.graph, divided.floating
        members = set(nodes)
        outside = {value for value in graph.outputs.values() if value.node in members}
        if last:
            outside |= {value for value in graph.outputs.values() if value.node in floating}
        outside |= {
            value for node in nodes for value in node.results if _read_outside(value, members, divided.live)
        }
        outside |= {node.results[0] for node in graph.definers.values() if node in members}
        self.outputs = tuple(sorted(outside, key=lambda value: value.id))
        shown = _shown_by(nodes, self.outputs, floating)
        read = {
            operand
            for node in nodes
            for operand in node.operands
            if operand.node not in members and operand.node not in floating
        }
        values = sorted(read, key=lambda value: (not _simple(value), value.id))
        copied = sorted(members | shown, key=lambda node: node.id)
        carried = _carried(graph, copied, values)
        self.inputs: tuple[Value | str, ...] = (*carried, *values)
        self.part = part = Graph(name)
        used_names = set(graph.inputs) | set(graph.parameters)
        for symbol_name in carried:
            part.input(_free(f"size of {symbol_name}", used_names), (graph.symbols[symbol_name],), BOOL)
        mapped: dict[Value, Value] = {}
        for value in values:
            own = value.attrs["name"] if value.op_name == "input" else _free(f"v{value.id}", used_names)
            mapped[value] = part.input(own, value.shape, value.dtype)
        for node in copied:
            new = part.copy(node, tuple(mapped[operand] for operand in node.operands))
            mapped.update(zip(node.results, new.results, strict=True))
        for value in self.outputs:
            part.output(_free(f"v{value.id}", used_names), mapped[value])
        self.values = {new.id: old for old, new in mapped.items() if old.node in members}


def _read_outside(value: Value, members: set[Node], live: frozenset[Node]) -> bool:
    return any(user in live and user not in members for user in value.users)


def _shown_by(nodes: Sequence[Node], outputs: Iterable[Value], floating: set[Node]) -> set[Node]:
    """The floating nodes that nodes, and outputs, need."""
    found: set[Node] = set()
    ahead = [operand.node for node in nodes for operand in node.operands] + [
        output.node for output in outputs
    ]
    while ahead:
        node = ahead.pop()
        if node in floating and node not in found:
            found.add(node)
            ahead += [operand.node for operand in node.operands]
    return found


def _carried(graph: Graph, nodes: Sequence[Node], inputs: Sequence[Value]) -> list[str]:
    """Symbols that nodes use, and that no dim of an input tells by itself."""
    known_names = {
        solved[0].name for value in inputs for dim in value.shape if (solved := linear(dim)) is not None
    }
    known_names |= {name for name, node in graph.definers.items() if node in set(nodes)}
    used = {symbol.name for node in nodes for symbol in node.symbols()}
    used |= {symbol.name for value in inputs for symbol in dim_symbols(value.shape)}
    return sorted(used - known_names)


def _simple(value: Value) -> bool:
    """Whether each dim of it is a number or tells one symbol."""
    return all(not isinstance(dim, Expr) or linear(dim) is not None for dim in value.shape)


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    return name
