"""Recognizes softmax written out, with the maximum subtracted or not: exp(x) / sum(exp(x)) along one dim.

Also where a product with other values comes before the division, as attention is written by hand to divide less. Each
rule looks at one reduction, and they find the rest of each other's:

    exp(x - max(x)) @ v / sum(exp(x - max(x))) -> exp(x - max(x)) / sum(exp(x - max(x))) @ v
                                               -> softmax(x - max(x)) @ v -> softmax(x) @ v

The first step is grown beside the graph, from the sum of rows, and the last one from their maximum (see `growth`):

    broadcast(sum(exp(x)))             -> row_total(exp(x))
    exp(x) @ v / row_total(exp(x))     -> exp(x) / sum(exp(x)) @ v, in the graph
    broadcast(max(x))                  -> row_maximum(x)
    x - row_maximum(x)                 -> below_maximum(x)
    softmax(below_maximum(x))          -> softmax(x), in the graph

Only up to rounding: an engine's softmax may sum and divide in another order. It subtracts the maximum, so that no
exponential overflows where the one that was written did.
"""

from __future__ import annotations

from kernels_hub.compiler.ir.graph import Graph, Node, Value
from kernels_hub.compiler.ir.proofs import proves_equal
from kernels_hub.compiler.rewrite.growth import Growth, grown, known_as, parts, plain, plain_root
from kernels_hub.compiler.rewrite.outline import composite
from kernels_hub.compiler.rewrite.pattern import Any, Bind, Once, Op, floats
from kernels_hub.compiler.rewrite.rule import Match, Rule

TOTAL, MAXIMUM, BELOW = "row_total", "row_maximum", "below_maximum"


def _of_rows(match: Match) -> str | None:
    axes, rank = tuple(match.fact("axes")), match["x"].rank
    if len(axes) != 1:
        return f"the statistic is over axes {axes}, not over one"
    if tuple(match.fact("kept")) != tuple(axis for axis in range(rank) if axis not in axes):
        return "the statistic is broadcast along other dims"
    return None


def _of_these(match: Match) -> str | None:
    x, of = plain(match["x"]), parts(match["grown"])["x"]
    return None if x is of else f"the maximum is of {of}, not of {x}"


def _below(match: Match) -> Value:
    """below_maximum(x); where x is itself below_maximum(z) along the same dim, it is of z."""
    x = match["x"]
    if composite(x) == BELOW and _maximum_axes(plain(x)) == _maximum_axes(plain_root(match.root)):
        x = parts(x)["x"]
    return known_as(BELOW, match.root, {"x": x})


def _maximum_axes(shifted: Value) -> tuple[int, ...]:
    """The dims along which the maximum that is subtracted is the same."""
    spread = shifted.operands[1].attrs["axes"]
    return tuple(axis for axis in range(shifted.rank) if axis not in spread)


def _along_maximum(match: Match) -> str | None:
    axes, axis = _maximum_axes(plain(match["grown"])), match.fact("axis")
    return None if axes == (axis,) else f"the maximum is along {axes}, the softmax along {axis}"


def _towards_softmax(graph: Graph) -> set[Node]:
    """What is subtracted in operands of softmaxes, once or several times."""
    found = set[Node]()
    for node in graph.nodes:
        if node.op.name == "softmax":
            (x,) = node.operands
            while x.op_name == "sub":
                x, maximum = x.operands
                found.add(maximum.node)
    return found


def _of_columns(match: Match) -> str | None:
    axes, last = tuple(match.fact("axes")), match["powers"].rank - 1
    if axes != (last,):
        return f"the sum is along {axes}, not along the columns that the product sums over"
    if tuple(match.fact("kept")) != tuple(range(last)):
        return "the statistic is broadcast along other dims"
    return None


def _divided_rows(match: Match) -> str | None:
    powers, result, of = match["powers"], match.root, parts(match["grown"])["powers"]
    if powers is not of:
        return f"the sum is of {of}, not of {powers}"
    if powers.rank != result.rank or not all(map(proves_equal, powers.shape[:-1], result.shape[:-1])):
        return f"the product has other rows than {powers}: it is {result.type}"
    return None


def _towards_division(graph: Graph) -> set[Node]:
    """What products are divided by."""
    return {
        node.operands[1].node
        for node in graph.nodes
        if node.op.name == "div" and node.operands[0].op_name == "matmul"
    }


def _divide_first(match: Match) -> Value:
    powers = match["powers"]
    (total,) = plain(match["grown"]).operands
    weights = powers / total.broadcast(powers.shape, range(powers.rank - 1))
    return match.graph.apply("matmul", weights, match["v"], **match.root.operands[0].attrs)


X = Any("x").where(floats)
SOFTMAX = (
    Rule("softmax",
         Op("div", Op("exp", X, name="powers"),
            Op("broadcast", Op("reduce_sum", Any("powers"), axes=Bind("axes")), axes=Bind("kept"))),
         lambda match: match["x"].softmax(match.fact("axes")[0]), _of_rows, exact=False,
         doc="exp(x) / sum(exp(x)) -> softmax(x)"),
)  # fmt: skip

DIVIDED = Growth("divided", (
    Rule("softmax_before_product",
         Op("div", Op("matmul", Once(Op("exp", X, name="powers"), 2), Any("v")).once(), grown(TOTAL)),
         _divide_first, _divided_rows, exact=False,
         doc="(exp(x) @ v) / row_total(exp(x)) -> (exp(x) / sum(exp(x))) @ v"),
    Rule("row_total",
         Op("broadcast", Op("reduce_sum", Op("exp", name="powers"), axes=Bind("axes")), axes=Bind("kept")),
         lambda match: known_as(TOTAL, match.root, {"powers": match["powers"]}), _of_columns,
         doc="broadcast(sum(exp(x))) -> row_total(exp(x)), where a product is divided by it"),
), frozenset({"softmax_before_product"}), _towards_division)  # fmt: skip
"""The pass that divides before a product, where results are divided by the sums of rows."""

SHIFTED = Growth("shifted", (
    Rule("shifted_softmax", Op("softmax", grown(BELOW), axis=Bind("axis")),
         lambda match: parts(match["grown"])["x"].softmax(match.fact("axis")), _along_maximum, exact=False,
         doc="softmax(below_maximum(x)) -> softmax(x)"),
    Rule("row_maximum", Op("broadcast", Op("reduce_max", X, axes=Bind("axes")), axes=Bind("kept")),
         lambda match: known_as(MAXIMUM, match.root, {"x": match["x"]}), _of_rows,
         doc="broadcast(max(x)) -> row_maximum(x), where a softmax is made of it"),
    Rule("below_maximum", Op("sub", Any("x"), grown(MAXIMUM)), _below, _of_these,
         doc="x - row_maximum(x) -> below_maximum(x)"),
), frozenset({"shifted_softmax"}), _towards_softmax)  # fmt: skip
"""The pass that leaves out the maximum that is subtracted before a softmax."""
