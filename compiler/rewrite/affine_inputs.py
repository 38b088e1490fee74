"""Moves scales and shifts in front of what weights multiply into the weights.

So batch norm before a convolution or a matmul costs nothing, but where a padded border would see the shift. Weights
are as in `affine`. Between the scale and the product may be what commutes with it (`commute`): views, concats, bounds.
None of these is exact.

1. conv(x * s, w) -> conv(x, w * s), s along channels or a number: zeros of the padding stay zeros
2. conv(x + b, w) -> conv(x, w) + sum(w * b), b along channels or a number, without padding
3. matmul(x * s, w) -> matmul(x, w * s), s along the summed dim or a number
4. matmul(x + b, w) -> matmul(x, w) + sum(w * b), b along the summed dim or a number
"""

from __future__ import annotations

from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.rewrite.affine_weights import in_transposed, may_be_scaled, static, times
from kernels_hub.compiler.rewrite.commute import Carried, carried
from kernels_hub.compiler.rewrite.pattern import Any, Op, floats
from kernels_hub.compiler.rewrite.rule import Match, Rule
from kernels_hub.compiler.rewrite.spread import Spread


def _moving(value: Value) -> str | None:
    return f"{value} is made of weights alone" if static(value) is None else None


X, W = Any("x").where(floats, _moving), Any("w").where(static)


def _carried_along(match: Match, op: str, axis: int) -> Carried | str:
    """What x carries, if it lies along `axis` or is one number, and the weight may take it."""
    found = carried(match["x"], op, match.scope)
    if isinstance(found, str):
        return found
    spread = found.spread
    if spread.axes not in ((), (axis,)):
        return f"what x carries lies along {spread.axes}, not along {axis}"
    why = may_be_scaled(match["w"], spread, match.scope) if op == "mul" else None
    if why is None and spread.dtype is not match["w"].dtype:
        why = f"the weights are {match['w'].dtype}, what meets them {spread.dtype}"
    return why if why is not None else found


def _channels(match: Match, op: str) -> Carried | str:
    if op == "add":
        padding = match["conv"].attrs["padding"]
        if any(low != 0 or high != 0 for low, high in padding):
            return f"the border of {list(padding)} would see the shift"
    if not isinstance(match["w"].shape[0], int) or not isinstance(match["x"].shape[1], int):
        return f"the channels of {match['w'].type} are not known"
    return _carried_along(match, op, 1)


def _rows(match: Match, op: str) -> Carried | str:
    if not isinstance(match["w"].shape[-2], int):
        return f"the rows of {match['w'].type} are not known"
    return _carried_along(match, op, match["x"].rank - 1)


def _refuses(found: Carried | str) -> str | None:
    return found if isinstance(found, str) else None


def _found(found: Carried | str) -> Carried:
    assert isinstance(found, Carried)
    return found


def _of_weight(match: Match, spread: Spread) -> Value:
    """Weights times what is spread along the channels that a convolution takes in."""
    if not spread.axes:
        return times(match["w"], spread.make(), ())
    return match["w"] * in_transposed(match["w"], spread.make(), match["conv"].attrs["groups"])


def _of_rows(match: Match, spread: Spread) -> Value:
    return times(match["w"], spread.make(), (match["w"].rank - 2,) if spread.axes else ())


def _scale_conv(match: Match) -> Value:
    found, conv = _found(_channels(match, "mul")), match["conv"]
    return match.graph.apply("conv", found.build(), _of_weight(match, found.spread), **conv.attrs)


def _shift_conv(match: Match) -> Value:
    found, attrs = _found(_channels(match, "add")), match["conv"].attrs
    shift = _of_weight(match, found.spread).sum(tuple(range(1, match["w"].rank)))
    conv = match.graph.apply("conv", found.build(), match["w"], **attrs)
    return conv + shift.cast(conv.dtype).broadcast(conv.shape, (1,))


def _scale_matmul(match: Match) -> Value:
    found = _found(_rows(match, "mul"))
    return match.graph.apply("matmul", found.build(), _of_rows(match, found.spread), **match.root.attrs)


def _shift_matmul(match: Match) -> Value:
    found, weight = _found(_rows(match, "add")), match["w"]
    product = match.graph.apply("matmul", found.build(), weight, **match.root.attrs)
    shift, axes = _row_sums(weight, found.spread, product.rank)
    return product + shift.cast(product.dtype).broadcast(product.shape, axes)


def _row_sums(weight: Value, spread: Spread, rank: int) -> tuple[Value, tuple[int, ...]]:
    """sum(w * b) over the rows of a weight, and the axes of the product along which it lies."""
    axes = (*range(rank - 2), rank - 1)
    if weight.op_name == "broadcast":
        inner, places = weight.operands[0], tuple(weight.attrs["axes"])
        if places == (weight.rank - 2, weight.rank - 1):
            weight, axes = inner, (rank - 1,)
    row = weight.rank - 2
    return times(weight, spread.make(), (row,) if spread.axes else ()).sum(row), axes


AFFINE_INPUTS = (
    Rule("scaled_into_conv", Op("conv", X, W, name="conv"), _scale_conv,
         lambda match: _refuses(_channels(match, "mul")), exact=False, doc="case 1"),
    Rule("shifted_into_conv", Op("conv", X, W, name="conv"), _shift_conv,
         lambda match: _refuses(_channels(match, "add")), exact=False, doc="case 2"),
    Rule("scaled_into_matmul", Op("matmul", X, W), _scale_matmul,
         lambda match: _refuses(_rows(match, "mul")), exact=False, doc="case 3"),
    Rule("shifted_into_matmul", Op("matmul", X, W), _shift_matmul,
         lambda match: _refuses(_rows(match, "add")), exact=False, doc="case 4"),
)  # fmt: skip
