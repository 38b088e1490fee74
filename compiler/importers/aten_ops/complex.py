"""Complex tensors, as pairs of real ones: `Complex`, its arithmetic, Fourier transforms.

Nothing of a graph is complex but its inputs, weights and outputs: real and imaginary parts are values of their own, so
that everything fuses as other ops do, on engines that have no complex numbers. An op that does the same to both parts
(`PARTWISE`: views, sums, shifts) is imported once for each; what mixes them stands in `MIXING`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from kernels_hub.compiler.importers.aten_ops.call import (
    HANDLERS,
    AtenCall,
    Handler,
    Scalar,
    aten,
    handler_of,
)
from kernels_hub.compiler.importers.fourier import inverse_to_real, number_of_samples, transform
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.dims import Dim
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.op import TensorType
from kernels_hub.compiler.ir.types import DType


@dataclass(frozen=True)
class Complex:
    """A complex tensor: its real and its imaginary part, of one type."""

    real: Value
    imaginary: Value

    @classmethod
    def of(cls, value: Value) -> Complex:
        """The parts of a complex value of the graph."""
        return cls(value.unary("real"), value.unary("imag"))

    @classmethod
    def of_pairs(cls, value: Value) -> Complex:
        """The parts of a value (…, 2)."""
        return cls(value.part(0), value.part(1))

    def whole(self) -> Value:
        """The complex value."""
        return self.real.apply("complex", self.real, self.imaginary)

    def each(self, function: Callable[[Value], Value]) -> Complex:
        """What a function makes of both parts."""
        return Complex(function(self.real), function(self.imaginary))


Number = Complex | Value | Scalar
"""An operand of complex arithmetic."""
Argument: TypeAlias = Any
"""Whatever ATen ops take: tensors, numbers, dtypes, lists of them."""


def part_dtype(dtype: DType) -> DType:
    """That of the parts of a complex dtype."""
    return {"complex64": types.FLOAT32, "complex128": types.FLOAT64}[dtype.name]


def is_complex(operand: object) -> bool:
    """Whether an operand of an op is a complex tensor or number, or a list that holds one."""
    if isinstance(operand, (list, tuple)):
        return any(map(is_complex, operand))
    return isinstance(operand, (Complex, complex))


def complex_handler_of(name: str) -> Handler | None:
    """What imports an ATen overload whose operands or results are complex; None where nothing does."""
    if name in MIXING:
        return MIXING[name]
    if name in _OF_COMPLEX:
        return HANDLERS[name]
    ordinary = handler_of(name) if name in PARTWISE else None
    return None if ordinary is None else _each_part(ordinary)


PARTWISE = frozenset({
    "view.default", "reshape.default", "_unsafe_view.default", "view_copy.default", "alias.default", "clone.default",
    "contiguous.default", "lift_fresh_copy.default", "detach.default", "detach_.default", "permute.default",
    "transpose.int", "swapaxes.default", "swapdims.default", "mT.default", "movedim.int", "t.default",
    "numpy_T.default", "expand.default", "slice.Tensor", "narrow.default", "select.int",
    "split_with_sizes.default", "split.Tensor", "chunk.default", "unbind.int",
    "flip.default", "roll.default", "repeat.default", "tril.default", "triu.default", "unfold.default",
    "diagonal.default", "squeeze.default", "squeeze.dim", "squeeze.dims", "unsqueeze.default", "flatten.using_ints",
    "unflatten.int", "index_select.default", "gather.default", "index.Tensor", "_unsafe_index.Tensor", "sum.default",
    "sum.dim_IntList", "mean.default", "mean.dim", "cumsum.default", "neg.default", "cat.default", "stack.default",
    "where.self", "constant_pad_nd.default", "slice_scatter.default", "select_scatter.default", "full.default",
    "full_like.default", "new_full.default", "zeros.default", "zeros_like.default", "new_zeros.default",
    "empty.memory_format", "empty_like.default", "new_empty.default", "empty_permuted.default", "index_put.default",
    "_unsafe_index_put.default", "scalar_tensor.default", "copy.default",
})  # fmt: skip
"""Overloads that do to the imaginary parts what they do to the real ones."""

_JOINED = frozenset({
    "cat.default", "stack.default", "where.self", "slice_scatter.default", "select_scatter.default",
    "index_put.default", "_unsafe_index_put.default", "copy.default",
})  # fmt: skip
"""Of these, those that put several tensors together: a real one among them has no imaginary part."""


def _each_part(ordinary: Handler) -> Handler:
    """The ordinary handler of an op, for each part."""

    def handler(call: AtenCall, *operands: Argument, **named: Argument) -> list[Complex] | Complex:
        results = tuple(
            replace_dtype(of) if of is not None and of.dtype.is_complex else of for of in call.results
        )
        made = []
        for imaginary in (False, True):

            def part(operand: Argument, joined: bool, imaginary: bool = imaginary) -> Argument:
                return _part(operand, imaginary=imaginary, joined=joined)

            joined = call.name in _JOINED
            own = replace(call, results=results)
            given = [part(operand, joined) for operand in operands]
            made.append(ordinary(own, *given, **{name: part(one, joined) for name, one in named.items()}))
        if isinstance(made[0], (tuple, list)):
            return [Complex(*pair) for pair in zip(*made, strict=True)]
        return Complex(made[0], made[1])

    return handler


def replace_dtype(of: TensorType) -> TensorType:
    """The type of a part of a complex tensor."""
    return TensorType(part_dtype(of.dtype), of.shape)


def _part(operand: Argument, *, imaginary: bool, joined: bool) -> Argument:
    if isinstance(operand, (list, tuple)):
        return [_part(one, imaginary=imaginary, joined=joined) for one in operand]
    if isinstance(operand, Complex):
        return operand.imaginary if imaginary else operand.real
    if isinstance(operand, DType):
        return part_dtype(operand) if operand.is_complex else operand
    if isinstance(operand, complex):
        return operand.imag if imaginary else operand.real
    if isinstance(operand, float) and imaginary:
        return 0.0
    if joined and imaginary and isinstance(operand, Value) and operand.dtype.is_float:
        return operand.graph.full(operand.shape, 0, operand.dtype)
    return operand


# -- arithmetic ------------------------------------------------------------------------------------

MIXING: dict[str, Handler] = {}
"""Overloads that have another handler where an operand, or the result, is complex."""


def _mixing(*names: str) -> Callable[[Handler], Handler]:
    def enter(handler: Handler) -> Handler:
        MIXING.update(dict.fromkeys(names, handler))
        return handler

    return enter


def _parts(call: AtenCall, operand: Number, dtype: DType | None = None) -> tuple[Value, Value | None]:
    """Both parts in the dtype of the result's, None for the imaginary one of what is real."""
    row = dtype or part_dtype(call.dtype)
    if isinstance(operand, Complex):
        return operand.real.cast(row), operand.imaginary.cast(row)
    if isinstance(operand, complex):
        return call.graph.constant(operand.real, row), call.graph.constant(operand.imag, row)
    return call.tensor(operand, row), None


