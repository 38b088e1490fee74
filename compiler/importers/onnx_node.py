"""What an op's importer gets, and where importers are entered: `OnnxNode` and `@onnx_op`.

    @onnx_op("Gemm", since=7)
    def gemm(node: OnnxNode) -> Value:
        a, b = node.input(0), node.input(1)
        ...

An importer builds the op's results in `node.graph` and returns them: one value, or a sequence of as many as the op
has (or fewer, where the rest is optional and not asked for). It refuses with `node.refuse(reason)`; whatever the IR
refuses is reported the same way, with the node's name, op, opset and shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from kernels_hub.compiler.errors import TypeRuleError
from kernels_hub.compiler.importers.onnx_messages import AttributeProto, GraphProto, NodeProto
from kernels_hub.compiler.importers.onnx_scope import Scope
from kernels_hub.compiler.importers.onnx_sequences import Named, TensorSequence
from kernels_hub.compiler.importers.onnx_types import tensor_array
from kernels_hub.compiler.importers.onnx_values import depends_on_floats, dims_value, source_inputs
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.dims import Dim, Expr, symbol
from kernels_hub.compiler.ir.graph import Graph, Value
from kernels_hub.compiler.ir.op import Op
from kernels_hub.compiler.ir.ops import OPS
from kernels_hub.compiler.ir.types import Array, DType

Results = Named | Sequence[Named | None]
Importer = Callable[["OnnxNode"], Results]
Entered = TypeVar("Entered", bound=Importer)

_IMPORTERS: dict[tuple[str, str], list[tuple[int, Importer]]] = {}
_OF_ROWS: dict[str, Importer] = {}
"""Importers of ops that a row of the op table names, made when they are first asked for."""


def onnx_op(name: str, since: int, domain: str = "") -> Callable[[Entered], Entered]:
    """Enter an importer for an op of opsets `since` and later, up to the next one that is entered."""

    def enter(importer: Entered) -> Entered:
        versions = _IMPORTERS.setdefault((domain, name), [])
        if any(known == since for known, _ in versions):
            raise ValueError(f"{domain or 'ai.onnx'} {name} since {since} is entered twice")
        versions.append((since, importer))
        versions.sort(key=lambda version: version[0])
        return importer

    return enter


def importer_of(domain: str, name: str, opset: int) -> Importer | None:
    """The importer of an op in a version of its domain."""
    found = None
    for since, importer in _IMPORTERS.get((domain, name), ()):
        if since <= opset:
            found = importer
    if found is None and not domain:
        found = _OF_ROWS.get(name)
        if found is None:
            row = next((row for row in OPS.values() if name in row.onnx), None)
            if row is not None:
                found = _OF_ROWS[name] = _importer_of_row(row)
    return found


def _importer_of_row(row: Op) -> Importer:
    """The importer of an op of ONNX that is one pointwise op."""

    def convert(node: OnnxNode) -> Value:
        if row.arity == 1:
            return node.input(0).unary(row.name)
        a, b = both_operands(node)
        return a.binary(row.name, b)

    return convert


def both_operands(node: OnnxNode) -> tuple[Value, Value]:
    """Both operands, the second placed at the attribute `axis` where an opset before 7 says so."""
    a, b = node.input(0), node.input(1)
    if node.opset < 7 and node.attr("broadcast", 0) and b.rank < a.rank:
        axis = node.attr("axis", a.rank - b.rank)
        axis += a.rank if axis < 0 else 0
        b = b.reshape((*b.shape, *[1] * (a.rank - axis - b.rank)))
    return a, b


def known_ops() -> list[tuple[str, str, int]]:
    """(domain, op, first opset) of every importer, sorted."""
    entered = [(domain, name, since) for (domain, name), all_ in _IMPORTERS.items() for since, _ in all_]
    return sorted([*entered, *(("", name, 1) for row in OPS.values() for name in row.onnx)])


class UnknownValueError(TypeRuleError):
    """A value that must be known at import, and depends on inputs; `inputs` are their names."""

    def __init__(self, message: str, inputs: Sequence[str]) -> None:
        super().__init__(message)
        self.inputs = tuple(inputs)


class OnnxNode:
    """A node about to be imported: its operands as values of `graph`, its attributes, what it is told to give."""

    def __init__(self, proto: NodeProto, scope: Scope, opset: int) -> None:
        self.proto, self.scope, self.opset = proto, scope, opset
        self.graph: Graph = scope.graph
        self.operands: list[Named | None] = [scope.named(name) if name else None for name in proto.input]
        """None for those that are left out."""
        self._attributes: dict[str, AttributeProto] = {}
        for one in proto.attribute:
            if one.ref_attr_name:
                given = scope.attributes.get(one.ref_attr_name)
                if given is not None:
                    self._attributes[one.name] = given
            else:
                self._attributes[one.name] = one

    # -- operands

    def input(self, place: int, what: str = "") -> Value:
        """A tensor that must be there. Raises TypeRuleError."""
        value = self.optional(place)
        if value is None:
            raise TypeRuleError(f"input {place}{f' ({what})' if what else ''} is missing")
        return value

    def optional(self, place: int) -> Value | None:
        """A tensor, or None where it is left out. Raises TypeRuleError for what is no tensor."""
        named = self.operands[place] if place < len(self.operands) else None
        if named is not None and not isinstance(named, Value):
            raise TypeRuleError(f"input {place} is no tensor, but of type {named.type}")
        return named

    def all_inputs(self) -> list[Value]:
        """Every operand, none of which may be missing."""
        return [self.input(index) for index in range(len(self.operands))]

    def operand(self, place: int) -> Named:
        """An operand of any kind that must be there. Raises TypeRuleError."""
        named = self.operands[place] if place < len(self.operands) else None
        if named is None:
            raise TypeRuleError(f"input {place} is missing")
        return named

    def sequence(self, place: int) -> TensorSequence:
        """A sequence that must be there. Raises TypeRuleError."""
        named = self.operand(place)
        if not isinstance(named, TensorSequence):
            raise TypeRuleError(f"input {place} is no sequence, but of type {named.type}")
        return named

    def tensor(self, named: Named, what: str) -> Value:
        """What must be a tensor, such as a result of a subgraph. Raises TypeRuleError."""
        if not isinstance(named, Value):
            raise TypeRuleError(f"{what} is no tensor, but of type {named.type}")
        return named

    # -- attributes

    def attr(self, name: str, default: object = None) -> Any:
        """An attribute as int, float, str, list of these, array (tensors), or GraphProto."""
        attribute = self._attributes.get(name)
        return default if attribute is None else self._plain(attribute)

    def has(self, name: str) -> bool:
        """Whether an attribute is given."""
        return name in self._attributes

    def attributes(self) -> Mapping[str, AttributeProto]:
        """All that are given, references resolved."""
        return self._attributes

    def subgraph(self, name: str) -> GraphProto:
        """An attribute that is a graph."""
        attribute = self._attributes.get(name)
        if attribute is None or attribute.type != AttributeProto.GRAPH:
            raise TypeRuleError(f"the attribute {name!r}, a graph, is missing")
        return attribute.g

    def _plain(self, proto: AttributeProto) -> Any:
        kind = proto.type
        if kind == AttributeProto.INT:
            return proto.i
        if kind == AttributeProto.FLOAT:
            return proto.f
        if kind == AttributeProto.STRING:
            return proto.s.decode("utf-8", "replace")
        if kind == AttributeProto.INTS:
            return list(proto.ints)
        if kind == AttributeProto.FLOATS:
            return list(proto.floats)
        if kind == AttributeProto.STRINGS:
            return [text.decode("utf-8", "replace") for text in proto.strings]
        if kind == AttributeProto.TENSOR:
            return tensor_array(proto.t, self.scope.data)
        known = next((name for name, number in AttributeProto.AttributeType.items() if number == kind), kind)
        raise TypeRuleError(f"the attribute {proto.name!r} is of type {known}, of no use to the IR")

    # -- what is known

    def known(self, value: Value, what: str) -> Array:
        """Numbers or dims that a value is known to be. Raises UnknownValueError, which names the inputs to give."""
        array = self.scope.known(value)
        if array is None:
            inputs = source_inputs(value, self.scope.outside)
            if any(one in self.scope.session.of_trips for one in inputs):
                raise UnknownValueError(
                    f"{what} must be known when the model is imported; it changes from trip to trip", ()
                )
            names = self.scope.session.inputs_of(sorted({str(one.attrs["name"]) for one in inputs}))
            hint = (
                f"it depends on {', '.join(map(repr, names))}: give the value (values={{{names[0]!r}: …}})"
                if names
                else "it is computed from data"
            )
            raise UnknownValueError(f"{what} must be known when the model is imported; {hint}", names)
        return array

    def weight(self, value: Value, what: str) -> Array:
        """The array of a weight of any size, or what is known of a value. Raises UnknownValueError."""
        value = self.scope.outside.get(value, value)
        if value.op_name == "parameter" and value.attrs["name"] in value.graph.weights:
            return value.graph.weight(value.attrs["name"])
        return self.known(value, what)

    def maybe_known(self, value: Value | None) -> Array | None:
        """As `known`, or None."""
        return None if value is None else self.scope.known(value)

    def dims(self, place: int, what: str) -> tuple[Dim, ...]:
        """An integer operand as dims."""
        array = self.known(self.input(place, what), what)
        return tuple(_as_dim(one) for one in array.reshape(-1))

    def size(self, value: Value, what: str) -> Dim:
        """An integer scalar as a dim: what it is known to be, else a symbol where floats that are computed decide it.

        Such a size is told by each call: a model compiled for values of its inputs would serve one call alone.
        Raises UnknownValueError where values of inputs are to be given.
        """
        if self.maybe_known(value) is None and self.is_told_by_data(value):
            return self._defined(value.reshape(()).cast(types.INT64))
        return _as_dim(self.known(value, what).reshape(-1)[0])

    def is_told_by_data(self, value: Value) -> bool:
        """Whether floats that are computed decide an integer."""
        return value.dtype.is_integer and depends_on_floats(value, self.scope.outside)

    def sizes(self, place: int, what: str) -> tuple[Dim, ...]:
        """As `dims`, for sizes alone, no -1 among them: those that the data tell are symbols, as `size` gives them."""
        value = self.input(place, what)
        if self.maybe_known(value) is not None or not self.is_told_by_data(value):
            return self.dims(place, what)
        return tuple(self.size(one, what) for one in self._elements(value, what))

    def _elements(self, value: Value, what: str) -> list[Value]:
        """The scalars of a vector, those of each part where it is a concatenation. Raises TypeRuleError."""
        if value.op_name == "concat":
            return [one for part in value.operands for one in self._elements(part, what)]
        (count,) = value.shape
        if not isinstance(count, int):
            raise self.refuse(f"{what} has {count} elements; how many there are must be known")
        return [value.slice(0, index, index + 1).reshape(()) for index in range(count)]

    def new_size(self) -> Expr:
        """A symbol for a size that only the data tell, named after the node's first result."""
        name = f"{self.proto.output[0] or self.proto.op_type}_size"
        count = 0
        while (fresh := f"{name}{count or ''}") in self.graph.symbols:
            count += 1
        found = symbol(fresh)
        assert isinstance(found, Expr)
        return found

    def _defined(self, value: Value) -> Dim:
        """The symbol of a size that is a value: one for all uses of the value."""
        for user in value.users:
            if user.op.name == "define_size":
                defined: Dim = user.attrs["symbol"]
                return defined
        fresh = self.new_size()
        self.graph.apply("define_size", value, symbol=fresh)
        return fresh

    def ints(self, place: int, what: str) -> tuple[int, ...]:
        """An integer operand as numbers. Raises TypeRuleError where one is symbolic."""
        dims = self.dims(place, what)
        for dim in dims:
            if isinstance(dim, Expr):
                raise TypeRuleError(f"{what} is {dim}; it must be a number, so bind the dim")
        return dims

    def number(self, value: Value, what: str) -> Any:
        """A scalar operand as a Python number."""
        array = self.known(value, what)
        if array.size != 1 or array.dtype == object:
            raise TypeRuleError(f"{what} must be one number, not {value.type}")
        return array.reshape(-1)[0].item()

    # -- results

    def wants(self, place: int) -> bool:
        """Whether the model uses a result."""
        return place < len(self.proto.output) and bool(self.proto.output[place])

    def refuse(self, reason: str) -> TypeRuleError:
        """What to raise where the op cannot be imported."""
        return TypeRuleError(reason)

    def constant(self, value: Any, dtype: DType | str | None = None) -> Value:
        """A constant."""
        return self.graph.constant(value, dtype)

    def dims_value(self, dims: Sequence[Dim]) -> Value:
        """Dims as an int64 vector."""
        return dims_value(self.graph, dims)


def _as_dim(one: Any) -> Dim:
    if isinstance(one, Expr):
        return one
    if isinstance(one, (float, np.floating)) and float(one) != int(one):
        raise TypeRuleError(f"{one} is no whole number")
    return int(one)
