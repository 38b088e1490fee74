# ruff: noqa: D103
"""Activations, in their formulas. Narrow floats are computed in float32 and rounded once, as ATen does."""

from __future__ import annotations

import math
from collections.abc import Callable

from kernels_hub.compiler.importers.aten_ops.call import AtenCall, Handler, Scalar, aten
from kernels_hub.compiler.ir.graph import Value


def _wide(call: AtenCall, x: Value) -> Value:
    return x.cast(call.dtype.compute)


def _activation_handler(formula: Callable[[Value], Value]) -> Handler:
    def handler(call: AtenCall, x: Value) -> Value:
        return formula(_wide(call, x)).cast(call.dtype)

    return handler


def _softplus(x: Value) -> Value:
    """Its parts have corners at 0 that it has not: its derivative is stated."""
    found = x.binary("maximum", 0.0) + x.unary("abs").unary("neg").unary("exp").unary("log1p")
    return found.apply("with_derivative", found, x, x.unary("sigmoid"))


aten("silu.default")(_activation_handler(lambda x: x * x.unary("sigmoid")))
aten("mish.default")(_activation_handler(lambda x: x * _softplus(x).unary("tanh")))
aten("log_sigmoid.default")(_activation_handler(lambda x: _softplus(x.unary("neg")).unary("neg")))
aten("hardsigmoid.default")(_activation_handler(lambda x: _hard(x) / 6.0))
aten("hardswish.default")(_activation_handler(lambda x: x * _hard(x) / 6.0))
aten("selu.default")(_activation_handler(lambda x: _elu(x, 1.6732632423543772, 1.0507009873554805, 1.0)))


def _hard(x: Value) -> Value:
    return (x + 3.0).binary("maximum", 0.0).binary("minimum", 6.0)


def _elu(x: Value, alpha: float, scale: float, input_scale: float) -> Value:
    """Its derivative is stated, as that of the exponential is infinite where x is large."""
    negative = (x * input_scale).unary("expm1") * (alpha * scale)
    below = x.binary("le", 0.0)
    found = below.select(negative, x * scale)
    slope = (x.binary("minimum", 0.0) * input_scale).unary("exp") * (alpha * scale * input_scale)
    return found.apply(
        "with_derivative", found, x, below.select(slope, x.graph.full(x.shape, scale, x.dtype))
    )


@aten("relu.default")
def relu(_: AtenCall, x: Value) -> Value:
    return x.binary("maximum", 0)


@aten("relu6.default")
def relu6(_: AtenCall, x: Value) -> Value:
    return x.binary("maximum", 0).binary("minimum", 6)


@aten("gelu.default")
def gelu(call: AtenCall, x: Value, *, approximate: str) -> Value:
    """0.5 x (1 + erf(x / sqrt 2)), or with tanh. Source: arXiv 1606.08415."""
    wide = _wide(call, x)
    if approximate == "tanh":
        cube = wide * wide * wide
        inner = (wide + cube * 0.044715) * math.sqrt(2 / math.pi)
        gate = inner.unary("tanh")
    else:
        gate = (wide * math.sqrt(0.5)).unary("erf")
    return (wide * 0.5 * (gate + 1.0)).cast(call.dtype)


@aten("elu.default")
def elu(call: AtenCall, x: Value, alpha: Scalar, scale: Scalar, input_scale: Scalar) -> Value:
    return _elu(_wide(call, x), alpha, scale, input_scale).cast(call.dtype)


@aten("celu.default")
def celu(call: AtenCall, x: Value, alpha: Scalar) -> Value:
    return _elu(_wide(call, x), alpha, 1.0, 1 / alpha).cast(call.dtype)


@aten("leaky_relu.default")
def leaky_relu(call: AtenCall, x: Value, slope: Scalar) -> Value:
    wide = _wide(call, x)
    return (wide > 0.0).select(wide, wide * float(slope)).cast(call.dtype)


@aten("prelu.default", "_prelu_kernel.default")
def prelu(_: AtenCall, x: Value, weight: Value) -> Value:
    if weight.rank == 1 and x.rank > 1:
        weight = weight.reshape((weight.shape[0], *[1] * (x.rank - 2)))
    return (x > 0.0).select(x, x * weight)


@aten("hardtanh.default")
def hardtanh(_: AtenCall, x: Value, low: Scalar, high: Scalar) -> Value:
    return x.binary("maximum", low).binary("minimum", high)


@aten("softplus.default")
def softplus(call: AtenCall, x: Value, beta: Scalar, threshold: Scalar) -> Value:
    wide = _wide(call, x)
    scaled = wide * float(beta)
    return (scaled > float(threshold)).select(wide, _softplus(scaled) / float(beta)).cast(call.dtype)


@aten("glu.default")
def glu(call: AtenCall, x: Value, axis: int) -> Value:
    half = x.shape[x.axis(axis)] // 2
    a, b = x.split([half, half], axis)
    return (_wide(call, a) * _wide(call, b).unary("sigmoid")).cast(call.dtype)


@aten("_softmax.default")
def softmax_half(call: AtenCall, x: Value, axis: int, _: bool) -> Value:
    return _softmax_along(call, x, axis, "softmax")


@aten("_log_softmax.default")
def log_softmax_half(call: AtenCall, x: Value, axis: int, _: bool) -> Value:
    return _softmax_along(call, x, axis, "log_softmax")


@aten("softmax.int")
def softmax(call: AtenCall, x: Value, axis: int, _: object = None) -> Value:
    return _softmax_along(call, x, axis, "softmax")


@aten("log_softmax.int")
def log_softmax(call: AtenCall, x: Value, axis: int, _: object = None) -> Value:
    return _softmax_along(call, x, axis, "log_softmax")


@aten("_safe_softmax.default")
def safe_softmax(call: AtenCall, x: Value, axis: int, _: object = None) -> Value:
    """Softmax that is 0, not NaN, where everything is minus infinity."""
    nothing = x.max(axis, keepdims=True).binary("eq", -math.inf)
    soft = _softmax_along(call, x, axis, "softmax")
    return nothing.select(0.0, soft)


def _softmax_along(call: AtenCall, x: Value, axis: int, op: str) -> Value:
    wide = call.tensor(x)
    if not wide.rank:
        return wide.unsqueeze(0).along(op, 0).squeeze(0)
    return wide.along(op, axis)


@aten("dropout.default", "native_dropout.default")
def dropout(call: AtenCall, x: Value, p: float, train: bool | None) -> Value | tuple[Value, Value]:
    call.refuse_unless(not train or p == 0, "dropout in training mode: call module.eval() first")
    if call.name.startswith("native"):
        return x, call.graph.full(x.shape, True, "bool")
    return x
