"""Where scratch buffers lie: each at an offset in one arena, disjoint from all that live when it does."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .parts import Scratch

ALIGNMENT = 64
"""Bytes: a line of the cache, and the widest vector."""

_ORDERS: tuple[Callable[[Scratch, int], tuple[int, ...]], ...] = (
    lambda one, size: (-size, one.first),
    lambda one, size: (one.first - one.last, -size),
    lambda one, size: (-size * (one.last - one.first + 1), one.first),
    lambda one, size: (one.first, -size),
)
"""Largest first, longest first, largest area first, as they come. All are tried."""


def place(scratch: Sequence[Scratch], sizes: Sequence[int]) -> tuple[list[int], int]:
    """The offset of each, and the size of the arena. sizes: bytes of each.

    Each is placed in the smallest gap that holds it between those that live at some time with it.
    """
    sizes = [(size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT for size in sizes]
    numbers = range(len(scratch))
    tries = [
        _packed(scratch, sizes, sorted(numbers, key=lambda n: order(scratch[n], sizes[n])))
        for order in _ORDERS
    ]
    return min(tries, key=lambda one: one[1])


def _packed(scratch: Sequence[Scratch], sizes: Sequence[int], order: Sequence[int]) -> tuple[list[int], int]:
    offsets = [0] * len(scratch)
    placed: list[int] = []
    for one in order:
        span = scratch[one]
        taken = sorted(
            (offsets[other], offsets[other] + sizes[other])
            for other in placed
            if scratch[other].first <= span.last and span.first <= scratch[other].last
        )
        offsets[one] = _gap(taken, sizes[one])
        placed.append(one)
    return offsets, max((offsets[one] + sizes[one] for one in placed), default=0)


def _gap(taken: Sequence[tuple[int, int]], size: int) -> int:
    best: tuple[int, int] | None = None
    free = 0
    for start, stop in taken:
        room = start - free
        if room >= size and (best is None or room < best[0]):
            best = (room, free)
        free = max(free, stop)
    return best[1] if best is not None else free
