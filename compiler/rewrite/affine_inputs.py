"""Scales and shifts in front of what weights multiply, and behind transposed convolutions, go into the weights.

So batch norm before a convolution or a matmul costs nothing, but where a padded border would see the shift. Weights
are as in `affine`. None of these is exact.

1. conv(x * s, w) -> conv(x, w * s), s along channels: zeros of the padding stay zeros
2. conv(x + b, w) -> conv(x, w) + sum(w * b), b along channels, without padding
3. matmul(x * s, w) -> matmul(x, w * s), s along the summed dim
4. matmul(x + b, w) -> matmul(x, w) + sum(w * b), b along the summed dim
5. conv_transpose(x, w) * s -> conv_transpose(x, w * s), s along channels
"""

from __future__ import annotations

from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.rewrite.affine import static
from kernels_hub.compiler.rewrite.pattern import Any, Bind, Op, Pattern, floats
from kernels_hub.compiler.rewrite.rule import Match, Rule


def _moving(value: Value) -> str | None:
    return f"{value} is made of weights alone" if static(value) is None else None


X, W = Any("x").where(floats, _moving), Any("w").where(static)


def _vector(name: str) -> Pattern:
    return Op("broadcast", Any(name).where(static), axes=Bind("axes"))


def _input(op: str, name: str) -> Pattern:
    return Op(op, X, _vector(name)).once()


def _of_groups(vector: Value, groups: int, rows: int) -> Value:
    """(channels,) -> (rows, channels / groups): each row has the part of its group."""
    channels = vector.shape[0]
    assert isinstance(channels, int)
    parts = vector.reshape((groups, channels // groups))
    each = parts.broadcast((groups, rows // groups, channels // groups), (0, 2))
    return each.reshape((rows, channels // groups))


def _of_weight(match: Match, vector: Value) -> Value:
    """A vector along the channels that a convolution takes in (or a transposed one gives), beside its weight."""
    weight, root = match["w"], match["conv"]
    rows = weight.shape[0]
    assert isinstance(rows, int)
    return _of_groups(vector, root.attrs["groups"], rows).broadcast(weight.shape, (0, 1))


def _along_channels(match: Match, name: str) -> str | None:
    weight, vector, axes = match["w"], match[name], tuple(match.fact("axes"))
    if axes != (1,):
        return f"{vector} lies along {axes}, not along 1"
    if not isinstance(weight.shape[0], int) or not isinstance(vector.shape[0], int):
        return f"the channels of {weight.type} are not known"
    return _one_dtype(match, name)


def _one_dtype(match: Match, name: str) -> str | None:
    w, s = match["w"].dtype, match[name].dtype
    return None if w is s else f"the weights are {w}, {match[name]} is {s}"


def _unpadded(match: Match) -> str | None:
    padding = match["conv"].attrs["padding"]
    if any(low != 0 or high != 0 for low, high in padding):
        return f"the border of {list(padding)} would see the shift"
    return _along_channels(match, "b")


def _along_rows(match: Match, name: str) -> str | None:
    x, axes = match["x"], tuple(match.fact("axes"))
    if axes != (x.rank - 1,):
        return f"{match[name]} lies along {axes}, not along {x.rank - 1}"
    return _one_dtype(match, name)


def _scale_conv(match: Match) -> Value:
    weight = match["w"] * _of_weight(match, match["s"])
    return match.graph.apply(match["conv"].op, match["x"], weight, **match["conv"].attrs)


def _shift_conv(match: Match) -> Value:
    shift = (match["w"] * _of_weight(match, match["b"])).sum(tuple(range(1, match["w"].rank)))
    conv = match.graph.apply("conv", match["x"], match["w"], **match["conv"].attrs)
    return conv + shift.cast(conv.dtype).broadcast(conv.shape, (1,))


def _rows(match: Match, name: str) -> Value:
    weight = match["w"]
    return weight * match[name].broadcast(weight.shape, (weight.rank - 2,))


def _scale_matmul(match: Match) -> Value:
    return match.graph.apply("matmul", match["x"], _rows(match, "s"), **match.root.attrs)


def _shift_matmul(match: Match) -> Value:
    product = match.graph.apply("matmul", match["x"], match["w"], **match.root.attrs)
    shift = _rows(match, "b").sum(match["w"].rank - 2).cast(product.dtype)
    return product + shift.broadcast(product.shape, (*range(product.rank - 2), product.rank - 1))


AFFINE_INPUTS = (
    Rule("scaled_into_conv", Op("conv", _input("mul", "s"), W, name="conv"), _scale_conv,
         lambda match: _along_channels(match, "s"), exact=False, doc="case 1"),
    Rule("shifted_into_conv", Op("conv", _input("add", "b"), W, name="conv"), _shift_conv, _unpadded,
         exact=False, doc="case 2"),
    Rule("scaled_into_matmul", Op("matmul", _input("mul", "s"), W), _scale_matmul,
         lambda match: _along_rows(match, "s"), exact=False, doc="case 3"),
    Rule("shifted_into_matmul", Op("matmul", _input("add", "b"), W), _shift_matmul,
         lambda match: _along_rows(match, "b"), exact=False, doc="case 4"),
    Rule("scale_conv_transpose", Op("mul", Op("conv_transpose", X, W, name="conv").once(), _vector("s")), _scale_conv,
         lambda match: _along_channels(match, "s"), exact=False, doc="case 5"),
)  # fmt: skip