def _pair(call: AtenCall, real: Value, imaginary: Value | None) -> Complex:
    """Of the result's shape. imaginary: None for 0."""
    shape = call.shape
    row = part_dtype(call.dtype)
    zero = imaginary if imaginary is not None else call.graph.constant(0.0, row)
    return Complex(real.broadcast_to(shape), zero.broadcast_to(shape))


def _sum(call: AtenCall, a: Number, b: Number, alpha: Scalar, op: str) -> Complex:
    (ar, ai), (br, bi) = _parts(call, a), _parts(call, b)
    if alpha != 1:
        br, bi = _multiplied((br, bi), _parts(call, alpha))
    if bi is None:
        return _pair(call, ar.binary(op, br), ai)
    if ai is None:
        ai = call.graph.constant(0.0, bi.dtype)
    return _pair(call, ar.binary(op, br), ai.binary(op, bi))


@_mixing("add.Tensor", "add.Scalar")
def _add(call: AtenCall, a: Number, b: Number, alpha: Scalar = 1) -> Complex:
    return _sum(call, a, b, alpha, "add")


@_mixing("sub.Tensor", "sub.Scalar")
def _sub(call: AtenCall, a: Number, b: Number, alpha: Scalar = 1) -> Complex:
    return _sum(call, a, b, alpha, "sub")


