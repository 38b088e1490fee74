# ruff: noqa: D103 (what an importer does is what ONNX says of its op)
"""Pooling over windows, over all of a channel, and over regions of interest."""

from __future__ import annotations

from typing import Any

from kernels_hub.compiler.importers.onnx_node import OnnxNode, onnx_op
from kernels_hub.compiler.importers.onnx_ops.conv import Pairs, same_padding
from kernels_hub.compiler.importers.pooling import pool
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.dims import Dim, product
from kernels_hub.compiler.ir.graph import Value


def _attributes(node: OnnxNode, x: Value) -> dict[str, Any]:
    rank = x.rank - 2
    kernel = node.attr("kernel_shape")
    if kernel is None:
        raise node.refuse("kernel_shape is missing")
    strides, dilations = node.attr("strides", [1] * rank), node.attr("dilations", [1] * rank)
    padding: Pairs = same_padding(node, kernel, strides, dilations, x.shape[2:])
    padding = [
        (low, _reached(size, low, high, dilation * (window - 1) + 1, stride))
        for size, (low, high), window, stride, dilation in zip(
            x.shape[2:], padding, kernel, strides, dilations, strict=True
        )
    ]
    return {
        "kernel": kernel, "strides": strides, "dilations": dilations, "padding": padding,
        "ceil": bool(node.attr("ceil_mode", 0)),
    }  # fmt: skip


def _reached(size: Dim, low: Dim, high: Dim, window: int, stride: int) -> Dim:
    """The padding behind: longer where the only window, by less than a stride, reaches farther.

    Runtimes divide by the stride as C++ does, toward zero, and count that window.
    """
    room = size + low + high - window
    return high - room if isinstance(room, int) and -stride < room < 0 else high


@onnx_op("MaxPool", since=1)
def max_pool(node: OnnxNode) -> list[Value]:
    x = node.input(0)
    attributes = _attributes(node, x)
    results = [pool("max_pool", x, attributes)]
    if node.wants(1):
        results.append(_places(node, x, attributes))
    return results


def _places(node: OnnxNode, x: Value, attributes: dict[str, Any]) -> Value:
    """Places in the whole tensor; the spatial dims are stored column-major where storage_order says so."""
    place = pool("argmax_pool", x, attributes)
    if node.attr("storage_order", 0):
        rest, total = place, place.like(0)
        stride: Dim = product(x.shape[2:])
        weight: Dim = 1
        for axis in range(2, x.rank):
            stride = stride // x.shape[axis]
            total = total + rest.binary("floordiv", stride) * weight
            rest = rest % stride
            weight = weight * x.shape[axis]
        place = total
    batch, channels = x.shape[:2]
    channel = node.graph.iota(batch * channels).reshape((batch, channels, *[1] * (x.rank - 2)))
    return place + channel * node.graph.size(product(x.shape[2:]))


@onnx_op("AveragePool", since=1)
def average_pool(node: OnnxNode) -> Value:
    return averaged(node, node.input(0))


def averaged(node: OnnxNode, x: Value) -> Value:
    """x (N, C, …) averaged over the windows that the node's attributes say."""
    count = "padded" if node.attr("count_include_pad", 0) else "inside"
    return pool("avg_pool", x, _attributes(node, x), count=count)


@onnx_op("LpPool", since=1)
def lp_pool(node: OnnxNode) -> Value:
    x, p = node.input(0), int(node.attr("p", 2))
    powers = x.unary("abs") ** float(p) if p != 2 else x * x
    total = pool("sum_pool", powers, _attributes(node, x))
    return total.sqrt() if p == 2 else total ** (1.0 / p)


def _spatial(x: Value) -> tuple[int, ...]:
    return tuple(range(2, x.rank))


def _image(node: OnnxNode) -> Value:
    """The operand of a global pool. Raises for an empty one, of which there is no mean."""
    x = node.input(0)
    if 0 in x.shape[1:]:
        raise node.refuse(f"it pools an empty image, {list(x.shape)}")
    return x


@onnx_op("GlobalMaxPool", since=1)
def global_max_pool(node: OnnxNode) -> Value:
    return _image(node).max(_spatial(node.input(0)), keepdims=True)


@onnx_op("GlobalAveragePool", since=1)
def global_average_pool(node: OnnxNode) -> Value:
    return _image(node).mean(_spatial(node.input(0)), keepdims=True)


@onnx_op("GlobalLpPool", since=1)
def global_lp_pool(node: OnnxNode) -> Value:
    x, p = _image(node), int(node.attr("p", 2))
    return (x.unary("abs") ** float(p)).sum(_spatial(x), keepdims=True) ** (1.0 / p)


