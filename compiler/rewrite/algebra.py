"""Algebraic identities of pointwise ops.

An identity of real numbers is exact here only if it also keeps NaN, infinities and the sign of zero: x + 0.0 is not
x for x = -0.0, x * 0 is 0 of integers alone, and x - x is NaN for an infinite x.
"""

from __future__ import annotations

import math

from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.types import DType
from kernels_hub.compiler.rewrite.pattern import (
    Any,
    Op,
    Scalar,
    floats,
    integers,
    one_of,
    real,
    same_number,
)
from kernels_hub.compiler.rewrite.rule import Match, Rule

X, Y = Any("x"), Any("y")
_RIGHT_IDENTITY = ("add", "sub", "mul", "div", "pow", "maximum", "minimum", "bitand", "bitor", "bitxor")


def _to_x(match: Match) -> Value:
    return match["x"]


def _full(match: Match, number: float) -> Value:
    return match.graph.full(match.root.shape, number, match.root.dtype)


def _is_identity(match: Match) -> str | None:
    identity = match.root.op.identity
    assert identity is not None
    wanted, number = identity(match.root.dtype), match["c"].scalar
    if match["x"].dtype.is_float:
        wanted = float(wanted)
    if same_number(number, wanted):
        return None
    return f"{number!r} is not {wanted!r}, which {match.root.op.name} leaves every number with"


def _power_of_two(match: Match) -> str | None:
    number, row = match["c"].scalar, match.root.dtype
    if not math.isfinite(number) or abs(math.frexp(number)[0]) != 0.5:
        return f"{number!r} is no power of two"
    smallest = {types.FLOAT16: 2.0**-14, types.FLOAT64: 2.0**-1022}.get(row, 2.0**-126)
    if not smallest <= abs(1 / number) <= row.limits[1]:
        return f"1 / {number!r} is no normal number of {row}"
    return None


def _finite_reciprocal(match: Match) -> str | None:
    number = match["c"].scalar
    if number == 0 or not math.isfinite(number) or not 1e-30 < abs(number) < 1e30:
        return f"1 / {number!r} is 0, infinite or nearly so"
    if match.root.dtype not in {types.FLOAT32, types.FLOAT64, types.BFLOAT16}:
        return f"{match.root.dtype} loses too much of 1 / {number!r}"
    if (
        match.root.type.size == 1
    ):  # of scales, by which much else is rounded: DynamicQuantizeLinear's range / 255
        return "one number, whose division costs nothing"
    return None


def _times_reciprocal(match: Match) -> Value:
    reciprocal: float = 1 / match["c"].scalar
    return match["x"] * reciprocal


def _holds(a: DType, b: DType) -> bool:
    """Whether b holds every number of a."""
    if a is b or a is types.BOOL:
        return a is b or not b.is_complex
    if a.is_float and b.is_float:
        return b is types.FLOAT64 or (b is types.FLOAT32 and a is not types.FLOAT64)
    if a.is_integer and b.is_integer:
        return (a.kind == b.kind and b.bits >= a.bits) or (
            a.kind == "uint" and b.kind == "int" and b.bits > a.bits
        )
    return (
        a.is_integer and b in {types.FLOAT32, types.FLOAT64} and a.bits <= (16 if b is types.FLOAT32 else 32)
    )


def _double_cast(match: Match) -> str | None:
    first, middle, last = match["x"].dtype, match["middle"].dtype, match.root.dtype
    if not _holds(first, middle):
        return f"{middle} does not hold every {first}"
    if last.is_float and not first.is_float and middle.is_float:
        return f"{first} to {last} rounds otherwise than by way of {middle}"
    if first is types.BOOL and last is not types.BOOL and middle.kind != last.kind:
        return f"bool to {last} by way of {middle}"
    return None


def _cast_once(match: Match) -> Value:
    return match["x"].cast(match.root.dtype, saturate=match.root.attrs["saturate"])


def _same_dtype(match: Match) -> str | None:
    if match["x"].dtype is match.root.dtype:
        return None
    return f"{match['x'].dtype} is not {match.root.dtype}"


