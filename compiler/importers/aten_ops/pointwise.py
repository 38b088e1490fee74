# ruff: noqa: D103
"""Pointwise arithmetic, comparisons, logic, casts and choices of ATen that are not one op of the table each."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any

from kernels_hub.compiler.importers.aten_ops.call import AtenCall, Handler, Scalar, aten
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.graph import Value


@aten("log10.default")
def log10(call: AtenCall, x: Value) -> Value:
    wide = call.tensor(x, call.dtype.compute)
    return (wide.unary("log") * (1 / math.log(10))).cast(call.dtype)


@aten("erfc.default")
def erfc(call: AtenCall, x: Value) -> Value:
    wide = call.tensor(x, call.dtype.compute)
    return (1 - wide.unary("erf")).cast(call.dtype)


@aten("neg.default")
def neg(_: AtenCall, x: Value) -> Value:
    return x.unary("neg")


@aten("abs.default")
def absolute(_: AtenCall, x: Value) -> Value:
    return x.unary("abs")


@aten("sign.default", "sgn.default")
def sign(_: AtenCall, x: Value) -> Value:
    # ATen's sign of a NaN is 0 in C++, where the comparisons say so; the IR's is NaN.
    if x.dtype is types.BOOL:
        return x
    result = x.unary("sign")
    return x.unary("isnan").select(0, result) if x.dtype.is_float else result


@aten("round.decimals")
def round_decimals(_: AtenCall, x: Value, *, decimals: int) -> Value:
    if not x.dtype.is_float:
        return x
    scale = 10.0 ** abs(decimals)
    return (x * scale).unary("round") / scale if decimals >= 0 else (x / scale).unary("round") * scale


@aten("reciprocal.default")
def reciprocal(call: AtenCall, x: Value) -> Value:
    return 1 / call.tensor(x)


@aten("square.default")
def square(_: AtenCall, x: Value) -> Value:
    return x * x


@aten("bitwise_not.default")
def bitwise_not(_: AtenCall, x: Value) -> Value:
    return x.unary("bitnot")


@aten("logical_not.default")
def logical_not(_: AtenCall, x: Value) -> Value:
    return x.cast("bool").unary("bitnot")


@aten("isnan.default")
def isnan(call: AtenCall, x: Value) -> Value:
    return x.unary("isnan") if x.dtype.is_float else call.graph.full(x.shape, False, "bool")


@aten("isinf.default")
def isinf(call: AtenCall, x: Value) -> Value:
    return x.unary("isinf") if x.dtype.is_float else call.graph.full(x.shape, False, "bool")


@aten("isfinite.default")
def isfinite(call: AtenCall, x: Value) -> Value:
    if not x.dtype.is_float:
        return call.graph.full(x.shape, True, "bool")
    return x.unary("abs").binary("lt", math.inf)


def _sum(call: AtenCall, a: Value | Scalar, b: Value | Scalar, alpha: Scalar, op: str) -> Value:
    """alpha is rounded to the dtype of the result, its product is not."""
    left, right = call.tensor(a), call.tensor(b)
    if call.dtype is types.BOOL:
        return left | (right if alpha == 1 else right * call.tensor(alpha))
    if alpha == 1:
        return left.binary(op, right)
    wide = call.dtype.compute
    scaled = right.cast(wide) * call.tensor(alpha).cast(wide)
    return left.cast(wide).binary(op, scaled).cast(call.dtype)


@aten("add.Tensor", "add.Scalar")
def add(call: AtenCall, a: Value, b: Value | Scalar, alpha: Scalar = 1) -> Value:
    return _sum(call, a, b, alpha, "add")


@aten("sub.Tensor", "sub.Scalar")
def sub(call: AtenCall, a: Value, b: Value | Scalar, alpha: Scalar = 1) -> Value:
    return _sum(call, a, b, alpha, "sub")


@aten("rsub.Tensor", "rsub.Scalar")
def rsub(call: AtenCall, a: Value, b: Value | Scalar, alpha: Scalar = 1) -> Value:
    return _sum(call, b, a, alpha, "sub")


@aten("mul.Tensor", "mul.Scalar")
def mul(call: AtenCall, a: Value, b: Value | Scalar) -> Value:
    if call.dtype is types.BOOL:
        return call.tensor(a) & call.tensor(b)
    return call.rounded_once(operator.mul, a, b)


@aten("div.Tensor", "div.Scalar", "true_divide.Tensor")
def div(call: AtenCall, a: Value, b: Value | Scalar) -> Value:
    return call.rounded_once(operator.truediv, a, b)


@aten("div.Tensor_mode", "div.Scalar_mode")
def div_mode(call: AtenCall, a: Value, b: Value | Scalar, *, rounding_mode: str | None) -> Value:
    if rounding_mode == "floor":
        return call.rounded_once(operator.floordiv, a, b)
    if rounding_mode == "trunc" and call.dtype.is_float:
        return call.rounded_once(lambda left, right: (left / right).unary("trunc"), a, b)
    return call.rounded_once(operator.truediv, a, b)


@aten("floor_divide.default")
def floor_divide(call: AtenCall, a: Value, b: Value | Scalar) -> Value:
    return call.rounded_once(operator.floordiv, a, b)


@aten("remainder.Tensor", "remainder.Scalar")
def remainder(call: AtenCall, a: Value, b: Value | Scalar) -> Value:
    return call.tensor(a) % call.tensor(b)


@aten("fmod.Tensor", "fmod.Scalar")
def fmod(call: AtenCall, a: Value, b: Value | Scalar) -> Value:
    return call.tensor(a).binary("fmod", call.tensor(b))


@aten("pow.Tensor_Tensor", "pow.Tensor_Scalar", "pow.Scalar")
def power(call: AtenCall, a: Value | Scalar, b: Value | Scalar) -> Value:
    if isinstance(a, Value) and isinstance(b, (int, float)) and call.dtype.kind == "float":
        x = call.tensor(a)
        if b == 2:
            return x * x
        if b == 0.5:
            return x.unary("sqrt")
        if b == 1:
            return x
    return call.tensor(a) ** call.tensor(b)


@aten("maximum.default", "max.other")
def maximum(call: AtenCall, a: Value, b: Value) -> Value:
    return _extremum(call, a, b, "maximum", "bitor")


@aten("minimum.default", "min.other")
def minimum(call: AtenCall, a: Value, b: Value) -> Value:
    return _extremum(call, a, b, "minimum", "bitand")


def _extremum(call: AtenCall, a: Value, b: Value, op: str, of_bool: str) -> Value:
    """Of tensors that are equal, each gets half of the gradient, also where one is full of one number."""
    left, right = call.tensor(a), call.tensor(b)
    if call.dtype is types.BOOL:
        return left.binary(of_bool, right)
    if call.dtype.is_float:
        left, right = (one if one.scalar is None else one.unary("stop_gradient") for one in (left, right))
    return left.binary(op, right)


@aten("clamp.default", "clamp.Tensor")
def clamp(call: AtenCall, x: Value, low: Value | Scalar | None, high: Value | Scalar | None) -> Value:
    """max, then min: where the bounds cross, the upper one holds."""
    x = call.tensor(x)
    bounds = [None if one is None else call.tensor(one) for one in (low, high)]
    result = x
    for bound, op in zip(bounds, ("maximum", "minimum"), strict=True):
        if bound is not None:
            result = result.binary(op, bound)
    return _followed(x, bounds, result) if call.dtype.is_float else result


def _followed(x: Value, bounds: Sequence[Value | None], result: Value) -> Value:
    """The result of a clamp with the gradient that this release of PyTorch gives where x is at a bound."""
    given = [None if bound is None else bound.broadcast_to(result.shape) for bound in bounds]
    low, high = given
    wide = x.broadcast_to(result.shape)
    inside = low.binary("le", wide) if low is not None else None
    if high is not None:
        below = wide.binary("le", high)
        inside = below if inside is None else inside & below
    if inside is None:
        return result
    if not bounds_get_gradients():
        if all(bound is None or bound.scalar is not None for bound in bounds):
            return result.apply("with_derivative", result, wide, inside.cast(result.dtype))
        crossed = None if low is None or high is None else low.binary("lt", high)
        at_low = None if low is None else wide.binary("lt", low)
        if at_low is not None and crossed is not None:
            at_low = at_low & crossed
        at_high = None if high is None else high.binary("lt", wide)
        if at_high is not None and low is not None and high is not None:
            at_high = at_high | high.binary("lt", low)
        found = result.unary("stop_gradient")
        for condition, bound in ((at_high, high), (at_low, low), (inside, wide)):
            if condition is not None and bound is not None:
                found = condition.select(bound, found)
        return result.apply(
            "with_derivative", result, found, result.graph.full(result.shape, 1, result.dtype)
        )
    if low is None or high is None or low.scalar is not None or high.scalar is not None:
        return result
    return (low.eq(wide) & wide.eq(high)).select(wide, result)


@functools.cache
def bounds_get_gradients() -> bool:
    """Whether a bound of clamp shares the gradient where x is at it (torch 2.15 does; before, it was all x's).

    Asks the node of the backward itself: autograd's engine does not run in a process that was forked after its threads
    had started, and layers are compiled in such processes.
    """
    import torch

    with torch.inference_mode(False), torch.enable_grad():
        x = torch.zeros((), requires_grad=True)
        node: Any = x.clamp(min=0.0).grad_fn
        found = node(torch.ones(()))
    return not (found if isinstance(found, torch.Tensor) else found[0])


@aten("sinc.default")
def sinc(call: AtenCall, x: Value) -> Value:
    """sin(pi x) / (pi x), and 1 at 0, where the derivative is 0."""
    wide = call.tensor(x).cast(call.dtype.compute)
    angle = wide * math.pi
    origin = angle.eq(0)
    value = origin.select(1.0, angle.unary("sin") / angle)
    slope = origin.select(0.0, (angle.unary("cos") - value) / wide)
    return value.apply("with_derivative", value, wide, slope).cast(call.dtype)


@aten("clamp_min.default", "clamp_min.Tensor")
def clamp_min(call: AtenCall, x: Value, low: Value | Scalar) -> Value:
    return clamp(call, x, low, None)


@aten("clamp_max.default", "clamp_max.Tensor")
def clamp_max(call: AtenCall, x: Value, high: Value | Scalar) -> Value:
    return clamp(call, x, None, high)


def _comparison(op: str, *, swapped: bool = False) -> Handler:
    def handler(call: AtenCall, a: Value, b: Value | Scalar) -> Value:
        left, right = call.pair(a, b)
        return left.binary(op, right, reverse=swapped)

    return handler


for _name, _op, _swapped in (
    ("eq", "eq", False),
    ("ne", "ne", False),
    ("lt", "lt", False),
    ("le", "le", False),
    ("gt", "lt", True),
    ("ge", "le", True),
):
    aten(f"{_name}.Tensor", f"{_name}.Scalar")(_comparison(_op, swapped=_swapped))


def _bits(op: str, *, logical: bool = False) -> Handler:
    def handler(call: AtenCall, a: Value, b: Value | Scalar) -> Value:
        row = types.BOOL if logical else call.dtype
        return call.tensor(a, row).binary(op, call.tensor(b, row))

    return handler


for _name, _op in (("and", "bitand"), ("or", "bitor"), ("xor", "bitxor")):
    aten(f"bitwise_{_name}.Tensor", f"bitwise_{_name}.Scalar", f"__{_name}__.Tensor", f"__{_name}__.Scalar")(
        _bits(_op)
    )
    aten(f"logical_{_name}.default")(_bits(_op, logical=True))
aten(
    "bitwise_left_shift.Tensor", "bitwise_left_shift.Tensor_Scalar", "__lshift__.Scalar", "__lshift__.Tensor"
)(_bits("shl"))
aten(
    "bitwise_right_shift.Tensor",
    "bitwise_right_shift.Tensor_Scalar",
    "__rshift__.Scalar",
    "__rshift__.Tensor",
)(_bits("shr"))


@aten("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def where(call: AtenCall, condition: Value, a: Value | Scalar, b: Value | Scalar) -> Value:
    return condition.cast("bool").select(call.tensor(a), call.tensor(b))


@aten("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(call: AtenCall, x: Value, mask: Value, number: Value | Scalar) -> Value:
    return mask.select(call.tensor(number), x)


@aten("_to_copy.default")
def to_copy(call: AtenCall, x: Value, **_: object) -> Value:
    return x.cast(call.dtype)


@aten("to.dtype", "to.dtype_layout", "to.device", "type_as.default", "prims.convert_element_type.default")
def to_dtype(call: AtenCall, x: Value, *_: object, **__: object) -> Value:
    return x.cast(call.dtype)


@aten("addcmul.default")
def addcmul(call: AtenCall, x: Value, a: Value, b: Value, *, value: Scalar) -> Value:
    wide = call.dtype.compute
    first, left, right = (call.tensor(one).cast(wide) for one in (x, a, b))
    return (first + call.tensor(value, wide) * left * right).cast(call.dtype)


@aten("addcdiv.default")
def addcdiv(call: AtenCall, x: Value, a: Value, b: Value, *, value: Scalar) -> Value:
    wide = call.dtype.compute
    first, left, right = (call.tensor(one).cast(wide) for one in (x, a, b))
    return (first + call.tensor(value, wide) * left / right).cast(call.dtype)


@aten("lerp.Tensor", "lerp.Scalar")
def lerp(call: AtenCall, a: Value, b: Value, weight: Value | Scalar) -> Value:
    wide = call.dtype.compute
    start, end = (call.tensor(one).cast(wide) for one in (a, b))
    return (start + call.tensor(weight, wide) * (end - start)).cast(call.dtype)
