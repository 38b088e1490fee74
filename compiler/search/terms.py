"""Converts a graph to terms of an e-graph with facts, and terms back to values.

What equations are about has a constructor of its own; every other node is `Node`, by its number, on its operands:
equal operands make it equal, and nothing else is known of it. Dims are numbers: themselves, or, where they are
symbolic, negative numbers that stand for an expression.

    (Matmul a b)       of one dtype, sums in what the op does by itself      (Swap a)       the last two dims exchanged
    (Un op a)          pointwise, without attributes, of one dtype           (Bin op a b)
    (Batch m shape)    a matrix for all of a batch                           (Row v shape)  a vector in each row
    (Full c shape)     a number everywhere                                   (Reduce op a axis)
    (Slice a axis start stop)      in numbers                                (Part a axis which size)   in symbols
    (Concat a b axis)              of two                                    (Gather a indices)   rows of a matrix

Facts: `shape`, `dtype`, `number` (of a constant scalar), `static` (made of weights and constants alone), and the place
of a weight among those that products with the same operand have (`first`, `last`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kernels_hub.compiler.ir.dims import Dim
from kernels_hub.compiler.ir.graph import Graph, Node, Value
from kernels_hub.compiler.ir.op import Shape, Trait

LANGUAGE = """
(sort Dims (Vec i64))
(sort T)
(sort Ts (Vec T))
(constructor Leaf (i64) T)
(constructor Node (i64 Ts) T)
(constructor Matmul (T T) T)
(constructor Un (String T) T)
(constructor Bin (String T T) T)
(constructor Swap (T) T)
(constructor Batch (T Dims) T)
(constructor Row (T Dims) T)
(constructor Full (T Dims) T)
(constructor Slice (T i64 i64 i64) T)
(constructor Part (T i64 i64 i64) T)
(constructor Concat (T T i64) T)
(constructor Reduce (String T i64) T)
(constructor Gather (T T) T)
(function shape (T) Dims :merge old)
(function dtype (T) String :merge old)
(function number (T) f64 :merge old)
(function first (T) i64 :merge (min old new))
(function last (T) i64 :merge (max old new))
(relation static (T))
(relation commutative (String))
(relation associative (String))
(relation wide (String))
(ruleset types)
(ruleset equations)
"""

_SAME = " (= d (dtype a)) => (set (dtype s) d) (set (shape s) "
_TYPES = (
    (f"(= s (Matmul a b)) (= x (shape a)) (= y (shape b)) (= n (vec-length x)){_SAME}"
     "(vec-set x (- n 1) (vec-get y (- n 1))))"),
    f"(= s (Un op a)) (= x (shape a)){_SAME}x)",
    f"(= s (Bin op a b)) (= x (shape a)){_SAME}x)",
    (f"(= s (Swap a)) (= x (shape a)) (= n (vec-length x)){_SAME}"
     "(vec-set (vec-set x (- n 1) (vec-get x (- n 2))) (- n 2) (vec-get x (- n 1))))"),
    *(f"(= s ({one} a x)){_SAME}x)" for one in ("Batch", "Row", "Full")),
    f"(= s (Slice a axis i j)) (= x (shape a)){_SAME}(vec-set x axis (- j i)))",
    f"(= s (Part a axis k size)) (= x (shape a)){_SAME}(vec-set x axis size))",
    ("(= s (Concat a b axis)) (= x (shape a)) (= y (shape b)) (= i (vec-get x axis)) (= j (vec-get y axis)) (>= i 0)"
     f" (>= j 0){_SAME}(vec-set x axis (+ i j)))"),
    f"(= s (Reduce op a axis)) (= x (shape a)){_SAME}(vec-remove x axis))",
    f"(= s (Gather a at)) (= x (shape a)) (= y (shape at)){_SAME}(vec-push y (vec-get x 1)))",
    *(f"(= s {one}) (static a) => (static s)" for one in (
        "(Un op a)", "(Swap a)", "(Batch a x)", "(Row a x)", "(Full a x)", "(Slice a axis i j)", "(Part a axis k n)",
        "(Reduce op a axis)")),
    *(f"(= s {one}) (static a) (static b) => (static s)" for one in (
        "(Matmul a b)", "(Bin op a b)", "(Concat a b axis)", "(Gather a b)")),
)  # fmt: skip


def rule(text: str, ruleset: str, name: str = "") -> str:
    """A rule of egglog from "facts => actions"."""
    facts, actions = text.split("=>")
    named = f" :name {json.dumps(name)}" if name else ""
    return f"(rule ({facts.strip()}) ({actions.strip()}) :ruleset {ruleset}{named})"


TYPES = "\n".join(rule(one, "types") for one in _TYPES)
"""What the facts of a term follow from."""

WIDE = frozenset({"float32", "float64", "int32", "int64"})
"""Dtypes in which what is between two ops loses nothing that matters."""


class Terms:
    """A graph in that language. `names`: what a value is called."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.names: dict[Value, str] = {}
        self.made: dict[Value, tuple[str, tuple[Any, ...]]] = {}
        """Value -> its constructor, and what that is given: values, numbers, texts, tuples of numbers."""
        self._dims: dict[Dim, int] = {}
        self._parts: list[tuple[Dim, Dim]] = []
        self._nodes: list[Node] = []
        for node in graph.live():
            for value in node.results:
                self.names[value] = f"$v{value.id}"
                self.made[value] = self._make(value)
        self._by_id = {value.id: value for value in self.names}

    def program(self) -> str:
        """The terms, by name, with their facts."""
        lines = [
            f"(let {name} {self._shown(*self.made[value])})\n{self._facts(value, name)}"
            for value, name in self.names.items()
        ]
        return "\n".join([*lines, *self._siblings()])

    def dim(self, dim: Dim) -> int:
        """A dim as a number."""
        if isinstance(dim, int):
            return dim
        return -1 - self._dims.setdefault(dim, len(self._dims))

    def dims(self, numbers: Sequence[int]) -> Shape:
        """Numbers as dims."""
        known = list(self._dims)
        return tuple(number if number >= 0 else known[-1 - number] for number in numbers)

    # -- to terms

    def _make(self, value: Value) -> tuple[str, tuple[Any, ...]]:
        node = value.node
        made = None
        if node.operands and len(node.results) == 1:
            made = _MAKERS.get(node.op.name, _pointwise)(self, value)
        if made is not None:
            return made
        if not node.operands or len(node.results) != 1:
            return "Leaf", (value.id,)
        self._nodes.append(node)
        return "Node", (len(self._nodes) - 1, *node.operands)

    def part(self, start: Dim, stop: Dim) -> int:
        """The number of a range in symbols."""
        self._parts.append((start, stop))
        return len(self._parts) - 1

    def _shown(self, constructor: str, args: Sequence[Any]) -> str:
        if constructor == "Node":
            number, *operands = args
            names = " ".join(self.names[operand] for operand in operands)
            return f"(Node {number} (vec-of {names}))"
        return f"({constructor} {' '.join(self._argument(argument) for argument in args)})"

    def _argument(self, one: object) -> str:
        if isinstance(one, Value):
            return self.names[one]
        if isinstance(one, tuple):
            return _vector(one)
        return json.dumps(one)

    def _facts(self, value: Value, name: str) -> str:
        lines = [
            f"(set (shape {name}) {_vector([self.dim(dim) for dim in value.shape])})",
            f'(set (dtype {name}) "{value.dtype}")',
        ]
        if value.op_name in {"parameter", "constant"}:
            lines.append(f"(static {name})")
        if (
            value.array is not None
            and value.array.size == 1
            and value.rank == 0
            and not value.dtype.is_complex
        ):
            number = float(value.array.item())
            if math.isfinite(number):
                lines.append(f"(set (number {name}) {number!r})")
        return " ".join(lines)

    def _siblings(self) -> list[str]:
        """Places of weights among those that one operand is multiplied with."""
        lines = []
        count = 0
        for value in self.names:
            weights = [
                made[1][1]
                for user in value.users
                if user.results[0] in self.made
                and (made := self.made[user.results[0]])[0] == "Matmul"
                and made[1][0] is value
            ]
            for weight in dict.fromkeys(weights) if len(set(weights)) > 1 else ():
                lines.append(
                    f"(set (first {self.names[weight]}) {count}) (set (last {self.names[weight]}) {count})"
                )
                count += 1
            count += 1
        return lines

    # -- and back

    def build(self, graph: Graph, constructor: str, args: Sequence[Any]) -> Value:
        """The value of a term in a graph, given values for its operands. Raises as `Graph.add` does."""
        if constructor == "Leaf":
            return self._copy(graph, self._by_id[args[0]])
        if constructor == "Node":
            number, *operands = args
            return graph.copy(self._nodes[number], tuple(operands)).results[0]
        return _BUILDERS[constructor](self, graph, *args)

    def _copy(self, graph: Graph, value: Value) -> Value:
        """A leaf, or a result of a node with several, with all that it needs."""
        operands = tuple(self._copy(graph, operand) for operand in value.operands)
        node = value.node
        if node.op.name in {"input", "parameter"}:
            known = {**graph.inputs, **graph.parameters}.get(node.attrs["name"])
            return known if known is not None else graph.copy(node, ()).results[0]
        return graph.copy(node, operands).results[value.node.results.index(value)]

    def range_of(self, number: int) -> tuple[Dim, Dim]:
        """What `part` numbered."""
        return self._parts[number]


