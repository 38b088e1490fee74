# ruff: noqa: D103
"""Pointwise functions that are rare in models, as compositions; special functions that are rows need none."""

from __future__ import annotations

from kernels_hub.compiler.importers.aten_ops.call import AtenCall, Handler, Scalar, aten
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.graph import Value


def _greater(op: str) -> Handler:
    """fmax, fmin: NaN is no number to compare with; of equals the first one is taken, and has the gradient."""

    def handler(call: AtenCall, a: Value, b: Value) -> Value:
        left, right = call.tensor(a), call.tensor(b)
        if call.dtype is types.BOOL:
            return left.binary("bitor" if op == "fmax" else "bitand", right)
        first = right.binary("le", left) if op == "fmax" else left.binary("le", right)
        if call.dtype.is_float:
            first = first | right.unary("isnan")
        return first.select(left, right)

    return handler


for _name in ("fmax", "fmin"):
    aten(f"{_name}.default")(_greater(_name))


def _of_two(op: str) -> Handler:
    def handler(call: AtenCall, a: Value, b: Value | Scalar) -> Value:
        return call.tensor(a).binary(op, call.tensor(b))

    return handler


aten("copysign.Scalar")(_of_two("copysign"))


@aten("signbit.default")
def signbit(call: AtenCall, x: Value) -> Value:
    if x.dtype is types.BOOL:
        return call.graph.full(x.shape, False, types.BOOL)
    return (x.like(1).binary("copysign", x) if x.dtype.is_float else x) < 0


@aten("ldexp.Tensor")
def ldexp(call: AtenCall, x: Value, exponent: Value) -> Value:
    return call.tensor(x) * call.graph.constant(2.0, call.dtype) ** call.tensor(exponent)


@aten("prims.fma.default")
def fma(call: AtenCall, a: Value, b: Value, c: Value) -> Value:
    wide = types.FLOAT64 if call.dtype is types.FLOAT32 else call.dtype.compute
    return (a.cast(wide) * b.cast(wide) + c.cast(wide)).cast(call.dtype)


@aten("rrelu_with_noise_functional.default")
def rrelu(
    call: AtenCall, x: Value, noise: Value, low: Scalar, high: Scalar, training: bool, *_: object
) -> tuple[Value, Value]:
    call.refuse_unless(not training, "random slopes")
    return (x <= 0).select(x * ((float(low) + float(high)) / 2), x), noise


@aten("fake_quantize_per_tensor_affine_cachemask.default")
def fake_quantize(
    call: AtenCall, x: Value, scale: float, zero: int, least: int, greatest: int
) -> tuple[Value, Value]:
    """What a quantized x would be, in floats; its gradient is that of x where it is in range."""
    wide = x.cast(x.dtype.compute)
    places = (wide * call.graph.constant(1.0, wide.dtype).binary("div", scale) + float(zero)).unary("round")
    inside = (places >= float(least)) & (places <= float(greatest))
    found = (places.clamp(float(least), float(greatest)) - float(zero)) * scale
    result = found.cast(call.dtype)
    return result.apply("with_derivative", result, x, inside.cast(call.dtype)), inside
