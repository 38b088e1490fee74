# ruff: noqa: D103 (what an importer does is what ONNX says of its op)
"""Ops on shapes: shape and size as data, views, concat, split, slice, pad, tile, and constants."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kernels_hub.compiler.importers.onnx_node import OnnxNode, onnx_op
from kernels_hub.compiler.importers.onnx_sequences import Named
from kernels_hub.compiler.importers.onnx_types import dtype_of
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.dims import Dim, Expr, ceildiv, product
from kernels_hub.compiler.ir.extrema import dim_max, dim_min
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.operators import broadcast_shapes
from kernels_hub.compiler.ir.proofs import proves_le

_PARAMETER = 1024
"""Float constants of more elements are weights that an exporter wrote as nodes."""


@onnx_op("Constant", since=1)
def constant(node: OnnxNode) -> Value:
    if node.has("value"):
        array = node.attr("value")
        name = node.proto.output[0]
        if array.size > _PARAMETER and types.dtype(array.dtype).is_float and _may_name(node, name):
            return node.graph.parameter(name, array.shape, types.dtype(array.dtype), array)
        return node.constant(array)
    for name, dtype in (("value_int", "int64"), ("value_ints", "int64"), ("value_float", "float32"),
                        ("value_floats", "float32")):  # fmt: skip
        if node.has(name):
            return node.constant(np.asarray(node.attr(name), dtype))
    raise node.refuse(f"its value is {', '.join(node.attributes()) or 'missing'}, no tensor of numbers")


def _may_name(node: OnnxNode, name: str) -> bool:
    graph = node.graph
    return not node.scope.path and name not in graph.parameters and name not in graph.inputs


@onnx_op("Identity", since=1)
def identity(node: OnnxNode) -> Named:
    return node.operand(0)


@onnx_op("Shape", since=1)
def shape(node: OnnxNode) -> Value:
    dims = node.input(0).shape
    return node.dims_value(dims[slice(node.attr("start", 0), node.attr("end"))])


@onnx_op("Size", since=1)
def size(node: OnnxNode) -> Value:
    return node.graph.size(product(node.input(0).shape))


@onnx_op("Reshape", since=1)
def reshape_attribute(node: OnnxNode) -> Value:
    return _reshaped(node, tuple(node.attr("shape", ())))


@onnx_op("Reshape", since=5)
def reshape(node: OnnxNode) -> Value:
    return _reshaped(node, node.dims(1, "the shape"))


def _reshaped(node: OnnxNode, dims: tuple[Dim, ...]) -> Value:
    x = node.input(0)
    if not node.attr("allowzero", 0):
        for axis, dim in enumerate(dims):
            if isinstance(dim, int) and dim == 0 and axis >= x.rank:
                raise node.refuse(
                    f"dim {axis} of the shape is 0, to be copied from {x.type}, which has no such dim"
                )
        dims = tuple(
            x.shape[axis] if isinstance(dim, int) and dim == 0 else dim for axis, dim in enumerate(dims)
        )
    return x.reshape(dims)


@onnx_op("Flatten", since=1)
def flatten(node: OnnxNode) -> Value:
    x, axis = node.input(0), node.attr("axis", 1)
    axis += x.rank if axis < 0 else 0
    return x.reshape((product(x.shape[:axis]), product(x.shape[axis:])))


@onnx_op("Transpose", since=1)
def transpose(node: OnnxNode) -> Value:
    x = node.input(0)
    return x.permute(*node.attr("perm", range(x.rank)[::-1]))


def axes_given(node: OnnxNode, since: int) -> tuple[int, ...] | None:
    """The axes: an attribute, or from an opset on the second input."""
    if node.opset >= since:
        return None if node.optional(1) is None else node.ints(1, "the axes")
    return tuple(node.attr("axes")) if node.has("axes") else None


@onnx_op("Squeeze", since=1)
def squeeze(node: OnnxNode) -> Value:
    axes = axes_given(node, 13)
    return node.input(0).squeeze(*(axes or ())) if axes is None or axes else node.input(0)


@onnx_op("Unsqueeze", since=1)
def unsqueeze(node: OnnxNode) -> Value:
    axes = axes_given(node, 13)
    if axes is None:
        raise node.refuse("the axes are missing")
    return node.input(0).unsqueeze(*axes)


@onnx_op("Concat", since=1)
def concat(node: OnnxNode) -> Value:
    values = node.all_inputs()
    axis = values[0].axis(node.attr("axis", 1))
    return values[0] if len(values) == 1 else node.graph.apply("concat", *values, axis=axis)


@onnx_op("Split", since=1)
def split(node: OnnxNode) -> list[Value]:
    x, axis = node.input(0), node.input(0).axis(node.attr("axis", 0))
    parts: tuple[Dim, ...] | None = tuple(node.attr("split")) if node.has("split") else None
    if node.opset >= 13:
        parts = node.dims(1, "the sizes of the parts") if node.optional(1) is not None else None
    if parts is None:
        count = node.attr("num_outputs", len(node.proto.output))
        if count != len(node.proto.output):
            raise node.refuse(f"num_outputs is {count}, and it names {len(node.proto.output)} outputs")
        parts = _even_parts(x.shape[axis], count)
    return x.split(parts, axis)


def _even_parts(dim: Dim, count: int) -> tuple[Dim, ...]:
    """Equal parts, the last one smaller where the dim does not divide."""
    each = ceildiv(dim, count)
    return (*[each] * (count - 1), dim - each * (count - 1))


@onnx_op("Slice", since=1)
def slice_attributes(node: OnnxNode) -> Value:
    starts, ends = node.attr("starts"), node.attr("ends")
    return _sliced(node, starts, ends, node.attr("axes", range(len(starts))), [1] * len(starts))


@onnx_op("Slice", since=10)
def slice_inputs(node: OnnxNode) -> Value:
    starts, ends = node.dims(1, "the starts"), node.dims(2, "the ends")
    axes = node.ints(3, "the axes") if node.optional(3) is not None else range(len(starts))
    steps = node.ints(4, "the steps") if node.optional(4) is not None else [1] * len(starts)
    return _sliced(node, starts, ends, axes, steps)


def _sliced(
    node: OnnxNode, starts: Sequence[Dim], ends: Sequence[Dim], axes: Sequence[int], steps: Sequence[int]
) -> Value:
    x = node.input(0)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        dim = x.shape[x.axis(axis)]
        if step == 0:
            raise node.refuse(f"the step of axis {axis} is 0")
        low, high = _from_start(start, dim), _from_start(end, dim)
        if step > 0:
            _note_clamp(node, high, dim)
            x = x.slice(axis, _between(low, 0, dim), _between(high, 0, dim), step)
        else:
            first = _between(low, 0, dim - 1)
            last = _between(high, -1, dim - 1)
            flipped = x.flip(axis)
            x = flipped.slice(axis, dim - 1 - first, dim - 1 - last, -step)
    return x


def _note_clamp(node: OnnxNode, end: Dim, dim: Dim) -> None:
    """x[:n] of a dim of 512 is min(512, n) long, and equal to n only where n is at most 512."""
    if isinstance(end, Expr) and isinstance(dim, int) and not proves_le(end, dim):
        only = end.only_symbol
        if only is not None:
            clamped = node.scope.session.clamped
            clamped[only.name] = min(dim, clamped.get(only.name, dim))


def _from_start(place: Dim, dim: Dim) -> Dim:
    """A negative place counts from the end; a symbolic one that is never positive, too."""
    if isinstance(place, int):
        return place + dim if place < 0 else place
    return place + dim if proves_le(place, -1) else place


def _between(place: Dim, low: Dim, high: Dim) -> Dim:
    if isinstance(place, int) and isinstance(high, Expr) and place >= 1 << 31:
        return high
    place = place if proves_le(low, place) else dim_max(low, place)
    return place if proves_le(place, high) else dim_min(place, high)


@onnx_op("Expand", since=8)
def expand(node: OnnxNode) -> Value:
    x = node.input(0)
    return x.broadcast_to(broadcast_shapes(x.shape, node.sizes(1, "the shape")))


@onnx_op("Tile", since=1)
def tile(node: OnnxNode) -> Value:
    x, repeats = node.input(0), node.dims(1, "the repeats")
    if len(repeats) != x.rank:
        raise node.refuse(f"there are {len(repeats)} repeats for the {x.rank} dims of {x.type}")
    spread = [dim for pair in zip(repeats, x.shape, strict=True) for dim in pair]
    repeated = x.broadcast(spread, range(1, 2 * x.rank, 2))
    return repeated.reshape(tuple(times * dim for times, dim in zip(repeats, x.shape, strict=True)))


@onnx_op("Pad", since=1)
def pad_attributes(node: OnnxNode) -> Value:
    x = node.input(0)
    pads = node.attr("pads", node.attr("paddings"))
    return _padded(node, x, pads, range(x.rank), x.like(node.attr("value", 0.0)))


@onnx_op("Pad", since=11)
def pad(node: OnnxNode) -> Value:
    x = node.input(0)
    fill = node.optional(2)
    axes = node.ints(3, "the axes") if node.optional(3) is not None else range(x.rank)
    pads = node.dims(1, "the pads")
    return _padded(node, x, pads, axes, x.like(0) if fill is None else fill.reshape(()))


def _padded(node: OnnxNode, x: Value, pads: Sequence[Dim], axes: Sequence[int], fill: Value) -> Value:
    padding: list[tuple[Dim, Dim]] = [(0, 0)] * x.rank
    for index, axis in enumerate(axes):
        low, high = pads[index], pads[index + len(axes)]
        padding[x.axis(axis)] = (low, high)
    for axis, (low, high) in enumerate(padding):
        cut_low = -low if isinstance(low, int) and low < 0 else 0
        cut_high = -high if isinstance(high, int) and high < 0 else 0
        if cut_low or cut_high:
            x = x.slice(axis, cut_low, x.shape[axis] - cut_high)
            padding[axis] = (low + cut_low, high + cut_high)
    mode = node.attr("mode", "constant")
    if mode == "constant":
        return x.pad(padding, fill)
    return x.pad(padding, mode=mode)


@onnx_op("ConstantOfShape", since=9)
def constant_of_shape(node: OnnxNode) -> Value:
    fill = node.attr("value")
    one = node.constant(np.zeros((), np.float32) if fill is None else fill.reshape(()))
    return one.broadcast_to(node.sizes(0, "the shape"))


@onnx_op("EyeLike", since=9)
def eye_like(node: OnnxNode) -> Value:
    x, offset = node.input(0), int(node.attr("k", 0))
    row = dtype_of(node.attr("dtype")) if node.has("dtype") else x.dtype
    rows, columns = _places(node, x)
    return (rows + offset).eq(columns).cast(row)


def _places(node: OnnxNode, x: Value) -> tuple[Value, Value]:
    """Row and column of each element of a matrix (of the last two dims)."""
    rows, columns = x.shape[-2:]
    row = node.graph.iota(rows).reshape((rows, 1)).broadcast_to((rows, columns))
    return row, node.graph.iota(columns).broadcast_to((rows, columns))


@onnx_op("Trilu", since=14)
def trilu(node: OnnxNode) -> Value:
    x = node.input(0)
    diagonal = node.constant(0) if node.optional(1) is None else node.input(1).reshape(())
    rows, columns = _places(node, x)
    edge = rows + diagonal
    return (columns >= edge if node.attr("upper", 1) else columns <= edge).select(x, x.like(0))


@onnx_op("Range", since=11)
def range_(node: OnnxNode) -> Value:
    start, limit, delta = (node.input(index).reshape(()) for index in range(3))
    row = start.dtype
    if any(node.maybe_known(value) is None and node.is_told_by_data(value) for value in (start, limit)):
        step = node.number(delta, "delta")
        if step == 0:
            raise node.refuse("its step is 0")
        ahead = limit - start if step > 0 else start - limit
        count = node.size(((ahead + (abs(step) - 1)).maximum(0)).binary("floordiv", abs(step)), "its length")
        return node.graph.iota(count, row) * delta + start
    known = [
        node.known(value, what) for value, what in ((start, "start"), (limit, "limit"), (delta, "delta"))
    ]
    low, high, step = (array.reshape(-1)[0] for array in known)
    if any(array.dtype == object for array in known):
        if isinstance(step, Expr) or int(step) == 0:
            raise node.refuse(f"its step is {step}, no number")
        low, high = (one if isinstance(one, Expr) else int(one) for one in (low, high))
        step = int(step)
        count = dim_max(0, ceildiv(high - low, step) if step > 0 else ceildiv(low - high, -step))
        first = node.graph.size(low, row) if isinstance(low, Expr) else node.constant(low, row)
        return node.graph.iota(count, row) * node.constant(step, row) + first
    wide = float if row.is_float else int
    count = max(int(np.ceil((wide(high) - wide(low)) / wide(step))), 0)
    if count <= _PARAMETER:
        return node.constant((wide(low) + np.arange(count) * wide(step)).astype(row.numpy))
    return node.graph.iota(count, row) * delta + start


@onnx_op("DepthToSpace", since=1)
def depth_to_space(node: OnnxNode) -> Value:
    x, size = node.input(0), node.attr("blocksize")
    batch, channels, height, width = x.shape
    if node.attr("mode", "DCR") == "DCR":
        spread, order = (batch, size, size, channels // (size * size), height, width), (0, 3, 4, 1, 5, 2)
    else:
        spread, order = (batch, channels // (size * size), size, size, height, width), (0, 1, 4, 2, 5, 3)
    return (
        x.reshape(spread)
        .permute(*order)
        .reshape((batch, channels // (size * size), height * size, width * size))
    )


@onnx_op("SpaceToDepth", since=1)
def space_to_depth(node: OnnxNode) -> Value:
    x, size = node.input(0), node.attr("blocksize")
    batch, channels, height, width = x.shape
    order = (3, 5, 1) if node.attr("mode", "DCR") == "DCR" else (1, 3, 5)
    spread = x.reshape((batch, channels, height // size, size, width // size, size))
    return spread.permute(0, *order, 2, 4).reshape(
        (batch, channels * size * size, height // size, width // size)
    )
