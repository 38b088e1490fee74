"""Interval packing by itself."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from kernels_hub.compiler.runtime.intervals import (
    ALIGNMENT,
    Interval,
    Packing,
    aligned,
    most_alive,
    pack,
    roomy,
)

intervals = st.builds(
    lambda size, first, length: Interval(size, first, first + length),
    st.integers(0, 1000), st.integers(0, 8), st.integers(0, 5),
)  # fmt: skip


@given(st.lists(intervals, max_size=12))
def test_what_lives_at_once_lies_apart(given_ones):
    offsets, total = pack(given_ones)
    assert len(offsets) == len(given_ones)
    for (at, one), (other_at, other) in itertools.combinations(zip(offsets, given_ones, strict=True), 2):
        meet = one.first <= other.last and other.first <= one.last
        apart = at + aligned(one.size) <= other_at or other_at + aligned(other.size) <= at
        assert apart or not meet
    assert all(at % ALIGNMENT == 0 for at in offsets)
    assert (
        max((at + aligned(one.size) for at, one in zip(offsets, given_ones, strict=True)), default=0) == total
    )
    assert most_alive(given_ones) <= total


def test_a_gap_is_used():
    ones = [Interval(128, 0, 1), Interval(64, 0, 9), Interval(128, 2, 3), Interval(64, 4, 5)]
    assert pack(ones)[1] == most_alive(ones) == 192


def test_nothing_takes_nothing():
    assert pack([]) == ([], 0)
    assert most_alive([]) == 0


@given(st.lists(intervals, max_size=12))
def test_the_same_moments_for_other_sizes(given_ones):
    packing = Packing([(one.first, one.last) for one in given_ones], lambda offsets, total: (offsets, total))
    for factor in (1, 3):
        sizes = [factor * one.size for one in given_ones]
        found = packing.of(sizes)
        assert found == pack(
            [Interval(size, one.first, one.last) for size, one in zip(sizes, given_ones, strict=True)]
        )
        assert packing.of(tuple(sizes)) is found


def test_old_layouts_are_dropped():
    made: list[int] = []
    packing = Packing([(0, 0)], lambda _, total: made.append(total))
    for _ in range(2):
        for lines in range(100):
            packing.of([lines * ALIGNMENT])
    assert made == [lines * ALIGNMENT for lines in range(100)] * 2
    assert len(packing._kept) < 100


@given(st.integers(0, 1 << 40))
def test_roomy(size):
    room = roomy(size)
    assert size <= room <= max(aligned(size), size * 9 // 8)
    assert roomy(room) == room


def test_what_grows_by_little_takes_few_sizes():
    assert len({roomy(length * 4096) for length in range(1000, 2000)}) <= 10
