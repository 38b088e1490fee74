"""Names in a graph that is being imported, and how its nodes become ops of the IR.

A `Scope` is the main graph, the body of a function, or a subgraph. It knows which value each name stands for. A
node that cannot be imported is noted and what it gives is marked broken, so the import goes on, and everything
that is wrong with a model is reported at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto

from kernels_hub.compiler.errors import CompilerError, ImportFailure
from kernels_hub.compiler.importers.external_data import ExternalData
from kernels_hub.compiler.importers.onnx_file import canonical, label, opsets_of, outer_names, sorted_nodes
from kernels_hub.compiler.importers.onnx_functions import function_body, missing_attributes
from kernels_hub.compiler.importers.onnx_node import OnnxNode, UnknownValueError, importer_of
from kernels_hub.compiler.importers.onnx_sequences import Named, flat, parts, regrouped
from kernels_hub.compiler.importers.onnx_types import tensor_array
from kernels_hub.compiler.importers.onnx_values import KnownValues
from kernels_hub.compiler.ir.graph import Graph, Value

_DEEPEST = 60
"""Functions in functions; deeper is a function that contains itself."""


@dataclass(frozen=True)
class Unsupported:
    """A node that could not be imported, and why. `inputs` are types, "?" where they are not known."""

    node: str
    op: str
    domain: str
    opset: int | None
    inputs: tuple[str, ...]
    reason: str
    path: tuple[str, ...] = ()
    """The functions and subgraphs that it is in, outermost first."""

    def __str__(self) -> str:
        op = f"{self.domain}::{self.op}" if self.domain else self.op
        where = " > ".join((*self.path, self.node))
        version = "" if self.opset is None else f", opset {self.opset}"
        return f"{where}: {op}({', '.join(self.inputs)}){version}: {self.reason}"


@dataclass
class Session:
    """What all scopes of one import share."""

    data: ExternalData
    functions: Mapping[tuple[str, str, str], FunctionProto]
    known: KnownValues = field(default_factory=KnownValues)
    outside: dict[Value, Value] = field(default_factory=dict)
    """Inputs of regions -> what they stand for outside."""
    unsupported: list[Unsupported] = field(default_factory=list)
    wanted: dict[str, None] = field(default_factory=dict)
    """Inputs whose values would have to be known."""
    cause: Exception | None = None
    """What was raised first of errors that are not the compiler's own: by a malformed node, or by a defect here."""
    clamped: dict[str, int] = field(default_factory=dict)
    """Symbols that a slice cuts at a number: sizes above it do not fit what the model slices."""
    spread: dict[str, str] = field(default_factory=dict)
    """Inputs of the graph that are elements of a sequence -> the model's input."""

    def inputs_of(self, names: Iterable[str]) -> list[str]:
        """The model's inputs that inputs of the graph belong to, each once."""
        return list(dict.fromkeys(self.spread.get(name, name) for name in names))


class BrokenError(CompilerError):
    """A value that a node was to give which could not be imported."""


_MALFORMED = (
    TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RuntimeError, MemoryError, StopIteration,
)  # fmt: skip
"""What attributes of wrong kinds and lengths lead to in importers, which trust those that the checker passes."""


