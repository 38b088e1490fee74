"""Convolutions in a graph with the bias that is added to them, as one call."""

from __future__ import annotations

from dataclasses import dataclass

from kernels_hub.compiler.engines.library_linear import only_reader
from kernels_hub.compiler.engines.library_ops.site import NATIVE_FLOATS
from kernels_hub.compiler.ir.graph import Graph, Node, Value


@dataclass(frozen=True, eq=False)
class BiasedConv:
    """conv(x, w) + bias, the bias (O,) along the channels."""

    conv: Node
    bias: Value
    root: Node

    @property
    def operands(self) -> tuple[Value, ...]:
        """x, w and bias."""
        return (*self.conv.operands, self.bias)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All that it stands for."""
        return (self.conv, self.root)


def find_convs(graph: Graph) -> dict[Node, BiasedConv]:
    """Convolutions that nothing but an addition of a bias reads, by that addition."""
    found = (_biased(graph, node) for node in graph.live() if node.op.name == "conv")
    return {one.root: one for one in found if one is not None}


def _biased(graph: Graph, conv: Node) -> BiasedConv | None:
    added = only_reader(graph, conv)
    if added is None or added.op.name != "add" or conv.results[0].dtype.name not in NATIVE_FLOATS:
        return None
    other = next((operand for operand in added.operands if operand is not conv.results[0]), None)
    if other is None or other.op_name != "broadcast" or other.attrs["axes"] != (1,):
        return None
    return BiasedConv(conv, other.operands[0], added)
