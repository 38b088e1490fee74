"""Names in a graph that is being imported, and its subgraphs.

A `Scope` is the main graph, the body of a function, or a subgraph. It knows which value each name stands for, and
has the session import its nodes, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kernels_hub.compiler.errors import CompilerError, ImportFailure, Unsupported
from kernels_hub.compiler.importers.external_data import ExternalData
from kernels_hub.compiler.importers.onnx_file import OuterNames, sorted_nodes
from kernels_hub.compiler.importers.onnx_messages import AttributeProto, FunctionProto, GraphProto, NodeProto
from kernels_hub.compiler.importers.onnx_sequences import Named, flat, parts, regrouped
from kernels_hub.compiler.importers.onnx_types import tensor_array
from kernels_hub.compiler.importers.onnx_values import KnownValues
from kernels_hub.compiler.ir.graph import Graph, Value

ImportNode = Callable[["Scope", NodeProto], Sequence[Named | None]]
"""(scope, node) -> what the node's outputs are, in order; None for one that could not be imported."""


@dataclass
class Session:
    """What all scopes of one import share."""

    data: ExternalData
    functions: Mapping[tuple[str, str, str], FunctionProto]
    import_node: ImportNode
    """What imports a node: `onnx_dispatch.import_node`."""
    outer: OuterNames
    """What subgraphs take from outside."""
    by_value: bool = False
    """Whether an If that only scalar inputs decide asks for their values."""
    known: KnownValues = field(default_factory=KnownValues)
    outside: dict[Value, Value] = field(default_factory=dict)
    """Inputs of regions -> what they stand for outside."""
    of_trips: set[Value] = field(default_factory=set)
    """Inputs of regions that are others at each trip of a loop."""
    unsupported: list[Unsupported] = field(default_factory=list)
    undone: list[Unsupported] = field(default_factory=list)
    """What was noted of the way to import a node that was given up last."""
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
        for node in sorted_nodes(nodes, self.names, what, self.session.outer):
            for name, value in zip(node.output, self.session.import_node(self, node), strict=True):
                if name:
                    self.names[name] = value

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
            raise InsideError
        return [self.named(one.name) for one in body.output]

    def captures(self, *bodies: GraphProto) -> list[tuple[str, Named]]:
        """Names that subgraphs take from here, and what they stand for."""
        names = dict.fromkeys(name for body in bodies for name in self.session.outer.of(body))
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
        for index, (own, argument) in enumerate(zip(names, arguments, strict=True)):
            values = [
                graph.input(name, value.shape, value.dtype)
                for name, value in parts(f"{index}:{own}", argument)
            ]
            self.session.of_trips.update(values)
            (inner.names[own],) = regrouped([argument], values)
        for index, (name, captured) in enumerate(captures):
            values = []
            for part, value in parts(f"{index}:outer:{name}", captured):
                stands = graph.input(part, value.shape, value.dtype)
                known = self.known(value)
                self.session.outside[stands] = value
                self.known.know(stands, known)
                values.append(stands)
            (inner.names[name],) = regrouped([captured], values)
        results = inner.results(body, what)
        for index, value in enumerate(flat(results)):
            graph.output(str(index), value)
        return graph, results

    def attempt(self) -> Attempt:
        """Undo notes where one way to import a node did not work and another is tried."""
        return Attempt(self.session, len(self.session.unsupported), dict(self.session.wanted))


@dataclass
class Attempt:
    """See `Scope.attempt`."""

    session: Session
    findings: int
    wanted: dict[str, None]

    def reason(self, error: CompilerError) -> str:
        """Why it did not work: the error, or what was noted where that only says that something was."""
        return str(error) or "; ".join(map(str, self.session.unsupported[self.findings :]))

    def undo(self) -> None:
        """Forget what was noted since."""
        self.session.undone = self.session.unsupported[self.findings :]
        del self.session.unsupported[self.findings :]
        self.session.wanted = self.wanted


class InsideError(CompilerError):
    """Something inside of a function or subgraph could not be imported, and is noted already."""


def _inputs(body: GraphProto, arguments: Sequence[Named], what: str) -> list[str]:
    """Names of a subgraph's inputs. Raises ImportFailure unless they are as many as there are arguments."""
    if len(body.input) != len(arguments):
        raise ImportFailure(f"its {what} takes {len(body.input)} inputs, but is given {len(arguments)}")
    return [one.name for one in body.input]
