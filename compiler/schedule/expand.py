"""A graph in the terms of the scheduler: composites and row-wise ops written out.

Norms, activations, gated units and rotary embeddings become the ops that they consist of, since fusion finds those
again; an attention stays a call where the scheduler has an anchor for it (`is_attention`). Softmax becomes a maximum, a
sum and what is pointwise around them; a mean, a sum and a division; a comparison with a window, arithmetic; a
transposed convolution, a convolution of all its phases (`transposed`); a convolution with taps that see only padding,
one without them (`blind_taps`); one to few channels, one to blocks of pixels (`pixel_blocks`); a log-softmax of which
each row gives one element, that element (`picks`); a weight of few bits, shifts and arithmetic; a resize that is no
repetition, gathers (`interpolate`); a median or a binary search, sorts and gathers (`ordered`); a scatter that adds up
or multiplies narrow floats, one of float32; for GPUs, a Fourier transform, products (`fourier`).
"""

from __future__ import annotations

from collections.abc import Sequence

from kernels_hub.compiler.ir.dequantized import dequantized
from kernels_hub.compiler.ir.dims import product
from kernels_hub.compiler.ir.graph import Graph, Node, Value
from kernels_hub.compiler.ir.transform import rebuild
from kernels_hub.compiler.ir.types import DType
from kernels_hub.compiler.schedule.blind_taps import seeing_taps, without_blind_taps
from kernels_hub.compiler.schedule.fourier import has_products, in_products
from kernels_hub.compiler.schedule.group_norm import group_norm_of, written_out
from kernels_hub.compiler.schedule.interpolate import interpolated, is_interpolated
from kernels_hub.compiler.schedule.lower import SCATTERS, repeats
from kernels_hub.compiler.schedule.ordered import in_order, is_ordered
from kernels_hub.compiler.schedule.picks import picked, picks_one
from kernels_hub.compiler.schedule.pixel_blocks import by_blocks, pixels_a_block
from kernels_hub.compiler.schedule.scores import ANCHOR_DTYPES, attention_parts
from kernels_hub.compiler.schedule.transposed import by_phases, has_phases


def expanded(graph: Graph, dtypes: frozenset[DType] = ANCHOR_DTYPES, *, cpu: bool = False) -> Graph:
    """The graph with all composite ops written out; of the same signature.

    dtypes: those that anchors take. cpu: for one, whose convolutions make vectors of output channels.
    """
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
                callees[id(callee)] = expanded(callee, dtypes, cpu=cpu)
            return new.call(callees[id(callee)], *operands)
        if name in {"softmax", "log_softmax"}:
            return (_softmax(operands[0], node.attrs["axis"], log=name == "log_softmax"),)
        if name.startswith("reduce_") and not node.attrs["axes"]:
            return operands
        if name == "reduce_mean":
            return (_mean(new, operands[0], node.attrs["axes"]),)
        if name == "gather_elements" and picks_one(node, operands[0]):
            return (picked(operands[0], operands[1], node.attrs["axis"]),)
        if name in {"conv", "conv_transpose"}:
            return _convolution(new, node, operands, cpu=cpu)
        if name == "dequantize":
            w, scales, *zeros = operands
            given = zeros[0] if zeros else None
            return (dequantized(w, scales, given, node.attrs["bits"], node.attrs["depth"]),)
        if (found := _in_other_ops(node, operands, cpu=cpu)) is not None:
            return (found,)
        if name in SCATTERS and _rounds_between(node):
            x, places, updates = operands
            wide = x.dtype.compute
            return (new.apply(name, x.cast(wide), places, updates.cast(wide), **node.attrs).cast(x.dtype),)
        return None

    return rebuild(graph, visit).graph


def _convolution(
    graph: Graph, node: Node, operands: tuple[Value, ...], *, cpu: bool
) -> Sequence[Value] | None:
    if node.op.name == "conv_transpose":
        return (by_phases(node, *operands),) if has_phases(node) else None
    if seeing_taps(node) is not None:
        return (without_blind_taps(graph, node, *operands),)
    if cpu and (block := pixels_a_block(node)) > 1:
        return (by_blocks(node, block, *operands),)
    return None