@_mixing("rsub.Tensor", "rsub.Scalar")
def _rsub(call: AtenCall, a: Number, b: Number, alpha: Scalar = 1) -> Complex:
    return _sum(call, b, a, alpha, "sub")


_Parts = tuple[Value, Value | None]


def _multiplied(a: _Parts, b: _Parts) -> _Parts:
    (ar, ai), (br, bi) = a, b
    if ai is None:
        return ar * br, None if bi is None else ar * bi
    if bi is None:
        return ar * br, ai * br
    return ar * br - ai * bi, ar * bi + ai * br


@_mixing("mul.Tensor", "mul.Scalar")
def _mul(call: AtenCall, a: Number, b: Number) -> Complex:
    return _pair(call, *_multiplied(_parts(call, a), _parts(call, b)))


@_mixing("square.default")
def _square(call: AtenCall, x: Complex) -> Complex:
    return _pair(call, *_multiplied(_parts(call, x), _parts(call, x)))


def _divided(a: _Parts, b: _Parts) -> _Parts:
    """By Smith's method, which no intermediate overflows (Algorithm 116, Comm. ACM 5, 1962)."""
    (ar, ai), (br, bi) = a, b
    if bi is None:
        return ar / br, None if ai is None else ai / br
    if ai is None:
        ai = ar * 0.0
    wide = br.unary("abs").binary("le", bi.unary("abs"))  # |br| <= |bi|
    large, small = wide.select(bi, br), wide.select(br, bi)
    ratio = small / large
    scale = large + small * ratio
    real = wide.select(ar * ratio + ai, ar + ai * ratio) / scale
    imaginary = wide.select(ai * ratio - ar, ai - ar * ratio) / scale
    return real, imaginary


@_mixing("div.Tensor", "div.Scalar", "true_divide.Tensor")
def _div(call: AtenCall, a: Number, b: Number) -> Complex:
    return _pair(call, *_divided(_parts(call, a), _parts(call, b)))


@_mixing("reciprocal.default")
def _reciprocal(call: AtenCall, x: Complex) -> Complex:
    return _pair(call, *_divided(_parts(call, 1.0), _parts(call, x)))


@_mixing("pow.Tensor_Scalar")
def _power(call: AtenCall, x: Complex, exponent: Scalar) -> Complex:
    whole = isinstance(exponent, (int, float)) and float(exponent).is_integer() and 1 <= exponent <= _MOST
    call.refuse_unless(whole, f"a complex number to the power of {exponent}: 1 to {_MOST} are taken")
    result = _parts(call, x)
    for _ in range(int(exponent) - 1):
        result = _multiplied(result, _parts(call, x))
    return _pair(call, *result)


_MOST = 8
"""The highest power that is written out."""


@_mixing("exp.default")
def _exp(call: AtenCall, x: Complex) -> Complex:
    size = x.real.exp()
    return _pair(call, size * x.imaginary.unary("cos"), size * x.imaginary.unary("sin"))


@_mixing("log.default")
def _log(call: AtenCall, x: Complex) -> Complex:
    return _pair(call, _magnitude(x).unary("log"), _phase(x))


@_mixing("sgn.default")
def _sgn(call: AtenCall, x: Complex) -> Complex:
    size = _magnitude(x)
    divisor = size.binary("eq", 0.0).select(1.0, size)
    return _pair(call, x.real / divisor, x.imaginary / divisor)


