"""Control flow of exported programs: `torch.cond`, `torch.while_loop` and PyTorch's scan, as ops with regions.

A subgraph takes all that it reads as arguments, weights too, so that it is a graph of its own: its inputs are the
operands, complex ones in parts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from kernels_hub.compiler.importers.aten_ops import UnsupportedArgumentsError
from kernels_hub.compiler.importers.aten_ops.complex import Argument, Complex, Number
from kernels_hub.compiler.importers.torch_direct import needed
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.graph import Graph, Value

if TYPE_CHECKING:
    import torch
    from torch.fx import GraphModule, Node

Tensor: TypeAlias = Value | Complex


@dataclass(frozen=True)
class Subgraph:
    """What the importer asks of the program of a subgraph."""

    graph: torch.fx.Graph
    graph_module: GraphModule
    range_constraints: Mapping[object, object]


class RegionImporter(Protocol):
    """What control flow asks of the importer: see `torch_importer.Importer`."""

    graph: Graph
    problems: list[str]

    def argument(self, value: object) -> Argument:
        """An argument of a node: its value, or what it says."""

    def within(self, graph: Graph, module: GraphModule) -> RegionImporter:
        """The import of a subgraph into a graph."""

    def give(self, node: Node, value: Number) -> None:
        """Say what an argument of the program is."""

    def ops(self, live: Collection[Node]) -> None:
        """Import those of the program's ops that something comes of."""


_FOREVER = (1 << 63) - 1


def cond(importer: RegionImporter, node: Node) -> list[Tensor]:
    """`torch.cond`: one of two graphs on the same operands."""
    condition, then, otherwise, operands = (importer.argument(one) for one in _four(node))
    if not isinstance(condition, Value):
        raise UnsupportedArgumentsError("its condition is a size, and no tensor")
    regions, results = [], []
    for name, module in (("then", then), ("otherwise", otherwise)):
        graph = Graph(name)
        given = _inputs(graph, operands)
        results.append(_called(importer, graph, module, given))
        _give(graph, results[-1])
        regions.append(graph)
    values = (_truth(condition), *_flat(operands))
    made = importer.graph.add("if", values, {"then": regions[0], "otherwise": regions[1]})
    return _grouped(results[0], made.results)


def while_loop(importer: RegionImporter, node: Node) -> list[Tensor]:
    """`torch.while_loop`: the condition is computed once before, and at the end of each trip."""
    condition, body, carried, others = (importer.argument(one) for one in _four(node))
    first = _truth(_called(importer, importer.graph, condition, [*carried, *others])[0])
    graph = Graph("body")
    graph.input("trip", (), types.INT64)
    given = _inputs(graph, [*carried, *others])
    captured = given[len(carried) :]
    after = [
        _like(one, before) for one, before in zip(_called(importer, graph, body, given), carried, strict=True)
    ]
    go_on = _truth(_called(importer, graph, condition, [*after, *captured])[0])
    _give(graph, [go_on, *after])
    trips = importer.graph.constant(_FOREVER, types.INT64)
    values = (trips, first, *_flat([*carried, *others]))
    made = importer.graph.add("loop", values, {"body": graph, "carried": len(_flat(carried)), "count": 0})
    return _grouped(carried, made.results)


def scan(importer: RegionImporter, node: Node) -> list[Tensor]:
    """`torch._higher_order_ops.scan`: a step for each element along the first dim of the sequences."""
    step, states, sequences, others = (importer.argument(one) for one in _four(node))
    if not sequences or not all(isinstance(one, Value) for one in [*states, *sequences]):
        raise UnsupportedArgumentsError("it has no sequences, or complex ones")
    graph = Graph("body")
    elements = [one.slice(0, 0, 1).squeeze(0) for one in sequences]
    results = _called(importer, graph, step, _inputs(graph, [*states, *elements, *others]))
    _give(graph, results)
    operands = (*states, *sequences, *_flat(others))
    attrs = {"body": graph, "states": len(states), "sequences": len(sequences)}
    return list(importer.graph.add("scan", operands, attrs).results)


CONTROL_FLOW: dict[str, Callable[[RegionImporter, Node], list[Tensor]]] = {
    "cond": cond,
    "scan": scan,
    "while_loop": while_loop,
}
"""Name of a higher-order op -> what imports it."""


def _four(node: Node) -> Sequence[object]:
    if len(node.args) != 4:
        raise UnsupportedArgumentsError(f"it has {len(node.args)} arguments, not 4")
    return node.args


def _called(
    importer: RegionImporter, graph: Graph, module: GraphModule, given: Sequence[Number]
) -> list[Tensor]:
    """What a subgraph makes of values of a graph. Raises UnsupportedArgumentsError for what cannot be imported."""
    inner = importer.within(graph, module)
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    for node, value in zip(placeholders, given, strict=True):
        inner.give(node, value)
    inner.ops(needed(module))
    if inner.problems:
        importer.problems.extend(inner.problems)
        raise UnsupportedArgumentsError("something inside of it is not supported")
    (last,) = (node for node in module.graph.nodes if node.op == "output")
    results = inner.argument(last.args[0])
    results = list(results) if isinstance(results, (list, tuple)) else [results]
    if not all(isinstance(one, (Value, Complex)) for one in results):
        raise UnsupportedArgumentsError("it gives something that is no tensor")
    return results


def _inputs(graph: Graph, operands: Sequence[Number]) -> list[Number]:
    """Inputs of a region for the operands. Sizes stay sizes: the region has the same symbols."""
    given: list[Number] = []
    for operand in operands:
        place = len(graph.inputs)
        if isinstance(operand, Complex):
            real = graph.input(f"{place}", operand.real.shape, operand.real.dtype)
            given.append(Complex(real, graph.input(f"{place + 1}", real.shape, real.dtype)))
        elif isinstance(operand, Value):
            given.append(graph.input(f"{place}", operand.shape, operand.dtype))
        else:
            given.append(operand)
    return given


def _give(graph: Graph, results: Sequence[Number]) -> None:
    for place, value in enumerate(_flat(results)):
        graph.output(str(place), value)


def _flat(values: Sequence[Number]) -> list[Value]:
    """Tensors, complex ones in parts; sizes are left out."""
    flat: list[Value] = []
    for value in values:
        if isinstance(value, Complex):
            flat += [value.real, value.imaginary]
        elif isinstance(value, Value):
            flat.append(value)
    return flat


def _grouped(alike: Sequence[Number], values: Sequence[Value]) -> list[Tensor]:
    """The results of an op, complex ones as pairs where they are in `alike`."""
    left = iter(values)
    return [Complex(next(left), next(left)) if isinstance(one, Complex) else next(left) for one in alike]


def _truth(value: Number) -> Value:
    if not isinstance(value, Value):
        raise UnsupportedArgumentsError("its condition is no tensor")
    return value.reshape(()).cast(types.BOOL)


def _like(value: Tensor, before: Number) -> Tensor:
    if not isinstance(before, (Value, Complex)):
        raise UnsupportedArgumentsError("it carries a number: give it as a tensor")
    return value
