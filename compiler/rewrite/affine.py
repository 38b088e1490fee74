"""Scales and shifts by weights: chains become one, and scales go into the weights of what they follow.

So batch norm after a convolution of any stride, dilation, group and padding, or after a matmul, leaves a bias at most.
"Weights" are values of parameters and constants alone: what is computed of them is computed once, by
`fold_parameters`. None of these is exact but the first and the last.

1. y - b -> y + (-b)                       4. (y + b) + c -> y + (b + c)
2. (y + b) * s -> y * s + b * s            5. conv(x, w) * s -> conv(x, w * s), s along channels
3. (y * s) * t -> y * (s * t)              6. matmul(x, w) * s -> matmul(x, w * s), s along columns
7. reshape(w) -> broadcast(w), where the reshape only adds dims of one element: so vectors look everywhere
"""

from __future__ import annotations

from collections.abc import Callable

from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.rewrite.pattern import Any, Bind, Op, Pattern, floats
from kernels_hub.compiler.rewrite.regroup import groups
from kernels_hub.compiler.rewrite.rule import Match, Rule

MOST_NODES = 64


def static(value: Value) -> str | None:
    """A condition: made of parameters and constants alone, by few ops."""
    seen, stack = {value}, [value]
    while stack:
        one = stack.pop()
        if one.op_name not in {"parameter", "constant"} and not one.operands:
            return f"{value} depends on {one} ({one.op_name})"
        if len(seen) > MOST_NODES:
            return f"{value} takes more than {MOST_NODES} ops to see that it is a weight"
        for operand in one.operands:
            if operand not in seen:
                seen.add(operand)
                stack.append(operand)
    return None


Y = Any("y").where(floats)


def _weights(name: str) -> Pattern:
    """A broadcast vector (or scalar) of weights."""
    return Op("broadcast", Any(name).where(static), axes=Bind("axes"))


def _spread(match: Match, value: Value) -> Value:
    return value.broadcast(match.root.shape, match.fact("axes"))


def _moving(value: Value) -> str | None:
    return f"{value} is made of weights alone" if static(value) is None else None


def _scale_sum(match: Match) -> Value:
    scale = match["s"]
    return match["y"] * _spread(match, scale) + _spread(match, match["b"] * scale)


def _channels(match: Match) -> str | None:
    return (
        None
        if tuple(match.fact("axes")) == (1,)
        else f"the scale lies along {match.fact('axes')}, not along 1"
    )


def _columns(match: Match) -> str | None:
    last = match.root.rank - 1
    if tuple(match.fact("axes")) != (last,):
        return f"the scale lies along {match.fact('axes')}, not along {last}"
    return None


def _into_conv(match: Match) -> Value:
    weight, scale = match["w"], match["s"]
    product = weight * scale.broadcast(weight.shape, (0,))
    conv = match["conv"]
    return conv.graph.apply("conv", match["x"], product, **conv.attrs)


def _into_matmul(match: Match) -> Value:
    weight, scale = match["w"], match["s"]
    product = weight * scale.broadcast(weight.shape, (weight.rank - 1,))
    product_of = match["matmul"]
    return product_of.graph.apply("matmul", match["x"], product, **product_of.attrs)


def _one_dtype(match: Match) -> str | None:
    w, s = match["w"].dtype, match["s"].dtype
    return None if w is s else f"the weights are {w}, the scale {s}"


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


Guard = Callable[[Match], str | None]


def _both(first: Guard, second: Guard) -> Guard:
    return lambda match: first(match) or second(match)


def _with(value: Pattern) -> Pattern:
    return value.where(_moving)


AFFINE = (
    Rule("unsqueezed_weights", Op("reshape", Any("w").where(static)),
         lambda match: match["w"].broadcast(match.root.shape, _spread_axes(match) or ()), _adds_ones,
         doc="reshape(w) that adds dims of one element -> broadcast(w), w weights"),
    Rule("subtract_weights", Op("sub", _with(Y), _weights("b")),
         lambda match: match["y"] + _spread(match, -match["b"]), doc="y - b -> y + (-b), b a vector of weights"),
    Rule("scale_shifted", Op("mul", Op("add", _with(Y), _weights("b")).once(), _weights("s")), _scale_sum,
         exact=False, doc="(y + b) * s -> y * s + b * s, b and s weights"),
    Rule("scale_scaled", Op("mul", Op("mul", _with(Y), _weights("s")).once(), _weights("t")),
         lambda match: match["y"] * _spread(match, match["s"] * match["t"]), exact=False,
         doc="(y * s) * t -> y * (s * t), s and t weights"),
    Rule("shift_shifted", Op("add", Op("add", _with(Y), _weights("b")).once(), _weights("c")),
         lambda match: match["y"] + _spread(match, match["b"] + match["c"]), exact=False,
         doc="(y + b) + c -> y + (b + c), b and c weights"),
    Rule("divide_by_weights", Op("div", _with(Y), _weights("s")),
         lambda match: match["y"] * _spread(match, 1 / match["s"]), lambda match: None if match["s"].rank else
         "a number, no vector", exact=False, doc="y / s -> y * (1 / s), s a vector of weights"),
    Rule("scale_conv", Op("mul", Op("conv", _with(Any("x")), Any("w").where(static), name="conv").once(),
                          _weights("s")), _into_conv, _both(_channels, _one_dtype), exact=False,
         doc="conv(x, w) * s -> conv(x, w * s), s weights along channels"),
    Rule("scale_matmul", Op("mul", Op("matmul", _with(Any("x")), Any("w").where(static), name="matmul").once(),
                            _weights("s")), _into_matmul, _both(_columns, _one_dtype), exact=False,
         doc="matmul(x, w) * s -> matmul(x, w * s), s weights along columns"),
)  # fmt: skip