def _magnitude(x: Complex) -> Value:
    """sqrt(a² + b²), of both divided by the larger: no square overflows or is lost.

    The sum of squares is at least 1, but for 0, whose root has no derivative: 0 times the root of something else is 0,
    and so is its gradient, as PyTorch's.
    """
    a, b = x.real.unary("abs"), x.imaginary.unary("abs")
    most = a.binary("maximum", b).unary("stop_gradient")
    is_finite = most.binary("lt", math.inf)
    divisor = (is_finite & most.binary("ne", 0.0)).select(most, 1.0)
    a, b = a / divisor, b / divisor
    return is_finite.select(most, 1.0) * (a * a + b * b).binary("maximum", 0.5).unary("sqrt")


def _phase(x: Complex) -> Value:
    return x.imaginary.binary("atan2", x.real)


@_mixing("abs.default")
def _abs(_: AtenCall, x: Complex) -> Value:
    return _magnitude(x)


@_mixing("eq.Tensor", "eq.Scalar")
def _eq(call: AtenCall, a: Number, b: Number) -> Value:
    return _compared(call, a, b, "eq", "bitand")


@_mixing("ne.Tensor", "ne.Scalar")
def _ne(call: AtenCall, a: Number, b: Number) -> Value:
    return _compared(call, a, b, "ne", "bitor")


def _compared(call: AtenCall, a: Number, b: Number, op: str, joined: str) -> Value:
    row = next(one.real.dtype for one in (a, b) if isinstance(one, Complex))
    zero = call.graph.constant(0.0, row)
    (ar, ai), (br, bi) = _parts(call, a, row), _parts(call, b, row)
    return ar.binary(op, br).binary(
        joined, (zero if ai is None else ai).binary(op, zero if bi is None else bi)
    )


@_mixing("_to_copy.default", "to.dtype", "type_as.default")
def _to(call: AtenCall, x: Number, *_: object, **__: object) -> Complex | Value:
    """A complex tensor as a real one loses its imaginary part, as PyTorch warns."""
    if not call.dtype.is_complex:
        return x.real.cast(call.dtype) if isinstance(x, Complex) else call.tensor(x)
    return _pair(call, *_parts(call, x))


@_mixing("mm.default", "bmm.default", "matmul.default")
def _matmul(call: AtenCall, a: Number, b: Number) -> Complex:
    return Complex(*_product(call, a, b))


@_mixing("addmm.default", "baddbmm.default")
def _addmm(
    call: AtenCall, bias: Number, a: Number, b: Number, *, beta: Scalar = 1, alpha: Scalar = 1
) -> Complex:
    call.refuse_unless(beta == 1 and alpha == 1, "a factor of a complex product")
    return _sum(call, Complex(*_product(call, a, b)), bias, 1, "add")


@_mixing("linear.default")
def _linear(call: AtenCall, x: Number, weight: Number, bias: Number | None = None) -> Complex:
    turned = weight.each(lambda part: part.transpose()) if isinstance(weight, Complex) else weight.transpose()
    product = Complex(*_product(call, x, turned))
    return product if bias is None else _sum(call, product, bias, 1, "add")


def _product(call: AtenCall, a: Number, b: Number) -> tuple[Value, Value]:
    (ar, ai), (br, bi) = _parts(call, a), _parts(call, b)
    real = ar.matmul(br)
    if ai is None:
        assert bi is not None
        return real, ar.matmul(bi)
    if bi is None:
        return real, ai.matmul(br)
    return real - ai.matmul(bi), ar.matmul(bi) + ai.matmul(br)


# -- ops that only complex numbers have ------------------------------------------------------------


@aten("view_as_complex.default", "view_as_complex_copy.default")
def view_as_complex(_: AtenCall, x: Value) -> Complex:
    return Complex.of_pairs(x)


@aten("view_as_real.default", "view_as_real_copy.default", "_view_as_real_physical.default")
def view_as_real(_: AtenCall, x: Complex) -> Value:
    parts = x.real.unsqueeze(-1), x.imaginary.unsqueeze(-1)
    return x.real.apply("concat", *parts, axis=x.real.rank)


@aten("complex.default")
def complex_of_parts(call: AtenCall, real: Value, imaginary: Value) -> Complex:
    return _pair(call, real, imaginary)


@aten("polar.default")
def polar(call: AtenCall, size: Value, angle: Value) -> Complex:
    return _pair(call, size * angle.unary("cos"), size * angle.unary("sin"))


