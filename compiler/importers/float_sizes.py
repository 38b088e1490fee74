"""Floats that are computed from sizes, and sizes that are made of those: x / sqrt(length), int(0.5 * height).

Floats of sizes below 2^52 are exact as long as they are only added to each other, and multiplied by numbers whose
denominators are powers of two. A quotient of two such is rounded, but never to or across a whole number that it is
not, so that what is whole of it is known, as long as nothing else was done to it before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from typing import TYPE_CHECKING

from kernels_hub.compiler.importers.aten_ops import UnsupportedArgumentsError
from kernels_hub.compiler.ir.dims import Dim, ceildiv, floordiv
from kernels_hub.compiler.ir.graph import Graph, Value
from kernels_hub.compiler.ir.ops import OPS
from kernels_hub.compiler.ir.proofs import proves_le
from kernels_hub.compiler.ir.types import FLOAT64

if TYPE_CHECKING:
    from sympy import Expr

WHOLE = frozenset({"CeilToInt", "FloorToInt", "TruncToInt"})
"""Classes of sympy expressions that make a float an integer."""
_MOST_BITS = 20
"""Of a denominator: the dims of a graph are multiplied by it."""

_FUNCTIONS = {
    "Add": "add",
    "Mul": "mul",
    "FloatTrueDiv": "div",
    "IntTrueDiv": "div",
    "FloatPow": "pow",
    "Pow": "pow",
    "PowByNatural": "pow",
}
"""Class of an expression -> the op that computes it in floats."""


@dataclass(frozen=True)
class _Quotient:
    """numerator / denominator; a denominator that is a number is positive."""

    numerator: Dim
    denominator: Dim

    @property
    def is_exact(self) -> bool:
        """Whether a float holds it as it is."""
        below = self.denominator
        return isinstance(below, int) and below & (below - 1) == 0


def whole_size(size: Expr, dim_of: Callable[[Expr], Dim]) -> Dim:
    """The dim that an expression of a class in `WHOLE` is. dim_of: of one that is an integer.

    Raises UnsupportedArgumentsError where it depends on how floats are rounded, or on a sign that is not known.
    """
    try:
        found = _quotient(size.args[0], dim_of)
    except _InexactError:
        raise UnsupportedArgumentsError(
            f"a size computed as {size}, which rounding decides", of_sizes=True
        ) from None
    kind = type(size).__name__
    if kind == "TruncToInt":
        up = proves_le(found.numerator, 0)
        if not (up or proves_le(0, found.numerator)) or not proves_le(1, found.denominator):
            raise UnsupportedArgumentsError(
                f"a size computed as {size}, whose sign is not known", of_sizes=True
            )
    else:
        up = kind == "CeilToInt"
    return (ceildiv if up else floordiv)(found.numerator, found.denominator)


def float_value(one: Expr, graph: Graph, dim_of: Callable[[Expr], Dim]) -> Value:
    """A float that is computed from sizes, as a 0-d float64 of the graph.

    Raises UnsupportedArgumentsError for a function that the graph has no op for.
    """
    kind = type(one).__name__
    if one.is_Number:
        return graph.constant(float(one), FLOAT64)
    if one.is_integer or kind == "ToFloat":
        return graph.size(dim_of(one if one.is_integer else one.args[0])).cast(FLOAT64)
    name = _FUNCTIONS.get(kind) or kind.removeprefix("OpaqueUnaryFn_")
    if name not in OPS:
        raise UnsupportedArgumentsError(f"a float computed from sizes as {one}")
    parts = [float_value(part, graph, dim_of) for part in one.args]
    if len(parts) == 1:
        return parts[0].unary(name)
    if name == "pow" and parts[1].scalar == 0.5:
        return parts[0].unary("sqrt")
    return reduce(lambda a, b: a.binary(name, b), parts)


class _InexactError(Exception):
    """What comes after a rounding."""


def _quotient(one: Expr, dim_of: Callable[[Expr], Dim]) -> _Quotient:
    kind = type(one).__name__
    if kind == "ToFloat":
        return _Quotient(dim_of(one.args[0]), 1)
    if one.is_Float or (one.is_Rational and not one.is_Integer):
        number = Fraction(float(one))
        if number.denominator.bit_length() > _MOST_BITS:
            raise _InexactError
        return _Quotient(number.numerator, number.denominator)
    if kind in {"Add", "Mul"} and not one.is_integer:
        parts = [_exact(_quotient(part, dim_of)) for part in one.args]
        return reduce(_sum if kind == "Add" else _product, parts)
    if kind in {"FloatTrueDiv", "IntTrueDiv"}:
        above, below = (_exact(_quotient(part, dim_of)) for part in one.args)
        numerator, denominator = above.numerator * below.denominator, below.numerator * above.denominator
        if isinstance(denominator, int) and denominator <= 0:
            if denominator == 0:
                raise UnsupportedArgumentsError("a size divided by 0")
            numerator, denominator = -1 * numerator, -denominator
        return _Quotient(numerator, denominator)
    return _Quotient(dim_of(one), 1)


def _exact(one: _Quotient) -> _Quotient:
    if not one.is_exact:
        raise _InexactError
    return one


def _sum(a: _Quotient, b: _Quotient) -> _Quotient:
    return _Quotient(a.numerator * b.denominator + b.numerator * a.denominator, a.denominator * b.denominator)


def _product(a: _Quotient, b: _Quotient) -> _Quotient:
    return _Quotient(a.numerator * b.numerator, a.denominator * b.denominator)
