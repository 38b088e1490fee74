"""Softmax, gated units, rotary embedding, and scaled-dot-product attention.

    gated_silu(gate, up) = silu(gate) * up, and so for gelu and gelu_tanh               Source: arXiv 2002.05202
    rotary(x, cos, sin) = x * cos + concat(-x[half:], x[:half]) * sin                   Source: arXiv 2104.09864
    attention(q, k, v, scale, mask) = softmax(q @ k^T * scale + mask) @ v               Source: arXiv 1706.03762

scale and mask are operands where the model has them. A mask is added, or chooses scores (a bool: `kept`, and the number
`fill` elsewhere). k and v that are repeated for groups of heads go in as they were before: with fewer heads.
Only a spelled-out softmax changes numbers, by rounding; for the others see `outline`.
"""

from __future__ import annotations

from kernels_hub.compiler.ir.proofs import proves_equal
from kernels_hub.compiler.rewrite.outline import closed, outline, recognised
from kernels_hub.compiler.rewrite.pattern import Any, Bind, Op, Pattern, Scalar, floats, one_of, through
from kernels_hub.compiler.rewrite.rule import Match, Rule

X = Any("x").where(floats)


def _softmax_axes(match: Match) -> str | None:
    axes, rank = tuple(match.fact("axes")), match["x"].rank
    if len(axes) != 1:
        return f"the sum is over axes {axes}, not over one"
    if tuple(match.fact("kept")) != tuple(axis for axis in range(rank) if axis not in axes):
        return "the statistic is broadcast along other dims"
    return None


_POWERS = Op(
    "exp", Op("sub", X, Op("broadcast", Op("reduce_max", X, axes=Bind("axes")), axes=Bind("kept"))), name="e"
)
_TOTAL = Op("broadcast", Op("reduce_sum", Any("e"), axes=Bind("axes")), axes=Bind("kept"))
SOFTMAX = (
    Rule("softmax", Op("div", _POWERS, _TOTAL),
         lambda match: match["x"].softmax(match.fact("axes")[0]), _softmax_axes, exact=False,
         doc="exp(x - max(x)) / sum(exp(x - max(x))) -> softmax(x)"),
)  # fmt: skip


def _rule(name: str, pattern: Pattern, operands: tuple[str, ...], kind: str = "") -> Rule:
    return Rule(
        name,
        pattern,
        lambda match: outline(match, kind or name, operands),
        lambda match: closed(match, operands),
    )


GATED = tuple(
    _rule(
        f"gated_{name}",
        Op("mul", Op("call", Any("gate")).where(recognised(name)).once(), Any("up")),
        ("gate", "up"),
    )
    for name in ("silu", "gelu", "gelu_tanh", "gelu_quick")
)


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


def _repeated(name: str) -> Pattern:
    """Heads, repeated for groups of queries or not."""
    return one_of(Op("reshape", Op("broadcast", Any(name)).once()).once(), Any(name))


def _last_two(match: Match) -> str | None:
    order, rank = tuple(match.fact("order")), match.root.rank
    if order != (*range(rank - 2), rank - 1, rank - 2):
        return f"k is permuted by {order}, which is more than its last two dims"
    if match.fact("axis") != rank - 1:
        return f"the softmax is along {match.fact('axis')}, not along the keys"
    return closed(match, OPERANDS)


OPERANDS = ("q", "k", "v", "scale", "mask", "kept", "fill")
_PRODUCT = Op("matmul", Any("q"), Op("permute", _repeated("k"), order=Bind("order"))).once()
_SCALED = one_of(Op({"mul", "div"}, _PRODUCT, Scalar("scale")).once(), _PRODUCT)
_MASKED = one_of(
    Op("add", _SCALED, Any("mask")).once(),
    Op("select", Any("kept"), _SCALED, Scalar("fill")).once(),
    Op("select", Any("kept"), Scalar("fill"), _SCALED).once(),
    _SCALED,
)
_WEIGHTS = Op("softmax", through("cast", _MASKED), axis=Bind("axis")).once()
ATTENTION = (
    Rule("attention",
         Op("matmul", through("cast", _WEIGHTS), _repeated("v")),
         lambda match: outline(match, "attention", OPERANDS), _last_two,
         doc="softmax(q @ k^T * scale + mask) @ v"),
)  # fmt: skip
