# ruff: noqa: D103 (what an importer does is what ONNX says of its op)
"""Ops that read or write where data say."""

from __future__ import annotations

from collections.abc import Mapping

from kernels_hub.compiler.importers.onnx_node import OnnxNode, onnx_op
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.dims import only_opaque, product
from kernels_hub.compiler.ir.evaluate import evaluate
from kernels_hub.compiler.ir.graph import Graph, Node, Value


@onnx_op("Gather", since=1)
def gather(node: OnnxNode) -> Value:
    return node.input(0).gather(_indices(node.input(1)), node.attr("axis", 0))


def _indices(value: Value) -> Value:
    return value if value.dtype in {types.INT32, types.INT64} else value.cast(types.INT64)


@onnx_op("ArrayFeatureExtractor", since=1, domain="ai.onnx.ml")
def array_feature_extractor(node: OnnxNode) -> Value:
    x = node.input(0)
    result = x.gather(node.input(1).reshape(-1), -1)
    return result.unsqueeze(0) if x.rank == 1 else result


@onnx_op("GatherElements", since=11)
def gather_elements(node: OnnxNode) -> Value:
    return node.input(0).gather_elements(node.input(1), node.attr("axis", 0))


@onnx_op("GatherND", since=11)
def gather_nd(node: OnnxNode) -> Value:
    return node.graph.apply("gather_nd", node.input(0), node.input(1), batch_dims=node.attr("batch_dims", 0))


@onnx_op("Scatter", since=9)
@onnx_op("ScatterElements", since=11)
def scatter_elements(node: OnnxNode) -> Value:
    x = node.input(0)
    return node.graph.apply(
        "scatter_elements", x, node.input(1), node.input(2), axis=x.axis(node.attr("axis", 0)),
        reduction=node.attr("reduction", "none"),
    )  # fmt: skip


@onnx_op("ScatterND", since=11)
def scatter_nd(node: OnnxNode) -> Value:
    """Updates that a slice cuts at how many there are to be (masked_scatter of PyTorch) are looked up: too few fail."""
    x, indices, updates = node.input(0), node.input(1), node.input(2)
    for axis, dim in enumerate(indices.shape[:-1]):
        cut = only_opaque(updates.shape[axis]) if axis < updates.rank else None
        if cut is not None and cut.kind == "min" and dim in cut.args:
            updates = updates.gather(node.graph.iota(dim), axis)
    return node.graph.apply("scatter_nd", x, indices, updates, reduction=node.attr("reduction", "none"))


@onnx_op("TensorScatter", since=24)
def tensor_scatter(node: OnnxNode) -> Value:
    """Writes `update` into `past` from write_indices[batch] on, along an axis; circular wraps around."""
    past, update = node.input(0), node.input(1)
    axis = past.axis(node.attr("axis", -2))
    length = update.shape[axis]
    places = (
        node.graph.iota(length).reshape((length, *[1] * (past.rank - 1 - axis))).broadcast_to(update.shape)
    )
    if node.optional(2) is not None:
        first = node.input(2)
        places = places + first.reshape((first.shape[0], *[1] * (past.rank - 1)))
    if node.attr("mode", "linear") == "circular":
        places = places % node.graph.size(past.shape[axis])
    return node.graph.apply("scatter_elements", past, places, update, axis=axis, reduction="none")


@onnx_op("TopK", since=1)
def topk_attribute(node: OnnxNode) -> tuple[Value, Value]:
    return node.input(0).topk(node.attr("k"), node.attr("axis", -1))


@onnx_op("TopK", since=10)
def topk(node: OnnxNode) -> tuple[Value, Value]:
    (k,) = node.dims(1, "k")
    return node.input(0).topk(k, node.attr("axis", -1), largest=bool(node.attr("largest", 1)))


