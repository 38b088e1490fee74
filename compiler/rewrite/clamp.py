"""Merges chains of maximum and minimum with numbers into one clamp, min(max(x, low), high).

Right for low > high too (then every number but NaN becomes high), because only these laws of order are used:
1. max(max(x, a), b) = max(x, max(a, b)), and so for min
2. max(min(x, a), b) = min(max(x, b), max(a, b))
Bounds of which one is 0.0 and the other -0.0 are left alone: which of the two comes out is not defined.
"""

from __future__ import annotations

import math

from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.rewrite.pattern import Any, Op, Scalar, one_of
from kernels_hub.compiler.rewrite.rule import Match, Rule

X, A, B = Any("x"), Scalar("a"), Scalar("b")


def _ordered(match: Match) -> str | None:
    a, b = match["a"].scalar, match["b"].scalar
    if math.isnan(a) or math.isnan(b):
        return "a bound is NaN"
    if a == b == 0 and math.copysign(1, a) != math.copysign(1, b):
        return "the bounds are 0.0 and -0.0"
    return None


def _merge(match: Match) -> Value:
    pick = max if match.root.op_name == "maximum" else min
    return match["x"].binary(match.root.op_name, pick(match["a"].scalar, match["b"].scalar))


def _swap(match: Match) -> Value:
    a, b = match["a"].scalar, match["b"].scalar
    return match["x"].maximum(b).minimum(max(a, b))


CLAMP = (
    Rule("clamp_same_bound", one_of(Op("maximum", Op("maximum", X, A), B), Op("minimum", Op("minimum", X, A), B)),
         _merge, _ordered, doc="max(max(x, a), b) -> max(x, max(a, b))"),
    Rule("clamp_order", Op("maximum", Op("minimum", X, A), B), _swap, _ordered,
         doc="max(min(x, a), b) -> min(max(x, b), max(a, b))"),
)  # fmt: skip
