"""Interval packing by itself."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from kernels_hub.compiler.schedule.intervals import ALIGNMENT, Interval, aligned, most_alive, pack

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
