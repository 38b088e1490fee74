"""Random graphs through all passes: verified after each, and the same numbers as before."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels_hub.compiler import evaluate, verify
from kernels_hub.compiler.rewrite.pipeline import PIPELINE, rewrite
from kernels_hub.compiler.rewrite.rule import Options
from tests.compiler.strategies import OTHER_SIZES, SIZES, assert_same_outputs, graphs

several = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))


@given(graphs(max_ops=18), st.sampled_from([SIZES, OTHER_SIZES]))
@several
def test_exact_rules_keep_every_bit(graph, sizes):
    before = str(graph)
    result = rewrite(graph, options=Options(rounding=False), after=lambda _, one: verify(one))
    assert str(graph) == before
    inputs = graph.dummy_inputs(0, sizes)
    assert_same_outputs(
        evaluate(result.graph, inputs, bindings=sizes), evaluate(graph, inputs, bindings=sizes)
    )


@given(graphs(max_ops=18))
@several
def test_runs_come_to_an_end(graph):
    for _ in range(4):
        result = rewrite(graph, PIPELINE)
        if not result.total:
            return
        graph = result.graph
    raise AssertionError(str(result))
