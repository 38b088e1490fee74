"""Derivatives of pointwise ops: the formulas of rows of the op table, and rules that need more than formulas.

Formulas are computed in float32 at least and rounded once, as PyTorch has it. Where a derivative jumps:

    abs, x at 0                     0
    maximum(x, number), relu at 0   0: the gradient flows where x is greater, not where it is equal (relu, hardtanh)
    maximum(x, y)                   half each where they are equal
    what a select does not choose   gets 0, and goes on with it: 0 times an infinity is NaN there, too
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernels_hub.compiler.autodiff.rule import Derivative, Gradients, Site, zeros
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.op import Formulas, Op


@dataclass(frozen=True)
class Terms:
    """The gradient g, operands a (and b) and result y, all in the dtype that is computed in."""

    g: Value
    operands: tuple[Value, ...]
    y: Value

    @property
    def a(self) -> Value:
        """The first operand."""
        return self.operands[0]

    @property
    def b(self) -> Value:
        """The second operand."""
        return self.operands[1]


def of_formulas(op: Op) -> Derivative | None:
    """The derivative of a pointwise op whose row has formulas for it (`Op.derivative`), None for other ops."""
    if not isinstance(op.derivative, Formulas):
        return None
    formulas = op.derivative.operands

    def pull(site: Site) -> Gradients:
        wide = site.gradient.dtype.compute
        operands = tuple(operand.cast(wide) for operand in site.operands)
        terms = Terms(site.gradient.cast(wide), operands, site.result.cast(wide))
        return [
            formula(terms).cast(operand.dtype) if formula and wanted else None
            for formula, operand, wanted in zip(formulas, site.operands, site.wanted, strict=True)
        ]

    return Derivative(op.name, pull, op.derivative.doc)


def _cast(site: Site) -> Gradients:
    return [site.gradient.cast(site.x.dtype)]


def _select(site: Site) -> Gradients:
    condition, *_ = site.operands
    zero = zeros(site.graph, site.gradient)
    return [
        None,
        condition.select(site.gradient, zero) if site.wanted[1] else None,
        condition.select(zero, site.gradient) if site.wanted[2] else None,
    ]


def _extreme(op: str) -> Derivative:
    """The greater, or the lesser, of two."""

    def pull(site: Site) -> Gradients:
        zero = zeros(site.graph, site.gradient)
        found: list[Value | None] = []
        for mine, other, wanted in zip(site.operands, reversed(site.operands), site.wanted, strict=True):
            wins = mine.binary("lt", other, reverse=op == "maximum")
            tied = zero if other.scalar is not None else mine.eq(other).select(site.gradient * 0.5, zero)
            found.append(wins.select(site.gradient, tied) if wanted else None)
        return found

    return Derivative(
        op, pull, "g where it is chosen, half of it where both are equal, none of it where that is a number"
    )


def _power(site: Site) -> Gradients:
    """Of a base to the power of a number, or of values."""
    a, b = site.operands
    wide = site.gradient.dtype.compute
    g, base, exponent, result = (one.cast(wide) for one in (site.gradient, a, b, site.result))
    return [
        (g * _power_of_base(base, exponent, b.scalar)).cast(a.dtype) if site.wanted[0] else None,
        (g * _power_of_exponent(base, exponent, result)).cast(b.dtype) if site.wanted[1] else None,
    ]


_MOST_FACTORS = 4


def _power_of_base(base: Value, exponent: Value, number: float | None) -> Value:
    """b * a**(b - 1)."""
    if number is None:
        return (exponent.eq(0)).select(zeros(base.graph, base), exponent * base.binary("pow", exponent - 1))
    if number == 0:
        return zeros(base.graph, base)
    if number == int(number) and 1 <= number <= _MOST_FACTORS:
        result = base.graph.full(base.shape, number, base.dtype)
        for _ in range(int(number) - 1):
            result = result * base
        return result
    return base.binary("pow", number - 1) * number


def _power_of_exponent(base: Value, exponent: Value, result: Value) -> Value:
    """a**b * log(a); 0 for 0 to a power that is not negative."""
    flat = base.eq(0) & exponent.graph.full(exponent.shape, 0, exponent.dtype).binary("le", exponent)
    return flat.select(0, result * base.log())


ROWS: Sequence[Derivative] = (
    Derivative("add", lambda site: [site.gradient, site.gradient], "g; g"),
    Derivative("sub", lambda site: [site.gradient, -site.gradient if site.wanted[1] else None], "g; -g"),
    Derivative("pow", _power, "g * b * a**(b - 1); g * y * log(a), 0 for 0 to a power that is not negative"),
    _extreme("maximum"),
    _extreme("minimum"),
    Derivative(
        "with_derivative", lambda site: [None, site.gradient * site.operands[2], None], "none; g * c; none"
    ),
    Derivative("select", _select, "none; g where the condition holds; g elsewhere"),
    Derivative("cast", _cast, "g, cast back"),
)
