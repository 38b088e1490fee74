# ruff: noqa: D103 (what an importer does is what ONNX Runtime says of its op)
"""Ops of com.microsoft that ONNX has as well, by the importers of those: written by older exporters, and for NHWC.

Source: onnxruntime, docs/ContribOperators.md.
"""

from __future__ import annotations

from kernels_hub.compiler.importers.onnx_node import OnnxNode, onnx_op
from kernels_hub.compiler.importers.onnx_ops.contrib import DOMAIN
from kernels_hub.compiler.importers.onnx_ops.conv import qlinear_conv
from kernels_hub.compiler.importers.onnx_ops.indexing import gather_nd, uniques
from kernels_hub.compiler.importers.onnx_ops.pool import max_pool
from kernels_hub.compiler.importers.onnx_ops.resize import grid_sample
from kernels_hub.compiler.importers.onnx_ops.shape import pad, range_, trilu
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.graph import Value

onnx_op("GatherND", since=1, domain=DOMAIN)(gather_nd)
onnx_op("GridSample", since=1, domain=DOMAIN)(grid_sample)
onnx_op("Pad", since=1, domain=DOMAIN)(pad)
onnx_op("Trilu", since=1, domain=DOMAIN)(trilu)


@onnx_op("Range", since=1, domain=DOMAIN)
def range_of(node: OnnxNode) -> Value:
    """(start, limit, delta: 1)."""
    if node.optional(2) is None:
        node.operands = [*node.operands[:2], node.constant(1, node.input(0).dtype)]
    return range_(node)


@onnx_op("ExpandDims", since=1, domain=DOMAIN)
def expand_dims(node: OnnxNode) -> Value:
    return node.input(0).unsqueeze(int(node.number(node.input(1), "the axis")))


@onnx_op("Unique", since=1, domain=DOMAIN)
def unique(node: OnnxNode) -> list[Value]:
    """(x) -> its elements in the order they come in, the place of each of x among them, how often each is there."""
    found, _, inverse, counts = uniques(node, node.input(0), 0, ordered=False)
    return [found, inverse, counts]


@onnx_op("UnfoldTensor", since=1, domain=DOMAIN)
def unfold_tensor(node: OnnxNode) -> Value:
    """Windows of a size along an axis, a step apart; what is in one becomes the last axis."""
    x = node.input(0)
    axis, size, step = x.axis(node.attr("dim", -1)), node.attr("size"), node.attr("step", 1)
    count = (x.shape[axis] - size) // step + 1
    starts = node.graph.iota(count).reshape((count, 1)) * step
    windows = x.gather(starts + node.graph.iota(size).reshape((1, size)), axis)
    order = [place for place in range(windows.rank) if place != axis + 1]
    return windows.permute(*order, axis + 1)


@onnx_op("MatMulInteger16", since=1, domain=DOMAIN)
def matmul_integer_16(node: OnnxNode) -> Value:
    return node.input(0).cast(types.INT32).matmul(node.input(1).cast(types.INT32))


@onnx_op("QLinearConv", since=1, domain=DOMAIN)
def qlinear_conv_of(node: OnnxNode) -> Value:
    if not node.attr("channels_last", 0):
        return qlinear_conv(node)
    _channels_first(node)
    return _channels_last(qlinear_conv(node))


@onnx_op("NhwcMaxPool", since=1, domain=DOMAIN)
def nhwc_max_pool(node: OnnxNode) -> Value:
    _channels_first(node)
    return _channels_last(max_pool(node)[0])


def _channels_first(node: OnnxNode) -> None:
    """Have a node read its first operand with channels second, which are last."""
    x = node.input(0)
    node.operands = [x.permute(0, x.rank - 1, *range(1, x.rank - 1)), *node.operands[1:]]


def _channels_last(x: Value) -> Value:
    return x.permute(0, *range(2, x.rank), 1)
