"""Recognizes softmax written out: exp(x - max(x)) / sum(exp(x - max(x))) along one dim.

Also where a product with other values comes before the division, as attention is written by hand to divide less.

Only up to rounding: an engine's softmax may sum and divide in another order.
"""

from __future__ import annotations

from kernels_hub.compiler.ir.proofs import proves_equal
from kernels_hub.compiler.rewrite.pattern import Any, Bind, Once, Op, floats
from kernels_hub.compiler.rewrite.rule import Match, Rule


def _softmax_axes(match: Match) -> str | None:
    axes, rank = tuple(match.fact("axes")), match["x"].rank
    if len(axes) != 1:
        return f"the sum is over axes {axes}, not over one"
    if tuple(match.fact("kept")) != tuple(axis for axis in range(rank) if axis not in axes):
        return "the statistic is broadcast along other dims"
    return None


def _divided_rows(match: Match) -> str | None:
    x, result = match["x"], match.root
    if why := _softmax_axes(match):
        return why
    if tuple(match.fact("axes")) != (x.rank - 1,):
        return f"the sum is along {match.fact('axes')}, not along the columns that the product sums over"
    if x.rank != result.rank or not all(map(proves_equal, x.shape[:-1], result.shape[:-1])):
        return f"the product has other rows than {x}: it is {result.type}"
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
    Rule("softmax_before_product", Op("div", Op("matmul", Once(_POWERS, 2), Any("v")).once(), _TOTAL),
         lambda match: match["x"].softmax(match["x"].rank - 1) @ match["v"], _divided_rows, exact=False,
         doc="(exp(x - max(x)) @ v) / sum(exp(x - max(x))) -> softmax(x) @ v"),
)  # fmt: skip
