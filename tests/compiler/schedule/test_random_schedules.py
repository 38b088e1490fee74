"""Random graphs, scheduled and run nest by nest, against the oracle: fusion, views, layout change no number."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from kernels_hub.compiler import evaluate
from kernels_hub.compiler.schedule.expand import expanded
from kernels_hub.compiler.schedule.inlining import unsupported
from kernels_hub.compiler.schedule.schedule import schedule
from tests.compiler.schedule.run import run_schedule
from tests.compiler.strategies import OTHER_SIZES, SIZES, assert_same_outputs, graphs
from tests.fuzz.harness import budget


@pytest.mark.parametrize("sizes", [SIZES, OTHER_SIZES], ids=["some", "none"])
@settings(max_examples=budget(75, 150), suppress_health_check=list(HealthCheck), deadline=None)
@given(graph=graphs())
def test_a_schedule_computes_what_the_oracle_does(graph, sizes):
    if unsupported(expanded(graph)):
        return
    inputs = graph.dummy_inputs(0, sizes)
    expected = evaluate(graph, inputs, bindings=sizes)
    assert_same_outputs(run_schedule(schedule(graph), graph, inputs, sizes), expected, 3e-2)
