"""Graphs divided among engines: as many pieces as needed, no cycles, the numbers of the oracle."""

from __future__ import annotations

import zlib

from hypothesis import given, settings
from hypothesis import strategies as st

from kernels_hub.compiler import bind, evaluate
from kernels_hub.compiler.engines.reference import ENGINE as REFERENCE
from kernels_hub.compiler.selection import create_plans, untold_symbols
from tests.compiler.plan_engines import PartEngine, only_engines
from tests.compiler.strategies import OTHER_SIZES, SIZES, assert_same_outputs, graphs


def some(seed, share):
    """Whether an op is one of those that an engine takes, by its name."""
    return lambda op: zlib.crc32(f"{seed}{op}".encode()) % 100 < share


def build(graph, *engines):
    with only_engines(*engines):
        (first, *_) = create_plans(graph, "cpu", rank=lambda *_: [one.name for one in engines])
        return first.build()


def by_preference(graph, *engines):
    """The division with the preferred engines first, whatever it costs."""
    with only_engines(*engines):
        found = create_plans(graph, "cpu", rank=lambda *_: [one.name for one in engines])
        return next(one for one in found if one.preferred).build()


@settings(max_examples=60)
@given(graphs(), st.integers(0, 1000), st.integers(20, 80))
def test_random_graphs_on_random_engines_give_what_the_oracle_gives(graph, seed, share):
    graph = bind(graph, {name: SIZES[name] for name in untold_symbols(graph)})
    left = PartEngine("left", some(seed, share), scratch=100)
    right = PartEngine("right", some(seed + 1, share))
    plan = build(graph, left, right, REFERENCE)
    for sizes in (SIZES, OTHER_SIZES if graph.symbols else SIZES, SIZES):
        inputs = graph.dummy_inputs(1, sizes)
        assert_same_outputs(plan.execute(inputs), evaluate(graph, inputs))
