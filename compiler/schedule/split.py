"""Loops cut where a concat or a pad changes what is read, so that no element asks which part it is in.

A nest of pointwise values is lowered again for each range of the loop, with the variable counted from the start of
the range: guards that are decided vanish, and with them the loads and computations of the other parts.
"""

from __future__ import annotations

import itertools

from kernels_hub.compiler.ir.dims import Dim, Expr
from kernels_hub.compiler.schedule.fuse import FusionGroup, position
from kernels_hub.compiler.schedule.index import Loop, Ranges
from kernels_hub.compiler.schedule.kernel import Guard, Load, Test
from kernels_hub.compiler.schedule.lower import Body

MOST_PARTS = 64
"""Loops that would be cut into more ranges than this stay whole: each is a loop of its own in the text."""
MOST_LAUNCHES = 8
"""The same where each range is a launch of its own."""


def parts(group: FusionGroup, most: int = MOST_PARTS) -> list[tuple[tuple[Loop, ...], Body]]:
    """The loops and the statements of each part, `most` at most; the group's own where nothing is to be cut."""
    whole = [(group.loops, group.body)]
    if group.anchor is not None or group.inner or group.extra:
        return whole
    cuts = _cuts(group, most)
    if cuts is None:
        return whole
    axis, borders = cuts
    pieces = []
    for low, high in itertools.pairwise(borders):
        loops = tuple(
            Loop(f"{loop.name}p{low}", high - low) if one == axis else loop
            for one, loop in enumerate(group.loops)
        )
        index = tuple(loop.index + low if one == axis else loop.index for one, loop in enumerate(loops))
        body = Body(Ranges(loops), group.body.buffer_of)
        for value in group.values:
            place = position(value.shape, group.domain, index, body.ranges)
            assert place is not None
            body.define_at(value, place, body.make(value, place))
        pieces.append((loops, body))
    return pieces


def _cuts(group: FusionGroup, most: int) -> tuple[int, list[int]] | None:
    """The loop that guards cut, and the borders of its ranges."""
    guards: list[Guard] = []
    for statement in group.body.statements:
        if isinstance(statement, (Load, Test)):
            guards += statement.guards
    for axis, loop in enumerate(group.loops):
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
