"""Random graphs on the Triton engine against the oracle, in poisoned memory."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from kernels_hub.compiler import evaluate
from kernels_hub.compiler.engines.triton import ENGINE
from tests.compiler.codegen.triton.held import results
from tests.compiler.strategies import OTHER_SIZES, SIZES, assert_same_outputs, graphs


@pytest.mark.parametrize("sizes", [SIZES, OTHER_SIZES], ids=["some", "none"])
@settings(max_examples=40, suppress_health_check=list(HealthCheck), deadline=None)
@given(graph=graphs())
def test_the_engine_computes_what_the_oracle_does(graph, sizes, device):
    if not ENGINE.check(graph, device):
        return
    inputs = graph.dummy_inputs(0, sizes)
    expected = evaluate(graph, inputs, bindings=sizes)
    assert_same_outputs(results(graph, inputs.values(), device, sizes), expected, 4e-2)