def _in_other_ops(node: Node, operands: tuple[Value, ...], *, cpu: bool) -> Value | None:
    """A resize that is no repetition, what sorting decides, or a transform for a GPU; None of another op."""
    if not cpu and has_products(node):
        return in_products(node, operands)
    if node.op.name == "resize" and repeats(node.results[0]) is None and is_interpolated(node):
        return interpolated(node, operands[0])
    return in_order(node, operands) if is_ordered(node) else None


def _rounds_between(node: Node) -> bool:
    """Whether a scatter would round after each update, where the op rounds once."""
    narrow = node.results[0].dtype
    return node.attrs["reduction"] in {"add", "mul"} and narrow.is_float and narrow.compute is not narrow


def is_written_out(node: Node) -> bool:
    """Whether `expanded` writes an op out in others."""
    name = node.op.name
    return (
        name in {"softmax", "log_softmax", "reduce_mean", "dequantize"}
        or (name == "conv_transpose" and has_phases(node))
        or (name == "resize" and is_interpolated(node))
        or is_ordered(node)
    )


def with_inputs_laid_out(graph: Graph) -> Graph:
    """The graph with a copy of each input that has channels and pixels, where there are convolutions over such.

    The copy lies channels last (see `layout`); all that is made of it would walk in long strides otherwise.
    """
    ranks = {
        node.results[0].rank
        for node in graph.live()
        if node.op.name == "conv" and has_pixels(node.operands[0])
    }

    def visit(new: Graph, node: Node, operands: tuple[Value, ...]) -> Sequence[Value] | None:
        given = [
            _laid_out(new, operand) if operand.op_name == "input" and operand.rank in ranks else operand
            for operand in operands
        ]
        return new.copy(node, tuple(given)).results if given != list(operands) else None

    return rebuild(graph, visit).graph if ranks else graph


def has_pixels(value: Value) -> bool:
    """Whether there is more than one to a channel: else both orders are one, as in squeeze and excitation."""
    return any(size != 1 for size in value.shape[2:])


def _laid_out(graph: Graph, x: Value) -> Value:
    return graph.apply("reshape", x, shape=x.shape) if x.rank > 2 and x.dtype.is_float else x


def is_laid_out(value: Value) -> bool:
    """Whether a value is such a copy."""
    return (
        value.op_name == "reshape"
        and value.operands[0].op_name == "input"
        and value.shape == value.operands[0].shape
    )


def _spread_over(statistic: Value, like: Value, axes: Sequence[int]) -> Value:
    kept = tuple(axis for axis in range(like.rank) if axis not in axes)
    return like.graph.apply("broadcast", statistic, shape=like.shape, axes=kept)


def _softmax(x: Value, axis: int, *, log: bool) -> Value:
    """In float32 at least, rounded once, as the row of the op table says."""
    narrow = x.dtype
    x = x.cast(narrow.compute)
    shifted = x - _spread_over(x.graph.apply("reduce_max", x, axes=(axis,)), x, (axis,))
    powers = shifted.unary("exp")
    total = x.graph.apply("reduce_sum", powers, axes=(axis,))
    if log:
        return (shifted - _spread_over(total.unary("log"), x, (axis,))).cast(narrow)
    return (powers / _spread_over(total, x, (axis,))).cast(narrow)


def _mean(graph: Graph, x: Value, axes: Sequence[int]) -> Value:
    narrow = x.dtype
    wide = x.cast(narrow.compute)
    total = graph.apply("reduce_sum", wide, axes=tuple(axes))
    count = graph.size(product(x.shape[axis] for axis in axes))
    number = count.cast(total.dtype)
    return (total / graph.apply("broadcast", number, shape=total.shape, axes=())).cast(narrow)
