"""Mappings that keep their newest entries, and the cache by shape that is made of one."""

from __future__ import annotations

import torch

from kernels_hub.compiler.runtime.binding import ShapeCache
from kernels_hub.compiler.runtime.newest import Newest


def test_the_oldest_entries_are_dropped_and_told():
    dropped: list[tuple[int, str]] = []
    newest: Newest[int, str] = Newest(2, lambda key, value: dropped.append((key, value)))
    newest.update({1: "a", 2: "b"})
    newest.move_to_end(1)
    newest.setdefault(3, "c")
    assert list(newest.items()) == [(1, "a"), (3, "c")]
    assert dropped == [(2, "b")]


def test_a_shape_is_bound_once_until_it_is_the_oldest():
    made: list[tuple[tuple[int, ...], ...]] = []
    dropped: list[int] = []

    def bind(shapes: tuple[tuple[int, ...], ...]) -> int:
        made.append(shapes)
        return len(made)

    cache = ShapeCache(bind, 2, dropped.append)
    x, y, z = (torch.empty(size, 3) for size in (1, 2, 3))
    assert [cache.of([one]) for one in (x, y, x, z, y, x)] == [1, 2, 1, 3, 2, 4]
    assert made == [((1, 3),), ((2, 3),), ((3, 3),), ((1, 3),)]
    assert (dropped, cache.shapes, cache.results) == ([1, 2], (((3, 3),), ((1, 3),)), [3, 4])
