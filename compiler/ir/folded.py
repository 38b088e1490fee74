"""Folded weights: how each was computed from other weights, so that gradients find their way back to these."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from kernels_hub.compiler.ir.evaluate import evaluate
from kernels_hub.compiler.ir.graph import Graph, Node, Value
from kernels_hub.compiler.ir.transform import rebuild
from kernels_hub.compiler.ir.types import Array


class Folded:
    """The array of a folded parameter, made when it is asked for; part: a graph of parameters, whose one output it is.

    Made again where nobody has it any more: engines keep what they need of it.
    """

    def __init__(self, part: Graph) -> None:
        self.part = part
        self._made: weakref.ref[Array] | None = None

    def __call__(self) -> Array:
        """The array."""
        found = None if self._made is None else self._made()
        if found is None:
            (found,) = evaluate(self.part).values()
            found.flags.writeable = False
            self._made = weakref.ref(found)
        return found


def unfolded(graph: Graph) -> Graph:
    """The graph with folded parameters computed of those that they were made of; the graph itself if there are none."""
    if not any(isinstance(graph.weights.get(name), Folded) for name in graph.parameters):
        return graph

    def visit(new: Graph, node: Node, operands: tuple[Value, ...]) -> Sequence[Value] | None:
        if not any(_is_folded(operand) for operand in node.operands):
            return None
        given = (
            _written_out(new, old) if _is_folded(old) else operand
            for old, operand in zip(node.operands, operands, strict=True)
        )
        return new.copy(node, tuple(given)).results

    return rebuild(graph, visit).graph


def _is_folded(value: Value) -> bool:
    return value.op_name == "parameter" and isinstance(value.graph.weights.get(value.attrs["name"]), Folded)


def _written_out(new: Graph, parameter: Value) -> Value:
    """What a parameter of another graph is made of, appended to a graph."""
    weight = parameter.graph.weights.get(parameter.attrs["name"])
    if not isinstance(weight, Folded):
        return new.copy(parameter.node, ()).results[0]
    made: dict[Value, Value] = {}
    for node in weight.part.live():
        if node.op.name == "parameter":
            made[node.results[0]] = _written_out(new, node.results[0])
        else:
            copied = new.copy(node, tuple(made[operand] for operand in node.operands))
            made.update(zip(node.results, copied.results, strict=True))
    (output,) = weight.part.outputs.values()
    return made[output]
