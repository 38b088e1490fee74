"""Interval packing: where things lie that share memory, each disjoint from all that live when it does.

Each is placed in the smallest gap that holds it between those that live at some time with it (best fit), one by one,
in several orders, of which the one that takes the least memory is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

ALIGNMENT = 64
"""Bytes: a line of the cache, and the widest vector."""


@dataclass(frozen=True)
class Interval:
    """`size` bytes, needed from moment `first` to moment `last`."""

    size: int
    first: int
    last: int


def pack(intervals: Sequence[Interval]) -> tuple[list[int], int]:
    """The offset of each, aligned, and the bytes of all together."""
    sizes = [aligned(one.size) for one in intervals]
    numbers = range(len(intervals))
    tries = [
        _packed(intervals, sizes, sorted(numbers, key=lambda n: order(intervals[n]))) for order in _ORDERS
    ]
    return min(tries, key=lambda one: one[1])


def most_alive(intervals: Sequence[Interval]) -> int:
    """The most bytes that live at once: no packing takes less."""
    changes: dict[int, int] = {}
    for one in intervals:
        changes[one.first] = changes.get(one.first, 0) + aligned(one.size)
        changes[one.last + 1] = changes.get(one.last + 1, 0) - aligned(one.size)
    most = alive = 0
    for moment in sorted(changes):
        alive += changes[moment]
        most = max(most, alive)
    return most


def aligned(count: int) -> int:
    """Bytes that `count` bytes take."""
    return (count + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


_ORDERS: tuple[Callable[[Interval], tuple[int, ...]], ...] = (
    lambda one: (-aligned(one.size), one.first),
    lambda one: (one.first - one.last, -aligned(one.size)),
    lambda one: (-aligned(one.size) * (one.last - one.first + 1), one.first),
    lambda one: (one.first, -aligned(one.size)),
)
"""Orders in which things are placed: largest first, longest first, largest area first, as they come. All are tried."""


def _packed(
    intervals: Sequence[Interval], sizes: Sequence[int], order: Sequence[int]
) -> tuple[list[int], int]:
    offsets = [0] * len(intervals)
    placed: list[int] = []
    for one in order:
        mine = intervals[one]
        taken = sorted(
            (offsets[other], offsets[other] + sizes[other])
            for other in placed
            if intervals[other].first <= mine.last and mine.first <= intervals[other].last
        )
        offsets[one] = _gap(taken, sizes[one])
        placed.append(one)
    return offsets, max((offsets[one] + sizes[one] for one in placed), default=0)


def _gap(taken: Sequence[tuple[int, int]], size: int) -> int:
    """The offset of the smallest gap that holds `size` bytes; behind all, if none does."""
    best: tuple[int, int] | None = None
    free = 0
    for start, stop in taken:
        room = start - free
        if room >= size and (best is None or room < best[0]):
            best = (room, free)
        free = max(free, stop)
    return best[1] if best is not None else free