@aten("imag.default")
def imag(_: AtenCall, x: Complex) -> Value:
    return x.imaginary


@aten("real.default")
def real(_: AtenCall, x: Number) -> Value:
    return x.real if isinstance(x, Complex) else x


@aten("angle.default")
def angle(call: AtenCall, x: Number) -> Value:
    """Of a real tensor: 0, or pi where it is negative; NaN stays."""
    if isinstance(x, Complex):
        return _phase(x)
    wide = call.tensor(x)
    of_sign = wide.binary("lt", 0.0).select(math.pi, wide * 0.0)
    return of_sign if wide.dtype.is_float else of_sign.cast(call.dtype)


@aten(
    "_conj.default", "conj.default", "_conj_physical.default", "conj_physical.default", "_conj_copy.default"
)
def conj(_: AtenCall, x: Number) -> Complex | Value:
    return Complex(x.real, -x.imaginary) if isinstance(x, Complex) else x


@aten("resolve_conj.default", "resolve_neg.default")
def resolved(_: AtenCall, x: Number) -> Number:
    return x


@aten("_fft_r2c.default")
def fft_real_to_complex(
    call: AtenCall, x: Value, dims: Sequence[int], normalization: int, onesided: bool
) -> Complex:
    axes = [x.axis(axis) for axis in dims]
    sizes = [x.shape[axis] for axis in axes]
    last = axes[-1]
    is_known = not onesided or isinstance(sizes[-1], int)
    call.refuse_unless(is_known, "a length that is no number", of_sizes=True)
    scale = _scale(sizes, normalization)
    parts = transform(x, None, last, is_half=onesided, scale=scale)
    for axis in axes[:-1]:
        parts = transform(*parts, axis)
    return Complex(*parts)


@aten("_fft_c2c.default")
def fft_complex(_: AtenCall, x: Complex, dims: Sequence[int], normalization: int, forward: bool) -> Complex:
    axes = [x.real.axis(axis) for axis in dims]
    scale = _scale([x.real.shape[axis] for axis in axes], normalization)
    parts = x.real, x.imaginary
    for axis in axes:
        parts = transform(*parts, axis, inverse=not forward, scale=scale)
        scale = 1.0
    return Complex(*parts)


@aten("_fft_c2r.default")
def fft_complex_to_real(
    call: AtenCall, x: Complex, dims: Sequence[int], normalization: int, length: int
) -> Value:
    axes = [x.real.axis(axis) for axis in dims]
    last = axes[-1]
    given = x.real.shape[last]
    is_known = isinstance(length, int) and isinstance(given, int)
    call.refuse_unless(is_known, "a length that is no number", of_sizes=True)
    call.refuse_unless(given >= length // 2 + 1, f"{given} frequencies for {length} samples")
    parts = x.real, x.imaginary
    for axis in axes[:-1]:
        parts = transform(*parts, axis, inverse=True)
    scale = _scale([*(x.real.shape[axis] for axis in axes[:-1]), length], normalization)
    return inverse_to_real(*parts, last, length, scale=scale)


def _scale(sizes: Sequence[Dim], normalization: int) -> float:
    """ATen's fft_norm_mode: 0 none, 1 by the root of the number of samples, 2 by it."""
    if normalization == 0:
        return 1.0
    count = max(math.prod(map(number_of_samples, sizes)), 1)
    return {1: 1 / math.sqrt(count), 2: 1 / count}[normalization]


_OF_COMPLEX = frozenset(name for name, handler in HANDLERS.items() if handler.__module__ == __name__)
"""Overloads of this file, which take complex operands as they are."""


def whole(value: Argument) -> Argument:
    """A complex tensor as one value of the graph; anything else as it is."""
    return value.whole() if isinstance(value, Complex) else value


def in_parts(value: Value) -> Complex | Value:
    """An input or weight of a graph, in parts if it is complex."""
    return Complex.of(value) if value.dtype.is_complex else value


__all__ = ["Complex", "complex_handler_of", "in_parts", "is_complex", "whole"]
