"""Gathers that take every element, in order: they are views. Scatters that invert an order, or mark
what was chosen, as mixtures of experts do.

Masks are often written so: mask[rows, columns] with all rows and all columns, as torch.vmap and its exporters do,
with columns and rows spelled as constants, or, where dims are symbols, as iotas.
All of it is exact. An index below zero counts from the end, so only those that are spelled 0, 1, … are taken.
"""

from __future__ import annotations

import math

import numpy as np

from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.proofs import proves_equal
from kernels_hub.compiler.ir.types import INT64, Array
from kernels_hub.compiler.rewrite.pattern import Any, Bind, Op, Scalar
from kernels_hub.compiler.rewrite.regroup import places
from kernels_hub.compiler.rewrite.rule import Match, Rule

MOST_ELEMENTS = 1 << 20


def _gathers_all(match: Match) -> str | None:
    x, indices = match["x"], match["indices"]
    size = x.shape[match.fact("axis")]
    if indices.op_name == "iota":
        if proves_equal(indices.node.attrs["size"], size):
            return None
        return f"{indices} is not known to be as long as dim {match.fact('axis')} of {x.type}"
    return _counts(indices.array, size, str(indices))


def _places(match: Match) -> str | None:
    x, indices = match["x"], match["indices"]
    if indices.array is None:
        return f"{indices} is no constant"
    dims = x.shape[: indices.array.shape[-1]]
    if not dims or not all(isinstance(dim, int) and dim for dim in dims):
        return f"the dims of {x.type} that are indexed are not known"
    strides = [math.prod(dims[axis + 1 :]) for axis in range(len(dims))]
    if any((indices.array[..., axis] >= dim).any() for axis, dim in enumerate(dims)):
        return f"{indices} has an index that is out of bounds"
    if indices.array.min(initial=0) < 0:
        return f"{indices} counts from the end"
    return _counts((indices.array * np.array(strides)).sum(-1), math.prod(dims), str(indices))


def _counts(array: Array | None, size: object, name: str) -> str | None:
    """Whether it is 0, 1, … size - 1, in order."""
    if array is None or not isinstance(size, int):
        return f"{name} is no constant, or of a dim that is not known"
    if array.size != size or size > MOST_ELEMENTS or not np.array_equal(array.reshape(-1), np.arange(size)):
        return f"{name} does not take each of the {size} elements once, in order"
    return None


def _axes(match: Match) -> list[int] | str:
    """The dims of the result along which each dim of x is taken; or why that is not so."""
    x, joined = match["x"], match["indices"]
    last = joined.rank - 1
    if match.fact("axis") != last or len(joined.operands) != x.rank:
        return f"{joined} does not join an index for each dim of {x.type}"
    axes: list[int] = []
    for part, dim in zip(joined.operands, x.shape, strict=True):
        iota = part
        while iota.op_name in {"reshape", "broadcast"}:
            iota = iota.operands[0]
        if iota.op_name != "iota" or not proves_equal(iota.node.attrs["size"], dim):
            return f"{part} is not known to be 0, 1, … of {dim}"
        place = places(part, iota)
        if place is None or place[0] is None or (axes and place[0] <= axes[-1]):
            return f"{part} does not run along a dim of its own, in the order of the dims of {x.type}"
        axes.append(place[0])
    return axes


def _grid(match: Match) -> str | None:
    axes = _axes(match)
    return axes if isinstance(axes, str) else None


def _spread(match: Match) -> Value:
    axes = _axes(match)
    assert not isinstance(axes, str)
    return match["x"].broadcast(match.root.shape, axes)


def _at_most_zero(match: Match) -> str | None:
    number = match["c"].scalar
    return None if number <= 0 else f"{number} is more than 0"


def _inverse(match: Match) -> str | None:
    order, count = match["order"], match["numbers"]
    if order.rank != 1 or match["places"].rank != 2:
        return f"{order} is no order of one row"
    if not proves_equal(count.node.attrs["size"], order.shape[0]) or match.root.shape != order.shape:
        return f"{count} does not number all of {order}"
    return None if match.root.dtype is INT64 else f"{match.root} is no int64"


def _one(match: Match) -> str | None:
    shapes = {one: match[one].shape for one in ("x", "order", "updates")}
    if any(shape != (1,) for shape in shapes.values()) or match["places"].shape != (1, 1):
        return f"{match['order']} is no order of one element"
    return None


def _marks(match: Match) -> str | None:
    x, places, axis = match["x"], match["places"], match.fact("axis")
    beside = [other for other in range(x.rank) if other != axis]
    if any(not proves_equal(places.shape[one], x.shape[one]) for one in beside):
        return f"{places} does not reach all of {x}"
    chosen = places
    while chosen.op_name == "reshape":
        chosen = chosen.operands[0]
    if chosen.op_name not in _CHOICES:
        return f"{places} may count from the end, or be out of range"
    if not proves_equal(chosen.operands[0].shape[chosen.attrs["axis"]], x.shape[axis]):
        return f"{chosen} chooses among others than dim {axis} of {x}"
    return None


_CHOICES = frozenset({"argsort", "argtopk", "argmax", "argmin"})


def _marked(match: Match) -> Value:
    """For each element, whether one of the places is its own; the places run along a dim in front of it."""
    x, places, axis = match["x"], match["places"], match.fact("axis")
    shape = (*places.shape[: axis + 1], *x.shape[axis:])
    around = [one for one in range(x.rank + 1) if one != axis + 1]
    own = match.graph.iota(x.shape[axis]).broadcast(shape, (axis + 1,))
    hit = places.broadcast(shape, around).binary("eq", own).reduce("any", [axis])
    return hit.select(match.graph.full(x.shape, match["c"].scalar, x.dtype), x)


def _reshaped(match: Match) -> Value:
    return match["x"].reshape(match.root.shape)


EVERYTHING = (
    Rule("gather_everything", Op("gather", Any("x"), Any("indices"), axis=Bind("axis")), _reshaped, _gathers_all,
         doc="x[0, 1, … n - 1] -> x, in the shape of the indices"),
    Rule("gather_every_place", Op("gather_nd", Any("x"), Any("indices"), batch_dims=0), _reshaped, _places,
         doc="x[(0, 0), (0, 1), … (m - 1, n - 1)] -> x, in the shape of the indices"),
    Rule("gather_grid", Op("gather_nd", Any("x"), Op("concat", axis=Bind("axis"), name="indices"), batch_dims=0),
         _spread, _grid, doc="x[rows, columns] -> x, broadcast, for iotas that are broadcast"),
    Rule("scatter_order", Op("scatter_nd", Any("x"),
                             Op("reshape", Op("argsort", axis=0, name="order"), name="places"),
                             Op("iota", name="numbers"), reduction="none"),
         lambda match: match["order"].along("argsort", 0, descending=False), _inverse,
         doc="0, 1, … written where an order says -> the order of that order, its inverse"),
    Rule("scatter_number", Op("scatter_elements", Any("x"), Any("places"), Scalar("c"), axis=Bind("axis"),
                              reduction="none"), _marked, _marks,
         doc="a number written at places that were chosen among x -> a number where one of them is this, else x"),
    Rule("scatter_one", Op("scatter_nd", Any("x"), Op("reshape", Op("argsort", name="order"), name="places"),
                           Any("updates"), reduction="none"),
         lambda match: match["updates"], _one, doc="written at the order of one -> what is written"),
    Rule("iota_is_not_negative", Op("le", Scalar("c"), Op("iota")),
         lambda match: match.graph.full(match.root.shape, True, match.root.dtype), _at_most_zero,
         doc="0 <= iota -> true"),
)  # fmt: skip
