"""Folds scales and shifts by weights: merges chains, and moves scales into the weights of the op before.

So batch norm after a convolution of any stride, dilation, group and padding, or after a matmul, leaves a bias at most.
"Weights" are values of parameters and constants alone: what is computed of them is computed once, by
`fold_parameters`. None of these is exact but the first and the last.

1. y - b -> y + (-b)                       4. (y + b) + c -> y + (b + c)
2. (y + b) * s -> y * s + b * s            5. conv(x, w) * s -> conv(x, w * s), s along channels or a number
3. (y * s) * t -> y * (s * t)              6. matmul(x, w) * s -> matmul(x, w * s), s along columns or a number
7. reshape(w) -> broadcast(w), where the reshape only adds dims of one element: so vectors look everywhere
8. f(conv(x, w)) * s -> f(conv(x, w * s)), f what commutes with the scale (`commute`): views, concats, bounds, sums
9. f(y) + c -> f(y + c), f views, where y ends in a product or a shift
"""

from __future__ import annotations

from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.rewrite.affine_weights import static
from kernels_hub.compiler.rewrite.commute import VIEWS, WAYS, Build, scaled, shifted, weights_of
from kernels_hub.compiler.rewrite.pattern import Any, Op, Pattern, floats
from kernels_hub.compiler.rewrite.regroup import groups
from kernels_hub.compiler.rewrite.rule import Match, Rule
from kernels_hub.compiler.rewrite.spread import Spread, combined

Y = Any("y").where(floats)


def _weights(name: str) -> Pattern:
    """A broadcast vector (or scalar) of weights."""
    return Op("broadcast", Any().where(static), name=name)


def _moving(value: Value) -> str | None:
    return f"{value} is made of weights alone" if static(value) is None else None


def _both(match: Match, inner: str, outer: str, op: str) -> Spread | str:
    """Two vectors of weights as one."""
    first, second = (_given(match[one]) for one in (inner, outer))
    found = combined(first, second, match.root.shape, op)
    if found is None:
        return f"one of the weights lies along {first.axes}, the other along {second.axes}"
    return found


def _given(value: Value) -> Spread:
    found = weights_of(value)
    assert isinstance(found, Spread)
    return found


def _refuses(found: object) -> str | None:
    return found if isinstance(found, str) else None


def _scale_sum(match: Match) -> Value:
    both = _both(match, "b", "s", "mul")
    assert isinstance(both, Spread)
    return match["y"] * match["s"] + both.over(match.root.shape)


def _pair(match: Match, op: str) -> Value:
    both = _both(match, "b", "s", op)
    assert isinstance(both, Spread)
    return match["y"].binary(op, both.over(match.root.shape))


def _into_product(match: Match) -> Value:
    build = scaled(match["y"], _given(match["s"]), match.scope)
    assert not isinstance(build, str)
    return build()


def _scales(match: Match) -> str | None:
    return _refuses(scaled(match["y"], _given(match["s"]), match.scope))


def _shift(match: Match) -> Build | str:
    return shifted(match["y"], _given(match["s"]), match.scope)


def _behind_views(match: Match) -> Value:
    build = _shift(match)
    assert not isinstance(build, str)
    return build()


def _spread_axes(match: Match) -> list[int] | None:
    """Where the dims of a weight lie in its reshape, if that only adds dims of one element."""
    w, root = match["w"], match.root
    parts = groups(w.shape, root.shape)
    if parts is None or w.rank == 0 or w.rank >= root.rank:
        return None
    axes = [
        next((at for at in of if root.shape[at] == dim), -1) for of, dim in zip(parts, w.shape, strict=True)
    ]
    ones = all(dim == 1 for at, dim in enumerate(root.shape) if at not in axes)
    return axes if ones and -1 not in axes else None


def _adds_ones(match: Match) -> str | None:
    if _spread_axes(match) is None:
        return f"{match['w'].type} becomes {match.root.type}, which does more than to add dims of one element"
    return None


def _with(value: Pattern) -> Pattern:
    return value.where(_moving)


def _on(op: str) -> Pattern:
    """A product that a scale is to go into."""
    return Op(op, _with(Any("x")), Any("w").where(static), name="y").once()


AFFINE = (
    Rule("unsqueezed_weights", Op("reshape", Any("w").where(static)),
         lambda match: match["w"].broadcast(match.root.shape, _spread_axes(match) or ()), _adds_ones,
         doc="reshape(w) that adds dims of one element -> broadcast(w), w weights"),
    Rule("subtract_weights", Op("sub", _with(Y), _weights("b")),
         lambda match: match["y"] + (-match["b"].operands[0]).broadcast(match.root.shape, match["b"].attrs["axes"]),
         doc="y - b -> y + (-b), b a vector of weights"),
    Rule("scale_shifted", Op("mul", Op("add", _with(Y), _weights("b")).once(), _weights("s")), _scale_sum,
         lambda match: _refuses(_both(match, "b", "s", "mul")), exact=False,
         doc="(y + b) * s -> y * s + b * s, b and s weights"),
    Rule("scale_scaled", Op("mul", Op("mul", _with(Y), _weights("b")).once(), _weights("s")),
         lambda match: _pair(match, "mul"), lambda match: _refuses(_both(match, "b", "s", "mul")), exact=False,
         doc="(y * s) * t -> y * (s * t), s and t weights"),
    Rule("shift_shifted", Op("add", Op("add", _with(Y), _weights("b")).once(), _weights("s")),
         lambda match: _pair(match, "add"), lambda match: _refuses(_both(match, "b", "s", "add")), exact=False,
         doc="(y + b) + c -> y + (b + c), b and c weights"),
    Rule("divide_by_weights", Op("div", _with(Y), _weights("s")),
         lambda match: match["y"] * (1 / match["s"].operands[0]).broadcast(match.root.shape, match["s"].attrs["axes"]),
         lambda match: "a number, no vector" if match["s"].operands[0].scalar is not None else None, exact=False,
         doc="y / s -> y * (1 / s), s weights"),
    Rule("scale_conv", Op("mul", _on("conv"), _weights("s")), _into_product, _scales, exact=False,
         doc="conv(x, w) * s -> conv(x, w * s), s weights along channels, or one"),
    Rule("scale_matmul", Op("mul", _on("matmul"), _weights("s")), _into_product, _scales, exact=False,
         doc="matmul(x, w) * s -> matmul(x, w * s), s weights along columns, or one"),
    Rule("scale_conv_transpose", Op("mul", _on("conv_transpose"), _weights("s")), _into_product, _scales, exact=False,
         doc="conv_transpose(x, w) * s -> conv_transpose(x, w * s), s weights along channels, or one"),
    Rule("scale_commutes", Op("mul", Op(WAYS, name="y"), _weights("s")), _into_product, _scales, exact=False,
         doc="f(conv(x, w)) * s -> f(conv(x, w * s)), f views, concats, bounds, sums, shifts"),
    Rule("shift_commutes", Op("add", Op(VIEWS, name="y"), _weights("s")), _behind_views,
         lambda match: _refuses(_shift(match)), exact=False,
         doc="f(conv(x, w) + b) + c -> f(conv(x, w) + (b + c)), f views"),
)  # fmt: skip
