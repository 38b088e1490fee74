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
from kernels_hub.compiler.schedule.kernel import Load, Test
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
    """The last loop as two where what is read lies at its variable // n: each element asked for a quotient, and none
    lay beside the one before."""
    while (n := _divisor(loops, body)) is not None:
        *others, last = loops
        quotient, rest = Loop(f"{last.name}q", last.extent // n), Loop(f"{last.name}r", n)
        loops = (*others, quotient, rest)
        index = tuple(renamed(place, {last.name: quotient.index * n + rest.index}) for place in index)
        body = _lowered(group, loops, index)
    return loops, index, body


def _divisor(loops: tuple[Loop, ...], body: Body) -> int | None:
    """The largest n by which the last loop's variable is divided; None where there is none that cuts it evenly."""
    if not loops or not isinstance(extent := loops[-1].extent, int):
        return None
    found = {
        one.args[1]
        for statement in body.statements
        if isinstance(statement, Load) and isinstance(statement.place, Expr)
        for monomial, _ in statement.place.terms
        for one, _ in monomial
        if isinstance(one, Opaque) and one.kind == "floordiv" and one.args[0] == loops[-1].index
    }
    even = (n for n in found if isinstance(n, int) and LEAST_DIVISOR <= n < extent and extent % n == 0)
    return max(even, default=None)


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
