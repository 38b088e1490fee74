"""Interval packing: where things lie that share memory, each disjoint from all that live when it does.

Each is placed in the smallest gap that holds it between those that live at some time with it (best fit), one by one,
in several orders, of which the one that takes the least memory is kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

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
    return _pack(intervals, _beside([(one.first, one.last) for one in intervals]))


class Packing(Generic[T]):
    """Things that live at the same moments whatever their sizes, laid out for one set of sizes after another.

    lives: the first and the last moment of each. made: of offsets and total, what is given for these sizes; that of the
    newest few is kept, and given again. Sizes that are `roomy` are seldom new.
    """

    def __init__(self, lives: Sequence[tuple[int, int]], made: Callable[[list[int], int], T]) -> None:
        self._lives, self._made, self._beside = tuple(lives), made, _beside(lives)
        self._kept: OrderedDict[tuple[int, ...], T] = OrderedDict()

    def of(self, sizes: Sequence[int]) -> T:
        """What was made of the layout for these sizes."""
        key = tuple(sizes)
        found = self._kept.get(key)
        if found is None:
            intervals = [Interval(size, *life) for size, life in zip(key, self._lives, strict=True)]
            found = self._made(*_pack(intervals, self._beside))
            if len(self._kept) >= _MOST_KEPT:
                self._kept.popitem(last=False)
            self._kept[key] = found
        return found


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
    found: list[list[int]] = [[] for _ in lives]
    alive: list[int] = []
    for one in sorted(range(len(lives)), key=lambda number: lives[number]):
        alive = [other for other in alive if lives[other][1] >= lives[one][0]]
        for other in alive:
            found[other].append(one)
        found[one] += alive
        alive.append(one)
    return found


def _pack(intervals: Sequence[Interval], beside: Sequence[Sequence[int]]) -> tuple[list[int], int]:
    sizes = [aligned(one.size) for one in intervals]
    numbers = range(len(intervals))
    tries = [_packed(beside, sizes, sorted(numbers, key=lambda n: order(intervals[n]))) for order in _ORDERS]
    return min(tries, key=lambda one: one[1])


def _packed(
    beside: Sequence[Sequence[int]], sizes: Sequence[int], order: Sequence[int]
) -> tuple[list[int], int]:
    offsets = [-1] * len(sizes)
    for one in order:
        placed = (other for other in beside[one] if offsets[other] >= 0)
        taken = sorted((offsets[other], offsets[other] + sizes[other]) for other in placed)
        offsets[one] = _gap(taken, sizes[one])
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
