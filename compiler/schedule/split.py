"""Loops cut where a concat or a pad changes what is read, so that no element asks which part it is in.

A nest of pointwise values is lowered again for each range of the loop, with the variable counted from the start of
the range: guards that are decided vanish, and with them the loads and computations of the other parts. Where heads are
put side by side (a permute, then a reshape), the last loop becomes one over heads and one within.
"""

from __future__ import annotations

import itertools

from kernels_hub.compiler.ir.dims import Dim, Expr, Opaque
from kernels_hub.compiler.schedule.fuse import FusionGroup, position
from kernels_hub.compiler.schedule.index import Loop, Ranges, renamed
from kernels_hub.compiler.schedule.kernel import Load, Test, dims_of
from kernels_hub.compiler.schedule.lower import Body
from kernels_hub.compiler.schedule.views import Index

MOST_PARTS = 64
"""Loops that would be cut into more ranges than this stay whole: each is a loop of its own in the text."""
MOST_LAUNCHES = 8
"""The same where each range is a launch of its own."""
LEAST_DIVISOR = 8
"""Elements that a loop has at least when another is cut into such."""

Piece = tuple[tuple[Loop, ...], Index, Body]
"""Loops, the place in the group's domain, and what happens there."""


def parts(group: FusionGroup, most: int = MOST_PARTS) -> list[tuple[tuple[Loop, ...], Body]]:
    """The loops and the statements of each part, `most` at most; the group's own where nothing is to be cut."""
    whole = (group.loops, group.index, group.body)
    if group.anchor is not None or group.inner or group.extra:
        return [(group.loops, group.body)]
    pieces = _cut(group, whole, most)
    if most > MOST_LAUNCHES:  # loops of text: a launch counts its elements whatever its loops are
        pieces = [_divided(group, *piece) for piece in pieces]
    return [(loops, body) for loops, _, body in pieces]


def _cut(group: FusionGroup, whole: Piece, most: int) -> list[Piece]:
    """The pieces of a nest. Loops of text are cut along every axis: a corner of what is padded asks nothing, too."""
    loops, index, body = whole
    cuts = _cuts(loops, body, most)
    if cuts is None:
        return [whole]
    axis, borders = cuts
    pieces = []
    for low, high in itertools.pairwise(borders):
        part = Loop(f"{loops[axis].name}p{low}", high - low)
        own = (*loops[:axis], part, *loops[axis + 1 :])
        there = tuple(renamed(place, {loops[axis].name: part.index + low}) for place in index)
        pieces.append((own, there, _lowered(group, own, there)))
    if most <= MOST_LAUNCHES:
        return pieces
    return [part for piece in pieces for part in _cut(group, piece, most // len(pieces))]


def _divided(group: FusionGroup, loops: tuple[Loop, ...], index: Index, body: Body) -> Piece:
    """A loop as two where what is read lies at its variable // n: each element asked for a quotient, and along the last
    loop none lay beside the one before."""
    while (found := _divisor(loops, body)) is not None:
        axis, n = found
        whole = loops[axis]
        quotient, rest = Loop(f"{whole.name}q", whole.extent // n), Loop(f"{whole.name}r", n)
        loops = (*loops[:axis], quotient, rest, *loops[axis + 1 :])
        index = tuple(renamed(place, {whole.name: quotient.index * n + rest.index}) for place in index)
        body = _lowered(group, loops, index)
    return loops, index, body


def _divisor(loops: tuple[Loop, ...], body: Body) -> tuple[int, int] | None:
    """A loop, and the largest n by which its variable is divided and that cuts it evenly; None where there is none."""
    quotients = {
        one
        for statement in body.statements
        if isinstance(statement, Load)
        for place in dims_of(statement)
        if isinstance(place, Expr)
        for monomial, _ in place.terms
        for one, _ in monomial
        if isinstance(one, Opaque) and one.kind == "floordiv" and isinstance(one.args[1], int)
    }
    for axis in reversed(range(len(loops))):
        extent, least = loops[axis].extent, LEAST_DIVISOR if axis == len(loops) - 1 else 2
        found = {one.args[1] for one in quotients if one.args[0] == loops[axis].index}
        even = [n for n in found if isinstance(extent, int) and least <= n < extent and extent % n == 0]
        if even:
            return axis, max(even)
    return None


def _lowered(group: FusionGroup, loops: tuple[Loop, ...], index: Index) -> Body:
    """The group's statements at a place of its domain that other loops give."""
    body = Body(Ranges(loops), group.body.buffer_of)
    for value in group.values:
        place = position(value.shape, group.domain, index, body.ranges)
        assert place is not None
        body.define_at(value, place, body.make(value, place))
    return body


def _cuts(loops: tuple[Loop, ...], body: Body, most: int) -> tuple[int, list[int]] | None:
    """The loop that guards cut, and the borders of its ranges."""
    guards = list(body.folds)
    for statement in body.statements:
        if isinstance(statement, (Load, Test)):
            guards += statement.guards
    for axis, loop in enumerate(loops):
        if not isinstance(loop.extent, int) or loop.extent < 2:
            continue
        borders = {0, loop.extent}
        for guard in guards:
            offset = _offset(guard.place, loop)
            if offset is not None and isinstance(guard.low, int) and isinstance(guard.high, int):
                borders |= {min(max(one - offset, 0), loop.extent) for one in (guard.low, guard.high)}
        if 2 < len(borders) <= most + 1:
            return axis, sorted(borders)
    return None


def _offset(place: Dim, loop: Loop) -> int | None:
    """c where a place is the variable of the loop + c."""
    if not isinstance(place, Expr):
        return None
    rest = place - loop.index
    return rest if isinstance(rest, int) else None
