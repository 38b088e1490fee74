# ruff: noqa: D103 (what an importer does is what ONNX Runtime says of its op)
"""Quantized ops of ONNX Runtime's domain com.microsoft, which its quantizers write, as arithmetic on floats.

An operand of 8 bits comes as (numbers, scale, zero point). Source: onnxruntime, docs/ContribOperators.md.
"""

from __future__ import annotations

from collections.abc import Callable

from kernels_hub.compiler.importers.onnx_node import OnnxNode, onnx_op
from kernels_hub.compiler.importers.onnx_ops.contrib import DOMAIN
from kernels_hub.compiler.importers.onnx_ops.pool import averaged
from kernels_hub.compiler.importers.onnx_ops.quantize import (
    centred_operand,
    dequantize_linear,
    dynamic_quantize_linear,
    quantize_linear,
)
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.dims import product
from kernels_hub.compiler.ir.graph import Value

onnx_op("QuantizeLinear", since=1, domain=DOMAIN)(quantize_linear)
onnx_op("DequantizeLinear", since=1, domain=DOMAIN)(dequantize_linear)


def _number(value: Value) -> Value:
    return value.reshape(()) if product(value.shape) == 1 else value


def real(node: OnnxNode, place: int) -> Value:
    """The operand at a place, its scale and its zero point after it, in float32."""
    x, scale, zero = node.input(place), _number(node.input(place + 1)), node.optional(place + 2)
    wide = x.cast(types.FLOAT32)
    if zero is not None:
        wide = wide - _number(zero).cast(types.FLOAT32)
    return wide * scale.cast(types.FLOAT32)


def _quantized(node: OnnxNode, x: Value, index: int, like: Value) -> Value:
    """x by the scale and zero point at a place, of the dtype of the zero point or of an operand."""
    scale, zero = _number(node.input(index)), node.optional(index + 1)
    rounded = (x / scale.cast(types.FLOAT32)).unary("round")
    if zero is not None:
        rounded = rounded + _number(zero).cast(types.FLOAT32)
    return rounded.cast(like.dtype if zero is None else zero.dtype, saturate=True)


def _pointwise(name: str, compute: Callable[[OnnxNode, Value], Value]) -> None:
    """Enter an op of (x, scale, zero?, scale of the result, zero of the result?)."""

    def convert(node: OnnxNode) -> Value:
        return _quantized(node, compute(node, real(node, 0)), 3, node.input(0))

    onnx_op(name, since=1, domain=DOMAIN)(convert)


def _softmax(node: OnnxNode, x: Value) -> Value:
    axis = x.axis(node.attr("axis", -1))
    if node.attr("opset", 13) >= 13 or axis == x.rank - 1:
        return x.softmax(axis)
    return x.flatten(axis).softmax(-1).reshape(x.shape)


def _leaky_relu(node: OnnxNode, x: Value) -> Value:
    return (x >= 0.0).select(x, x * node.attr("alpha", 0.01))


def _mean(node: OnnxNode, x: Value) -> Value:
    axes = node.attr("axes") or list(range(x.rank))
    return x.mean(axes, keepdims=bool(node.attr("keepdims", 1)))


def _global_average_pool(node: OnnxNode, x: Value) -> Value:
    last = bool(node.attr("channels_last", 0))
    return x.mean(range(1, x.rank - 1) if last else range(2, x.rank), keepdims=True)


def _average_pool(node: OnnxNode, x: Value) -> Value:
    if not node.attr("channels_last", 0):
        return averaged(node, x)
    first = x.permute(0, x.rank - 1, *range(1, x.rank - 1))
    return averaged(node, first).permute(0, *range(2, x.rank), 1)


_pointwise("QLinearSigmoid", lambda _, x: x.sigmoid())
_pointwise("QLinearLeakyRelu", _leaky_relu)
_pointwise("QLinearSoftmax", _softmax)
_pointwise("QLinearReduceMean", _mean)
_pointwise("QLinearAveragePool", _average_pool)
_pointwise("QLinearGlobalAveragePool", _global_average_pool)


@onnx_op("QLinearAdd", since=1, domain=DOMAIN)
def qlinear_add(node: OnnxNode) -> Value:
    return _quantized(node, real(node, 0) + real(node, 3), 6, node.input(0))


@onnx_op("QLinearMul", since=1, domain=DOMAIN)
def qlinear_mul(node: OnnxNode) -> Value:
    return _quantized(node, real(node, 0) * real(node, 3), 6, node.input(0))


@onnx_op("QLinearWhere", since=1, domain=DOMAIN)
def qlinear_where(node: OnnxNode) -> Value:
    return _quantized(node, node.input(0).select(real(node, 1), real(node, 4)), 7, node.input(1))


@onnx_op("QLinearConcat", since=1, domain=DOMAIN)
def qlinear_concat(node: OnnxNode) -> Value:
    """(scale and zero point of the result, then operands)."""
    joined = [real(node, index) for index in range(2, len(node.operands), 3)]
    whole = node.graph.apply("concat", *joined, axis=joined[0].axis(node.attr("axis")))
    return _quantized(node, whole, 0, node.input(2))


@onnx_op("QGemm", since=1, domain=DOMAIN)
def qgemm(node: OnnxNode) -> Value:
    """(a, b, bias in int32?, scale and zero of the result?), scales and zeros of b one, or one a column."""
    a, b, bias = node.input(0), node.input(3), node.optional(6)
    left, right = centred_operand(a, node.input(2), rows=False), b.cast(types.INT32)
    if node.attr("transA", 0):
        left = left.transpose()
    if node.attr("transB", 0):
        right = right.transpose()
    right = right - _number(node.input(5)).cast(types.INT32)
    total = left.matmul(right)
    if bias is not None:
        total = total + bias
    scale = _number(node.input(1)) * _number(node.input(4)) * node.attr("alpha", 1.0)
    result = total.cast(types.FLOAT32) * scale
    return result if node.optional(7) is None else _quantized(node, result, 7, a)


@onnx_op("MatMulIntegerToFloat", since=1, domain=DOMAIN)
def matmul_integer_to_float(node: OnnxNode) -> Value:
    """(a, b, scale of a, scale of b, zero of a?, zero of b?, bias?)."""
    scale = _number(node.input(2)) * _number(node.input(3))
    left = centred_operand(node.input(0), node.optional(4), rows=False)
    right = centred_operand(node.input(1), node.optional(5), rows=False)
    result = left.matmul(right).cast(scale.dtype) * scale
    bias = node.optional(6)
    return result if bias is None else result + bias


@onnx_op("DynamicQuantizeMatMul", since=1, domain=DOMAIN)
def dynamic_quantize_matmul(node: OnnxNode) -> Value:
    """(a in float, b, scale of b, zero of b?, bias?); a is quantized as a whole, to uint8."""
    whole, scale, zero = dynamic_quantize_linear(node)
    right = centred_operand(node.input(1), node.optional(3), rows=False)
    total = centred_operand(whole, zero, rows=False).matmul(right)
    result = total.cast(types.FLOAT32) * (scale * _number(node.input(2)))
    bias = node.optional(4)
    return result if bias is None else result + bias
