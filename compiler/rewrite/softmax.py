"""Recognizes softmax written out: exp(x - max(x)) / sum(exp(x - max(x))) along one dim.

Only up to rounding: an engine's softmax may sum and divide in another order.
"""

from __future__ import annotations

from kernels_hub.compiler.rewrite.pattern import Any, Bind, Op, floats
from kernels_hub.compiler.rewrite.rule import Match, Rule


def _softmax_axes(match: Match) -> str | None:
    axes, rank = tuple(match.fact("axes")), match["x"].rank
    if len(axes) != 1:
        return f"the sum is over axes {axes}, not over one"
    if tuple(match.fact("kept")) != tuple(axis for axis in range(rank) if axis not in axes):
        return "the statistic is broadcast along other dims"
    return None


X = Any("x").where(floats)
_POWERS = Op(
    "exp", Op("sub", X, Op("broadcast", Op("reduce_max", X, axes=Bind("axes")), axes=Bind("kept"))), name="e"
)
_TOTAL = Op("broadcast", Op("reduce_sum", Any("e"), axes=Bind("axes")), axes=Bind("kept"))
SOFTMAX = (
    Rule("softmax", Op("div", _POWERS, _TOTAL),
         lambda match: match["x"].softmax(match.fact("axes")[0]), _softmax_axes, exact=False,
         doc="exp(x - max(x)) / sum(exp(x - max(x))) -> softmax(x)"),
)  # fmt: skip