def _vector(numbers: Sequence[int]) -> str:
    return f"(vec-of {' '.join(map(str, numbers))})" if numbers else "(vec-empty)"


# -- each kind of node as a term; None where it is none of the kind


_Made = tuple[str, tuple[Any, ...]] | None


def _pointwise(_: Terms, value: Value) -> _Made:
    node = value.node
    if Trait.POINTWISE not in node.op.traits or node.op.attrs or len(node.operands) > 2:
        return None
    if any(operand.dtype is not value.dtype for operand in node.operands):
        return None
    return ("Un" if len(node.operands) == 1 else "Bin"), (node.op.name, *node.operands)


def _matmul(_: Terms, value: Value) -> _Made:
    plain = value.attrs["dtype"] in {None, value.dtype} and value.attrs["accumulate"] is None
    same = all(operand.dtype is value.dtype for operand in value.operands)
    return ("Matmul", value.operands) if plain and same else None


def _permute(_: Terms, value: Value) -> _Made:
    rank = value.rank
    if rank >= 2 and tuple(value.attrs["order"]) == (*range(rank - 2), rank - 1, rank - 2):
        return "Swap", value.operands
    return None


def _broadcast(terms: Terms, value: Value) -> _Made:
    (x,), rank, axes = value.operands, value.rank, tuple(value.attrs["axes"])
    shape = tuple(terms.dim(dim) for dim in value.shape)
    same = all(x.shape[index] == value.shape[axis] for index, axis in enumerate(axes))
    if not same:
        return None
    if axes == ():
        return "Full", (x, shape)
    if axes == (rank - 1,) and rank >= 2:
        return "Row", (x, shape)
    if axes == (rank - 2, rank - 1) and rank > 2:
        return "Batch", (x, shape)
    return None


