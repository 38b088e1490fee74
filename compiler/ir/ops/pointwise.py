"""Pointwise ops: element i of the result is a function of element i of each operand.

Operands have one shape and one dtype (but for `select`): broadcasts and casts are ops of their own.
The reference computes floats narrower than float32 in float32 and rounds once. Integers wrap around;
integer division by zero gives 0. `maximum` and `minimum` hand NaN on.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from kernels_hub.compiler.errors import TypeRuleError
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.flops import moves_only
from kernels_hub.compiler.ir.op import (
    STR,
    Attr,
    Attrs,
    Formulas,
    Op,
    Operands,
    ReferenceCall,
    Spelling,
    Trait,
    formulas,
    gives,
    same,
    same_shape,
    spelled,
)  # fmt: skip
from kernels_hub.compiler.ir.ops.conversion import of_parts, widened
from kernels_hub.compiler.ir.types import INTEGERS, NUMBERS, REALS, Array, DType


def pointwise(
    name: str, doc: str, function: Callable[..., Any], kinds: tuple[str, ...], *, arity: int = 1,
    to: DType | None = None, traits: Trait = Trait.NONE, identity: Callable[[DType], Any] | None = None,
    spellings: Mapping[str, Spelling] | None = None, cost: int = 1, derivative: Formulas | None = None,
    inverse: Callable[[float], float] | None = None, torch: tuple[str, ...] = (), onnx: tuple[str, ...] = (),
    source: str = "",
) -> Op:  # fmt: skip
    """A row for a pointwise op on operands of one dtype; `to` is the result's dtype where it is another.

    function: from NumPy arrays (in the dtype that is computed in) to an array. The others: see `Op`.
    """

    def reference(step: ReferenceCall) -> Array:
        return np.asarray(function(*map(widened, step.operands))).astype(step.dtype, copy=False)

    return Op(
        name, doc, arity, reference, gives(to, *kinds) if to else same(*kinds), same_shape,
        traits=Trait.POINTWISE | traits, identity=identity, spellings=spellings or {}, cost=cost,
        derivative=derivative, inverse=inverse, torch=torch, onnx=onnx, source=source,
    )  # fmt: skip


def elementwise(function: Callable[[float], float]) -> Callable[[Array], Array]:
    """A function of one Python float as one of arrays: slow, and good to float64."""
    ufunc = np.frompyfunc(function, 1, 1)
    return lambda x: np.asarray(ufunc(x.astype(np.float64))).astype(np.float64)


_ERF_STEPS, _ERF_END = 1024, 6
"""Points a unit at which the error function is known, and where it is 1 in float64."""


@functools.cache
def _erf_table() -> tuple[Array, ...]:
    """Its Taylor coefficients at each point, by its derivatives f' = 2/sqrt(pi) exp(-x*x), f'' = -2 x f', and so on."""
    x = np.arange(_ERF_STEPS * _ERF_END + 1) / _ERF_STEPS
    first = 2 / math.sqrt(math.pi) * np.exp(-x * x)
    return (
        np.array([math.erf(one) for one in x]), first, -x * first, (2 * x**2 - 1) / 3 * first,
        (3 - 2 * x**2) * x / 6 * first, (4 * x**4 - 12 * x**2 + 3) / 30 * first,
    )  # fmt: skip


def _erf(x: Array) -> Array:
    """To 5e-16 of its value: the sixth term at half a step is below 2e-21."""
    size = np.fmin(np.abs(x.astype(np.float64)), _ERF_END)
    places = np.rint(size * _ERF_STEPS).astype(np.intp)
    away = size - places / _ERF_STEPS
    coefficients = [one[places] for one in _erf_table()]
    total = coefficients.pop()
    while coefficients:
        total = total * away + coefficients.pop()
    return np.asarray(np.where(np.isnan(x), np.nan, np.copysign(total, x)))


def _sigmoid(x: Array) -> Any:
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, small) / (1 + small)


def _divide(a: Array, b: Array) -> Any:
    return np.floor_divide(a - np.fmod(a, b), b) if a.dtype.kind in "iu" else np.true_divide(a, b)


def _power(a: Array, b: Array) -> Any:
    if a.dtype.kind != "i":
        return np.power(a, b)
    fraction = np.where(a == 1, 1, np.where(a == -1, np.where(b % 2 == 0, 1, -1), 0))
    return np.where(b < 0, fraction, np.power(a, np.maximum(b, 0)))


def _shift(function: Callable[..., Any]) -> Callable[[Array, Array], Any]:
    """Shifts by the width or more, or by less than 0, give 0 (-1 for negative numbers to the right)."""

    def shift(a: Array, b: Array) -> Any:
        width = a.dtype.itemsize * 8
        if function is np.right_shift:
            return (
                function(a, np.minimum(b, width - 1))
                if a.dtype.kind == "i"
                else np.where(b < width, function(a, b), 0)
            )
        return np.where(b < width, function(a, b), 0)

    return shift


def _function(
    name: str, doc: str, function: Callable[..., Any], *, derivative: Formulas | None = None, onnx: str = "",
    inverse: Callable[[float], float] | None = None, spellings: Mapping[str, Spelling] | None = None, cost: int = 1,
    kinds: tuple[str, ...] = ("float", "complex"), traits: Trait = Trait.NONE,
) -> Op:  # fmt: skip
    """A function of one float, spelled as in C's math library (libdevice has the same names) but for `spellings`.

    PyTorch calls it the same.
    """
    usual = spelled(triton=f"libdevice.{name}({{0}})", cpp=f"std::{name}({{0}})")
    return pointwise(
        name, doc, function, kinds, spellings={**usual, **(spellings or {})}, traits=traits, cost=cost,
        derivative=derivative, inverse=inverse, onnx=(onnx,) if onnx else (), torch=(f"{name}.default",),
        source=f"numpy.{getattr(function, '__name__', name)}",
    )  # fmt: skip


FUNCTIONS = (
    _function("exp", "e to the x", np.exp, cost=8, onnx="Exp", spellings=spelled(triton="tl.exp({0})"),
              derivative=formulas("g * y", lambda s: s.g * s.y), inverse=math.log),
    _function("exp2", "2 to the x", np.exp2, cost=8, spellings=spelled(triton="tl.exp2({0})"), kinds=("float",),
              derivative=formulas("g * y * log(2)", lambda s: s.g * (s.y * math.log(2))), inverse=math.log2),
    _function("expm1", "exp(x) - 1, precise near 0", np.expm1,
              cost=10, derivative=formulas("g * (y + 1)", lambda s: s.g * (s.y + 1)), inverse=math.log1p),
    _function("log", "natural logarithm", np.log, cost=10, onnx="Log", spellings=spelled(triton="tl.log({0})"),
              derivative=formulas("g / x", lambda s: s.g / s.a), inverse=math.exp),
    _function("log2", "logarithm to base 2", np.log2, cost=10, spellings=spelled(triton="tl.log2({0})"),
              kinds=("float",), derivative=formulas("g / (x * log(2))", lambda s: s.g / (s.a * math.log(2))),
              inverse=lambda y: 2.0**y),
    _function("log1p", "log(1 + x), precise near 0", np.log1p,
              cost=12, derivative=formulas("g / (1 + x)", lambda s: s.g / (s.a + 1)), inverse=math.expm1),
    _function("sqrt", "square root", np.sqrt, cost=4, onnx="Sqrt",
              derivative=formulas("g / (2 * y)", lambda s: s.g / (s.y * 2)), inverse=lambda y: y * y),
    _function("rsqrt", "1 / sqrt(x)", lambda x: 1 / np.sqrt(x),
              cost=6, spellings=spelled(triton="tl.rsqrt({0})", cpp="1 / std::sqrt({0})"),
              derivative=formulas("-g/2 * y**3", lambda s: s.g * (s.y * s.y * s.y * -0.5)),
              inverse=lambda y: 1 / (y * y)),
    _function("sin", "sine", np.sin, cost=16, onnx="Sin", spellings=spelled(triton="tl.sin({0})"),
              derivative=formulas("g * cos(x)", lambda s: s.g * s.a.unary("cos"))),
    _function("cos", "cosine", np.cos, cost=16, onnx="Cos", spellings=spelled(triton="tl.cos({0})"),
              derivative=formulas("-g * sin(x)", lambda s: -(s.g * s.a.unary("sin")))),
    _function("tan", "tangent", np.tan, cost=30, onnx="Tan",
              derivative=formulas("g * (1 + y**2)", lambda s: s.g * (s.y * s.y + 1))),
    _function("asin", "arcsine", np.arcsin, cost=30, onnx="Asin",
              derivative=formulas("g / sqrt(1 - x**2)", lambda s: s.g * (1 - s.a * s.a).rsqrt())),
    _function("acos", "arccosine", np.arccos, cost=30, onnx="Acos",
              derivative=formulas("-g / sqrt(1 - x**2)", lambda s: -(s.g * (1 - s.a * s.a).rsqrt()))),
    _function("atan", "arctangent", np.arctan, cost=30, onnx="Atan",
              derivative=formulas("g / (1 + x**2)", lambda s: s.g / (s.a * s.a + 1)), inverse=math.tan),
    _function("sinh", "hyperbolic sine", np.sinh, cost=30, onnx="Sinh",
              derivative=formulas("g * cosh(x)", lambda s: s.g * s.a.unary("cosh")), inverse=math.asinh),
    _function("cosh", "hyperbolic cosine", np.cosh, cost=30, onnx="Cosh",
              derivative=formulas("g * sinh(x)", lambda s: s.g * s.a.unary("sinh"))),
    _function("tanh", "hyperbolic tangent", np.tanh, cost=10, onnx="Tanh",
              derivative=formulas("g * (1 - y**2)", lambda s: s.g * (1 - s.y * s.y)), inverse=math.atanh),
    _function("asinh", "inverse of sinh", np.arcsinh, cost=40, onnx="Asinh",
              derivative=formulas("g / sqrt(x**2 + 1)", lambda s: s.g * (s.a * s.a + 1).rsqrt()),
              inverse=math.sinh),
    _function("acosh", "inverse of cosh", np.arccosh, cost=40, onnx="Acosh",
              derivative=formulas("g / sqrt(x**2 - 1)", lambda s: s.g * (s.a * s.a - 1).rsqrt())),
    _function("atanh", "inverse of tanh", np.arctanh, cost=40, onnx="Atanh",
              derivative=formulas("g / (1 - x**2)", lambda s: s.g / (1 - s.a * s.a))),
    _function("erf", "error function, 2/sqrt(pi) * integral of exp(-t*t) over 0..x", _erf, cost=12,
              onnx="Erf", spellings=spelled(triton="tl.erf({0})"), kinds=("float",),
              derivative=formulas("g * 2/sqrt(pi) * exp(-x**2)",
                                  lambda s: s.g * ((-(s.a * s.a)).exp() * (2 / math.sqrt(math.pi))))),
    _function("sigmoid", "1 / (1 + exp(-x))", _sigmoid, cost=10, onnx="Sigmoid", kinds=("float",),
              spellings=spelled(triton="tl.sigmoid({0})", cpp="1 / (1 + std::exp(-{0}))"),
              derivative=formulas("g * y * (1 - y)", lambda s: s.g * (s.y * (1 - s.y))),
              inverse=lambda y: math.log(y / (1 - y))),
    _function("floor", "down to a whole number", np.floor, onnx="Floor", spellings=spelled(triton="tl.floor({0})"),
              kinds=("float",), traits=Trait.STEP, inverse=float),
    _function("ceil", "up to a whole number", np.ceil, onnx="Ceil", spellings=spelled(triton="tl.ceil({0})"),
              kinds=("float",), traits=Trait.STEP, inverse=float),
    _function("trunc", "towards zero to a whole number", np.trunc, kinds=("float",), traits=Trait.STEP,
              inverse=float),
    _function("round", "to the nearest whole number, halves to even", np.rint, onnx="Round",
              spellings=spelled(triton="libdevice.rint({0})", cpp="std::nearbyint({0})"), kinds=("float",),
              traits=Trait.STEP, inverse=float),
)  # fmt: skip


ARITHMETIC = (
    pointwise("neg", "-x", np.negative, NUMBERS, spellings=spelled(triton="-{0}", cpp="-{0}"), onnx=("Neg",),
              derivative=formulas("-g", lambda s: -s.g), inverse=lambda y: -y, source="numpy.negative"),
    pointwise("abs", "|x|", np.abs, REALS, onnx=("Abs",),
              spellings=spelled(
                  triton="tl.abs({0})",
                  cpp={"float": "std::fabs({0})", "int": "({0} < 0 ? -{0} : {0})", "uint": "{0}"},
              ),
              derivative=formulas("g * sign(x)", lambda s: s.g * s.a.unary("sign")), source="numpy.absolute"),
    pointwise("sign", "-1, 0 or 1; NaN of NaN", np.sign, REALS, traits=Trait.STEP, onnx=("Sign",),
              spellings=spelled(
                  triton="tl.where({0} == {0}, ({0} > 0).to({dtype}) - ({0} < 0).to({dtype}), {0})",
                  cpp="({0} == {0} ? static_cast<{dtype}>(({0} > 0) - ({0} < 0)) : {0})",
              ),
              source="numpy.sign"),
    pointwise("add", "a + b", np.add, NUMBERS, arity=2, traits=Trait.COMMUTATIVE | Trait.ASSOCIATIVE,
              identity=lambda row: -0.0 if row.is_float else 0, onnx=("Add",),
              spellings=spelled(triton="{0} + {1}", cpp="{0} + {1}"), source="numpy.add"),
    pointwise("sub", "a - b", np.subtract, NUMBERS, arity=2, identity=lambda _: 0, onnx=("Sub",),
              spellings=spelled(triton="{0} - {1}", cpp="{0} - {1}"), source="numpy.subtract"),
    pointwise("mul", "a * b", np.multiply, NUMBERS, arity=2, traits=Trait.COMMUTATIVE | Trait.ASSOCIATIVE,
              identity=lambda _: 1, onnx=("Mul",), spellings=spelled(triton="{0} * {1}", cpp="{0} * {1}"),
              derivative=formulas("g * b; g * a", lambda s: s.g * s.b, lambda s: s.g * s.a), source="numpy.multiply"),
    pointwise("div", "a / b; integers towards zero", _divide, NUMBERS, arity=2, cost=4, identity=lambda _: 1,
              onnx=("Div",), spellings=spelled(
                  triton={"float": "{0} / {1}", "int": "{0} // {1}", "uint": "{0} // {1}"}, cpp="{0} / {1}"
              ),
              derivative=formulas("g / b; -g * y / b", lambda s: s.g / s.b, lambda s: -(s.g * s.y / s.b)),
              source="ONNX Div; C"),
    pointwise("floordiv", "a / b, rounded down", np.floor_divide, REALS, arity=2, cost=8, traits=Trait.STEP,
              spellings=spelled(
                  triton={"float": "tl.floor({0} / {1})", "uint": "{0} // {1}",
                          "int": "({0} // {1}) - ((({0} % {1}) != 0) & (({0} < 0) != ({1} < 0))).to({dtype})"},
                  cpp={"float": "std::floor({0} / {1})", "uint": "{0} / {1}",
                       "int": "({0} / {1} - (({0} % {1} != 0) && (({0} < 0) != ({1} < 0))))"},
              ),
              source="numpy.floor_divide; torch.floor_divide"),
    pointwise("mod", "a - floor(a / b) * b, of the sign of b", np.remainder, REALS, arity=2, cost=8,
              spellings=spelled(
                  triton={"float": "{0} - tl.floor({0} / {1}) * {1}", "uint": "{0} % {1}",
                          "int": "{0} % {1} + tl.where((({0} % {1}) != 0) & (({0} < 0) != ({1} < 0)), {1}, 0)"},
                  cpp={"float": "({0} - std::floor({0} / {1}) * {1})", "uint": "{0} % {1}",
                       "int": "({0} % {1} + ({0} % {1} != 0 && ({0} < 0) != ({1} < 0) ? {1} : 0))"},
              ),
              derivative=formulas("g; -g * floor(a / b)", lambda s: s.g, lambda s: -(s.g * (s.a / s.b).unary("floor"))),
              source="numpy.remainder; torch.remainder; ONNX Mod"),
    pointwise("fmod", "a - trunc(a / b) * b, of the sign of a", np.fmod, REALS, arity=2, cost=12,
              spellings=spelled(
                  triton={"float": "libdevice.fmod({0}, {1})", "int": "{0} % {1}", "uint": "{0} % {1}"},
                  cpp={"float": "std::fmod({0}, {1})", "int": "{0} % {1}", "uint": "{0} % {1}"},
              ),
              derivative=formulas("g; -g * trunc(a / b)", lambda s: s.g, lambda s: -(s.g * (s.a / s.b).unary("trunc"))),
              source="numpy.fmod; C; ONNX Mod fmod=1"),
    pointwise("pow", "a to the b; integers to a negative power towards zero", _power, NUMBERS, arity=2, cost=20,
              identity=lambda _: 1,
              spellings=spelled(
                  triton={"float": "libdevice.pow({0}, {1})"}, cpp="static_cast<{dtype}>(std::pow({0}, {1}))"
              ),
              source="numpy.power; ONNX Pow"),
    pointwise("maximum", "the greater; NaN if either is", np.maximum, REALS, arity=2,
              traits=Trait.COMMUTATIVE | Trait.ASSOCIATIVE,
              identity=lambda dtype: -math.inf if dtype.is_float else dtype.limits[0],
              spellings=spelled(
                  triton={"float": "tl.maximum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
                          "int": "tl.maximum({0}, {1})", "uint": "tl.maximum({0}, {1})"},
                  cpp={"float": "({0} != {0} || {0} > {1} ? {0} : {1})", "int": "({0} < {1} ? {1} : {0})",
                       "uint": "({0} < {1} ? {1} : {0})"},
              ),
              source="numpy.maximum; torch.maximum"),
    pointwise("minimum", "the lesser; NaN if either is", np.minimum, REALS, arity=2,
              traits=Trait.COMMUTATIVE | Trait.ASSOCIATIVE,
              identity=lambda dtype: math.inf if dtype.is_float else dtype.limits[1],
              spellings=spelled(
                  triton={"float": "tl.minimum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
                          "int": "tl.minimum({0}, {1})", "uint": "tl.minimum({0}, {1})"},
                  cpp={"float": "({0} != {0} || {0} < {1} ? {0} : {1})", "int": "({1} < {0} ? {1} : {0})",
                       "uint": "({1} < {0} ? {1} : {0})"},
              ),
              source="numpy.minimum; torch.minimum"),
    pointwise("atan2", "the angle of the point (b, a)", np.arctan2, ("float",), arity=2, cost=40,
              spellings=spelled(triton="libdevice.atan2({0}, {1})", cpp="std::atan2({0}, {1})"),
              torch=("atan2.default",),
              derivative=formulas("g * b / (a**2 + b**2); -g * a / (a**2 + b**2); 0 at (0, 0)",
                                  lambda s: s.g * (s.b * (n := s.a * s.a + s.b * s.b).eq(0).select(0.0, 1 / n)),
                                  lambda s: s.g * (-s.a * (n := s.a * s.a + s.b * s.b).eq(0).select(0.0, 1 / n))),
              source="numpy.arctan2"),
)  # fmt: skip

_ORDERED = ("bool", *REALS)
_ANY = (*_ORDERED, "complex")

PREDICATES = (
    pointwise("eq", "a == b; NaN equals nothing", np.equal, _ANY, arity=2, to=types.BOOL, onnx=("Equal",),
              traits=Trait.COMMUTATIVE, spellings=spelled(triton="{0} == {1}", cpp="{0} == {1}"), source="numpy.equal"),
    pointwise("ne", "a != b", np.not_equal, _ANY, arity=2, to=types.BOOL, traits=Trait.COMMUTATIVE,
              spellings=spelled(triton="{0} != {1}", cpp="{0} != {1}"), source="numpy.not_equal"),
    pointwise("lt", "a < b (a > b is b < a)", np.less, _ORDERED, arity=2, to=types.BOOL, onnx=("Less",),
              spellings=spelled(triton="{0} < {1}", cpp="{0} < {1}"), source="numpy.less"),
    pointwise("le", "a <= b (a >= b is b <= a)", np.less_equal, _ORDERED, arity=2, to=types.BOOL,
              onnx=("LessOrEqual",), spellings=spelled(triton="{0} <= {1}", cpp="{0} <= {1}"),
              source="numpy.less_equal"),
    pointwise("isnan", "whether it is NaN", np.isnan, ("float", "complex"), to=types.BOOL, onnx=("IsNaN",),
              spellings=spelled(triton="{0} != {0}", cpp="{0} != {0}"), source="numpy.isnan"),
    pointwise("isinf", "whether it is an infinity", np.isinf, ("float", "complex"), to=types.BOOL,
              spellings=spelled(triton='tl.abs({0}) == float("inf")', cpp="std::isinf({0})"), source="numpy.isinf"),
)  # fmt: skip

_BITS = ("bool", *INTEGERS)
_ALL_ONES: dict[str, Callable[[DType], Any]] = {
    "bool": lambda _: True,
    "uint": lambda row: row.limits[1],
    "int": lambda _: -1,
}

BITS = (
    pointwise("bitnot", "each bit flipped; not, of bool", np.invert, _BITS, onnx=("Not", "BitwiseNot"),
              spellings=spelled(triton="~{0}", cpp={"bool": "!{0}", "int": "~{0}", "uint": "~{0}"}),
              source="numpy.invert"),
    pointwise("bitand", "both; and, of bool", np.bitwise_and, _BITS, arity=2, onnx=("And", "BitwiseAnd"),
              traits=Trait.COMMUTATIVE | Trait.ASSOCIATIVE, identity=lambda row: _ALL_ONES[row.kind](row),
              spellings=spelled(triton="{0} & {1}", cpp="{0} & {1}"), source="numpy.bitwise_and"),
    pointwise("bitor", "either; or, of bool", np.bitwise_or, _BITS, arity=2, onnx=("Or", "BitwiseOr"),
              traits=Trait.COMMUTATIVE | Trait.ASSOCIATIVE, identity=lambda _: 0,
              spellings=spelled(triton="{0} | {1}", cpp="{0} | {1}"), source="numpy.bitwise_or"),
    pointwise("bitxor", "one of both; exclusive or, of bool", np.bitwise_xor, _BITS, arity=2,
              onnx=("Xor", "BitwiseXor"), traits=Trait.COMMUTATIVE | Trait.ASSOCIATIVE, identity=lambda _: 0,
              spellings=spelled(triton="{0} ^ {1}", cpp="{0} ^ {1}"), source="numpy.bitwise_xor"),
    pointwise("shl", "a * 2**b; 0 when b is negative, or the width or more", _shift(np.left_shift), INTEGERS, arity=2,
              spellings=spelled(
                  triton="tl.where(({1} >= 0) & ({1} < {0}.dtype.primitive_bitwidth), {0} << {1}, 0)",
                  cpp="(static_cast<std::uint64_t>({1}) < 8 * sizeof({0}) ? {0} << {1} : 0)",
              ),
              source="numpy.left_shift"),
    pointwise("shr", "a / 2**b, rounded down; 0 or -1 as shl has 0", _shift(np.right_shift), INTEGERS, arity=2,
              # The cast: Triton before 3.9 widens int8 for a compile-time number.
              spellings=spelled(
                  triton={"int": "{0} >> tl.where({1} >= 0, tl.minimum({1}, {0}.dtype.primitive_bitwidth - 1), "
                                 "{0}.dtype.primitive_bitwidth - 1).to({0}.dtype)",
                          "uint": "tl.where({1} < {0}.dtype.primitive_bitwidth, {0} >> {1}, 0)"},
                  cpp={"int": "({0} >> (static_cast<std::uint64_t>({1}) < 8 * sizeof({0}) ? {1} : "
                              "8 * sizeof({0}) - 1))",
                       "uint": "(static_cast<std::uint64_t>({1}) < 8 * sizeof({0}) ? {0} >> {1} : 0)"},
              ),
              source="numpy.right_shift"),
)  # fmt: skip


def _chosen(operands: Operands, attrs: Attrs) -> DType:
    if operands[0].dtype is not types.BOOL:
        raise TypeRuleError(f"the condition is bool, not {operands[0].dtype}")
    return same()(operands[1:], attrs)


def _part(operands: Operands, _: Attrs) -> DType:
    if not operands[0].dtype.is_complex:
        raise TypeRuleError(f"takes complex, not {operands[0].dtype}")
    return types.FLOAT32 if operands[0].dtype is types.COMPLEX64 else types.FLOAT64


def _whole(operands: Operands, attrs: Attrs) -> DType:
    part = same("float")(operands, attrs)
    if part not in {types.FLOAT32, types.FLOAT64}:
        raise TypeRuleError(f"complex numbers have float32 or float64 parts, not {part}")
    return types.COMPLEX64 if part is types.FLOAT32 else types.COMPLEX128


OTHERS = (
    Op("stop_gradient", "x; its gradient is zero, or unknown for a reason", 1, lambda step: step.operands[0],
       same("float", "complex"), same_shape, attrs=(Attr("reason", STR, "", "why its gradient is unknown"),),
       traits=Trait.POINTWISE, spellings=spelled(triton="{0}", cpp="{0}"),
       source="torch.Tensor.detach; jax.lax.stop_gradient"),
    Op("with_derivative", "a, whose derivative by b is c, element by element, and zero by all else", 3,
       lambda step: step.operands[0], same("float"), same_shape, traits=Trait.POINTWISE,
       spellings=spelled(triton="{0}", cpp="(static_cast<void>({1}), static_cast<void>({2}), {0})"),
       source="torch.autograd.Function; jax.custom_jvp"),
    Op("select", "a where the condition holds, else b", 3, lambda step: np.where(*step.operands), _chosen,
       same_shape, traits=Trait.POINTWISE,
       spellings=spelled(triton="tl.where({0}, {1}, {2})", cpp="({0} ? {1} : {2})"), flops=moves_only,
       source="numpy.where"),
    Op("complex", "a + b*i", 2, lambda step: of_parts(*step.operands).astype(step.dtype), _whole,
       same_shape, traits=Trait.POINTWISE, spellings=spelled(cpp="{dtype}({0}, {1})"), source="torch.complex"),
    Op("real", "the real part", 1, lambda step: step.operands[0].real.copy(), _part, same_shape,
       traits=Trait.POINTWISE, spellings=spelled(cpp="({0}).real()"), source="numpy.real"),
    Op("imag", "the imaginary part", 1, lambda step: step.operands[0].imag.copy(), _part, same_shape,
       traits=Trait.POINTWISE, spellings=spelled(cpp="({0}).imag()"), source="numpy.imag"),
)  # fmt: skip

ROWS = (*FUNCTIONS, *ARITHMETIC, *PREDICATES, *BITS, *OTHERS)