EXACT = (
    Rule("identity_operand", one_of(
        Op({"add", "mul", "maximum", "minimum", "bitand", "bitor", "bitxor"}, X.where(real), Scalar("c")),
        Op({"sub", "div", "pow"}, X.where(real), Scalar("c"))), _to_x, _is_identity,
        doc="x * 1, x / 1, x - 0.0, x + -0.0, max(x, -inf), x & -1 … -> x, as the op's row says"),
    Rule("multiply_by_zero", Op({"mul", "bitand"}, X.where(integers), Scalar("c", 0)),
         lambda match: _full(match, 0), doc="x * 0, x & 0 -> 0, of integers"),
    Rule("subtract_itself", Op({"sub", "bitxor"}, X.where(integers), X), lambda match: _full(match, 0),
         doc="x - x, x ^ x -> 0, of integers"),
    Rule("idempotent", Op({"maximum", "minimum", "bitand", "bitor"}, X, X), _to_x, doc="max(x, x) -> x"),
    Rule("inverse_twice", one_of(Op("neg", Op("neg", X)), Op("bitnot", Op("bitnot", X))), _to_x,
         doc="-(-x), not not x -> x"),
    Rule("rounded_twice", one_of(*(Op(name, Op(name, X, name="inner")) for name in
                                   ("abs", "floor", "ceil", "trunc", "round", "sign"))),
         lambda match: match["inner"], doc="floor(floor(x)) -> floor(x)"),
    Rule("abs_of_neg", Op("abs", Op("neg", X)), lambda match: abs(match["x"]), doc="|-x| -> |x|"),
    Rule("add_negated", Op("add", X.where(real), Op("neg", Y)), lambda match: match["x"] - match["y"],
         doc="x + -y -> x - y"),
    Rule("subtract_negated", Op("sub", X.where(real), Op("neg", Y)), lambda match: match["x"] + match["y"],
         doc="x - -y -> x + y"),
    Rule("multiply_by_minus_one", Op("mul", X.where(real), Scalar("c", -1.0)), lambda match: -match["x"],
         doc="x * -1 -> -x"),
    Rule("divide_by_power_of_two", Op("div", X.where(floats), Scalar("c")), _times_reciprocal,
         _power_of_two, doc="x / 8 -> x * 0.125"),
    Rule("power_zero", Op("pow", X.where(real), Scalar("c", 0)), lambda match: _full(match, 1),
         doc="x ** 0 -> 1, also for NaN"),
    Rule("integer_square", Op("pow", X.where(integers), Scalar("c", 2)), lambda match: match["x"] * match["x"],
         doc="x ** 2 -> x * x, of integers"),
    Rule("cast_to_itself", Op("cast", X), _to_x, _same_dtype, doc="cast to the dtype that it has"),
    Rule("cast_twice", Op("cast", Op("cast", X, name="middle")), _cast_once, _double_cast,
         doc="cast(cast(x)) -> cast(x), if the dtype between holds every x"),
    Rule("select_equal", Op("select", Any(), X, X), _to_x, doc="c ? x : x -> x"),
    Rule("select_true", Op("select", Scalar("c", 1), X, Any()), _to_x, doc="true ? x : y -> x"),
    Rule("select_false", Op("select", Scalar("c", 0), Any(), X), _to_x, doc="false ? y : x -> x"),
    Rule("select_not", Op("select", Op("bitnot", X), Y, Any("z")),
         lambda match: match["x"].select(match["z"], match["y"]), doc="!c ? a : b -> c ? b : a"),
    Rule("equal_itself", Op({"eq", "le"}, X.where(integers), X), lambda match: _full(match, True),
         doc="x == x, x <= x -> true, of integers"),
    Rule("less_itself", Op("lt", X, X), lambda match: _full(match, False), doc="x < x -> false, of NaN too"),
    Rule("differs_from_itself", Op("ne", X.where(floats), X), lambda match: match["x"].unary("isnan"),
         doc="x != x -> isnan(x)"),
    Rule("not_equal", Op("bitnot", Op("eq", X, Y)), lambda match: match["x"].ne(match["y"]),
         doc="!(a == b) -> a != b"),
    Rule("not_different", Op("bitnot", Op("ne", X, Y)), lambda match: match["x"].eq(match["y"]),
         doc="!(a != b) -> a == b"),
    Rule("not_less", Op("bitnot", Op("lt", X.where(integers), Y)), lambda match: match["y"] <= match["x"],
         doc="!(a < b) -> b <= a, of integers: neither holds of NaN"),
)  # fmt: skip

ROUNDING = (
    Rule("add_zero", Op("add", X.where(floats), Scalar("c", 0.0)), _to_x, exact=False,
         doc="x + 0.0 -> x, but for -0.0"),
    Rule("square", Op("pow", X.where(floats), Scalar("c", 2)), lambda match: match["x"] * match["x"],
         exact=False, doc="x ** 2 -> x * x"),
    Rule("cube", Op("pow", X.where(floats), Scalar("c", 3)),
         lambda match: match["x"] * match["x"] * match["x"], exact=False, doc="x ** 3 -> x * x * x"),
    Rule("reciprocal_square_root", Op("div", Scalar("c", 1), Op("sqrt", X.where(floats))),
         lambda match: match["x"].rsqrt(), exact=False, doc="1 / sqrt(x) -> rsqrt(x)"),
    Rule("divide_by_constant", Op("div", X.where(floats), Scalar("c")), _times_reciprocal, _finite_reciprocal,
         exact=False, doc="x / c -> x * (1 / c)"),
)  # fmt: skip

ALGEBRA = (*EXACT, *ROUNDING)
