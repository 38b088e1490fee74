"""Reading a model: the file, what it declares of itself, its nodes in an order in which they can be imported."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from kernels_hub.compiler.errors import ImportFailure
from kernels_hub.compiler.importers.onnx_messages import (
    LONGEST_NAME,
    AnyMessage,
    FunctionProto,
    GraphProto,
    Message,
    NodeProto,
    OperatorSetIdProto,
    short_name,
)
from kernels_hub.compiler.importers.onnx_reader import OddError, read_bytes, read_file

if TYPE_CHECKING:
    import onnx

FIRST_OPSET = 1
"""Opsets before 7 are not promised: their ops are taken where they are spelled as later, or an importer says so."""
_KNOWN_OPSET = 22
"""That of the oldest onnx that is taken: the package is asked of later ones alone."""


class OuterNames:
    """Names that subgraphs of a model take from outside, each subgraph read once, however deep in others it lies."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[GraphProto, tuple[str, ...]]] = {}
        """By identity; the graphs are held, so that none takes the place of another."""

    def of(self, graph: GraphProto) -> tuple[str, ...]:
        """Names that a subgraph takes from outside, each once, in order."""
        known = self._known.get(id(graph))
        if known is not None:
            return known[1]
        inside = {one.name for one in graph.input} | {one.name for one in graph.initializer}
        inside |= {one.values.name for one in graph.sparse_initializer}
        inside |= {name for node in graph.node for name in node.output}
        wanted = [name for node in graph.node for name in self.needs(node)] + [
            one.name for one in graph.output
        ]
        names = tuple(dict.fromkeys(name for name in wanted if name not in inside))
        self._known[id(graph)] = graph, names
        return names

    def needs(self, node: NodeProto) -> list[str]:
        """Names that a node takes, those its subgraphs take from outside included."""
        needs = [name for name in node.input if name]
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs) if attribute.HasField("g") else attribute.graphs:
                needs += self.of(graph)
        return needs


@dataclass(frozen=True)
class OnnxFile:
    """A model, and the folder in which its external data lie (None: not a file).

    model: as `onnx_messages` has it where it was read, else protobuf's; importers ask both the same.
    """

    model: AnyMessage
    name: str
    folder: Path | None
    opsets: Mapping[str, int]
    functions: Mapping[tuple[str, str, str], FunctionProto]
    outer: OuterNames = dataclasses.field(default_factory=OuterNames, repr=False, compare=False)
    """What its subgraphs take, for all imports of it."""

    def domains(self) -> set[str]:
        """Those that the model imports, and its functions."""
        imports = (one.domain for function in self.functions.values() for one in function.opset_import)
        return {*self.opsets, *map(canonical, imports)}


OnnxSource: TypeAlias = "str | os.PathLike[str] | bytes | onnx.ModelProto | OnnxFile"


def read_onnx(source: OnnxSource) -> OnnxFile:
    """A model from a path, from bytes or as it is, or one that was read. Weights in other files are not read.

    Raises ImportFailure for what is no ONNX model, truncated, or of an opset that is unknown; FileNotFoundError.
    """
    if isinstance(source, OnnxFile):
        return source
    if isinstance(source, bytes):
        try:
            model: Any = read_bytes(source)
        except OddError:
            model = _parse(source, "the bytes given")
        return _described(model, "model", None, "the bytes given")
    if hasattr(source, "SerializeToString"):
        return _described(source, "model", None, "the model")
    given: Any = source
    path = Path(given)
    try:
        model = read_file(path)
    except OddError:
        model = _parse(path.read_bytes(), str(path))
    return _described(model, path.stem, path.parent, str(path))


def _parse(data: bytes, what: str) -> onnx.ModelProto:
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from onnx import ModelProto

    model = ModelProto()
    try:
        model.ParseFromString(data)
    except (DecodeError, UnicodeDecodeError) as error:
        raise ImportFailure(
            f"{what} is no ONNX model, or is cut off: {error}; export or copy it again"
        ) from error
    return model


def _described(model: AnyMessage, name: str, folder: Path | None, what: str) -> OnnxFile:
    if not model.HasField("graph") or not (model.graph.node or model.graph.output):
        raise ImportFailure(f"{what} is no ONNX model: it holds no graph")
    if not isinstance(model, Message):  # else it was read, and names are texts and short
        for graph in (model.graph, *model.functions):
            _check_text(graph, what)
        if not _are_short(model):
            copied = type(model)()
            copied.CopyFrom(model)
            _shorten(copied)
            model = copied
    opsets = opsets_of(model.opset_import, what)
    if not FIRST_OPSET <= opsets.get("", FIRST_OPSET) <= _KNOWN_OPSET:
        _check_opset(opsets[""], what)
    functions = {
        (function.domain, function.name, getattr(function, "overload", "")): function
        for function in model.functions
    }
    return OnnxFile(model, model.graph.name or name, folder, opsets, functions)


def _check_opset(opset: int, what: str) -> None:
    """Raise ImportFailure for one that the package onnx does not know."""
    import onnx

    newest = onnx.defs.onnx_opset_version()
    if not FIRST_OPSET <= opset <= newest:
        raise ImportFailure(
            f"{what} is of opset {opset}; {FIRST_OPSET} to {newest}, the newest that onnx {onnx.__version__} knows, "
            "can be imported"
        )


