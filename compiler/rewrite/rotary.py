"""Rotary embedding. No number changes: see `outline`.

rotary(x, cos, sin) = x * cos + concat(-x[half:], x[:half]) * sin                       Source: arXiv 2104.09864
"""

from __future__ import annotations

from kernels_hub.compiler.ir.proofs import proves_equal
from kernels_hub.compiler.rewrite.outline import closed, outline
from kernels_hub.compiler.rewrite.pattern import Any, Bind, Op, Pattern, floats, one_of
from kernels_hub.compiler.rewrite.rule import Match, Rule

X = Any("x").where(floats)


def _halves(match: Match) -> str | None:
    x = match["x"]
    last = x.rank - 1
    size, middle = x.shape[last], match.fact("stop")[last]
    if match.fact("axis") != last or any(step != 1 for step in match.fact("steps")):
        return "the parts are not consecutive along the last dim"
    low, high = match.fact("start"), match.fact("high")
    if low[last] != middle or not proves_equal(high[last], size) or not proves_equal(size, 2 * middle):
        return f"the parts are not the halves of {x.type}"
    return closed(match, ("x", "cos", "sin"))


_TURNED = Op(
    "concat",
    Op("neg", Op("slice", X, starts=Bind("start"), stops=Bind("high"), steps=Bind("steps"))),
    Op("slice", X, stops=Bind("stop"), steps=Bind("steps")),
    axis=Bind("axis"),
)


def _table(name: str) -> Pattern:
    """A table of cosines or sines, as it was before it was broadcast to the heads."""
    return one_of(Op("broadcast", Any(name)), Any(name))


ROTARY = (
    Rule("rotary", Op("add", Op("mul", X, _table("cos")), Op("mul", _TURNED, _table("sin"))),
         lambda match: outline(match, "rotary", ("x", "cos", "sin")), _halves,
         doc="x * cos + concat(-x[half:], x[:half]) * sin"),
)  # fmt: skip
