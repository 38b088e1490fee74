"""Recognizes softmax written out, with the maximum subtracted or not: exp(x) / sum(exp(x)) along one dim.

Also where a product with other values comes before the division, as attention is written by hand to divide less. Each
rule looks at one reduction, and they find the rest of each other's:

    exp(x - max(x)) @ v / sum(exp(x - max(x))) -> exp(x - max(x)) / sum(exp(x - max(x))) @ v
                                               -> softmax(x - max(x)) @ v -> softmax(x) @ v

Only up to rounding: an engine's softmax may sum and divide in another order. It subtracts the maximum, so that no
exponential overflows where the one that was written did.
"""

from __future__ import annotations

from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.proofs import proves_equal
from kernels_hub.compiler.rewrite.pattern import Any, Bind, Once, Op, floats
from kernels_hub.compiler.rewrite.rule import Match, Rule


def _of_rows(match: Match) -> str | None:
    axes, rank = tuple(match.fact("axes")), match["x"].rank
    if len(axes) != 1:
        return f"the statistic is over axes {axes}, not over one"
    if tuple(match.fact("kept")) != tuple(axis for axis in range(rank) if axis not in axes):
        return "the statistic is broadcast along other dims"
    return None


def _shifted(match: Match) -> str | None:
    if why := _of_rows(match):
        return why
    if tuple(match.fact("axes")) != (match.fact("axis"),):
        return f"the maximum is along {match.fact('axes')}, the softmax along {match.fact('axis')}"
    return None


def _divided_rows(match: Match) -> str | None:
    powers, result, total = match["powers"], match.root, match["total"]
    last = powers.rank - 1
    if total.op_name != "reduce_sum" or total.operands[0] is not powers:
        return f"{total} is no sum of {powers}"
    if tuple(total.attrs["axes"]) != (last,):
        return f"the sum is along {total.attrs['axes']}, not along the columns that the product sums over"
    if tuple(match.fact("kept")) != tuple(range(last)):
        return "the statistic is broadcast along other dims"
    if powers.rank != result.rank or not all(map(proves_equal, powers.shape[:-1], result.shape[:-1])):
        return f"the product has other rows than {powers}: it is {result.type}"
    return None


def _divide_first(match: Match) -> Value:
    powers = match["powers"]
    weights = powers / match["total"].broadcast(powers.shape, range(powers.rank - 1))
    return match.graph.apply("matmul", weights, match["v"], **match.root.operands[0].attrs)


X = Any("x").where(floats)
SOFTMAX = (
    Rule("softmax",
         Op("div", Op("exp", X, name="powers"),
            Op("broadcast", Op("reduce_sum", Any("powers"), axes=Bind("axes")), axes=Bind("kept"))),
         lambda match: match["x"].softmax(match.fact("axes")[0]), _of_rows, exact=False,
         doc="exp(x) / sum(exp(x)) -> softmax(x)"),
    Rule("shifted_softmax",
         Op("softmax", Op("sub", X, Op("broadcast", Op("reduce_max", X, axes=Bind("axes")), axes=Bind("kept"))),
            axis=Bind("axis")),
         lambda match: match["x"].softmax(match.fact("axis")), _shifted, exact=False,
         doc="softmax(x - max(x)) -> softmax(x)"),
    Rule("softmax_before_product",
         Op("div", Op("matmul", Once(Op("exp", X, name="powers"), 2), Any("v")).once(),
            Op("broadcast", Any("total"), axes=Bind("kept"))),
         _divide_first, _divided_rows, exact=False,
         doc="(exp(x) @ v) / sum(exp(x)) -> (exp(x) / sum(exp(x))) @ v"),
)  # fmt: skip
