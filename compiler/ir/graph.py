"""Graphs: append-only SSA, hash-consed.

A `Graph` owns `Node`s, each an op applied to values, and each with one `Value` a result (nearly always one).
Nodes are only ever appended, and only to values that are there already: the order of nodes is topological by
construction, and nothing that a value is ever changes. An op on the same operands with the same attributes is
the same node; every op is pure, so that loses nothing. To change a graph is to build another one: see
`transform.rebuild`.

A graph's signature is its inputs, parameters (weights, by name, whose arrays lie in `weights`) and outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from kernels_hub.compiler.errors import EvaluateError, GraphError, ShapeError
from kernels_hub.compiler.ir import ops, types
from kernels_hub.compiler.ir.binding import Unified, unify, unify_all
from kernels_hub.compiler.ir.dims import Dim, Expr, Symbol, atom, symbol
from kernels_hub.compiler.ir.extrema import substitute
from kernels_hub.compiler.ir.op import Literal, Op, Shape, TensorType, Trait
from kernels_hub.compiler.ir.operators import Number, Operators, scalar_array
from kernels_hub.compiler.ir.ops.conversion import convert
from kernels_hub.compiler.ir.pictures import Pictures
from kernels_hub.compiler.ir.random_arrays import random_array
from kernels_hub.compiler.ir.text import parse_dim
from kernels_hub.compiler.ir.types import Array, DType

INDEX_DEPTH = 8
"""Views and casts between a value and what it indexes, at most."""
LONGEST_SYMBOL = 256
"""Characters of the name of a size."""

Weight = Array | Callable[[], Array]
"""A parameter's array, or what loads it when it is needed."""


class Value(Operators):
    """A result of a node. Printed as %<id>; compared by identity."""

    __slots__ = ("id", "node", "place", "type", "users")

    def __init__(self, node: Node, place: int, identifier: int, of: TensorType) -> None:
        self.node, self.place, self.id, self.type = node, place, identifier, of
        self.users: list[Node] = []
        """Nodes that have it as an operand, each once, in order."""

    def __repr__(self) -> str:
        return f"%{self.id}: {self.type}"

    @property
    def graph(self) -> Graph:
        """The graph that it belongs to."""
        return self.node.graph

    @property
    def op(self) -> Op:
        """The row of the op that makes it."""
        return self.node.op

    @property
    def op_name(self) -> str:
        """The name of that op."""
        return self.node.op.name

    @property
    def operands(self) -> tuple[Value, ...]:
        """What its node is applied to."""
        return self.node.operands

    @property
    def attrs(self) -> dict[str, Any]:
        """The attributes of its node, all of them, canonical. Not to be changed."""
        return self.node.attrs

    @property
    def dtype(self) -> DType:
        """Of its elements."""
        return self.type.dtype

    @property
    def shape(self) -> Shape:
        """Its dims."""
        return self.type.shape

    @property
    def rank(self) -> int:
        """How many dims it has."""
        return len(self.type.shape)

    @property
    def array(self) -> Array | None:
        """The array of a constant; None of anything else."""
        return self.node.attrs["value"].array if self.node.op.name == "constant" else None

    @property
    def scalar(self) -> Any:
        """The number that every element is known to be, through broadcasts and reshapes; None where it is not."""
        value: Value = self
        while value.op_name in {"broadcast", "reshape", "permute"}:
            value = value.operands[0]
        return value.array.item() if value.array is not None and value.array.size == 1 else None

    def index_limit(self, bindings: Mapping[str, int], depth: int = INDEX_DEPTH) -> int | None:
        """The least dim that it indexes, directly or through views and casts."""
        limits: list[int] = []
        for node in self.users if depth else ():
            limit = None
            indexes = len(node.operands) > 1 and node.operands[1] is self
            if indexes and node.op.name in {"gather", "gather_elements", "scatter_elements"}:
                limit = substitute(node.operands[0].shape[node.attrs["axis"]], bindings)
            elif indexes and node.op.name in {"gather_nd", "scatter_nd"}:
                first, count = node.attrs.get("batch_dims", 0), self.shape[-1]
                indexed = node.operands[0].shape[first:][: count if isinstance(count, int) else 0]
                limit = min((substitute(dim, bindings) for dim in indexed), default=1)
            elif Trait.VIEW in node.op.traits or node.op.name in {"cast", "concat", "select"}:
                limit = node.results[0].index_limit(bindings, depth - 1)
            if isinstance(limit, int):
                limits.append(limit)
        return min(limits, default=None)


