"""Splits long reductions with few results into two steps, so that threads share them.

    sum(x, axes=[0, 1]) -> sum(sum(x, axes=[1]), axes=[0])          sum(x) -> sum(sum(x.reshape(parts, -1), 1))

Exact for maxima, minima and integers; sums and products of floats are rounded once more for each part, which in
narrow floats happens in float32.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.dims import Dim, product
from kernels_hub.compiler.ir.graph import Graph, Node, Value
from kernels_hub.compiler.ir.transform import rebuild

FEW = 16
"""Results up to which a reduction is worth cutting."""
LONG = 4096
"""Elements of each result from which on it is."""

CUT = frozenset({"reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "reduce_any", "reduce_all"})


def with_partial_reductions(graph: Graph, parts: int) -> Graph:
    """The graph with its long reductions cut into `parts` parts at most; the same where there are none."""
    if parts < 2 or not any(is_long(node) for node in graph.live()):
        return graph

    def visit(new: Graph, node: Node, operands: tuple[Value, ...]) -> Sequence[Value] | None:  # noqa: ARG001
        if not is_long(node):
            return None
        made = _in_two(operands[0], node.op.name, node.attrs["axes"], parts)
        return None if made is None else (made,)

    return rebuild(graph, visit).graph


def is_long(node: Node) -> bool:
    """Whether a node reduces many elements to a few, in numbers that are known."""
    return node.op.name in CUT and _is_long(node, node.attrs["axes"])


def may_be_long(node: Node) -> bool:
    """The same of a graph that is not written out yet: means and softmaxes are reductions, too."""
    name = node.op.name
    if name in {"softmax", "log_softmax"}:
        return _is_long(node, (node.attrs["axis"],))
    if name == "call":
        return any(may_be_long(one) for one in node.attrs["callee"].live())
    return name in {*CUT, "reduce_mean"} and _is_long(node, node.attrs["axes"])


def _is_long(node: Node, axes: Sequence[int]) -> bool:
    x = node.operands[0]
    few: Dim = product(dim for axis, dim in enumerate(x.shape) if axis not in axes)
    many: Dim = product(x.shape[axis] for axis in axes)
    return isinstance(few, int) and isinstance(many, int) and few < FEW and many >= LONG


def _in_two(x: Value, op: str, axes: Sequence[int], parts: int) -> Value | None:
    narrow = x.dtype
    wide = narrow.is_float and narrow.bits < types.FLOAT32.bits and op in {"reduce_sum", "reduce_prod"}
    if wide:
        x = x.cast(types.FLOAT32)
    divided = _divided(x, list(axes), parts)
    if divided is None:
        return None
    x, first, kept = divided
    once = x.graph.apply(op, x, axes=tuple(first))
    left = kept - sum(axis < kept for axis in first)
    twice = once.graph.apply(op, once, axes=(left,))
    return twice.cast(narrow) if wide else twice


def _divided(x: Value, axes: list[int], parts: int) -> tuple[Value, list[int], int] | None:
    """The operand, the axes that are reduced first, and the one that is reduced at last."""
    for axis in axes if len(axes) > 1 else ():
        extent = x.shape[axis]
        if isinstance(extent, int) and extent >= parts:
            return x, [one for one in axes if one != axis], axis
    axis = max(axes, key=lambda axis: x.shape[axis] if isinstance(x.shape[axis], int) else 0)
    extent = x.shape[axis]
    assert isinstance(extent, int)
    count = next((one for one in range(min(parts, extent), 1, -1) if extent % one == 0), None)
    if count is None:
        return None
    split = x.reshape((*x.shape[:axis], count, extent // count, *x.shape[axis + 1 :]))
    return split, [axis + 1, *(one + (one > axis) for one in axes if one != axis)], axis