def _brief(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else "no message"


class Scope:
    """See the module."""

    def __init__(
        self,
        session: Session,
        graph: Graph,
        opsets: Mapping[str, int],
        *,
        parent: Scope | None = None,
        attributes: Mapping[str, AttributeProto] | None = None,
        path: tuple[str, ...] = (),
    ) -> None:
        self.session, self.graph, self.opsets, self.parent, self.path = session, graph, opsets, parent, path
        self.attributes: Mapping[str, AttributeProto] = attributes or {}
        self.names: dict[str, Named | None] = {}
        """None for broken ones."""

    @property
    def data(self) -> ExternalData:
        """The model's external data."""
        return self.session.data

    @property
    def known(self) -> KnownValues:
        """What is known of values."""
        return self.session.known

    @property
    def outside(self) -> Mapping[Value, Value]:
        """What inputs of regions stand for."""
        return self.session.outside

    def value(self, name: str) -> Value:
        """The tensor that a name stands for here. Raises as `named`, and ImportFailure for what is no tensor."""
        found = self.named(name)
        if not isinstance(found, Value):
            raise ImportFailure(f"{name!r} is no tensor, but of type {found.type}")
        return found

    def named(self, name: str) -> Named:
        """What a name stands for here. Raises BrokenError, or ImportFailure for a name that nothing gives."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                found = scope.names[name]
                if found is None:
                    raise BrokenError(f"{name!r} comes from a node that could not be imported")
                return found
            scope = scope.parent
        raise ImportFailure(f"nothing gives {name!r}")

    def has(self, name: str) -> bool:
        """Whether a name stands for anything here."""
        return name in self.names or (self.parent is not None and self.parent.has(name))

    def run(self, nodes: Iterable[NodeProto], what: str) -> None:
        """Import nodes; what is wrong with them is noted in the session."""
        for node in sorted_nodes(nodes, self.names, what):
            self._node(node)

    def _node(self, proto: NodeProto) -> None:
        try:
            with self.graph.origin("/".join((*self.path, label(proto)))):
                results = self._import(proto)
        except BrokenError:
            self._note_unknown_op(proto)
            results = [None] * len(proto.output)
        except _InsideError:
            results = [None] * len(proto.output)
        except CompilerError as error:
            if isinstance(error, UnknownValueError):
                self.session.wanted.update(dict.fromkeys(error.inputs))
            self._note(proto, str(error))
            results = [None] * len(proto.output)
        except _MALFORMED as error:
            self.session.cause = self.session.cause or error
            self._note(proto, self._malformed(proto, error))
            results = [None] * len(proto.output)
        for name, value in zip(proto.output, results, strict=True):
            if name:
                self.names[name] = value

    def _malformed(self, proto: NodeProto, error: Exception) -> str:
        domain = canonical(proto.domain)
        missing = missing_attributes(proto, domain, self.opsets.get(domain, 0))
        if missing:
            return f"the attribute{'s' if len(missing) > 1 else ''} {', '.join(missing)} must be given"
        return (
            f"its attributes or operands are not what the op takes ({type(error).__name__}: {_brief(error)})"
        )

    def _import(self, proto: NodeProto) -> Sequence[Named | None]:
        domain = canonical(proto.domain)
        function = self.session.functions.get((proto.domain, proto.op_type, getattr(proto, "overload", "")))
        if function is not None:
            return self._function(OnnxNode(proto, self, 0), function)
        opset = self.opsets.get(domain)
        if opset is None:
            raise ImportFailure(
                f"the domain {domain or 'ai.onnx'!r} is not among those that the model imports"
            )
        importer = importer_of(domain, proto.op_type, opset)
        node = OnnxNode(proto, self, opset)
        if importer is None:
            body = function_body(node)
            if body is None:
                raise ImportFailure(_why_not(proto.op_type))
            return self._function(node, body)
        answer = importer(node)
        results: list[Named | None] = [answer] if isinstance(answer, Named) else list(answer)
        results += [None] * (len(proto.output) - len(results))
        for place, name in enumerate(proto.output):
            if name and results[place] is None:
                raise ImportFailure(f"output {place} ({name!r}) is not computed")
        return results[: len(proto.output)]

    def _function(self, node: OnnxNode, function: FunctionProto) -> list[Named | None]:
        if len(self.path) > _DEEPEST:
            raise ImportFailure(f"functions are nested deeper than {_DEEPEST}: one contains itself")
        inner = Scope(
            self.session, self.graph, opsets_of(function.opset_import, f"function {function.name}"),
            attributes=_attributes_of(node, function), path=(*self.path, label(node.proto)),
        )  # fmt: skip
        if len(node.operands) > len(function.input):
            raise ImportFailure(f"takes {len(function.input)} inputs, got {len(node.operands)}")
        if len(node.proto.output) > len(function.output):
            raise ImportFailure(f"gives {len(function.output)} outputs, {len(node.proto.output)} are named")
        for name, value in zip(function.input, node.operands, strict=False):
            if value is not None:
                inner.names[name] = value
        before = len(self.session.unsupported)
        body = _without_missing(function, inner.names)
        inner.run(body, f"function {function.name}")
        if len(self.session.unsupported) > before:
            raise _InsideError
        return [
            inner.named(name) if wanted and inner.has(name) else None
            for name, wanted in zip(function.output, node.proto.output, strict=False)
        ]

    # -- subgraphs

    def inline(self, body: GraphProto, arguments: Sequence[Named], what: str) -> list[Named]:
        """A subgraph written out in this graph. Raises what stops it."""
        inner = Scope(
            self.session, self.graph, self.opsets, parent=self, attributes=self.attributes, path=(*self.path, what)
        )  # fmt: skip
        for name, value in zip(_inputs(body, arguments, what), arguments, strict=True):
            inner.names[name] = value
        return inner.results(body, what)

    def results(self, body: GraphProto, what: str) -> list[Named]:
        """What a subgraph gives, its inputs being named already."""
        before = len(self.session.unsupported)
        for tensor in body.initializer:
            self.names.setdefault(tensor.name, self.graph.constant(tensor_array(tensor, self.data)))
        self.run(body.node, what)
        if len(self.session.unsupported) > before:
            raise _InsideError
        return [self.named(one.name) for one in body.output]

    def captures(self, *bodies: GraphProto) -> list[tuple[str, Named]]:
        """Names that subgraphs take from here, and what they stand for."""
        names = dict.fromkeys(name for body in bodies for name in outer_names(body))
        return [(name, self.named(name)) for name in names]

    def region(
        self, body: GraphProto, arguments: Sequence[Named], captures: Sequence[tuple[str, Named]], what: str
    ) -> tuple[Graph, list[Named]]:
        """A subgraph as a graph of its own, and what it gives, all sequences spread over their values.

        Its inputs are of the types of the arguments, then of the captures; its outputs are named "0", "1", ….
        """
        graph = Graph(body.name or what)
        inner = Scope(self.session, graph, self.opsets, attributes=self.attributes, path=(*self.path, what))
        names = _inputs(body, arguments, what)
        for place, (own, argument) in enumerate(zip(names, arguments, strict=True)):
            values = [
                graph.input(name, value.shape, value.dtype)
                for name, value in parts(f"{place}:{own}", argument)
            ]
            (inner.names[own],) = regrouped([argument], values)
        for place, (name, captured) in enumerate(captures):
            values = []
            for part, value in parts(f"{place}:outer:{name}", captured):
                stands = graph.input(part, value.shape, value.dtype)
                known = self.known(value)
                self.session.outside[stands] = value
                self.known.know(stands, known)
                values.append(stands)
            (inner.names[name],) = regrouped([captured], values)
        results = inner.results(body, what)
        for place, value in enumerate(flat(results)):
            graph.output(str(place), value)
        return graph, results

    def attempt(self) -> Attempt:
        """Undo notes where one way to import a node did not work and another is tried."""
        return Attempt(self.session, len(self.session.unsupported), dict(self.session.wanted))

    # -- notes

    def _note(self, proto: NodeProto, reason: str) -> None:
        domain = canonical(proto.domain)
        types = tuple(self._type(name) for name in proto.input)
        self.session.unsupported.append(
            Unsupported(
                label(proto), proto.op_type, domain, self.opsets.get(domain), types, reason, self.path
            )
        )

    def _note_unknown_op(self, proto: NodeProto) -> None:
        """A node behind a broken one is a finding of its own where nothing would import its op."""
        domain = canonical(proto.domain)
        opset = self.opsets.get(domain)
        if (proto.domain, proto.op_type, getattr(proto, "overload", "")) in self.session.functions:
            return
        if opset is None or importer_of(domain, proto.op_type, opset) is None:
            from kernels_hub.compiler.importers.onnx_functions import has_body

            if opset is None or not has_body(domain, proto.op_type, opset):
                self._note(proto, _why_not(proto.op_type))

    def _type(self, name: str) -> str:
        try:
            return str(self.named(name).type) if name else "-"
        except CompilerError:
            return "?"


@dataclass
class Attempt:
    """See `Scope.attempt`."""

    session: Session
    findings: int
    wanted: dict[str, None]

    def undo(self) -> None:
        """Forget what was noted since."""
        del self.session.unsupported[self.findings :]
        self.session.wanted = self.wanted


class _InsideError(CompilerError):
    """Something inside of a function or subgraph could not be imported, and is noted already."""


InsideError = _InsideError


def _inputs(body: GraphProto, arguments: Sequence[Named], what: str) -> list[str]:
    """Names of a subgraph's inputs. Raises ImportFailure unless they are as many as there are arguments."""
    if len(body.input) != len(arguments):
        raise ImportFailure(f"its {what} takes {len(body.input)} inputs, but is given {len(arguments)}")
    return [one.name for one in body.input]


_KINDS = {
    "String": "strings have no place in the IR",
    "Regex": "strings have no place in the IR",
    "Gradient": "derivatives are taken by torch, not in the graph",
    "ImageDecoder": "images are decoded before they reach a model",
}


def _why_not(op: str) -> str:
    for start, reason in _KINDS.items():
        if op.startswith(start):
            return reason
    return "no importer for this op, and no function body that it could be expanded into"


def _attributes_of(node: OnnxNode, function: FunctionProto) -> dict[str, AttributeProto]:
    given = {one.name: one for one in function.attribute_proto}
    given.update(node.attributes())
    return given


def _without_missing(function: FunctionProto, names: Mapping[str, object]) -> list[NodeProto]:
    """The body's nodes, inputs that were left out by the caller written as left out."""
    missing = {name for name in function.input if name not in names}
    if not missing:
        return list(function.node)
    nodes = []
    for node in function.node:
        if missing.intersection(node.input):
            copy = NodeProto()
            copy.CopyFrom(node)
            copy.input[:] = ["" if name in missing else name for name in node.input]
            nodes.append(copy)
        else:
            nodes.append(node)
    return nodes