def _check_text(graph: AnyMessage, what: str) -> None:
    """Raise ImportFailure for names that are no text, which protobuf hands on as bytes."""
    for node in graph.node:
        names = (node.name, node.op_type, node.domain, *node.input, *node.output)
        if not all(isinstance(name, str) for name in names):
            raise ImportFailure(f"{what} is damaged: a name of node {names!r} is no UTF-8 text")
        for attribute in node.attribute:
            if not (isinstance(attribute.name, str) and isinstance(attribute.ref_attr_name, str)):
                raise ImportFailure(
                    f"{what} is damaged: an attribute of node {label(node)} has a name that is no text"
                )
            if attribute.HasField("g"):
                _check_text(attribute.g, what)
    if hasattr(graph, "initializer"):
        values = [one.name for one in (*graph.input, *graph.output, *graph.value_info, *graph.initializer)]
        axes = [dim.dim_param for one in graph.input for dim in one.type.tensor_type.shape.dim]
        if not all(isinstance(name, str) for name in (graph.name, *values, *axes)):
            raise ImportFailure(f"{what} is damaged: a name of an input, output or weight is no UTF-8 text")


def _are_short(message: AnyMessage) -> bool:
    """Whether all names in a model are short."""
    if message.DESCRIPTOR.name == "TensorProto":
        return len(message.name) <= LONGEST_NAME  # its data are not copied
    for field, value in message.ListFields():
        held = value if field.is_repeated else (value,)
        if field.message_type is not None and not all(map(_are_short, held)):
            return False
        if _is_name(field) and any(len(name) > LONGEST_NAME for name in held):
            return False
    return True


def _shorten(message: AnyMessage) -> None:
    """Cut names that are too long; equal ones stay equal, and different ones different."""
    if message.DESCRIPTOR.name == "TensorProto":
        message.name = short_name(message.name)
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for one in value if field.is_repeated else (value,):
                _shorten(one)
        elif _is_name(field):
            if field.is_repeated:
                value[:] = map(short_name, value)
            else:
                setattr(message, field.name, short_name(value))


def _is_name(field: Any) -> bool:
    return field.name in _NAMES and field.type == field.TYPE_STRING


_NAMES = frozenset({
    "name", "op_type", "domain", "overload", "ref_attr_name", "input", "output", "attribute", "dim_param",
    "tensor_name", "quant_parameter_tensor_names", "key", "denotation", "producer_name",
})  # fmt: skip
"""Fields that hold names."""


def opsets_of(imports: Iterable[OperatorSetIdProto], what: str) -> dict[str, int]:
    """Domain -> version; ai.onnx is ''. Raises ImportFailure for a domain in two versions."""
    opsets: dict[str, int] = {}
    for proto in imports:
        domain = canonical(proto.domain)
        if opsets.setdefault(domain, proto.version) != proto.version:
            raise ImportFailure(
                f"{what} imports {domain or 'ai.onnx'} in the versions {opsets[domain]} and {proto.version}"
            )
    return opsets


def canonical(domain: str) -> str:
    """A domain's name; ai.onnx is written as ''."""
    return "" if domain == "ai.onnx" else domain


def label(node: NodeProto) -> str:
    """A node as messages name it: its name, or what it gives."""
    return node.name or next((f"-> {name}" for name in node.output if name), "(no name)")


def sorted_nodes(
    nodes: Iterable[NodeProto], given: Iterable[str], what: str, outer: OuterNames
) -> list[NodeProto]:
    """Nodes in an order in which each comes after what it takes; as they are where that holds already.

    Raises ImportFailure for a name that two nodes give, and for a cycle. Linear in the nodes and their operands.
    """
    ordered, pending = [], list(nodes)
    makers: dict[str, NodeProto] = {}
    known = set(given)
    for node in pending:
        for name in node.output:
            if name and (name in makers or name in known):
                raise ImportFailure(f"{what}: node {label(node)} gives {name!r}, which there is already")
            if name:
                makers[name] = node
    if _is_sorted(pending, makers, outer):
        return pending
    done: set[int] = set()
    for first in pending:
        stack: list[tuple[NodeProto, list[str]]] = [(first, outer.needs(first))]
        path = {id(first)}
        while stack:
            node, needs = stack[-1]
            if id(node) in done:
                stack.pop()
                path.discard(id(node))
                continue
            maker = next(
                (makers[name] for name in _take(needs) if name in makers and id(makers[name]) not in done),
                None,
            )
            if maker is None:
                done.add(id(node))
                ordered.append(node)
                stack.pop()
                path.discard(id(node))
            elif id(maker) in path:
                names = ", ".join(label(one) for one, _ in stack if id(one) in path)
                raise ImportFailure(f"{what}: a cycle of nodes: {names}")
            else:
                path.add(id(maker))
                stack.append((maker, outer.needs(maker)))
    return ordered


def _is_sorted(nodes: Iterable[NodeProto], makers: Mapping[str, NodeProto], outer: OuterNames) -> bool:
    """Whether each node comes after those that make what it takes, as exporters write them."""
    made: set[str] = set()
    for node in nodes:
        for name in outer.needs(node):
            if name in makers and name not in made:
                return False
        made.update(node.output)
    return True


def _take(names: list[str]) -> Iterable[str]:
    while names:
        yield names.pop()
