"""Moves reshapes that only split dims in front of permutes, so that both can merge with others.

    reshape(permute(x)) -> permute(reshape(x))

What exporters write for the transpose of the last two dims of several (all others merged, three dims permuted, and
split again) is one permute then. Dims of one element, which an einsum taken apart moves about, are left out of permutes
between reshapes. Exact: no element is computed otherwise.
"""

from __future__ import annotations

from kernels_hub.compiler.ir.dims import Dim
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.op import Shape
from kernels_hub.compiler.ir.proofs import proves_equal
from kernels_hub.compiler.rewrite.pattern import Any, Bind, Op
from kernels_hub.compiler.rewrite.rule import Match, Rule


def groups(whole: Shape, parts: Shape) -> list[tuple[int, ...]] | None:
    """For each dim of `whole` the places in `parts` of those that it is split into; None where some are merged."""
    found: list[tuple[int, ...]] = []
    place = 0
    for dim in whole:
        first, size = place, _ONE
        while place < len(parts) and (place == first or not proves_equal(size, dim)):
            size, place = size * parts[place], place + 1
        if place == first or not proves_equal(size, dim):
            return None
        found.append(tuple(range(first, place)))
    if any(not proves_equal(dim, 1) for dim in parts[place:]):
        return None
    if found:
        found[-1] += tuple(range(place, len(parts)))
    return found


_ONE: Dim = 1


_LEAVES_DIMS = frozenset({"bitnot", "eq", "cast"})
_REDUCES = frozenset({"reduce_any", "reduce_max"})


def places(value: Value, source: Value) -> list[int | None] | None:
    """The dims of `value` in which the dims of `source` are; None for one that is reduced or of one element.

    On the way are views, which may add dims and drop dims of one element, reductions, and ops that leave dims alone.
    None where another op is on the way, or `source` is not what `value` is made of.
    """
    if value is source:
        return list(range(source.rank))
    if value.op_name not in _LEAVES_DIMS | _REDUCES | {"broadcast", "reshape"}:
        return None
    for x in value.operands:
        before = places(x, source)
        step = None if before is None else _step(value, x)
        if before is not None and step is not None:
            return [None if one is None else step[one] for one in before]
    return None


def _step(value: Value, x: Value) -> list[int | None] | None:
    """The dims of `value` in which the dims of its operand are."""
    if value.op_name == "broadcast":
        return list(value.attrs["axes"])
    if value.op_name in _REDUCES:
        left = [at for at in range(x.rank) if at not in value.attrs["axes"]]
        return [left.index(at) if at in left else None for at in range(x.rank)]
    if value.op_name in _LEAVES_DIMS:
        return list(range(x.rank))
    old, new = ([at for at, dim in enumerate(one.shape) if dim != 1] for one in (x, value))
    if len(old) != len(new) or not all(
        proves_equal(x.shape[a], value.shape[b]) for a, b in zip(old, new, strict=True)
    ):
        return None
    return [new[old.index(at)] if at in old else None for at in range(x.rank)]


def _splits(match: Match) -> str | None:
    before, after = match.root.operands[0].shape, match.root.shape
    if len(after) <= len(before):
        return f"{after} splits no dim of {before}"
    return None if groups(before, after) else f"{after} does not only split dims of {before}"


def _split_first(match: Match) -> Value:
    order, shape = match.fact("order"), match.root.shape
    parts = groups(match.root.operands[0].shape, shape)
    assert parts is not None
    of_axis = {axis: parts[index] for index, axis in enumerate(order)}
    first = [place for axis in range(len(order)) for place in of_axis[axis]]
    split = match["x"].reshape(tuple(shape[place] for place in first))
    return split.permute(*(first.index(index) for index in range(len(shape))))


def _has_ones(match: Match) -> str | None:
    middle = match.root.operands[0].operands[0]
    return None if any(dim == 1 for dim in middle.shape) else f"{middle.type} has no dim of one element"


def _without_ones(match: Match) -> Value:
    middle, order = match.root.operands[0].operands[0], match.fact("order")
    kept = [axis for axis, dim in enumerate(middle.shape) if dim != 1]
    narrow = match["x"].reshape(tuple(middle.shape[axis] for axis in kept))
    moved = narrow.permute(*(kept.index(axis) for axis in order if axis in kept))
    return moved.reshape(match.root.shape)


REGROUP = (
    Rule("split_before_permute", Op("reshape", Op("permute", Any("x"), order=Bind("order")).once()),
         _split_first, _splits, doc="reshape(permute(x)) -> permute(reshape(x)), if the reshape only splits dims"),
    Rule("permute_without_ones", Op("reshape", Op("permute", Op("reshape", Any("x")), order=Bind("order")).once()),
         _without_ones, _has_ones, doc="reshape(permute(reshape(x))) -> the same without dims of one element"),
)  # fmt: skip