def _slice(terms: Terms, value: Value) -> _Made:
    (x,), attrs = value.operands, value.attrs
    ranges = list(zip(attrs["starts"], attrs["stops"], x.shape, strict=True))
    cut = [axis for axis, (start, stop, dim) in enumerate(ranges) if (start, stop) != (0, dim)]
    if len(cut) != 1 or any(step != 1 for step in attrs["steps"]):
        return None
    (axis,) = cut
    start, stop, _ = ranges[axis]
    if isinstance(start, int) and isinstance(stop, int):
        return "Slice", (x, axis, start, stop)
    return "Part", (x, axis, terms.part(start, stop), terms.dim(value.shape[axis]))


def _concat(_: Terms, value: Value) -> _Made:
    return ("Concat", (*value.operands, value.attrs["axis"])) if len(value.operands) == 2 else None


def _reduce(_: Terms, value: Value) -> _Made:
    axes = value.attrs["axes"]
    return ("Reduce", (value.op_name, value.operands[0], axes[0])) if len(axes) == 1 else None


def _gather(_: Terms, value: Value) -> _Made:
    x, _at = value.operands
    return ("Gather", value.operands) if value.attrs["axis"] == 0 and x.rank == 2 else None


_MAKERS: Mapping[str, Callable[[Terms, Value], _Made]] = {
    "matmul": _matmul, "permute": _permute, "broadcast": _broadcast, "slice": _slice, "concat": _concat,
    "reduce_sum": _reduce, "reduce_mean": _reduce, "reduce_max": _reduce, "reduce_min": _reduce, "gather": _gather,
}  # fmt: skip


def _cut(x: Value, axis: int, start: Dim, stop: Dim) -> Value:
    starts = tuple(start if one == axis else 0 for one in range(x.rank))
    stops = tuple(stop if one == axis else dim for one, dim in enumerate(x.shape))
    return x.graph.apply("slice", x, starts=starts, stops=stops, steps=(1,) * x.rank)


def _joined(a: Value, b: Value, axis: int) -> Value:
    """Concats of concats are one."""
    parts = [
        part
        for one in (a, b)
        for part in (one.operands if one.op_name == "concat" and one.attrs["axis"] == axis else (one,))
    ]
    return a.graph.apply("concat", *parts, axis=axis)


def _spread(terms: Terms, graph: Graph, x: Value, shape: Sequence[int], count: int) -> Value:
    dims = terms.dims(shape)
    axes = tuple(range(len(dims)))[len(dims) - count :]
    return graph.apply("broadcast", x, shape=dims, axes=axes)


_BUILDERS: Mapping[str, Callable[..., Value]] = {
    "Matmul": lambda _, graph, a, b: graph.apply("matmul", a, b),
    "Un": lambda _, graph, op, a: graph.apply(op, a),
    "Bin": lambda _, graph, op, a, b: graph.apply(op, a, b),
    "Swap": lambda _, graph, a: graph.apply("permute", a, order=(*range(a.rank - 2), a.rank - 1, a.rank - 2)),
    "Batch": lambda terms, graph, a, shape: _spread(terms, graph, a, shape, 2),
    "Row": lambda terms, graph, a, shape: _spread(terms, graph, a, shape, 1),
    "Full": lambda terms, graph, a, shape: _spread(terms, graph, a, shape, 0),
    "Slice": lambda _terms, _graph, a, axis, start, stop: _cut(a, axis, start, stop),
    "Part": lambda terms, _graph, a, axis, which, _size: _cut(a, axis, *terms.range_of(which)),
    "Concat": lambda _terms, _graph, a, b, axis: _joined(a, b, axis),
    "Reduce": lambda _, graph, op, a, axis: graph.apply(op, a, axes=(axis,)),
    "Gather": lambda _, graph, a, at: graph.apply("gather", a, at, axis=0),
}  # fmt: skip
