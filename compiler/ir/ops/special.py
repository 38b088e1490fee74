"""Special functions that PyTorch's own kernels run: C++ has none of them, or one that is several times slower.

They are no pointwise ops, as no target spells them; of each element of the result only those of the operands tell.

The references are good to float64's rounding, or a few units of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np

from kernels_hub.compiler.errors import TypeRuleError
from kernels_hub.compiler.ir.flops import per_operand_element
from kernels_hub.compiler.ir.op import Attrs, Op, Operands, Pull, ReferenceCall, same, same_shape
from kernels_hub.compiler.ir.ops.conversion import widened
from kernels_hub.compiler.ir.ops.pointwise import elementwise
from kernels_hub.compiler.ir.types import Array, DType

_NORMAL = NormalDist()
_SHIFT = 10.0
"""From here on the asymptotic series of digamma is good."""
_FAR = 25.0
"""From here on that of erfcx is."""
_BERNOULLI = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)


def _lgamma(x: float) -> float:
    if x == -math.inf or (x <= 0 and x == math.floor(x)):
        return math.inf
    return math.lgamma(x)


def _digamma(x: float) -> float:
    if x == 0:
        return math.copysign(math.inf, -x)
    if x < 0:
        if x == -math.inf or x == math.floor(x):
            return math.nan
        return _digamma(1 - x) - math.pi / math.tan(math.pi * math.fmod(x, 1))
    total = 0.0
    while x < _SHIFT:
        total -= 1 / x
        x += 1
    series = sum(factor * x ** (-2 * power) for power, factor in enumerate(_BERNOULLI, 1))
    return total + math.log(x) - 0.5 / x - series if math.isfinite(x) else x


def _erfcx(x: float) -> float:
    if x < _FAR:
        return math.inf if x < -26.7 else math.exp(x * x) * math.erfc(x)
    square = 2 * x * x
    return (1 - 1 / square + 3 / square**2 - 15 / square**3) / (x * math.sqrt(math.pi))


def _ndtri(p: float) -> float:
    if 0 < p < 1:
        return _NORMAL.inv_cdf(p)
    return {0.0: -math.inf, 1.0: math.inf}.get(p, math.nan)


def _erfinv(x: float) -> float:
    size = abs(x)
    if not size < 1:
        return math.copysign(math.inf, x) if size == 1 else math.nan
    if size > 0.5:
        return math.copysign(_NORMAL.inv_cdf((1 - size) / 2) / math.sqrt(2), x)
    found = _NORMAL.inv_cdf((1 + x) / 2) / math.sqrt(2)
    for _ in range(2):  # Newton's method: near 0 the sum above has lost digits
        found -= (math.erf(found) - x) * math.sqrt(math.pi) / 2 * math.exp(found * found)
    return math.copysign(found, x)


def _wide(operands: Operands, attrs: Attrs) -> DType:
    row = same("float")(operands, attrs)
    if row.bits < 32:
        raise TypeRuleError(f"takes float32 or float64, not {row}")
    return row


def _function(
    name: str, doc: str, function: Callable[..., Array], torch: str, *, derivative: Pull | None = None,
    dtype: Callable[[Operands, Attrs], DType] | None = None, arity: int = 1, source: str = "",
) -> Op:  # fmt: skip
    def reference(step: ReferenceCall) -> Array:
        return np.asarray(function(*map(widened, step.operands))).astype(step.dtype)

    return Op(
        name, doc, arity, reference, dtype or same("float"), same_shape, flops=per_operand_element(20),
        derivative=derivative, torch=(torch,), source=source or f"torch.{torch.partition('.')[0]}",
    )  # fmt: skip


ROWS = (
    _function("lgamma", "log |gamma(x)|", elementwise(_lgamma), "lgamma.default",
              derivative=Pull("g * digamma(x)", lambda s: [s.gradient * s.x.unary("digamma")])),
    _function("digamma", "The derivative of lgamma.", elementwise(_digamma), "digamma.default"),
    _function("erfinv", "x of erf(x), in -1..1", elementwise(_erfinv), "erfinv.default",
              derivative=Pull("g * sqrt(pi)/2 * exp(y**2)", lambda s: [
                  s.gradient * ((s.result * s.result).exp() * (math.sqrt(math.pi) / 2))])),
    _function("erfcx", "exp(x**2) * (1 - erf(x)), where that is small, too.", elementwise(_erfcx),
              "special_erfcx.default", dtype=_wide,
              derivative=Pull("g * (2*x*y - 2/sqrt(pi))", lambda s: [
                  s.gradient * (s.x * s.result * 2 - 2 / math.sqrt(math.pi))])),
    _function("ndtri", "What the normal distribution is below, by the probability of that.", elementwise(_ndtri),
              "special_ndtri.default", dtype=_wide,
              derivative=Pull("g * sqrt(2*pi) * exp(y**2 / 2)", lambda s: [
                  s.gradient * ((s.result * s.result * 0.5).exp() * math.sqrt(2 * math.pi))])),
    _function("i0", "The modified Bessel function of order 0.", lambda x: np.asarray(np.i0(x.astype(np.float64))),
              "i0.default"),
    _function("hypot", "sqrt(a**2 + b**2), where the squares overflow, too.", np.hypot, "hypot.default", arity=2,
              derivative=Pull("g * a / y; g * b / y", lambda s: [
                  s.gradient * (one / s.result) for one in s.operands])),
    _function("copysign", "|a| with the sign of b.", np.copysign, "copysign.Tensor", arity=2,
              derivative=Pull("g * y / a, 0 where a is; none", lambda s: [
                  s.gradient * s.x.eq(0).select(0.0, s.result / s.x), None])),
)  # fmt: skip
