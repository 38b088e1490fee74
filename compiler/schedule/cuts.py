"""Where the loops of a nest would have to be cut, so that no element asks which part of a concat or a pad it is in."""

from __future__ import annotations

from collections.abc import Iterator

from kernels_hub.compiler.ir.dims import Dim, Expr
from kernels_hub.compiler.schedule.index import Loop
from kernels_hub.compiler.schedule.kernel import Guard, Load, Test
from kernels_hub.compiler.schedule.lower import Body


def guards_of(body: Body) -> Iterator[Guard]:
    """All that ask where an element is."""
    yield from body.folds
    for statement in body.statements:
        if isinstance(statement, (Load, Test)):
            yield from statement.guards


def cuts_of(loops: tuple[Loop, ...], body: Body, most: int) -> tuple[int, list[int]] | None:
    """The loop that guards cut, and the borders of its ranges."""
    guards = list(guards_of(body))
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
