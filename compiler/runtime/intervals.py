"""Interval packing: arena offsets for buffers by lifetime; those that live at the same time are disjoint.

Each is placed in the smallest gap that holds it between those that live at some time with it (best fit), one by one,
in several orders, of which the one that takes the least memory is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from .newest import Newest

ALIGNMENT = 64
"""Bytes: a line of the cache, and the widest vector."""
_MOST_KEPT = 16
"""Layouts that a `Packing` keeps."""
T = TypeVar("T")


@dataclass(frozen=True)
class Interval:
    """`size` bytes, needed from moment `first` to moment `last`."""

    size: int
    first: int
    last: int


def pack(intervals: Sequence[Interval]) -> tuple[list[int], int]:
    """The offset of each, aligned, and the bytes of all together."""
    return _pack(intervals, _beside([(interval.first, interval.last) for interval in intervals]))


class Packing(Generic[T]):
    """Things that live at the same moments whatever their sizes, laid out for one set of sizes after another.

    lives: the first and the last moment of each. made: of offsets and total, what is given for these sizes; that of the
    newest few is kept, and given again. Sizes that are `roomy` are seldom new.
    """

    def __init__(self, lives: Sequence[tuple[int, int]], made: Callable[[list[int], int], T]) -> None:
        self._lives, self._made, self._beside = tuple(lives), made, _beside(lives)
        self._kept: Newest[tuple[int, ...], T] = Newest(_MOST_KEPT)

    def of(self, sizes: Sequence[int]) -> T:
        """What was made of the layout for these sizes."""
        key = tuple(sizes)
        layout = self._kept.get(key)
        if layout is None:
            intervals = [Interval(size, *life) for size, life in zip(key, self._lives, strict=True)]
            layout = self._kept[key] = self._made(*_pack(intervals, self._beside))
        return layout


@dataclass(frozen=True, eq=False)
class ArenaLayout:
    """Where scratch buffers lie in an arena. Sizes that differ by little have the same.

    offsets: (a buffer's number, bytes from the arena's beginning). size: bytes in all.
    """

    offsets: list[tuple[int, int]]
    size: int


def arena_layouts(spans: Sequence[tuple[Sequence[int], int, int]]) -> Packing[ArenaLayout]:
    """Layouts for one set of sizes after another. spans: buffers that share a place, its first and last moment."""

    def made(offsets: list[int], size: int) -> ArenaLayout:
        placed = zip(spans, offsets, strict=True)
        return ArenaLayout([(buffer, at) for (buffers, _, _), at in placed for buffer in buffers], size)

    return Packing([(first, last) for _, first, last in spans], made)


def most_alive(intervals: Sequence[Interval]) -> int:
    """The most bytes that live at once: no packing takes less."""
    changes: dict[int, int] = {}
    for interval in intervals:
        changes[interval.first] = changes.get(interval.first, 0) + aligned(interval.size)
        changes[interval.last + 1] = changes.get(interval.last + 1, 0) - aligned(interval.size)
    most = alive = 0
    for moment in sorted(changes):
        alive += changes[moment]
        most = max(most, alive)
    return most


def roomy(size: int) -> int:
    """`size` bytes or up to an eighth more, one of few numbers: for what grows a little at each call."""
    step = max(ALIGNMENT, 1 << max(0, size.bit_length() - 4))
    return -(-size // step) * step


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


def _beside(lives: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Of each, the numbers of those that live at some time with it."""
    neighbours: list[list[int]] = [[] for _ in lives]
    alive: list[int] = []
    for index in sorted(range(len(lives)), key=lambda number: lives[number]):
        alive = [neighbour for neighbour in alive if lives[neighbour][1] >= lives[index][0]]
        for neighbour in alive:
            neighbours[neighbour].append(index)
        neighbours[index] += alive
        alive.append(index)
    return neighbours


def _pack(intervals: Sequence[Interval], beside: Sequence[Sequence[int]]) -> tuple[list[int], int]:
    sizes = [aligned(interval.size) for interval in intervals]
    numbers = range(len(intervals))
    tries = [_packed(beside, sizes, sorted(numbers, key=lambda n: order(intervals[n]))) for order in _ORDERS]
    return min(tries, key=lambda attempt: attempt[1])


def _packed(
    beside: Sequence[Sequence[int]], sizes: Sequence[int], order: Sequence[int]
) -> tuple[list[int], int]:
    offsets = [-1] * len(sizes)
    for number in order:
        placed = (neighbour for neighbour in beside[number] if offsets[neighbour] >= 0)
        occupied = sorted((offsets[neighbour], offsets[neighbour] + sizes[neighbour]) for neighbour in placed)
        offsets[number] = _gap(occupied, sizes[number])
    return offsets, max((at + size for at, size in zip(offsets, sizes, strict=True)), default=0)


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
