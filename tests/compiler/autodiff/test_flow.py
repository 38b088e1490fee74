"""The minimum cut against all cuts, on random networks."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from kernels_hub.compiler.autodiff.flow import ENDLESS, Network

NODES = 6
EDGES = st.lists(
    st.tuples(st.integers(0, NODES - 1), st.integers(0, NODES - 1), st.sampled_from([1, 2, 5, 9, ENDLESS])),
    max_size=14,
)


def cut(edges: list[tuple[int, int, int]], side: set[int]) -> int:
    """What the edges that leave a side carry."""
    return sum(room for start, end, room in edges if start in side and end not in side)


@settings(max_examples=150, deadline=None)
@given(EDGES)
def test_a_full_network_carries_what_the_least_cut_does(edges: list[tuple[int, int, int]]):
    source, sink, inner = 0, 1, range(2, NODES)
    edges = [one for one in edges if one[0] != one[1]]
    network = Network(NODES)
    for one in edges:
        network.edge(*one)
    sides = [
        {source, *some} for count in range(len(inner) + 1) for some in itertools.combinations(inner, count)
    ]
    least = min(cut(edges, side) for side in sides)
    assert network.fill(source, sink) == least
    behind = network.reaching(sink)
    if least < ENDLESS:
        assert source not in behind and cut(edges, set(range(NODES)) - behind) == least
