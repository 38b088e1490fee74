# ruff: noqa: D103 (what an importer does is what ONNX Runtime says of its op)
"""Fused ops of ONNX Runtime's domain com.microsoft, which its optimizer writes: spelled out again.

Source: onnxruntime, docs/ContribOperators.md.
"""

from __future__ import annotations

import math

from kernels_hub.compiler.importers.onnx_node import OnnxNode, onnx_op
from kernels_hub.compiler.importers.onnx_ops.conv import conv
from kernels_hub.compiler.importers.onnx_ops.linear import gemm
from kernels_hub.compiler.ir.graph import Value

DOMAIN = "com.microsoft"


@onnx_op("FusedMatMul", since=1, domain=DOMAIN)
def fused_matmul(node: OnnxNode) -> Value:
    operands = []
    for index, which in enumerate("AB"):
        x = node.input(index)
        if node.attr(
            f"transBatch{which}", 0
        ):  # the first axis comes before the last but one, or in its place
            x = x.permute(*range(1, x.rank - 1), 0, x.rank - 1)
        operands.append(x.transpose() if node.attr(f"trans{which}", 0) and x.rank > 1 else x)
    product = operands[0].matmul(operands[1])
    alpha = node.attr("alpha", 1.0)
    return product if alpha == 1.0 else product * alpha


@onnx_op("Gelu", since=1, domain=DOMAIN)
def gelu(node: OnnxNode) -> Value:
    return _gelu(node.input(0))


@onnx_op("BiasGelu", since=1, domain=DOMAIN)
def bias_gelu(node: OnnxNode) -> Value:
    x = node.input(0)
    return _gelu(x + node.input(1).broadcast_to(x.shape))


@onnx_op("FastGelu", since=1, domain=DOMAIN)
def fast_gelu(node: OnnxNode) -> Value:
    """By tanh, with an optional bias."""
    x, bias = node.input(0), node.optional(1)
    if bias is not None:
        x = x + bias.broadcast_to(x.shape)
    return x * 0.5 * ((x * (x * x * 0.044715 + 1.0) * math.sqrt(2 / math.pi)).tanh() + 1.0)


@onnx_op("QuickGelu", since=1, domain=DOMAIN)
def quick_gelu(node: OnnxNode) -> Value:
    x = node.input(0)
    alpha: float = node.attr("alpha", 1.702)
    return x * (x * alpha).sigmoid()


@onnx_op("SkipLayerNormalization", since=1, domain=DOMAIN)
def skip_layer_normalization(node: OnnxNode) -> list[Value]:
    """(x, skip, gamma, beta?, bias?) -> normalized, mean, inverse deviation, the sum that was normalized."""
    total = _sum(node, bias=4)
    mean = total.mean(-1, keepdims=True)
    centred = total - mean.broadcast_to(total.shape)
    inverse = ((centred * centred).mean(-1, keepdims=True) + node.attr("epsilon", 1e-12)).rsqrt()
    result = centred * inverse.broadcast_to(total.shape) * node.input(2).broadcast_to(total.shape)
    beta = node.optional(3)
    if beta is not None:
        result = result + beta.broadcast_to(total.shape)
    return [result, mean, inverse, total]


@onnx_op("SkipSimplifiedLayerNormalization", since=1, domain=DOMAIN)
def skip_simplified_layer_normalization(node: OnnxNode) -> list[Value]:
    """(x, skip, gamma, bias?), by the root mean square alone; results as of SkipLayerNormalization, the mean too."""
    total = _sum(node, bias=3)
    inverse = ((total * total).mean(-1, keepdims=True) + node.attr("epsilon", 1e-12)).rsqrt()
    result = total * inverse.broadcast_to(total.shape) * node.input(2).broadcast_to(total.shape)
    return [result, total.mean(-1, keepdims=True), inverse, total]


def _sum(node: OnnxNode, *, bias: int) -> Value:
    x = node.input(0)
    total = x + node.input(1).broadcast_to(x.shape)
    more = node.optional(bias)
    return total if more is None else total + more.broadcast_to(total.shape)


def _gelu(x: Value) -> Value:
    return x * 0.5 * ((x * math.sqrt(0.5)).erf() + 1.0)


def activated(node: OnnxNode, x: Value) -> Value:
    """x after the pointwise op that a fused node names in its attribute `activation`."""
    name = node.attr("activation", "")
    given = node.attr("activation_params", [])
    alpha = node.attr("activation_alpha", given[0] if given else None)
    beta = node.attr("activation_beta", given[1] if len(given) > 1 else None)
    if not name:
        return x
    if name == "LeakyRelu":
        return (x >= 0.0).select(x, x * (0.01 if alpha is None else alpha))
    if name in ("HardSigmoid", "HardSwish"):
        slope = (0.2 if name == "HardSigmoid" else 1 / 6) if alpha is None else alpha
        gate = (x * slope + (0.5 if beta is None else beta)).clamp(0.0, 1.0)
        return gate if name == "HardSigmoid" else x * gate
    if name == "Clip":
        return x.clamp(alpha, beta)
    simple = {"Relu": x.relu, "Tanh": x.tanh, "Sigmoid": x.sigmoid}
    if name not in simple:
        raise node.refuse(
            f"the activation {name} is none of {', '.join([*simple, 'LeakyRelu, HardSigmoid, HardSwish, Clip'])}"
        )
    return simple[name]()


@onnx_op("FusedGemm", since=1, domain=DOMAIN)
def fused_gemm(node: OnnxNode) -> Value:
    return activated(node, gemm(node))


@onnx_op("FusedConv", since=1, domain=DOMAIN)
def fused_conv(node: OnnxNode) -> Value:
    """(x, weight, bias?, what is added?), and an activation."""
    result, more = conv(node), node.optional(3)
    return activated(node, result if more is None else result + more)


@onnx_op("TransposeMatMul", since=1, domain=DOMAIN)
def transpose_matmul(node: OnnxNode) -> Value:
    return fused_matmul(node)


@onnx_op("CDist", since=1, domain=DOMAIN)
def cdist(node: OnnxNode) -> Value:
    """Distances of rows (N, C) to rows (M, C), which skl2onnx writes for neighbours."""
    difference = node.input(0).unsqueeze(1) - node.input(1).unsqueeze(0)
    squared = (difference * difference).sum(-1)
    metric = node.attr("metric", "sqeuclidean")
    if metric not in ("euclidean", "sqeuclidean"):
        raise node.refuse(f"the metric {metric} is neither euclidean nor sqeuclidean")
    return squared.sqrt() if metric == "euclidean" else squared
