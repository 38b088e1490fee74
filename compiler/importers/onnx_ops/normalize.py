# ruff: noqa: D103 (what an importer does is what ONNX says of its op)
"""Normalizations and dropout."""

from __future__ import annotations

from kernels_hub.compiler.importers.onnx_node import OnnxNode, onnx_op
from kernels_hub.compiler.importers.onnx_types import dtype_of
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.graph import Value


def _channels(value: Value, rank: int) -> Value:
    """A vector beside (N, C, …)."""
    return value.reshape((value.shape[0], *[1] * (rank - 2)))


@onnx_op("BatchNormalization", since=1)
def batch_normalization(node: OnnxNode) -> list[Value]:
    x, scale, bias, mean, variance = (node.input(index) for index in range(5))
    epsilon = node.attr("epsilon", 1e-5)
    training = bool(node.attr("training_mode", 0))
    if node.opset < 7 and not node.attr("is_test", 0) and node.wants(1):
        raise node.refuse("training is done by torch, not in the graph")
    if not training:
        return [_batch_normalized(x, scale, bias, mean, variance, epsilon)]
    axes = tuple(axis for axis in range(x.rank) if axis != 1)
    wide = x.cast(types.FLOAT32) if x.dtype.bits < 32 else x
    batch_mean = wide.mean(axes)
    centred = wide - _channels(batch_mean, x.rank)
    batch_variance = (centred * centred).mean(axes)
    momentum = node.attr("momentum", 0.9)
    result = _batch_normalized(
        x, scale, bias, batch_mean.cast(mean.dtype), batch_variance.cast(variance.dtype), epsilon
    )
    running = [
        old * momentum + new.cast(old.dtype) * (1.0 - momentum)
        for old, new in ((mean, batch_mean), (variance, batch_variance))
    ]
    return [result, *running]


def _batch_normalized(
    x: Value, scale: Value, bias: Value, mean: Value, variance: Value, epsilon: float
) -> Value:
    rank, row = x.rank, x.dtype
    if x.rank == 1:
        return _batch_normalized(x.unsqueeze(1), scale, bias, mean, variance, epsilon).reshape(x.shape)
    wide = mean.dtype
    factor = scale.cast(wide) / (variance + epsilon).sqrt()
    result = (x.cast(wide) - _channels(mean, rank)) * _channels(factor, rank) + _channels(
        bias.cast(wide), rank
    )
    return result.cast(row)


@onnx_op("InstanceNormalization", since=1)
def instance_normalization(node: OnnxNode) -> Value:
    x, scale, bias = node.input(0), node.input(1), node.input(2)
    normalized = _normalized(x, tuple(range(2, x.rank)), node.attr("epsilon", 1e-5))[0]
    if _everywhere(scale, 1) and _everywhere(bias, 0):
        return normalized  # as torch's exporters write group norm
    return normalized * _channels(scale, x.rank) + _channels(bias, x.rank)


def _everywhere(value: Value, number: float) -> bool:
    """Whether a weight is known to be this number in every element."""
    if value.op_name == "parameter" and value.node.attrs["name"] in value.graph.weights:
        return bool((value.graph.weight(value.node.attrs["name"]) == number).all())
    return value.array is not None and bool((value.array == number).all())


def _normalized(x: Value, axes: tuple[int, ...], epsilon: float) -> tuple[Value, Value, Value]:
    """(x - mean) / sqrt(variance + epsilon), the mean, and what it is multiplied by."""
    mean = x.mean(axes, keepdims=True)
    centred = x - mean
    inverse = 1.0 / ((centred * centred).mean(axes, keepdims=True) + epsilon).sqrt()
    return centred * inverse, mean, inverse


@onnx_op("LayerNormalization", since=1)
def layer_normalization(node: OnnxNode) -> list[Value]:
    """Of opset 17; ONNX Runtime's optimizer writes the same op into models of older ones."""
    x, scale, bias = node.input(0), node.input(1), node.optional(2)
    axes = tuple(range(x.axis(node.attr("axis", -1)), x.rank))
    wide = dtype_of(node.attr("stash_type", 1))
    normalized, mean, inverse = _normalized(x.cast(wide), axes, node.attr("epsilon", 1e-5))
    result = normalized.cast(x.dtype) * scale
    return [result if bias is None else result + bias, mean, inverse]


@onnx_op("SimplifiedLayerNormalization", since=1)
@onnx_op("RMSNormalization", since=23)
def rms_normalization(node: OnnxNode) -> Value:
    """SimplifiedLayerNormalization is the name under which ONNX Runtime's optimizer writes it."""
    x, scale = node.input(0), node.input(1)
    axes = tuple(range(x.axis(node.attr("axis", -1)), x.rank))
    wide = x.cast(dtype_of(node.attr("stash_type", 1)))
    root = ((wide * wide).mean(axes, keepdims=True) + float(node.attr("epsilon", 1e-5))).sqrt()
    return (wide / root).cast(x.dtype) * scale


@onnx_op("GroupNormalization", since=18)
def group_normalization(node: OnnxNode) -> Value:
    x, scale, bias = node.input(0), node.input(1), node.input(2)
    groups = node.attr("num_groups")
    batch, channels = x.shape[:2]
    wide = x.cast(dtype_of(node.attr("stash_type", 1))) if node.opset >= 21 else x
    grouped = wide.reshape((batch, groups, channels // groups, *x.shape[2:]))
    normalized = _normalized(grouped, tuple(range(2, grouped.rank)), node.attr("epsilon", 1e-5))[0].cast(
        x.dtype
    )
    if node.opset >= 21:
        return normalized.reshape(x.shape) * _channels(scale, x.rank) + _channels(bias, x.rank)
    per_group = (groups, *[1] * (grouped.rank - 2))
    return (normalized * scale.reshape(per_group) + bias.reshape(per_group)).reshape(x.shape)


@onnx_op("MeanVarianceNormalization", since=9)
def mean_variance_normalization(node: OnnxNode) -> Value:
    x = node.input(0)
    axes = tuple(node.attr("axes", [0, 2, 3]))
    mean = x.mean(axes, keepdims=True)
    centred = x - mean
    return centred / ((centred * centred).mean(axes, keepdims=True).sqrt() + 1e-9)


@onnx_op("LpNormalization", since=1)
def lp_normalization(node: OnnxNode) -> Value:
    x, axis = node.input(0), node.attr("axis", -1)
    if node.attr("p", 2) == 1:
        norm = x.unary("abs").sum(axis, keepdims=True)
    else:
        norm = (x * x).sum(axis, keepdims=True).sqrt()
    return norm.eq(0.0).select(0.0, x / norm.eq(0.0).select(1.0, norm))


@onnx_op("LRN", since=1)
def lrn(node: OnnxNode) -> Value:
    x, size = node.input(0), int(node.attr("size"))
    alpha, beta, bias = (
        float(node.attr(name, one)) for name, one in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0))
    )
    before = (size - 1) // 2
    padding = [(before, size - 1 - before) if axis == 1 else (0, 0) for axis in range(x.rank)]
    sums = (x * x).pad(padding).windows(1, size).sum(-1)
    return x / (sums * (alpha / size) + bias) ** float(beta)
