"""Finds repeated blocks of a graph, such as the layers of a transformer, of which one is searched for all.

    for block in repeated(graph):           block.graph is the first of them, as a graph of its own
        applied = block.apply(better)       the whole graph, `better` in the place of each

What flows through a graph is compared node by node (op, attributes, types, and how weights are led up to it); blocks
are the same if also what they read corresponds. Weights are each block's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernels_hub.compiler.errors import GraphError
from kernels_hub.compiler.ir.graph import Graph, Node, Value
from kernels_hub.compiler.ir.transform import rebuild
from kernels_hub.compiler.viewing.repeats import find_runs


@dataclass(frozen=True)
class Instance:
    """One of the blocks: what goes in, its weights by the names in the first one, and what comes out, as values."""

    first: Node
    inputs: tuple[Value, ...]
    weights: Mapping[str, Value]
    outputs: tuple[Value, ...]


@dataclass(frozen=True)
class Block:
    """A block that a graph has several times. graph: with the inputs x0, x1, … and the outputs y0, y1, …"""

    whole: Graph
    graph: Graph
    instances: tuple[Instance, ...]

    def apply(self, other: Graph) -> Graph:
        """The whole graph with another graph in the place of each block. Raises GraphError where that does not fit."""
        if list(other.inputs) != list(self.graph.inputs) or list(other.outputs) != list(self.graph.outputs):
            raise GraphError(
                f"a block of graph {self.whole.name} has the inputs {list(self.graph.inputs)} and the outputs "
                f"{list(self.graph.outputs)}, not {list(other.inputs)} and {list(other.outputs)}"
            )
        begins = {instance.first: instance for instance in self.instances}
        mapped: dict[Value, Value] = {}
        made: dict[Value, Value] = {}

        def visit(new: Graph, node: Node, operands: tuple[Value, ...]) -> Sequence[Value] | None:
            if (instance := begins.get(node)) is not None:
                results = _called(new, other, instance, mapped)
                made.update(zip(instance.outputs, results, strict=True))
            copies = zip(node.results, new.copy(node, operands).results, strict=True)
            results = [made.get(old, copied) for old, copied in copies]
            mapped.update(zip(node.results, results, strict=True))
            return results

        return rebuild(self.whole, visit).graph


def _called(new: Graph, other: Graph, instance: Instance, mapped: Mapping[Value, Value]) -> list[Value]:
    """The outputs of a block written out in a graph."""

    def there(value: Value) -> Value:
        if value.op_name == "input":
            return new.inputs[value.attrs["name"]]
        return new.copy(value.node, ()).results[0] if value.op_name == "parameter" else mapped[value]

    values: dict[Value, Value] = {}
    for mine, given in zip(other.inputs.values(), instance.inputs, strict=True):
        values[mine] = there(given)
    for node in other.live():
        if node.op.name == "parameter":
            values[node.results[0]] = there(instance.weights[node.attrs["name"]])
        elif node.op.name != "input":
            copied = new.copy(node, tuple(values[operand] for operand in node.operands))
            values.update(zip(node.results, copied.results, strict=True))
    return [values[output] for output in other.outputs.values()]


def repeated(graph: Graph) -> list[Block]:
    """The blocks that a graph has several times, the ones that cover most of it first."""
    static = _static(graph)
    flowing = [node for node in graph.live() if node.operands and not static.issuperset(node.results)]
    places = {value: index for index, node in enumerate(flowing) for value in node.results}
    numbers: dict[Any, int] = {}
    labels = [numbers.setdefault(_label(node, static), len(numbers)) for node in flowing]
    links = [[places[operand] for operand in node.operands if operand in places] for node in flowing]
    blocks = []
    for run in sorted(find_runs(labels, links), key=lambda run: -run.period * run.count):
        parts = [flowing[start : start + run.period] for start in range(run.start, run.stop, run.period)]
        block = _block(graph, parts, static)
        if block is not None:
            blocks.append(block)
    return blocks


def _static(graph: Graph) -> set[Value]:
    """Values of parameters and constants alone."""
    values: set[Value] = set()
    for node in graph.live():
        leaf = node.op.name in {"parameter", "constant"}
        if leaf or (node.operands and all(operand in values for operand in node.operands)):
            values.update(node.results)
    return values


def _label(node: Node, static: set[Value]) -> Any:
    """What is the same of nodes that may correspond."""
    weights = tuple(_spelled(operand) if operand in static else None for operand in node.operands)
    return (*_alike(node), weights)


def _spelled(value: Value) -> Any:
    return (*_alike(value.node), tuple(_spelled(operand) for operand in value.operands))


def _alike(node: Node) -> tuple[Any, ...]:
    attrs = tuple((name, one) for name, one in node.attrs.items() if node.op.name != "parameter")
    return (node.op.name, attrs, tuple(str(result.type) for result in node.results))


def _block(graph: Graph, parts: Sequence[Sequence[Node]], static: set[Value]) -> Block | None:
    """The block whose instances are these stretches of nodes; None where they turn out to be different."""
    outputs = set(graph.outputs.values())
    seen = [_Seen(part, static, outputs) for part in parts]
    first = seen[0]
    same = [one for one in seen if one.shape == first.shape]
    if len(same) < 2:
        return None
    leaving = sorted({place for one in same for place in one.leaving})
    template = Graph("block")
    values: dict[Value, Value] = {}
    for number, value in enumerate(first.inputs):
        values[value] = template.input(f"x{number}", value.shape, value.dtype)
    for node in first.ordered:
        copied = template.copy(node, tuple(values[operand] for operand in node.operands))
        values.update(zip(node.results, copied.results, strict=True))
    for number, place in enumerate(leaving):
        template.output(f"y{number}", values[first.made[place]])
    names = [weight.attrs["name"] for weight in first.weights]
    instances = tuple(
        Instance(
            one.part[0],
            tuple(one.inputs),
            dict(zip(names, one.weights, strict=True)),
            tuple(one.made[place] for place in leaving),
        )
        for one in same
    )
    return Block(graph, template, instances)


class _Seen:
    """A stretch of nodes, as it would be cut out. shape: equal for stretches that do the same."""

    def __init__(self, part: Sequence[Node], static: set[Value], outputs: set[Value]) -> None:
        self.part = part
        self.ordered: list[Node] = []
        self.inputs: list[Value] = []
        self.weights: list[Value] = []
        mine = set(part)
        numbers: dict[Value, int] = {}
        shape: list[Any] = []

        def number(value: Value) -> int:
            if value not in numbers:
                numbers[value] = len(numbers)
            return numbers[value]

        def take(node: Node) -> None:
            """A node with the weights that lead up to it."""
            for one in node.operands:
                if one in numbers:
                    continue
                if one in static:
                    take(one.node)
                elif one.node not in mine:
                    self.inputs.append(one)
                    shape.append(("input", number(one), str(one.type)))
            if node.op.name == "parameter":
                self.weights.append(node.results[0])
            self.ordered.append(node)
            operands = tuple(number(operand) for operand in node.operands)
            shape.append((*_alike(node), operands, tuple(number(result) for result in node.results)))

        for node in part:
            take(node)
        self.shape = tuple(shape)
        self.made = [value for node in part for value in node.results]
        self.leaving = [
            index
            for index, value in enumerate(self.made)
            if value in outputs or any(user not in mine for user in value.users)
        ]