@onnx_op("MaxUnpool", since=9)
def max_unpool(node: OnnxNode) -> Value:
    x, places = node.input(0), node.input(1)
    kernel, rank = node.attr("kernel_shape"), x.rank - 2
    strides, pads = node.attr("strides", [1] * rank), node.attr("pads", [0] * (2 * rank))
    shape = [(x.shape[a + 2] - 1) * strides[a] + kernel[a] - pads[a] - pads[a + rank] for a in range(rank)]
    natural = (*x.shape[:2], *shape)
    flat = node.graph.full((product(natural),), 0, x.dtype)
    filled = node.graph.apply(
        "scatter_elements", flat, places.reshape((product(x.shape),)), x.reshape((product(x.shape),)), axis=0
    )
    whole = filled.reshape(natural)
    if node.optional(2) is None:
        return whole
    target = node.dims(2, "the result's shape")
    return whole.pad([(0, big - small) for big, small in zip(target, natural, strict=True)])


@onnx_op("RoiAlign", since=10)
def roi_align(node: OnnxNode) -> Value:
    """Samples of each bin of each region by bilinear interpolation, averaged, or the greatest taken.

    With a sampling_ratio of 0 how many each region takes is for the data to tell, and it is an op of its own.
    """
    x, rois, batches = node.input(0), node.input(1), node.input(2)
    rows, columns = node.attr("output_height", 1), node.attr("output_width", 1)
    ratio, scale = node.attr("sampling_ratio", 0), node.attr("spatial_scale", 1.0)
    half = node.attr(
        "coordinate_transformation_mode", "half_pixel" if node.opset >= 16 else "output_half_pixel"
    )
    shift = 0.5 if half == "half_pixel" else 0.0
    if not ratio:
        attrs = {
            "height": rows,
            "width": columns,
            "scale": scale,
            "offset": shift,
            "mode": node.attr("mode", "avg"),
        }
        return node.graph.apply("roi_align", x, rois, batches, **attrs)
    count, (_, channels, height, width) = rois.shape[0], x.shape
    edges = [rois.slice(1, index, index + 1).reshape((count,)) * scale - shift for index in range(4)]
    left, top, right, bottom = edges
    high, wide = bottom - top, right - left
    if shift == 0.0:
        high, wide = high.maximum(1.0), wide.maximum(1.0)
    y = _samples(node, top, high, rows, ratio)
    z = _samples(node, left, wide, columns, ratio)
    shape = (count, rows * ratio, columns * ratio)
    y = y.reshape((count, rows * ratio, 1)).broadcast_to(shape)
    z = z.reshape((count, 1, columns * ratio)).broadcast_to(shape)
    images = x.reshape((x.shape[0], channels, height * width)).gather(batches, 0)
    seen = _bilinear_at(
        images, y.flatten(1), z.flatten(1), height, width, greatest=node.attr("mode", "avg") == "max"
    )
    bins = seen.reshape((count, channels, rows, ratio, columns, ratio))
    return bins.max((3, 5)) if node.attr("mode", "avg") == "max" else bins.mean((3, 5))


def _samples(node: OnnxNode, start: Value, length: Value, bins: int, ratio: int) -> Value:
    """The places (regions, bins * ratio) at which bins of an interval are looked at."""
    steps = (node.graph.iota(bins * ratio, start.dtype) + 0.5) / float(bins * ratio)
    return start.unsqueeze(1) + length.unsqueeze(1) * steps.unsqueeze(0)


def _bilinear_at(x: Value, y: Value, z: Value, height: Dim, width: Dim, *, greatest: bool) -> Value:
    """x (K, C, H*W) at rows y and columns z (K, P): (K, C, P); nothing beyond one pixel outside."""
    inside = (y >= -1.0) & (y <= float(height)) & (z >= -1.0) & (z <= float(width))
    y, z = y.clamp(0.0, float(height - 1)), z.clamp(0.0, float(width - 1))
    low_y, low_z = y.unary("floor"), z.unary("floor")
    total: Value | None = None
    for dy in (0, 1):
        for dz in (0, 1):
            row, column = (
                (low_y + float(dy)).minimum(float(height - 1)),
                (low_z + float(dz)).minimum(float(width - 1)),
            )
            down = y - low_y if dy else 1.0 - (y - low_y)
            across = z - low_z if dz else 1.0 - (z - low_z)
            places = (row * float(width) + column).cast(types.INT64).unsqueeze(1)
            found = x.gather_elements(places.broadcast_to((*x.shape[:2], y.shape[-1])), 2)
            part = found * inside.select(down * across, 0.0).unsqueeze(1)
            total = part if total is None else total.maximum(part) if greatest else total + part
    assert total is not None
    return total
