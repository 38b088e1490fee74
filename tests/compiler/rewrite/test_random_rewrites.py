"""Random graphs through all passes: verified after each, and the same numbers as before."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels_hub.compiler import evaluate, verify
from kernels_hub.compiler.rewrite.pipeline import PIPELINE, rewrite
from kernels_hub.compiler.rewrite.rule import Options
from tests.compiler.strategies import OTHER_SIZES, SIZES, assert_same_outputs, graphs

several = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))


def seasoned(array):
    """An array with special values among its floats."""
    if array.dtype.kind in "biu":
        return array
    array = array.copy()
    flat = array.reshape(-1)
    for place, number in enumerate((np.nan, -0.0, np.inf, 0.0, -np.inf, 1.0)):
        flat[place : place + 1] = number
    return array


@given(graphs(max_ops=18), st.sampled_from([SIZES, OTHER_SIZES]), st.booleans())
@several
def test_exact_rules_keep_every_bit(graph, sizes, special):
    before = str(graph)
    result = rewrite(graph, options=Options(rounding=False), after=lambda _, one: verify(one))
    assert str(graph) == before
    inputs = graph.dummy_inputs(0, sizes)
    if special:
        inputs = {name: seasoned(array) for name, array in inputs.items()}
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
