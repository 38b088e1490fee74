"""The one way to change a graph: build another, in one pass over its nodes.

`rebuild` is what rewrites are made of; binding symbols, dropping what is dead and cutting out a part are
rebuilds. Each takes time linear in the nodes that live.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass

from kernels_hub.compiler.errors import GraphError
from kernels_hub.compiler.ir.dims import Dim
from kernels_hub.compiler.ir.graph import Graph, Node, Value

Replacement = Value | Sequence[Value] | None
Visit = Callable[[Graph, Node, tuple[Value, ...]], Replacement]
"""(new graph, old node, its operands in the new graph) -> what stands for its results; None: a copy of it."""


@dataclass(frozen=True)
class Rebuilt:
    """A new graph, and where each live value of the old one is in it."""

    graph: Graph
    values: Mapping[Value, Value]
    replaced: int
    """How many nodes `visit` replaced."""


def rebuild(graph: Graph, visit: Visit | None = None) -> Rebuilt:
    """The graph again, node by node, each replaced as `visit` says.

    Inputs, parameters that are still used, outputs and their names stay; what nothing uses is left out.
    visit may append any nodes to the new graph. A replacement must have the type of what it replaces:
    raises GraphError otherwise, naming the value.

    >>> graph = Graph("double")
    >>> x = graph.input("x", ("n", 4))
    >>> y = graph.output("y", x * 2.0)
    >>> def as_sum(new, node, operands):
    ...     return operands[0] + operands[0] if node.op.name == "mul" else None
    >>> print(rebuild(graph, as_sum).graph)
    graph "double" {
      symbols n >= 0
      %0: float32[n, 4] = input(name="x")
      %1: float32[n, 4] = add(%0, %0)
      return "y" = %1
    }
    """
    new = graph.successor()
    mapped: dict[Value, Value] = {}
    replaced = 0
    for node in graph.live():
        operands = tuple([mapped[operand] for operand in node.operands])
        results: Sequence[Value] | None = None
        if visit is not None and (operands or node.op.name not in {"input", "parameter"}):
            new._origin = node.origin
            answer = visit(new, node, operands)
            results = (answer,) if isinstance(answer, Value) else answer
        if results is None:
            results = new.copy(node, operands).results
        else:
            replaced += 1
            _fits(node, results)
        mapped.update(zip(node.results, results, strict=True))
    new._origin = ""
    for name, value in graph.outputs.items():
        new.output(name, mapped[value])
    if replaced:
        left = new.drop_dead()
        mapped = {old: value for old, value in mapped.items() if value in left}
    return Rebuilt(new, mapped, replaced)


def _fits(node: Node, results: Sequence[Value]) -> None:
    if len(results) != len(node.results):
        raise GraphError(f"{node!r} has {len(node.results)} results, its replacement {len(results)}")
    for old, new in zip(node.results, results, strict=True):
        if old.type != new.type:
            from kernels_hub.compiler.ir.operators import same_shapes

            if old.dtype is not new.dtype or not same_shapes(old.shape, new.shape):
                raise GraphError(
                    f"{old} ({node!r}) is replaced by {new} ({new.node!r}), which has another type"
                )


def without_calls(graph: Graph, kept: Container[str] = ()) -> Graph:
    """A copy of a graph, with the nodes of its calls written out, but for those of these callees.

    >>> graph = Graph("outer")
    >>> inner = Graph("inner")
    >>> y = inner.output("y", inner.input("x", (4,)) * 2.0)
    >>> y = graph.output("y", graph.apply("call", graph.input("x", (4,)), callee=inner))
    >>> [node.op.name for node in without_calls(graph).nodes]
    ['input', 'constant', 'broadcast', 'mul']
    """

    def visit(new: Graph, node: Node, operands: tuple[Value, ...]) -> Sequence[Value] | None:
        if node.op.name != "call" or node.attrs["callee"].name in kept:
            return None
        return new.call(without_calls(node.attrs["callee"], kept), *operands)

    return rebuild(graph, visit).graph


def bind(graph: Graph, bindings: Mapping[str, Dim]) -> Graph:
    """The graph with symbols replaced by numbers (or other dims). Raises DimError where that breaks a fact.

    >>> graph = Graph("double")
    >>> x = graph.input("x", ("n", 4))
    >>> y = graph.output("y", x * 2.0)
    >>> bind(graph, {"n": 3}).outputs["y"]
    %3: float32[3, 4]
    """
    return graph.bind(bindings)


def extract(
    graph: Graph, inputs: Mapping[str, Value], outputs: Mapping[str, Value], name: str = "part"
) -> Graph:
    """The part of a graph between values: `inputs` become inputs, `outputs` outputs; parameters come along.

    Raises GraphError where an output needs an input of the graph that is not among `inputs`.

    >>> graph = Graph("double_exp")
    >>> x = graph.input("x", ("n", 4))
    >>> y = x.exp()
    >>> z = graph.output("z", y * 2.0)
    >>> print(extract(graph, {"y": y}, {"z": z}))
    graph "part" {
      symbols n >= 0
      %0: float32[n, 4] = input(name="y")
      %1: float32[] = constant(value=[2.0])
      %2: float32[n, 4] = broadcast(%1, axes=[])
      %3: float32[n, 4] = mul(%0, %2)
      return "z" = %3
    }
    """
    part = Graph(name)
    mapped = {value: part.input(key, value.shape, value.dtype) for key, value in inputs.items()}
    needed = [False] * len(graph.nodes)
    for value in outputs.values():
        needed[value.node.id] = value not in mapped
    for node in reversed(graph.nodes):
        if needed[node.id]:
            for operand in node.operands:
                needed[operand.node.id] |= operand not in mapped
    for node in graph.nodes:
        if needed[node.id]:
            if node.op.name == "input":
                raise GraphError(
                    f"{node.results[0]} (input {node.attrs['name']!r}) is needed, but not among the inputs"
                )
            copied = part.copy(node, tuple(mapped[operand] for operand in node.operands))
            for old, new in zip(node.results, copied.results, strict=True):
                mapped.setdefault(old, new)
    for key, value in outputs.items():
        part.output(key, mapped[value])
    return part
