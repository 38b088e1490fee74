# ruff: noqa: D103 (what an importer does is what ONNX says of its op)
"""Ops of one element of each operand that are not one op of the table each: activations, casts, comparisons swapped.

The others are named by their rows of the op table (`Op.onnx`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce

import numpy as np

from kernels_hub.compiler.importers.onnx_node import OnnxNode, both_operands, onnx_op
from kernels_hub.compiler.importers.onnx_types import dtype_of
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.types import promote


@onnx_op("Greater", since=1)
def greater(node: OnnxNode) -> Value:
    a, b = both_operands(node)
    return b.binary("lt", a)


@onnx_op("GreaterOrEqual", since=1)
def greater_or_equal(node: OnnxNode) -> Value:
    a, b = both_operands(node)
    return b.binary("le", a)


def _all_of(op: str) -> Callable[[OnnxNode], Value]:
    return lambda node: reduce(lambda a, b: a.binary(op, b), node.all_inputs())


for _name, _op in {"Max": "maximum", "Min": "minimum", "Sum": "add"}.items():
    onnx_op(_name, since=1)(_all_of(_op))


@onnx_op("Mean", since=1)
def mean(node: OnnxNode) -> Value:
    return _all_of("add")(node) / float(len(node.operands))


@onnx_op("Mod", since=10)
def mod(node: OnnxNode) -> Value:
    return node.input(0).binary("fmod" if node.attr("fmod", 0) else "mod", node.input(1))


@onnx_op("Pow", since=1)
def power(node: OnnxNode) -> Value:
    a, b = both_operands(node)
    if a.dtype is b.dtype:
        return a**b
    wide = promote(a.dtype, b.dtype)
    return (a.cast(wide) ** b.cast(wide)).cast(a.dtype)


@onnx_op("BitShift", since=11)
def bit_shift(node: OnnxNode) -> Value:
    a, b = node.input(0), node.input(1)
    return a << b if node.attr("direction") == "LEFT" else a >> b


@onnx_op("Reciprocal", since=1)
def reciprocal(node: OnnxNode) -> Value:
    return 1.0 / node.input(0)


@onnx_op("IsInf", since=10)
def is_inf(node: OnnxNode) -> Value:
    x = node.input(0)
    inf, negative, positive = (
        x.unary("isinf"),
        node.attr("detect_negative", 1),
        node.attr("detect_positive", 1),
    )
    if negative and positive:
        return inf
    if not negative and not positive:
        return x.binary("ne", x) & x.eq(x)
    return inf & (x > 0.0 if positive else x < 0.0)


# -- casts


@onnx_op("Cast", since=1)
def cast(node: OnnxNode) -> Value:
    to = node.attr("to")
    row = dtype_of(to) if isinstance(to, int) else types.dtype(str(to).lower().replace("float", "float32", 1))
    return _cast(node, node.input(0), row)


@onnx_op("CastLike", since=15)
def cast_like(node: OnnxNode) -> Value:
    return _cast(node, node.input(0), node.input(1).dtype)


def _cast(node: OnnxNode, x: Value, row: types.DType) -> Value:
    if row is types.FLOAT8_E8M0FNU and x.dtype is not row:
        return _to_power_of_two(x, node.attr("round_mode", "up"), saturate=bool(node.attr("saturate", 1)))
    narrow = row.is_float and row.bits == 8
    return x.cast(row, saturate=bool(narrow and node.attr("saturate", 1)) or (row.bits == 4 and row.is_float))


def _to_power_of_two(x: Value, rounding: str, *, saturate: bool) -> Value:
    """float8_e8m0fnu is the exponent of float32 alone: 2**(e - 127), 255 is NaN."""
    bits = x.cast(types.FLOAT32).unary("abs").bitcast(types.UINT32)
    exponent, mantissa = bits >> 23, bits & 0x7FFFFF
    if rounding == "up":
        more = mantissa.ne(0)
    elif rounding == "nearest":
        more = mantissa >= 0x400000
    else:
        more = mantissa.ne(mantissa)
    raised = exponent + more.cast(types.UINT32)
    top = 254 if saturate else 255
    raised = raised.minimum(top)
    special = exponent.eq(255)
    nan = special & mantissa.ne(0)
    result = special.select(raised.like(top), raised)
    return nan.select(raised.like(255), result).cast(types.UINT8).bitcast(types.FLOAT8_E8M0FNU)


@onnx_op("BitCast", since=26)
def bit_cast(node: OnnxNode) -> Value:
    x, row = node.input(0), dtype_of(node.attr("to"))
    if types.BOOL in {x.dtype, row} and x.dtype is not row:
        return x.cast(types.UINT8).bitcast(row) if x.dtype is types.BOOL else x.bitcast(types.UINT8).cast(row)
    return x.bitcast(row)


@onnx_op("Where", since=9)
def where(node: OnnxNode) -> Value:
    return node.input(0).select(node.input(1), node.input(2))


# -- activations


@onnx_op("Clip", since=1)
def clip_attributes(node: OnnxNode) -> Value:
    x = node.input(0)
    low, high = node.attr("min"), node.attr("max")
    return x.clamp(low, high)


@onnx_op("Clip", since=11)
def clip(node: OnnxNode) -> Value:
    return node.input(0).clamp(node.optional(1), node.optional(2))


@onnx_op("Relu", since=1)
def relu(node: OnnxNode) -> Value:
    return node.input(0).relu()


@onnx_op("LeakyRelu", since=1)
def leaky_relu(node: OnnxNode) -> Value:
    x = node.input(0)
    return (x < 0.0).select(x * _f32(node.attr("alpha", 0.01)), x)


@onnx_op("PRelu", since=1)
def prelu(node: OnnxNode) -> Value:
    x, slope = node.input(0), node.input(1)
    if node.opset < 7 and slope.rank == 1 and x.rank > 2 and slope.shape[0] != 1:
        slope = slope.reshape((slope.shape[0], *[1] * (x.rank - 2)))
    return (x < 0).select(x * slope, x)


@onnx_op("Elu", since=1)
def elu(node: OnnxNode) -> Value:
    x = node.input(0)
    return (x < 0.0).select((x.exp() - 1.0) * _f32(node.attr("alpha", 1.0)), x)


@onnx_op("Selu", since=1)
def selu(node: OnnxNode) -> Value:
    x = node.input(0)
    alpha = _f32(node.attr("alpha", 1.67326319217681884765625))
    gamma = _f32(node.attr("gamma", 1.05070102214813232421875))
    return (x <= 0.0).select(x.exp() * alpha - alpha, x) * gamma


@onnx_op("Celu", since=12)
def celu(node: OnnxNode) -> Value:
    x, alpha = node.input(0), _f32(node.attr("alpha", 1.0))
    return x.maximum(0.0) + (((x / alpha).exp() - 1.0) * alpha).minimum(0.0)


@onnx_op("HardSigmoid", since=1)
def hard_sigmoid(node: OnnxNode) -> Value:
    return _hard_sigmoid(node.input(0), node.attr("alpha", 0.2), node.attr("beta", 0.5))


def _hard_sigmoid(x: Value, alpha: float, beta: float) -> Value:
    return (x * _f32(alpha) + _f32(beta)).clamp(0.0, 1.0)


@onnx_op("HardSwish", since=14)
def hard_swish(node: OnnxNode) -> Value:
    x = node.input(0)
    return x * _hard_sigmoid(x, 1 / 6, 0.5)


@onnx_op("Softplus", since=1)
def softplus(node: OnnxNode) -> Value:
    return softplus_of(node.input(0))


def softplus_of(x: Value) -> Value:
    return x.maximum(0.0) + (-x.unary("abs")).exp().unary("log1p")


@onnx_op("Softsign", since=1)
def softsign(node: OnnxNode) -> Value:
    x = node.input(0)
    return x / (x.unary("abs") + 1.0)


@onnx_op("Mish", since=18)
def mish(node: OnnxNode) -> Value:
    x = node.input(0)
    return x * softplus_of(x).tanh()


@onnx_op("Gelu", since=20)
def gelu(node: OnnxNode) -> Value:
    x = node.input(0)
    if node.attr("approximate", "none") == "tanh":
        inner = (x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)
        return x * 0.5 * (inner.tanh() + 1.0)
    return x * 0.5 * ((x * math.sqrt(0.5)).erf() + 1.0)


@onnx_op("Swish", since=24)
def swish(node: OnnxNode) -> Value:
    x, alpha = node.input(0), _f32(node.attr("alpha", 1.0))
    return x * (x if alpha == 1.0 else x * alpha).sigmoid()


@onnx_op("ThresholdedRelu", since=1)
def thresholded_relu(node: OnnxNode) -> Value:
    x = node.input(0)
    return (x > _f32(node.attr("alpha", 1.0))).select(x, 0.0)


@onnx_op("Shrink", since=9)
def shrink(node: OnnxNode) -> Value:
    x, bias, lambd = node.input(0), _f32(node.attr("bias", 0.0)), _f32(node.attr("lambd", 0.5))
    if not x.dtype.is_float:
        wide = x.cast(types.FLOAT32)
        return _shrunk(wide, bias, lambd).cast(x.dtype)
    return _shrunk(x, bias, lambd)


def _shrunk(x: Value, bias: float, lambd: float) -> Value:
    return (x < -lambd).select(x + bias, (x > lambd).select(x - bias, 0.0))


def _f32(number: float) -> float:
    """An attribute's number as ONNX stores it, in float32."""
    return float(np.float32(number))