class Node:
    """An op applied to values. `origin` says where it came from (an ONNX node, a module), for messages."""

    __slots__ = ("_symbols", "attrs", "graph", "id", "op", "operands", "origin", "results")

    def __init__(
        self,
        graph: Graph,
        identifier: int,
        op: Op,
        operands: tuple[Value, ...],
        attrs: dict[str, Any],
        origin: str,
    ) -> None:
        self.graph, self.id, self.op, self.operands, self.attrs = graph, identifier, op, operands, attrs
        self.origin = origin
        self.results: tuple[Value, ...] = ()
        self._symbols: frozenset[Symbol] | None = None

    def __repr__(self) -> str:
        results = ", ".join(f"%{value.id}" for value in self.results)
        return f"{results} = {self.op.name}({', '.join(f'%{value.id}' for value in self.operands)})"

    def symbols(self) -> frozenset[Symbol]:
        """Symbols in its attributes and in the types of its results."""
        if self._symbols is None:
            self._symbols = _symbols_in((*self.attrs.values(), *[one.type.shape for one in self.results]))
        return self._symbols


class Graph(Pictures):
    """See the module. `graph.input(...)`, methods and operators on values, then `graph.output(name, value)`."""

    def __init__(self, name: str = "graph") -> None:
        self.name = name
        self.nodes: list[Node] = []
        self.values: list[Value] = []
        self.inputs: dict[str, Value] = {}
        self.parameters: dict[str, Value] = {}
        self.outputs: dict[str, Value] = {}
        self.weights: dict[str, Weight] = {}
        self.symbols: dict[str, Expr] = {}
        self.definers: dict[str, Node] = {}
        """Symbol -> the node that defines it, for sizes that only the data tell."""
        self.only_runs = False
        """Whether something was left out of it that derivatives need (`rewrite.gradients`)."""
        self.frozen = False
        self._interned: dict[tuple[Any, ...], Node] = {}
        self._origin = ""
        self._random_keys = 0
        self._used_symbols: dict[str, Symbol] = {}

    def __repr__(self) -> str:
        return f"<Graph {self.name}: {len(self.nodes)} nodes>"

    # -- leaves

    def symbol(self, name: str, minimum: int | None = None, maximum: int | None = None) -> Expr:
        """The symbol of that name, declared with bounds (>= 0 by default) or as it is known already.

        Raises GraphError where it is known with other bounds.
        """
        known = self.symbols.get(name)
        if known is not None and minimum is None and maximum is None:
            return known
        return self._declare(symbol(name, minimum or 0, maximum))

    def has_size(self, name: str) -> bool:
        """Whether a node has a size of the symbol of that name, rather than that it is declared alone."""
        return name in self._used_symbols

    def dims(self, shape: Any) -> Shape:
        """A shape with texts ("batch", "2*n + 1") made dims of this graph's symbols."""
        for dim in shape:
            if type(dim) is not int and type(dim) is not Expr:
                break
        else:
            return tuple(shape)
        return tuple(
            parse_dim(dim, self.symbol)
            if isinstance(dim, str)
            else dim
            if isinstance(dim, Expr)
            else int(dim)
            for dim in shape
        )

    def input(self, name: str, shape: Sequence[Dim | str], dtype: DType | str = types.FLOAT32) -> Value:
        """A value that each call brings. Raises GraphError if the name is taken."""
        self._unused(name)
        self.inputs[name] = value = self.apply("input", name=name, shape=self.dims(shape), dtype=dtype)
        return value

    def parameter(
        self,
        name: str,
        shape: Sequence[Dim | str],
        dtype: DType | str = types.FLOAT32,
        data: Weight | None = None,
    ) -> Value:
        """A weight. data: its array (a memory map is not read before it is needed), or what loads it."""
        self._unused(name)
        self.parameters[name] = value = self.apply(
            "parameter", name=name, shape=self.dims(shape), dtype=dtype
        )
        if data is not None:
            self.weights[name] = data
        return value

    def constant(self, value: Array | Number | Sequence[Any], dtype: DType | str | None = None) -> Value:
        """A constant. Python's numbers become float32, int64 or bool unless a dtype is given; arrays keep theirs."""
        if isinstance(value, (np.ndarray, np.generic)):
            array = np.asarray(value)
        elif isinstance(value, (bool, int, float, complex)):
            array = scalar_array(value, types.dtype(dtype) if dtype is not None else types.of_python(value))
        else:
            array = np.asarray(value)
            if array.dtype.kind in "fc":
                array = array.astype(types.of_python(array.flat[0].item() if array.size else 0.0).numpy)
        if dtype is not None and types.dtype(array.dtype) is not types.dtype(dtype):
            array = convert(array, types.dtype(dtype))
        return self.apply("constant", value=Literal.of(array))

    def iota(self, size: Dim | str, dtype: DType | str = types.INT64) -> Value:
        """0, 1, … size - 1."""
        return self.apply("iota", size=self.dims((size,))[0], dtype=dtype)

    def full(self, shape: Sequence[Dim | str], number: Number, dtype: DType | str = types.FLOAT32) -> Value:
        """One number everywhere."""
        return self.constant(number, dtype).broadcast_to(tuple(shape))

    def size(self, dim: Dim | str, dtype: DType | str = types.INT64) -> Value:
        """A dim as a value: a constant where it is a number."""
        (dim,) = self.dims((dim,))
        return (
            self.constant(dim, dtype) if isinstance(dim, int) else self.apply("size", value=dim, dtype=dtype)
        )

    def random_key(self, seed: int | None = None) -> Value:
        """A key for `random_bits`: the seed's, or the first that this graph does not have yet.

        Graphs that are called bring their own keys along, which may be the same: give those seeds.
        """
        if seed is not None:
            return self.constant(np.asarray(seed & (1 << 64) - 1, np.uint64))
        while True:
            self._random_keys += 1
            before = len(self.nodes)
            key = self.constant(np.asarray(self._random_keys, np.uint64))
            if len(self.nodes) > before:
                return key

    def output(self, name: str, value: Value) -> Value:
        """Name a result of the graph. Raises GraphError if an output has the name."""
        self._owned(value, f"output {name!r}")
        if name in self.outputs:
            raise GraphError(f"graph {self.name} has an output {name!r} already: {self.outputs[name]}")
        self.outputs[name] = value
        return value

    # -- nodes

    def apply(self, op: str | Op, *operands: Value, **attrs: Any) -> Value:
        """The only result of an op. Raises as `add` does."""
        (result,) = self.add(op, operands, attrs).results
        return result

    def add(self, op: str | Op, operands: Sequence[Value], attrs: Mapping[str, Any]) -> Node:
        """The node of an op on operands: a new one, or the one that is there.

        Raises TypeRuleError or ShapeError where the op's rules refuse, GraphError for values of another graph.
        """
        row = op if isinstance(op, Op) else ops.op(op)
        return self._add(row, tuple(operands), row.normalise(attrs))

    def _add(
        self, row: Op, operands: tuple[Value, ...], attrs: dict[str, Any], like: Node | None = None
    ) -> Node:
        """Of canonical attributes. like: a node of any graph whose results and symbols are the same."""
        key = (row.name, *operands, *attrs.values())
        existing = self._interned.get(key)
        if existing is not None:
            return existing
        if self.frozen:
            raise GraphError(f"graph {self.name} is a region of another by now and takes no further nodes")
        for position, operand in enumerate(operands):
            if type(operand) is not Value or operand.node.graph is not self:
                self._owned(operand, f"operand {position} of {row.name}")
        types = (
            row.infer([operand.type for operand in operands], attrs)
            if like is None
            else [result.type for result in like.results]
        )
        node = Node(self, len(self.nodes), row, operands, attrs, self._origin)
        if row.defines is not None:
            self._define(attrs[row.defines], node)
        first = len(self.values)
        node.results = tuple(
            [Value(node, index, first + index, result_type) for index, result_type in enumerate(types)]
        )
        node._symbols = None if like is None else like.symbols()
        for used in node.symbols():
            if self._used_symbols.get(used.name) is not used:
                self._use(node.symbols())
                break
        self.values.extend(node.results)
        self.nodes.append(node)
        self._interned[key] = node
        for operand in operands if len(operands) < 2 else dict.fromkeys(operands):
            operand.users.append(node)
        return node

    @contextmanager
    def origin(self, text: str) -> Iterator[None]:
        """Nodes built inside say that they come from there."""
        before, self._origin = self._origin, text
        try:
            yield
        finally:
            self._origin = before

    def call(self, callee: Graph, *args: Value) -> tuple[Value, ...]:
        """The outputs of another graph on these arguments: its nodes are written out here.

        Symbols of its inputs take the dims of the arguments. Parameters of the same name are the same parameter.
        """
        if len(args) != len(callee.inputs):
            raise GraphError(f"graph {callee.name} takes {len(callee.inputs)} inputs, got {len(args)}")
        bindings: dict[str, Dim] = {}
        for (name, declared), argument in zip(callee.inputs.items(), args, strict=True):
            self._owned(argument, f"argument {name!r} of {callee.name}")
            if declared.dtype is not argument.dtype or declared.rank != argument.rank:
                raise ShapeError(f"input {name!r} of {callee.name} is {declared.type}, got {argument.type}")
        pairs = zip(callee.inputs.items(), args, strict=True)
        unify_all(
            [
                Unified(declared.shape, given.shape, f"input {name!r} of {callee.name}")
                for (name, declared), given in pairs
            ],
            bindings,
        )
        mapped: dict[Value, Value] = dict(zip(callee.inputs.values(), args, strict=True))
        for node in callee.live():
            if node.op.name != "input":
                copies = self.copy(node, tuple(mapped[operand] for operand in node.operands), bindings)
                mapped.update(zip(node.results, copies.results, strict=True))
        return tuple(mapped[value] for value in callee.outputs.values())

    def copy(
        self,
        node: Node,
        operands: tuple[Value, ...],
        bindings: Mapping[str, Dim] | None = None,
        dims: dict[Expr, Dim] | None = None,
    ) -> Node:
        """A node of any graph appended to this one, on operands of this one, symbols replaced by `bindings`.

        dims: those of which it is remembered what they are then; grows.
        """
        attrs = node.attrs
        like: Node | None = node
        if bindings and attrs:
            dims = {} if dims is None else dims
            attrs = node.op.normalise({name: bound(value, bindings, dims) for name, value in attrs.items()})
            like = None
        else:
            for new, old in zip(operands, node.operands, strict=True):
                if new.type is not old.type and new.type != old.type:
                    like = None
        before, self._origin = self._origin, node.origin or self._origin
        try:
            result = self._add(node.op, operands, attrs, like)
        finally:
            self._origin = before
        if operands:
            return result
        if node.op.name == "parameter":
            name = attrs["name"]
            known = self.parameters.setdefault(name, result.results[0])
            if known is not result.results[0]:
                raise GraphError(f"parameter {name!r} is {known.type} here, and {node.results[0].type} there")
            if name in node.graph.weights:
                mine = self.weights.setdefault(name, node.graph.weights[name])
                if mine is not node.graph.weights[name]:
                    raise GraphError(
                        f"parameter {name!r} has one array here and another there; rename one of them"
                    )
        elif node.op.name == "input":
            self.inputs[attrs["name"]] = result.results[0]
        return result

    def successor(self, without: Collection[str] = ()) -> Graph:
        """An empty graph with its name, its symbols but for some, and what else a graph that is made of it keeps."""
        new = Graph(self.name)
        new._random_keys, new.only_runs = self._random_keys, self.only_runs
        new.symbols = {name: one for name, one in self.symbols.items() if name not in without}
        return new

    def bind(self, bindings: Mapping[str, Dim]) -> Graph:
        """The graph with symbols replaced by numbers (or other dims). Raises DimError where that breaks a fact."""
        known = {name: value for name, value in bindings.items() if name in self.symbols}
        new = self.successor(without=known)
        mapped: dict[Value, Value] = {}
        dims: dict[Expr, Dim] = {}
        for node in self.live():
            copied = new.copy(node, tuple([mapped[operand] for operand in node.operands]), known, dims)
            mapped.update(zip(node.results, copied.results, strict=True))
        for name, value in self.outputs.items():
            new.output(name, mapped[value])
        return new

    def drop_dead(self) -> set[Value]:
        """Remove what no output needs, and number anew; the values that are left.

        Only for a graph that nobody else has seen yet, as at the end of a rebuild: values lose their ids.
        """
        live = self.live()
        left = {value for node in live for value in node.results}
        if len(live) == len(self.nodes):
            return left
        alive = set(live)
        self.nodes, self.values = live, [value for node in live for value in node.results]
        for number, node in enumerate(live):
            node.id = number
        for number, value in enumerate(self.values):
            value.id = number
            value.users = [user for user in value.users if user in alive]
        self._interned = {key: node for key, node in self._interned.items() if node in alive}
        self.definers = {name: node for name, node in self.definers.items() if node in alive}
        self.parameters = {name: value for name, value in self.parameters.items() if value in left}
        self.weights = {name: weight for name, weight in self.weights.items() if name in self.parameters}
        return left

    # -- queries

    def live(self) -> list[Node]:
        """Nodes that the outputs need, in order; inputs always. A node needs what defines its symbols."""
        needed = [False] * len(self.nodes)
        for value in (*self.outputs.values(), *self.inputs.values()):
            needed[value.node.id] = True
        for node in reversed(self.nodes):
            if needed[node.id]:
                for operand in node.operands:
                    needed[operand.node.id] = True
                if self.definers:
                    for symbol in node.symbols():
                        if (definer := self.definers.get(symbol.name)) is not None:
                            needed[definer.id] = True
        return [node for node in self.nodes if needed[node.id]]

    def is_output(self, value: Value) -> bool:
        """Whether an output is this value."""
        return any(output is value for output in self.outputs.values())

    def uses(self, value: Value) -> int:
        """How often a value is an operand or an output, counting each place."""
        places = sum(operand is value for node in value.users for operand in node.operands)
        return places + sum(output is value for output in self.outputs.values())

    def signature(self) -> tuple[tuple[TensorType, ...], tuple[TensorType, ...]]:
        """Types of inputs and of outputs."""
        return (
            tuple(value.type for value in self.inputs.values()),
            tuple(value.type for value in self.outputs.values()),
        )

    def freeze(self) -> None:
        """Refuse new nodes from now on: the graph is a region, and compared by identity."""
        if self.parameters:
            raise GraphError(
                f"graph {self.name} has parameters ({', '.join(self.parameters)}); a region gets them as inputs"
            )
        self.frozen = True

    def weight(self, name: str) -> Array:
        """A parameter's array, loaded now. Raises EvaluateError if there is none, or of another type."""
        value = self.parameters.get(name)
        if value is None or name not in self.weights:
            raise EvaluateError(f"graph {self.name} has no array for the parameter {name!r}")
        data = self.weights[name]
        array = np.asarray(data() if callable(data) else data)
        if types.dtype(array.dtype) is not value.dtype or array.ndim != value.rank:
            raise EvaluateError(
                f"parameter {name!r} is {value.type}, its array {array.dtype}{list(array.shape)}"
            )
        unify(value.shape, array.shape, {}, f"parameter {name!r}")
        return array

    def dummy_inputs(self, seed: int = 0, bindings: Mapping[str, int] | None = None) -> dict[str, Array]:
        """An array for each input, a function of the seed and the input's name alone.

        Floats are standard normal; integers that end up as indices (through views and casts) are in range of what
        they index, others 0 to 9; bools are fair. Raises DimError where a symbol of a shape is not bound.
        """
        return {
            name: random_array(value.type, seed, name, bindings, value.index_limit(bindings or {}))
            for name, value in self.inputs.items()
        }

    # -- checks

    def _owned(self, value: Value, what: str) -> None:
        if not isinstance(value, Value):
            raise GraphError(f"{what} is {value!r}, no value of a graph")
        if value.node.graph is not self:
            raise GraphError(
                f"{what} is {value} of graph {value.node.graph.name}, not of {self.name}; Graph.call brings a graph in"
            )

    def _unused(self, name: str) -> None:
        for kind, table in (("input", self.inputs), ("parameter", self.parameters)):
            if name in table:
                raise GraphError(f"graph {self.name} has an {kind} {name!r} already: {table[name]}")

    def _use(self, symbols: frozenset[Symbol]) -> None:
        """Declare the symbols of a node. Raises GraphError where one is known with other bounds."""
        known = self._used_symbols
        new = [used for used in symbols if known.get(used.name) != used]
        for used in sorted(new):
            self._declare(atom(used))
            known[used.name] = used

    def _declare(self, expr: Expr) -> Expr:
        new = expr.only_symbol
        assert new is not None
        if new.name.startswith("$") or len(new.name) > LONGEST_SYMBOL:
            raise GraphError(
                f"graph {self.name} has a size of the name {new.name[:60]!r}: a name is at most {LONGEST_SYMBOL} "
                "characters and does not begin with $, as variables of generated loops do; rename it"
            )
        known = self.symbols.setdefault(new.name, expr)
        if known is not expr and known != expr:
            raise GraphError(f"the symbol {known.only_symbol!r} of graph {self.name} is elsewhere {new!r}")
        return known

    def _define(self, expr: Expr, node: Node) -> None:
        (name,) = (symbol.name for symbol in expr.symbols)
        if name in self._used_symbols:
            raise GraphError(f"{node.op.name} defines {name!r}, which graph {self.name} uses before")
        self.definers[name] = node


def bound(value: Any, bindings: Mapping[str, Dim], known: dict[Expr, Dim] | None = None) -> Any:
    """An attribute with symbols replaced. known: dims -> what they are then; grows."""
    if isinstance(value, Expr):
        if known is None:
            return substitute(value, bindings)
        dim = known.get(value)
        if dim is None:
            dim = known[value] = substitute(value, bindings)
        return dim
    if isinstance(value, tuple):
        return tuple([bound(item, bindings, known) for item in value])
    if isinstance(value, Graph):
        return value.bind(bindings)
    return value


def _symbols_in(values: Iterable[Any]) -> frozenset[Symbol]:
    """Symbols of dims among attributes and shapes, in tuples too."""
    found: frozenset[Symbol] = frozenset()
    for value in values:
        kind = type(value)
        more = value.symbols if kind is Expr else _symbols_in(value) if kind is tuple else None
        if more:
            found = found | more if found else more
    return found
