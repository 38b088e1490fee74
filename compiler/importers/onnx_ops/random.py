# ruff: noqa: D103 (what an importer does is what ONNX says of its op)
"""Random numbers, from Philox keys: the node's seed, or one of its own; dropout."""

from __future__ import annotations

import math
import struct

from kernels_hub.compiler.importers.onnx_node import OnnxNode, onnx_op
from kernels_hub.compiler.importers.onnx_types import dtype_of
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.dims import Dim
from kernels_hub.compiler.ir.graph import Graph, Value
from kernels_hub.compiler.ir.op import Shape


def _key(node: OnnxNode) -> Value:
    seed = node.attr("seed")
    if seed is None:
        return node.graph.random_key()
    (bits,) = struct.unpack("<I", struct.pack("<f", float(seed)))
    return node.graph.random_key(bits)


def uniform(graph: Graph, key: Value, shape: Shape) -> Value:
    """float32 in [0, 1): the upper 24 bits of each word."""
    bits = graph.apply("random_bits", key, shape=shape)
    return (bits >> 8).cast(types.FLOAT32) * 2.0**-24


def normal(graph: Graph, key: Value, shape: Shape) -> Value:
    """Of mean 0 and deviation 1, by Box and Muller, from two words an element."""
    two: tuple[Dim, ...] = (2, *shape)
    words = uniform(graph, key, two)
    first, second = words.slice(0, 0, 1).squeeze(0), words.slice(0, 1, 2).squeeze(0)
    radius = ((1.0 - first).log() * -2.0).sqrt()
    return radius * (second * (2 * math.pi)).unary("cos")


def _shape(node: OnnxNode) -> tuple[Shape, types.DType]:
    if node.proto.op_type.endswith("Like"):
        x = node.input(0)
        return x.shape, dtype_of(node.attr("dtype")) if node.has("dtype") else x.dtype
    return tuple(node.attr("shape")), dtype_of(node.attr("dtype", 1))


@onnx_op("RandomUniform", since=1)
@onnx_op("RandomUniformLike", since=1)
def random_uniform(node: OnnxNode) -> Value:
    shape, row = _shape(node)
    low, high = float(node.attr("low", 0.0)), float(node.attr("high", 1.0))
    return (uniform(node.graph, _key(node), shape) * (high - low) + low).cast(row)


@onnx_op("RandomNormal", since=1)
@onnx_op("RandomNormalLike", since=1)
def random_normal(node: OnnxNode) -> Value:
    shape, row = _shape(node)
    scale, mean = float(node.attr("scale", 1.0)), float(node.attr("mean", 0.0))
    return (normal(node.graph, _key(node), shape) * scale + mean).cast(row)


@onnx_op("Bernoulli", since=15)
def bernoulli(node: OnnxNode) -> Value:
    x = node.input(0)
    row = dtype_of(node.attr("dtype")) if node.has("dtype") else x.dtype
    return (uniform(node.graph, _key(node), x.shape) < x.cast(types.FLOAT32)).cast(row)


@onnx_op("Multinomial", since=7)
def multinomial(node: OnnxNode) -> Value:
    """Drawn by the greatest of the logits with Gumbel noise; x (batch, classes) unnormalized log-probabilities."""
    x, count = node.input(0), node.attr("sample_size", 1)
    batch, classes = x.shape
    noise = -(-(uniform(node.graph, _key(node), (batch, count, classes)) + 2.0**-25).log()).log()
    drawn = (x.cast(types.FLOAT32).unsqueeze(1) + noise).along("argmax", -1)
    return drawn.cast(dtype_of(node.attr("dtype", 6)))


@onnx_op("Dropout", since=1)
def dropout_of_inference(node: OnnxNode) -> list[Value]:
    return _kept(node)


@onnx_op("Dropout", since=12)
def dropout(node: OnnxNode) -> list[Value]:
    training = node.optional(2)
    if training is None or not node.number(training, "whether it is training"):
        return _kept(node)
    x = node.input(0)
    ratio = 0.5 if node.optional(1) is None else float(node.number(node.input(1), "the ratio"))
    if ratio == 0.0:
        return _kept(node)
    keep = uniform(node.graph, _key(node), x.shape) >= ratio
    return [keep.select(x, 0.0) / (1.0 - ratio), keep]


def _kept(node: OnnxNode) -> list[Value]:
    x = node.input(0)
    row = types.BOOL if node.opset >= 10 else x.dtype
    return [x, node.graph.full(x.shape, 1, row)]
