# ruff: noqa: D103 (what an importer does is what ONNX says of its op)
"""Convolutions of all kinds."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from kernels_hub.compiler.importers.onnx_node import OnnxNode, onnx_op
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.dims import Dim, ceildiv, product
from kernels_hub.compiler.ir.extrema import dim_max
from kernels_hub.compiler.ir.graph import Value

Pairs = list[tuple[Dim, Dim]]


def same_padding(
    node: OnnxNode,
    kernel: Sequence[Dim],
    strides: Sequence[int],
    dilations: Sequence[int],
    spatial: Sequence[Dim],
) -> Pairs:
    """(before, after) of each spatial dim, by auto_pad or pads."""
    mode = node.attr("auto_pad", "NOTSET")
    rank = len(spatial)
    if mode in {"NOTSET", ""}:
        pads = node.attr("pads", [0] * (2 * rank))
        return [(pads[axis], pads[axis + rank]) for axis in range(rank)]
    if mode == "VALID":
        return [(0, 0)] * rank
    pairs: Pairs = []
    for size, dim, stride, dilation in zip(kernel, spatial, strides, dilations, strict=True):
        total = dim_max(0, (ceildiv(dim, stride) - 1) * stride + dilation * (size - 1) + 1 - dim)
        half = total // 2
        pairs.append((half, total - half) if mode == "SAME_UPPER" else (total - half, half))
    return pairs


def _windows(node: OnnxNode, rank: int) -> tuple[list[int], list[int]]:
    return node.attr("strides", [1] * rank), node.attr("dilations", [1] * rank)


def _add_bias(result: Value, bias: Value | None) -> Value:
    if bias is None:
        return result
    return result + bias.reshape((bias.shape[0], *[1] * (result.rank - 2)))


def _kernel(node: OnnxNode, w: Value) -> tuple[Dim, ...]:
    declared = node.attr("kernel_shape")
    if (
        declared is not None
        and all(isinstance(dim, int) for dim in w.shape)
        and list(w.shape[2:]) != list(declared)
    ):
        raise node.refuse(f"kernel_shape is {declared}, but the weight is {w.type}")
    return w.shape[2:]


@onnx_op("Conv", since=1)
def conv(node: OnnxNode) -> Value:
    return _add_bias(_conv(node, node.input(0), node.input(1)), node.optional(2))


def _conv(node: OnnxNode, x: Value, w: Value, to: types.DType | None = None) -> Value:
    strides, dilations = _windows(node, x.rank - 2)
    padding = same_padding(node, _kernel(node, w), strides, dilations, x.shape[2:])
    return node.graph.apply(
        "conv",
        x,
        w,
        strides=strides,
        dilations=dilations,
        padding=padding,
        groups=node.attr("group", 1),
        dtype=to,
    )


@onnx_op("ConvTranspose", since=1)
def conv_transpose(node: OnnxNode) -> Value:
    x, w = node.input(0), node.input(1)
    rank = x.rank - 2
    strides, dilations = _windows(node, rank)
    extra = list(node.attr("output_padding", [0] * rank))
    kernel = _kernel(node, w)
    full = [
        (dim - 1) * stride + dilation * (size - 1) + 1
        for dim, stride, dilation, size in zip(x.shape[2:], strides, dilations, kernel, strict=True)
    ]
    mode = node.attr("auto_pad", "NOTSET")
    wanted = node.attr("output_shape")
    if wanted is not None:
        wanted = wanted[-rank:]
    elif mode in {"SAME_UPPER", "SAME_LOWER"}:
        wanted = [dim * stride for dim, stride in zip(x.shape[2:], strides, strict=True)]
    if wanted is None:
        pads = node.attr("pads", [0] * (2 * rank))
        padding: Pairs = [(pads[axis], pads[axis + rank]) for axis in range(rank)]
    else:
        padding = []
        for axis, (size, goal) in enumerate(zip(full, wanted, strict=True)):
            total = size + extra[axis] - goal
            if isinstance(total, int) and total < 0:
                extra[axis], total = extra[axis] - total, 0
            half = total // 2
            padding.append((half, total - half) if mode == "SAME_UPPER" else (total - half, half))
    result = node.graph.apply(
        "conv_transpose", x, w, strides=strides, dilations=dilations, padding=padding,
        groups=node.attr("group", 1), output_padding=extra,
    )  # fmt: skip
    return _add_bias(result, node.optional(2))


@onnx_op("ConvInteger", since=10)
def conv_integer(node: OnnxNode) -> Value:
    return _integer_conv(node, node.input(0), node.optional(2), node.input(1), node.optional(3))


def _integer_conv(node: OnnxNode, x: Value, x_zero: Value | None, w: Value, w_zero: Value | None) -> Value:
    """In int32, zero points subtracted first, so that the padding is the real zero."""
    x, w = x.cast(types.INT32), w.cast(types.INT32)
    if x_zero is not None:
        x = x - x_zero.reshape(()).cast(types.INT32)
    if w_zero is not None:
        w = w - _per_output(w_zero, w.rank).cast(types.INT32)
    return _conv(node, x, w)


def _per_output(value: Value, rank: int) -> Value:
    """A scalar, or a vector of one element an output channel, beside a kernel."""
    if product(value.shape) == 1:
        return value.reshape(())
    return value.reshape((value.shape[0], *[1] * (rank - 1)))


@onnx_op("QLinearConv", since=10)
def qlinear_conv(node: OnnxNode) -> Value:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = (node.input(index) for index in range(8))
    total = _integer_conv(node, x, x_zero, w, w_zero)
    total = _add_bias(total, node.optional(8)).cast(types.FLOAT32)
    scale = (
        x_scale.reshape(()) * w_scale.reshape(())
        if product(w_scale.shape) == 1
        else x_scale.reshape(()) * w_scale
    )
    scale = scale / y_scale.reshape(())
    if scale.rank:
        scale = scale.reshape((scale.shape[0], *[1] * (x.rank - 2)))
    scaled = (total * scale).unary("round") + y_zero.reshape(()).cast(types.FLOAT32)
    return scaled.cast(y_zero.dtype, saturate=True)


@onnx_op("Col2Im", since=18)
def col2im(node: OnnxNode) -> Value:
    """Each block's elements added where they came from: one scatter of sums."""
    x = node.input(0)
    image, block = node.ints(1, "the image's shape"), node.ints(2, "the block's shape")
    rank = len(image)
    strides, dilations = _windows(node, rank)
    pads = node.attr("pads", [0] * (2 * rank))
    counts = [
        (image[a] + pads[a] + pads[a + rank] - dilations[a] * (block[a] - 1) - 1) // strides[a] + 1
        for a in range(rank)
    ]
    channels = x.shape[1] // product(block)
    blocks = x.reshape((x.shape[0], channels, *block, *counts))
    result: Value | None = None
    padded = [image[a] + pads[a] + pads[a + rank] for a in range(rank)]
    for tap in itertools.product(*map(range, block)):
        part = blocks
        for axis, place in enumerate(tap):
            part = part.slice(2 + axis, place, place + 1)
        part = part.reshape((x.shape[0], channels, *counts))
        for axis in range(rank):
            part = _spread(part, 2 + axis, tap[axis] * dilations[axis], strides[axis], padded[axis])
        result = part if result is None else result + part
    assert result is not None
    for axis in range(rank):
        result = result.slice(2 + axis, pads[axis], pads[axis] + image[axis])
    return result


