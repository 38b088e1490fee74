"""Slices, pads and concats: merges them, and moves them to where fewer elements are computed.

    f(x, y)[part] -> f(x[part], y[part])           f(pad(x, v)) -> pad(f(x), f(v))
    concat(x[:k], x[k:]) -> x                      concat(x, y)[part of x] -> x[part]

All of it is exact: each element that is left is computed as before.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise

from kernels_hub.compiler.ir.dims import Dim
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.op import Trait
from kernels_hub.compiler.ir.proofs import proves_equal, proves_le
from kernels_hub.compiler.rewrite.pattern import Any, Op, Scalar, one_of
from kernels_hub.compiler.rewrite.rule import Match, Rule

X = Any("x")
_POINTWISE = Op(Trait.POINTWISE).names


def _slice(x: Value, like: Value, **changed: tuple[Dim, ...]) -> Value:
    """The slice of x that another slice is of its operand; attributes may differ."""
    return like.graph.apply("slice", x, **{**like.attrs, **changed})


def _with_dim(values: tuple[Dim, ...], axis: int, dim: Dim) -> tuple[Dim, ...]:
    return (*values[:axis], dim, *values[axis + 1 :])


# -- concats of slices


def _continues(first: Value, second: Value, axis: int) -> bool:
    """Whether two slices are one, cut along an axis."""
    if first.op_name != "slice" or second.op_name != "slice" or first.operands != second.operands:
        return False
    a, b = first.attrs, second.attrs
    return (
        all(step == 1 for step in (*a["steps"], *b["steps"]))
        and proves_equal(a["stops"][axis], b["starts"][axis])
        and all(
            index == axis or proves_equal(a[key][index], b[key][index])
            for key in ("starts", "stops")
            for index in range(first.rank)
        )
    )


def _runs(root: Value) -> Iterator[list[Value]]:
    """The operands of a concat, those that continue each other together."""
    axis, run = root.attrs["axis"], [root.operands[0]]
    for before, one in pairwise(root.operands):
        if not _continues(before, one, axis):
            yield run
            run = []
        run.append(one)
    yield run


def _cut_apart(match: Match) -> str | None:
    if all(len(run) == 1 for run in _runs(match.root)):
        return "no operand continues where the one before it ends"
    return None


def _joined(match: Match) -> Value:
    root = match.root
    axis = root.attrs["axis"]
    parts = []
    for first, *rest in _runs(root):
        stops = _with_dim(first.attrs["stops"], axis, rest[-1].attrs["stops"][axis]) if rest else ()
        parts.append(_slice(first.operands[0], first, stops=stops) if rest else first)
    return root.graph.apply("concat", *parts, axis=axis) if len(parts) > 1 else parts[0]


# -- slices of concats and of broadcasts


def _place(match: Match) -> tuple[Value, Dim] | None:
    """The operand of the concat that the slice lies in, and where it begins."""
    root, whole = match.root, match["whole"]
    axis = whole.attrs["axis"]
    start, stop = root.attrs["starts"][axis], root.attrs["stops"][axis]
    zero: Dim = 0
    edges = accumulate((part.shape[axis] for part in whole.operands), initial=zero)
    for part, (low, high) in zip(whole.operands, pairwise(edges), strict=True):
        if proves_le(low, start) and proves_le(stop, high):
            return part, low
    return None


def _in_one_part(match: Match) -> str | None:
    return None if _place(match) else "the slice lies in no operand of the concat alone"


def _of_part(match: Match) -> Value:
    found, axis, root = _place(match), match["whole"].attrs["axis"], match.root
    assert found is not None
    part, low = found
    starts, stops = (
        _with_dim(root.attrs[key], axis, root.attrs[key][axis] - low) for key in ("starts", "stops")
    )
    return _slice(part, root, starts=starts, stops=stops)


def _broadcast_after(match: Match) -> Value:
    root, wide = match.root, match["wide"]
    axes = wide.attrs["axes"]
    kept = {key: tuple(root.attrs[key][axis] for axis in axes) for key in ("starts", "stops", "steps")}
    return _slice(match["x"], root, **kept).broadcast(root.shape, axes)


# -- slices before and pads behind pointwise ops


def _computed_in_part(match: Match) -> Value:
    root, whole = match.root, match["whole"]
    return root.graph.apply(whole.op, *(_slice(operand, root) for operand in whole.operands), **whole.attrs)


def _pad_after(match: Match) -> Value:
    """Of the operands of the root, the pad gives what it pads; numbers are spread anew."""
    root, pad = match.root, match["pad"]

    def computed(x: Value) -> Value:
        operands = [x if operand is pad else match["c"].broadcast_to(x.shape) for operand in root.operands]
        return root.graph.apply(root.op, *operands, **root.attrs)

    return root.graph.apply("pad", *map(computed, pad.operands), **pad.attrs)


def _one_number(match: Match) -> str | None:
    return None if match["c"].rank == 0 else f"the number stands in a {match['c'].type}"


_PAD = Op("pad", name="pad").once()
PARTS = (
    Rule("concat_of_one", Op("concat", X), lambda match: match["x"], doc="concat(x) -> x"),
    Rule("concat_of_slices", Op("concat"), _joined, _cut_apart, doc="concat(x[:k], x[k:]) -> x"),
    Rule("slice_of_concat", Op("slice", Op("concat", name="whole")), _of_part, _in_one_part,
         doc="concat(x, y)[part of x] -> x[part]"),
    Rule("slice_of_broadcast", Op("slice", Op("broadcast", X, name="wide")), _broadcast_after,
         doc="broadcast(x)[part] -> broadcast(x[part])"),
    Rule("slice_before_pointwise", Op("slice", Op(_POINTWISE, name="whole").once()), _computed_in_part,
         doc="f(x, y)[part] -> f(x[part], y[part])"),
    Rule("pad_behind_unary", Op(_POINTWISE, _PAD), _pad_after, doc="f(pad(x, v)) -> pad(f(x), f(v))"),
    Rule("pad_behind_scalar", one_of(Op(_POINTWISE, _PAD, Scalar("c")), Op(_POINTWISE, Scalar("c"), _PAD)),
         _pad_after, _one_number, doc="f(pad(x, v), number) -> pad(f(x, number), f(v, number))"),
)  # fmt: skip
