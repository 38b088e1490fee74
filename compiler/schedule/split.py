"""Loops cut where a concat or a pad changes what is read, so that no element asks which part it is in.

A nest of pointwise values is lowered again for each range of the loop, with the variable counted from the start of
the range: guards that are decided vanish, and with them the loads and computations of the other parts. Where heads are
put side by side (a permute, then a reshape), the last loop becomes one over heads and one within. The turns of a short
last loop of which each is of another part, as of pairs of real and imaginary numbers, are written out within the other
loops: a loop for each part would leave gaps in memory, which the next one fills.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kernels_hub.compiler.ir.dims import Dim, Expr, Opaque
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.schedule.cuts import cuts_of, guards_of
from kernels_hub.compiler.schedule.fuse import FusionGroup, position
from kernels_hub.compiler.schedule.index import Loop, Ranges, renamed
from kernels_hub.compiler.schedule.kernel import Load, dims_of
from kernels_hub.compiler.schedule.lower import Body
from kernels_hub.compiler.schedule.views import Index

MOST_PARTS = 64
"""Loops that would be cut into more ranges than this stay whole: each is a loop of its own in the text."""
MOST_LAUNCHES = 8
"""The same where each range is a launch of its own."""
LEAST_DIVISOR = 8
"""Elements that a loop has at least when another is cut into such."""

MOST_TURNS = 4
"""Turns of a last loop up to which they are written out where each is of another part."""


@dataclass(frozen=True)
class Piece:
    """Loops, and what happens in a turn of them.

    places: in the group's domain; several where turns of a loop are written out. made: the group's values and their
    indices at each of these.
    """

    loops: tuple[Loop, ...]
    places: tuple[Index, ...]
    body: Body
    made: tuple[Mapping[Value, Index], ...]


def parts(group: FusionGroup, most: int = MOST_PARTS) -> list[Piece]:
    """The pieces of a nest, `most` at most; the whole one where nothing is to be cut."""
    whole = Piece(group.loops, (group.index,), group.body, (group.body.own,))
    if group.anchor is not None or group.inner or group.extra:
        return [whole]
    if most <= MOST_LAUNCHES:  # a launch counts its elements whatever its loops are
        return _cut(group, whole, most)
    return [_divided(group, piece) for piece in _cut(group, _in_turns(group, whole), most)]


def _cut(group: FusionGroup, whole: Piece, most: int) -> list[Piece]:
    """The pieces of a nest. Loops of text are cut along every axis: a corner of what is padded asks nothing, too."""
    loops = whole.loops
    cuts = cuts_of(loops, whole.body, most)
    if cuts is None:
        return [whole]
    axis, borders = cuts
    if (
        most > MOST_LAUNCHES
        and axis == len(loops) - 1
        and len(borders) - 1 == loops[axis].extent <= MOST_TURNS
    ):
        turns = [_moved(index, loops[axis].name, turn) for turn in borders[:-1] for index in whole.places]
        return [_lowered(group, loops[:axis], turns)]
    pieces = []
    for low, high in itertools.pairwise(borders):
        part = Loop(f"{loops[axis].name}p{low}", high - low)
        own = (*loops[:axis], part, *loops[axis + 1 :])
        places = [_moved(index, loops[axis].name, part.index + low) for index in whole.places]
        pieces.append(_lowered(group, own, places))
    if most <= MOST_LAUNCHES:
        return pieces
    return [part for piece in pieces for part in _cut(group, piece, most // len(pieces))]


def _in_turns(group: FusionGroup, whole: Piece) -> Piece:
    """A last loop as two where its variable % n, a few, tells which part an element is in, as of flattened pairs."""
    extent = whole.loops[-1].extent if whole.loops else 1
    places = {guard.place for guard in guards_of(whole.body)}
    for n in range(2, MOST_TURNS + 1) if places and isinstance(extent, int) else ():
        turn = whole.body.ranges.remainder(whole.loops[-1].index, n)
        if n < extent and extent % n == 0 and turn in places:
            return _in_two(group, whole, len(whole.loops) - 1, n)
    return whole


def _moved(index: Index, name: str, to: Dim) -> Index:
    """A place, with another expression for a variable."""
    return tuple([renamed(place, {name: to}) for place in index])


def _divided(group: FusionGroup, piece: Piece) -> Piece:
    """A loop as two where what is read lies at its variable // n: each element asked for a quotient, and along the last
    loop none lay beside the one before."""
    while (found := _divisor(piece.loops, piece.body)) is not None:
        piece = _in_two(group, piece, *found)
    return piece


def _in_two(group: FusionGroup, piece: Piece, axis: int, n: int) -> Piece:
    """A loop as two, the inner one of n turns."""
    loops, whole = piece.loops, piece.loops[axis]
    quotient, rest = Loop(f"{whole.name}q", whole.extent // n), Loop(f"{whole.name}r", n)
    own = (*loops[:axis], quotient, rest, *loops[axis + 1 :])
    return _lowered(
        group, own, [_moved(index, whole.name, quotient.index * n + rest.index) for index in piece.places]
    )


def _divisor(loops: tuple[Loop, ...], body: Body) -> tuple[int, int] | None:
    """A loop, and the largest n by which its variable is divided and that cuts it evenly; None where there is none."""
    places = [
        place for statement in body.statements if isinstance(statement, Load) for place in dims_of(statement)
    ]
    for axis in reversed(range(len(loops))):
        extent, least = loops[axis].extent, LEAST_DIVISOR if axis == len(loops) - 1 else 2
        found = {n for place in places for n in _divisors(place, loops[axis])}
        even = [n for n in found if isinstance(extent, int) and least <= n < extent and extent % n == 0]
        if even:
            return axis, max(even)
    return None


def _divisors(place: Dim, loop: Loop) -> Iterator[int]:
    """Numbers by which a place divides the variable of a loop."""
    for monomial, _ in place.terms if isinstance(place, Expr) else ():
        for one, _ in monomial:
            if isinstance(one, Opaque) and one.kind == "floordiv" and one.args[0] == loop.index:
                yield from (n for n in one.args[1:] if isinstance(n, int))


def _lowered(group: FusionGroup, loops: tuple[Loop, ...], places: Sequence[Index]) -> Piece:
    """The group's statements at places of its domain that other loops give."""
    body, made = Body(Ranges(loops), group.body.buffer_of), []
    for index in places:
        body.own = {}
        for value in group.values:
            place = position(value.shape, group.domain, index, body.ranges)
            assert place is not None
            body.define_at(value, place, body.make(value, place))
        made.append(body.own)
    return Piece(loops, tuple(places), body, tuple(made))
