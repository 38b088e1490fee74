"""Layouts: nothing overlaps, every edge goes down, every edge arrives."""

from __future__ import annotations

import itertools
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels_hub.compiler.viewing.layers import GAP, Edge, lay_out, spread


@st.composite
def dags(draw):
    count = draw(st.integers(1, 30))
    widths = draw(st.lists(st.floats(10, 200), min_size=count, max_size=count))
    pairs = draw(st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=60))
    order = draw(st.permutations(range(count)))
    edges = [Edge(order[a], order[b], order[a]) for a, b in sorted(set(pairs)) if a < b]
    return widths, edges


def check(widths, edges, layout):
    count = len(widths)
    assert layout.widths[:count] == tuple(widths) and not any(layout.widths[count:])
    rows = {}
    for cell, rank in enumerate(layout.ranks):
        rows.setdefault(rank, []).append(cell)
    assert sorted(rows) == list(range(len(rows)))
    for row in rows.values():
        row.sort(key=lambda cell: layout.x[cell])
        for a, b in itertools.pairwise(row):
            assert layout.x[b] - layout.x[a] >= (layout.widths[a] + layout.widths[b]) / 2 + GAP - 0.2
    before = {}
    for a, b, net, _ in layout.steps:
        assert layout.ranks[b] == layout.ranks[a] + 1
        before.setdefault((b, net), []).append(a)
    for edge in edges:
        if edge in layout.far:
            continue
        at = {edge.target}
        while edge.source not in at:
            at = {one for cell in at for one in before[cell, edge.net]}
    for cell in range(len(layout.x)):
        assert -0.2 <= layout.x[cell] - layout.widths[cell] / 2
        assert layout.x[cell] + layout.widths[cell] / 2 <= layout.width + 0.2


@given(dags())
@settings(max_examples=60, deadline=None)
def test_any_graph(case):
    widths, edges = case
    check(widths, edges, lay_out(widths, edges))


@pytest.mark.parametrize("wrong", ["overlap", "upward"])
def test_the_check_finds_what_is_wrong(wrong):
    widths, edges = [50.0, 50.0, 50.0], [Edge(0, 1, 0), Edge(0, 2, 0)]
    good = lay_out(widths, edges)
    check(widths, edges, good)
    parts = {"x": (good.x[0], good.x[1], good.x[1])} if wrong == "overlap" else {"steps": ((1, 0, 0, 0),)}
    bad = type(good)(**{name: parts.get(name, getattr(good, name)) for name in good.__slots__})
    with pytest.raises((AssertionError, KeyError)):
        check(widths, edges, bad)


def test_ports_are_at_the_ends():
    layout = lay_out(
        [50, 50, 2, 2, 2], [Edge(2, 0, 2), Edge(0, 1, 0), Edge(3, 1, 3), Edge(0, 4, 0)], tops=2, bottoms=1
    )
    assert layout.ranks[:5] == (1, 2, 0, 0, 3)


def test_a_chain_is_straight():
    layout = lay_out([100.0] * 40, [Edge(k, k + 1, k) for k in range(39)] + [Edge(0, 39, 0)])
    assert len(set(layout.x[:40])) == 1


def test_ways_that_would_be_too_many_are_not_routed():
    count = 400
    edges = [Edge(k, k + 1, k) for k in range(count - 1)] + [Edge(k, count - 1, k) for k in range(count - 2)]
    layout = lay_out([50.0] * count, edges)
    assert layout.far and len(layout.x) < 12 * count


@given(
    st.lists(st.tuples(st.floats(-100, 100), st.floats(0.1, 9), st.floats(0, 50)), min_size=1, max_size=12)
)
@settings(max_examples=50, deadline=None)
def test_spread_keeps_order_and_moves_no_more_than_it_must(rows):
    wanted, weights, widths = (list(column) for column in zip(*rows, strict=False))
    at = spread(wanted, weights, widths, 5)
    needed = [(a + b) / 2 + 5 for a, b in itertools.pairwise(widths)]
    assert all(b - a >= gap - 1e-6 for a, b, gap in zip(at, at[1:], needed, strict=False))
    if all(b - a >= gap for a, b, gap in zip(wanted, wanted[1:], needed, strict=False)):
        assert at == pytest.approx(wanted)


def test_work_grows_with_cells():
    """Counted in calls of functions, which a busy machine does not change."""

    def calls(count):
        edges = [Edge(k // 2, k, k // 2) for k in range(1, count)]
        events = Counter()
        sys.setprofile(lambda frame, event, argument: events.update([event]))
        try:
            lay_out([50.0] * count, edges)
        finally:
            sys.setprofile(None)
        return events["call"] + events["c_call"]

    assert calls(2000) < 6 * calls(500)
