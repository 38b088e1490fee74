"""Complex inputs, weights, constants and results as they lie in memory: pairs of floats (…, 2).

A program is called with the memory of complex tensors as it is, so that targets without complex numbers take graphs
whose inputs are complex, and whose outputs are, but in which all that is computed is of real and imaginary parts.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.graph import Graph, Node, Value
from kernels_hub.compiler.ir.op import Trait
from kernels_hub.compiler.ir.types import Array, DType

_PART: dict[DType, DType] = {types.COMPLEX64: types.FLOAT32, types.COMPLEX128: types.FLOAT64}
_PARTS = {"real": 0, "imag": 1}
_MADE = frozenset({"input", "parameter", "constant", "complex"})
_Parts = tuple[Value, Value]


def in_pairs(graph: Graph) -> Graph:
    """The graph, with pairs for its complex inputs, parameters and outputs; as it is where it computes with others.

    Names stay. Of a parameter, the data stay as they are: weights are placed by their memory (`place_weights`).

    >>> graph = Graph("size")
    >>> x = graph.input("x", (4,), "complex64")
    >>> y = graph.output("y", x.unary("real"))
    >>> print(in_pairs(graph))
    graph "size" {
      %0: float32[4, 2] = input(name="x")
      %1: float32[4, 1] = slice(%0, starts=[0, 0], stops=[4, 1], steps=[1, 1])
      %2: float32[4] = reshape(%1, shape=[4])
      return "y" = %2
    }
    """
    nodes = graph.live()
    of_complex = [
        node for node in nodes if any(one.dtype.is_complex for one in (*node.operands, *node.results))
    ]
    if not of_complex or not all(map(_is_of_parts, of_complex)):
        return graph
    new = graph.successor()
    mapped: dict[Value, Value] = {}
    parts: dict[Value, _Parts] = {}
    for node in nodes:
        first = node.results[0]
        with new.origin(node.origin):
            if first.dtype.is_complex:
                parts[first] = _parts_of(new, node, mapped, parts)
            elif node.operands and node.operands[0] in parts:
                mapped[first] = parts[node.operands[0]][_PARTS[node.op.name]]
            else:
                copied = new.copy(node, tuple([mapped[operand] for operand in node.operands]))
                mapped.update(zip(node.results, copied.results, strict=True))
    for name, value in graph.outputs.items():
        pair = parts.get(value)
        new.output(name, mapped[value] if pair is None else pair[0].paired(pair[1]))
    return new


def _is_of_parts(node: Node) -> bool:
    """Whether an op makes complex numbers of nothing or of parts, moves them, or takes a part of them."""
    if not node.results[0].dtype.is_complex:
        return node.op.name in _PARTS
    return node.op.name in _MADE or Trait.VIEW in node.op.traits


def _parts_of(
    graph: Graph, node: Node, mapped: Mapping[Value, Value], parts: Mapping[Value, _Parts]
) -> _Parts:
    """The parts of the complex result of a node. graph: the new one; mapped: its real values."""
    name, of = node.op.name, node.results[0].type
    if name == "complex":
        real, imaginary = (mapped[operand] for operand in node.operands)
        return real, imaginary
    if Trait.VIEW in node.op.traits:
        real, imaginary = (_viewed(graph, node, part) for part in parts[node.operands[0]])
        return real, imaginary
    shape, part = (*of.shape, 2), _PART[of.dtype]
    if name == "input":
        pairs = graph.input(node.attrs["name"], shape, part)
    elif name == "parameter":
        source, called = node.graph, node.attrs["name"]
        data = (lambda: pairs_of(source.weight(called))) if called in source.weights else None
        pairs = graph.parameter(called, shape, part, data)
    else:
        array = node.results[0].array
        assert array is not None
        pairs = graph.constant(pairs_of(array))
    return pairs.part(0), pairs.part(1)


def _viewed(graph: Graph, node: Node, part: Value) -> Value:
    if node.op.name == "reshape":
        return part.reshape(node.attrs["shape"])  # of what was one already, a single one
    return graph.copy(node, (part,)).results[0]


def pairs_of(array: Array) -> Array:
    """The real and imaginary parts of an array, (…, 2)."""
    return np.stack([array.real, array.imag], -1)


__all__ = ["in_pairs", "pairs_of"]