@onnx_op("OneHot", since=9)
def one_hot(node: OnnxNode) -> Value:
    indices, values = node.input(0), node.input(2)
    (depth,) = node.dims(1, "the depth")
    indices = indices.cast(types.INT64)
    axis = node.attr("axis", -1)
    axis += indices.rank + 1 if axis < 0 else 0
    size = node.graph.size(depth)
    inside = (indices >= size.unary("neg")) & (indices < size)
    at = inside.select((indices < 0).select(indices + size, indices), -1).unsqueeze(axis)
    places = node.graph.iota(depth).reshape((depth, *[1] * (indices.rank - axis)))
    off, on = values.slice(0, 0, 1).reshape(()), values.slice(0, 1, 2).reshape(())
    return at.eq(places).select(on, off)


def selected(node: OnnxNode, op: str, *operands: Value, **attrs: object) -> tuple[Value, ...]:
    """The results of an op that defines a size: constants where its operands are known.

    What was selected of the same operands before is selected once: x[mask] and y[mask] have one size.
    """
    known = [node.maybe_known(operand) for operand in operands]
    arrays = [one for one in known if one is not None and one.dtype != object]
    if len(arrays) < len(known):
        existing = _same_selection(op, operands, attrs)
        if existing is not None:
            return existing.results
        return node.graph.add(op, operands, {"count": node.new_size(), **attrs}).results
    scratch = Graph(op)
    results = scratch.add(
        op, [scratch.constant(array) for array in arrays], {"count": scratch.symbol("count", 0), **attrs}
    ).results
    for index, result in enumerate(results):
        scratch.output(str(index), result)
    return tuple(node.constant(one) for one in evaluate(scratch, []).values())


def _same_selection(op: str, operands: tuple[Value, ...], attrs: Mapping[str, object]) -> Node | None:
    """The node of an op that defines a size on these operands; None where there is none."""
    wanted = {**attrs, "count": None}
    for user in operands[0].users:
        if user.op.name == op and user.operands == operands and {**user.attrs, "count": None} == wanted:
            return user
    return None


@onnx_op("NonZero", since=9)
def nonzero(node: OnnxNode) -> Value:
    return selected(node, "nonzero", node.input(0))[0]


@onnx_op("Compress", since=9)
def compress(node: OnnxNode) -> Value:
    x, condition = node.input(0), node.input(1)
    if node.has("axis"):
        axis = x.axis(node.attr("axis"))
    else:
        x, axis = x.reshape((product(x.shape),)), 0
    if condition.shape[0] != x.shape[axis]:
        condition = condition.slice(0, 0, x.shape[axis])
    (places,) = selected(node, "nonzero", condition)
    return x.gather(places.reshape(places.shape[-1]), axis)


@onnx_op("Unique", since=11)
def unique(node: OnnxNode) -> list[Value]:
    x = node.input(0)
    axis = x.axis(node.attr("axis")) if node.has("axis") else None
    if axis is None:
        x, axis = x.reshape((product(x.shape),)), 0
    return uniques(node, x, axis, ordered=bool(node.attr("sorted", 1)))


def uniques(node: OnnxNode, x: Value, axis: int, *, ordered: bool) -> list[Value]:
    """Elements along an axis once each, where each was first, the place of each of x among them, how often it is there.

    ordered: ascending, else in the order in which they come.
    """
    first, inverse, counts = selected(node, "unique", x, axis=axis)
    if not ordered:
        order = node.graph.apply("argsort", first, axis=0)
        rank = node.graph.apply("argsort", order, axis=0)
        first, inverse, counts = first.gather(order, 0), rank.gather(inverse, 0), counts.gather(order, 0)
    return [x.gather(first, axis), first, inverse, counts]


@onnx_op("ReverseSequence", since=10)
def reverse_sequence(node: OnnxNode) -> Value:
    x, lengths = node.input(0), node.input(1)
    time, batch = node.attr("time_axis", 0), node.attr("batch_axis", 1)
    size = x.shape[time]
    at = node.graph.iota(size).reshape(tuple(size if axis == time else 1 for axis in range(x.rank)))
    long = lengths.reshape(tuple(x.shape[batch] if axis == batch else 1 for axis in range(x.rank)))
    places = (at < long).select(long - 1 - at, at).broadcast_to(x.shape)
    return x.gather_elements(places, time)
