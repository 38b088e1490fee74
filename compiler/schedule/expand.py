"""A graph in the terms of the scheduler: composites and row-wise ops written out.

Norms, activations, gated units and rotary embeddings become the ops that they consist of, since fusion finds those
again; an attention stays a call where the scheduler has a root for it (`is_attention`). Softmax becomes a maximum,
a sum and what is pointwise around them; a mean, a sum and a division; a comparison with a window, arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernels_hub.compiler.ir.dims import product
from kernels_hub.compiler.ir.graph import Graph, Node, Value
from kernels_hub.compiler.ir.transform import rebuild
from kernels_hub.compiler.ir.types import DType
from kernels_hub.compiler.schedule.group_norm import group_norm_of, written_out
from kernels_hub.compiler.schedule.scores import ROOT_DTYPES, attention_parts


def expanded(graph: Graph, dtypes: frozenset[DType] = ROOT_DTYPES) -> Graph:
    """The graph with all that can be written out written out; of the same signature. dtypes: those that roots take."""
    callees: dict[int, Graph] = {}

    def visit(new: Graph, node: Node, operands: tuple[Value, ...]) -> Sequence[Value] | None:
        name = node.op.name
        if name == "call":
            callee = node.attrs["callee"]
            if attention_parts(node.results[0], dtypes) is not None:
                return None
            if (norm := group_norm_of(node.results[0], operands)) is not None:
                return (written_out(norm),)
            if id(callee) not in callees:
                callees[id(callee)] = expanded(callee, dtypes)
            return new.call(callees[id(callee)], *operands)
        if name in {"softmax", "log_softmax"}:
            return (_softmax(operands[0], node.attrs["axis"], log=name == "log_softmax"),)
        if name.startswith("reduce_") and not node.attrs["axes"]:
            return operands
        if name == "reduce_mean":
            return (_mean(new, operands[0], node.attrs["axes"]),)
        return None

    return rebuild(graph, visit).graph


def with_inputs_laid_out(graph: Graph) -> Graph:
    """The graph with a copy of each input that has channels and pixels, where there are convolutions over such.

    The copy lies channels last (see `layout`); all that is made of it would walk in long strides otherwise.
    """
    ranks = {node.results[0].rank for node in graph.live() if node.op.name == "conv"}

    def visit(new: Graph, node: Node, operands: tuple[Value, ...]) -> Sequence[Value] | None:
        given = [
            _laid_out(new, one) if one.op_name == "input" and one.rank in ranks else one for one in operands
        ]
        return new.copy(node, tuple(given)).results if given != list(operands) else None

    return rebuild(graph, visit).graph if ranks else graph


def _laid_out(graph: Graph, x: Value) -> Value:
    return graph.apply("reshape", x, shape=x.shape) if x.rank > 3 and x.dtype.is_float else x


def is_laid_out(value: Value) -> bool:
    """Whether a value is such a copy."""
    return (
        value.op_name == "reshape"
        and value.operands[0].op_name == "input"
        and value.shape == value.operands[0].shape
    )


def _along(statistic: Value, like: Value, axes: Sequence[int]) -> Value:
    kept = tuple(axis for axis in range(like.rank) if axis not in axes)
    return like.graph.apply("broadcast", statistic, shape=like.shape, axes=kept)


def _softmax(x: Value, axis: int, *, log: bool) -> Value:
    """In float32 at least, rounded once, as the row of the op table says."""
    narrow = x.dtype
    x = x.cast(narrow.compute)
    shifted = x - _along(x.graph.apply("reduce_max", x, axes=(axis,)), x, (axis,))
    powers = shifted.unary("exp")
    total = x.graph.apply("reduce_sum", powers, axes=(axis,))
    if log:
        return (shifted - _along(total.unary("log"), x, (axis,))).cast(narrow)
    return (powers / _along(total, x, (axis,))).cast(narrow)


def _mean(graph: Graph, x: Value, axes: Sequence[int]) -> Value:
    narrow = x.dtype
    wide = x.cast(narrow.compute)
    total = graph.apply("reduce_sum", wide, axes=tuple(axes))
    count = graph.size(product(x.shape[axis] for axis in axes))
    number = count.cast(total.dtype)
    return (total / graph.apply("broadcast", number, shape=total.shape, axes=())).cast(narrow)
