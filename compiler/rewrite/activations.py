"""Recognizes activations that are written out as several ops: GELU in its forms, SiLU. Numbers stay: see `outline`.

gelu(x) = x/2 * (1 + erf(x / sqrt(2)));  gelu_tanh(x) = x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 * x**3)))
silu(x) = x * sigmoid(x);  gelu_quick(x) = x * sigmoid(1.702 * x)
Source: arXiv 1606.08415, arXiv 1702.03118
"""

from __future__ import annotations

import math

from kernels_hub.compiler.rewrite.outline import closed, outline, recognised
from kernels_hub.compiler.rewrite.pattern import Any, Op, Pattern, Scalar, floats, one_of
from kernels_hub.compiler.rewrite.rule import Match, Rule

X = Any("x").where(floats)
NEAR = 5e-3
"""Relative: constants in a model may have been rounded to bfloat16."""


def _near(number: float) -> Pattern:
    return Scalar("", number, NEAR)


def _product(*factors: Pattern) -> Pattern:
    """Three factors, multiplied in any order."""
    a, b, c = factors
    return one_of(Op("mul", Op("mul", a, b), c), Op("mul", a, Op("mul", b, c)), Op("mul", Op("mul", a, c), b))


def _scaled(x: Pattern, factor: float) -> Pattern:
    return one_of(Op("mul", x, _near(factor)), Op("div", x, _near(1 / factor)))


_SQUARED = one_of(Op("mul", X, X), Op("pow", X, Scalar("", 2)))
_CUBED = one_of(Op("mul", _SQUARED, X), Op("pow", X, Scalar("", 3)))
_GROWING = Op("add", one_of(Op("mul", _SQUARED, _near(0.044715)), _product(X, X, _near(0.044715))), _near(1))
_INNER = one_of(
    Op("add", X, Op("mul", _CUBED, _near(0.044715))),
    Op("add", X, _product(_SQUARED, X, _near(0.044715))),
    Op("add", X, Op("mul", _product(X, X, _near(0.044715)), X)),
    Op("mul", X, _GROWING),
)
_ANGLE = one_of(_scaled(_INNER, math.sqrt(2 / math.pi)), _product(X, _near(math.sqrt(2 / math.pi)), _GROWING))
_ERF = Op("add", Op("erf", _scaled(X, math.sqrt(0.5))), _near(1))
_TANH = Op("add", Op("tanh", _ANGLE), _near(1))
_HALF = _scaled(X, 0.5)


def _halved(rest: Pattern) -> Pattern:
    return one_of(Op("mul", _HALF, rest), Op("mul", X, _scaled(rest, 0.5)), _scaled(Op("mul", X, rest), 0.5))


def _sigmoid(x: Pattern) -> Pattern:
    written_out = Op("add", Op("exp", Op("neg", x)), Scalar("", 1))
    return one_of(Op("sigmoid", x), Op("div", Scalar("", 1), written_out))


def _guard(match: Match) -> str | None:
    return closed(match, ("x",))


def _rule(name: str, pattern: Pattern, doc: str) -> Rule:
    return Rule(name, pattern, lambda match: outline(match, name, ("x",)), _guard, doc=doc)


def _casts(name: str) -> Rule:
    """An activation in a wider dtype joins the casts around it, as ATen has it of narrow floats."""

    def guard(match: Match) -> str | None:
        if match["x"].dtype is not match.root.dtype:
            return f"{match['x'].dtype} goes in, and {match.root.dtype} comes out"
        return _guard(match)

    pattern = Op("cast", Op("call", Op("cast", X)).where(recognised(name)).once())
    return Rule(
        f"{name}_casts",
        pattern,
        lambda match: outline(match, name, ("x",)),
        guard,
        doc=f"{name} between casts to a wider dtype and back",
    )


ACTIVATIONS = (
    _rule("gelu", _halved(_ERF), "x/2 * (1 + erf(x / sqrt(2)))"),
    _rule("gelu_tanh", _halved(_TANH), "x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 * x**3)))"),
    _rule("silu", one_of(Op("mul", X, _sigmoid(X)),
                         Op("div", X, Op("add", Op("exp", Op("neg", X)), Scalar("", 1)))), "x * sigmoid(x)"),
    _rule("gelu_quick", Op("mul", X, _sigmoid(_scaled(X, 1.702))), "x * sigmoid(1.702 * x)"),
    *(_casts(name) for name in ("gelu", "gelu_tanh", "silu", "gelu_quick")),
)  # fmt: skip
