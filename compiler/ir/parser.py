"""Text, as `printer` writes it, back into a graph. Types are inferred anew and must be those stated."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from kernels_hub.compiler.errors import CompilerError, ParseError
from kernels_hub.compiler.ir import ops
from kernels_hub.compiler.ir.graph import Graph, Value, Weight
from kernels_hub.compiler.ir.op import REQUIRED, Attr, Literal, Op, TensorType
from kernels_hub.compiler.ir.text import Reader
from kernels_hub.compiler.ir.types import Array, dtype


def parse_graph(
    text: str, *, constants: Mapping[str, Array] | None = None, weights: Mapping[str, Weight] | None = None
) -> Graph:
    """The graph that a text states.

    constants: digest -> array of those that the text names only (`printer.large_constants`). Raises ParseError,
    with the line, for what is no graph, states a type that is not the op's, or lacks a constant.

    >>> parse_graph('''
    ... graph "rise" {
    ...   %0: float32[8] = input(name="x")
    ...   %1: float32[8] = exp(%0)
    ...   return "y" = %1
    ... }''')
    <Graph rise: 2 nodes>
    """
    reader = _GraphReader(text, constants or {})
    reader.expect("graph")
    graph = reader.graph()
    while reader.accept("data"):
        reader.kind("digest")
        reader.kind("string")
    if reader.now.kind != "end":
        raise reader.error("expected the end")
    graph.weights.update(weights or {})
    return graph


class _GraphReader(Reader):
    def __init__(self, text: str, constants: Mapping[str, Array]) -> None:
        super().__init__(text)
        self._constants = constants
        self._data = self.follow("data", "digest")

    def graph(self) -> Graph:
        """A name and a block."""
        graph = Graph(self.string())
        self.expect("{")
        if self.accept("symbols"):
            self._symbol(graph)
            while self.accept(","):
                self._symbol(graph)
        values: dict[str, Value] = {}
        while self.now.kind == "value":
            self._node(graph, values)
        self.expect("return")
        while self.now.kind == "string":
            name = self.string()
            self.expect("=")
            graph.output(name, self._value(values))
            if not self.accept(","):
                break
        self.expect("}")
        return graph

    def _symbol(self, graph: Graph) -> None:
        name = self.name()
        if self.accept(">="):
            graph.symbol(name, self.whole())
        else:
            self.expect("in")
            low = self.whole()
            self.expect("..")
            graph.symbol(name, low, self.whole())

    def _node(self, graph: Graph, values: dict[str, Value]) -> None:
        line = self.now.line
        declared: list[tuple[str, TensorType]] = []
        while not declared or self.accept(","):
            name = self.kind("value")
            self.expect(":")
            declared.append((name, self._type(graph)))
        self.expect("=")
        row = ops.op(self.kind("word"))
        types = [one for _, one in declared]
        self.expect("(")
        operands: list[Value] = []
        given: dict[str, Any] = {}
        while not self.accept(")"):
            if self.now.kind == "value":
                operands.append(self._value(values))
            else:
                attr = self._attr(row)
                self.expect("=")
                given[attr.name] = self._attribute(attr, graph, types)
            if self.now.text != ")":
                self.expect(",")
        for attr in row.attrs:
            if attr.name not in given and attr.default is REQUIRED and attr.name in {"shape", "dtype"}:
                given[attr.name] = types[0].shape if attr.name == "shape" else types[0].dtype
        origin = self.string() if self.accept("@") else ""
        try:
            with graph.origin(origin):
                results = _append(graph, row, operands, row.normalise(given))
        except (CompilerError, *_MALFORMED) as error:
            named = "" if isinstance(error, CompilerError) else f"{row.name}: {type(error).__name__}: "
            raise ParseError(f"line {line}: {named}{error}") from error
        if [result.type for result in results] != types:
            inferred = ", ".join(str(result.type) for result in results)
            raise ParseError(f"line {line}: {row.name} gives {inferred}, not {', '.join(map(str, types))}")
        for (name, _), value in zip(declared, results, strict=True):
            if values.setdefault(name, value) is not value:
                raise ParseError(f"line {line}: there is a {name} already")

    def _value(self, values: dict[str, Value]) -> Value:
        name = self.now.text
        if name not in values:
            raise self.error("expected a value that stands above")
        self.kind("value")
        return values[name]

    def _type(self, graph: Graph) -> TensorType:
        of = dtype(self.kind("word"))
        self.expect("[")
        return TensorType(of, self._list(lambda: self.dim(graph.symbol)))

    def _list(self, item: Callable[[], Any]) -> tuple[Any, ...]:
        """Items up to the closing bracket; the opening one is read."""
        items: list[Any] = []
        while not self.accept("]"):
            items.append(item())
            if self.now.text != "]":
                self.expect(",")
        return tuple(items)

    def _attr(self, row: Op) -> Attr:
        attr = row.attr(self.now.text)
        if attr is None:
            raise self.error(f"expected a value or an attribute of {row.name}")
        self.take()
        return attr

    def _attribute(self, attr: Attr, graph: Graph, types: list[TensorType]) -> Any:
        kind = attr.kind.name
        if kind in {"dims", "ints", "floats", "pairs"}:
            self.expect("[")
            single = {"dims": "dim", "ints": "int", "floats": "float", "pairs": "pair"}[kind]
            return self._list(lambda: self._scalar(single, graph))
        if kind == "array":
            return self._literal(types[0])
        return self._scalar(kind, graph)

    def _scalar(self, kind: str, graph: Graph) -> Any:
        if kind in {"int", "dim", "symbol"}:
            return self.dim(graph.symbol)
        if kind == "float":
            return self._number()
        if kind == "bool":
            if self.now.kind != "word" or self.now.text not in {"true", "false"}:
                raise self.error("expected true or false")
            return self.take().text == "true"
        if kind == "dtype":
            return dtype(self.kind("word"))
        if kind == "str":
            return self.string()
        if kind == "region":
            with self.deeper():
                return self.graph()
        assert kind == "pair"
        self.expect("[")
        return self._list(lambda: self.dim(graph.symbol))

    def _number(self) -> Any:
        """An int or a float, nan and inf included, or true or false."""
        negative = self.accept("-")
        text = self.take().text
        if text in {"true", "false"}:
            return text == "true"
        try:
            number = int(text) if text.isdigit() or text[1:].isdigit() else float(text)
        except ValueError:
            raise ParseError(f"line {self.now.line}: expected a number, got {text!r}") from None
        return -number if negative else number

    def _literal(self, of: TensorType) -> Literal:
        if self.accept("["):
            numbers = self._list(self._number)
            try:
                array = np.array(numbers, np.float64 if of.dtype.is_float else None)
                return Literal.of(array.astype(of.dtype.numpy).reshape(of.shape))
            except (ValueError, TypeError, OverflowError) as error:
                raise self.error(f"these numbers are no {of} ({error})") from error
        if self.now.kind == "string":
            return self._from_bytes(self.string(), of)
        digest = self.kind("digest")[1:]
        if digest in self._constants:
            found = Literal.of(self._constants[digest])
        elif digest in self._data:
            found = self._from_bytes(self._data[digest], of)
        else:
            raise self.error(f"the constant @{digest} is not given")
        if found.digest != digest:
            raise self.error(f"the array given for the constant @{digest} is another")
        return found

    def _from_bytes(self, text: str, of: TensorType) -> Literal:
        try:
            return Literal.of(
                np.frombuffer(base64.b64decode(text, validate=True), of.dtype.numpy).reshape(of.shape)
            )
        except (ValueError, TypeError, binascii.Error) as error:
            raise self.error(f"these bytes are no {of} ({error})") from error


_MALFORMED = (
    TypeError,
    ValueError,
    LookupError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    RecursionError,
)
"""What rules of ops, which trust graphs that are built by hand, meet in attributes of wrong lengths and kinds."""


def _append(graph: Graph, row: Op, operands: list[Value], attrs: dict[str, Any]) -> tuple[Value, ...]:
    if row.name == "input":
        return (graph.input(**attrs),)
    if row.name == "parameter":
        return (graph.parameter(**attrs),)
    return graph.add(row, operands, attrs).results