def _spread(x: Value, axis: int, first: int, stride: int, length: int) -> Value:
    """Elements along an axis put at first, first + stride, … of zeros."""
    count = x.shape[axis]
    if stride > 1:
        x = x.unsqueeze(axis + 1)
        padding: Pairs = [(0, 0)] * x.rank
        padding[axis + 1] = (0, stride - 1)
        x = x.pad(padding)
        x = x.reshape((*x.shape[:axis], count * stride, *x.shape[axis + 2 :])).slice(
            axis, 0, (count - 1) * stride + 1
        )
    padding = [(0, 0)] * x.rank
    padding[axis] = (first, length - first - x.shape[axis])
    return x.pad(padding)


@onnx_op("DeformConv", since=19)
def deform_conv(node: OnnxNode) -> Value:
    """Bilinear samples of x at the kernel's places moved by the offsets, then a product with the kernel."""
    x, w, offset = node.input(0), node.input(1), node.input(2)
    if x.rank != 4:
        raise node.refuse(f"written for two spatial dims, not for {x.type}")
    groups, offset_groups = node.attr("group", 1), node.attr("offset_group", 1)
    strides, dilations = _windows(node, 2)
    pads = node.attr("pads", [0] * 4)
    batch, channels, height, width = x.shape
    outputs, each, kernel_height, kernel_width = w.shape
    taps = kernel_height * kernel_width
    rows, columns = offset.shape[2:]
    moved = offset.reshape((batch, offset_groups, taps, 2, rows, columns))
    base = _tap_places(
        node, (kernel_height, kernel_width), (rows, columns), strides, dilations, pads, x.dtype
    )
    y = moved.slice(3, 0, 1).squeeze(3) + base[0]
    z = moved.slice(3, 1, 2).squeeze(3) + base[1]
    grouped = x.reshape((batch, offset_groups, channels // offset_groups, height * width))
    total = sampled(
        grouped, y.reshape((batch, offset_groups, -1)), z.reshape((batch, offset_groups, -1)), height, width
    )
    seen = total.reshape((batch, offset_groups, channels // offset_groups, taps, rows, columns))
    mask = node.optional(4)
    if mask is not None:
        seen = seen * mask.reshape((batch, offset_groups, 1, taps, rows, columns))
    seen = seen.reshape((batch, groups, each * taps, rows * columns))
    kernel = w.reshape((1, groups, outputs // groups, each * taps)).broadcast_to(
        (batch, groups, outputs // groups, each * taps)
    )
    result = kernel.matmul(seen).reshape((batch, outputs, rows, columns))
    return _add_bias(result, node.optional(3))


def _tap_places(
    node: OnnxNode, kernel: tuple[int, int], counts: tuple[Dim, Dim], strides: list[int], dilations: list[int],
    pads: list[int], row: types.DType,
) -> tuple[Value, Value]:  # fmt: skip
    """Where each tap looks for each result without offsets: (taps, rows, columns), for both spatial dims."""
    graph, found = node.graph, []
    for axis in range(2):
        taps = graph.iota(kernel[axis], row) * float(dilations[axis]) - float(pads[axis])
        taps = (
            taps.reshape((kernel[0], 1) if axis == 0 else (1, kernel[1]))
            .broadcast_to(kernel)
            .reshape((-1, 1, 1))
        )
        places = graph.iota(counts[axis], row) * float(strides[axis])
        places = places.reshape((1, counts[0], 1) if axis == 0 else (1, 1, counts[1]))
        found.append(taps + places)
    return found[0], found[1]


def sampled(x: Value, y: Value, z: Value, height: Dim, width: Dim) -> Value:
    """Bilinear samples of x (N, G, C, H*W) at rows y and columns z (N, G, P): (N, G, C, P); zero outside."""
    total: Value | None = None
    batch, groups, channels, _ = x.shape
    count = y.shape[-1]
    for dy, dz in itertools.product((0, 1), repeat=2):
        row, column = y.unary("floor") + float(dy), z.unary("floor") + float(dz)
        weight = (1.0 - (y - row).unary("abs")) * (1.0 - (z - column).unary("abs"))
        inside = (row >= 0.0) & (row <= float(height - 1)) & (column >= 0.0) & (column <= float(width - 1))
        place = row.clamp(0.0, float(height - 1)) * float(width) + column.clamp(0.0, float(width - 1))
        places = place.cast(types.INT64).unsqueeze(2).broadcast_to((batch, groups, channels, count))
        part = x.gather_elements(places, 3) * inside.select(weight, 0.0).unsqueeze(2)
        total = part if total is None else total + part
    assert total is not None
    return total
