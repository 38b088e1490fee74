"""Random graphs through all passes: verified after each, and the same numbers as before."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels_hub.compiler import evaluate, rebuild, verify
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


EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
TRIALS, MARGIN = 6, 64


def smooth(graph):
    """The graph without ops that jump, or that tell 0.0 from -0.0: there, the least rounding shows as a large error.

    In their place stand squares, cubes and inverse roots, which rules that round look for.
    """

    def visit(new, node, operands):
        name, x = node.op.name, operands[0] if operands else None
        if x is None or not x.dtype.is_float:
            return None
        if name == "floor":
            return x**2
        if name == "round":
            return x**3
        if name in {"sign", "sqrt", "rsqrt"}:
            return 1 / (abs(x) + 0.25).sqrt()
        if name == "div" and operands[1].scalar is None:
            return x / (abs(operands[1]) + 0.25)
        if name in {"lt", "le", "eq", "ne"}:
            return x.unary("isnan")
        if name == "argsort":
            axis = node.attrs["axis"]
            return new.iota(x.shape[axis]).broadcast(x.shape, (axis,))
        return None

    return rebuild(graph, visit).graph


def noisy(graph, random):
    """The graph with every float off by one unit in the last place, up or down."""

    def visit(new, node, operands):
        return [
            value * (1 + random.choice((-1, 1)) * EPSILON[value.dtype.name])
            if value.dtype.is_float
            else value
            for value in new.copy(node, operands).results
        ]

    return rebuild(graph, visit).graph


@np.errstate(all="ignore")
def assert_within_noise(actual, expected, noise):
    """Differences are at most what rounding each step otherwise can bring about, with a margin."""
    assert list(actual) == list(expected)
    for name, e in expected.items():
        a, trials = actual[name], [trial[name] for trial in noise]
        assert a.dtype == e.dtype and a.shape == e.shape, name
        if a.dtype.name not in EPSILON:
            assert np.array_equal(a, e), name
            continue
        a, e, *trials = (array.astype(np.float64) for array in (a, e, *trials))
        finite = np.isfinite(e)
        settled = np.logical_and.reduce([(trial == e) | (np.isnan(trial) & np.isnan(e)) for trial in trials])
        same = (a == e) | (np.isnan(a) & np.isnan(e)) | (~finite & ~settled)
        steady = finite & np.logical_and.reduce([np.isfinite(trial) for trial in trials])
        spread = np.maximum.reduce([np.abs(trial - e) for trial in trials])
        bound = MARGIN * np.maximum(spread, EPSILON[expected[name].dtype.name] * np.maximum(1, np.abs(e)))
        same |= ~steady & finite | (steady & (np.abs(a - e) <= bound))
        assert same.all(), f"{name}: {a[~same][:4]}, expected {e[~same][:4]} within {bound[~same][:4]}"


@given(
    graphs(max_ops=18),
    st.sampled_from([SIZES, OTHER_SIZES]),
    st.booleans(),
    st.randoms(use_true_random=False),
)
@several
def test_rules_that_round_stay_within_what_rounding_can_bring_about(graph, sizes, special, random):
    graph = smooth(graph)
    result = rewrite(graph, after=lambda _, one: verify(one))
    inputs = graph.dummy_inputs(0, sizes)
    if special:
        inputs = {name: seasoned(array) for name, array in inputs.items()}
    with np.errstate(all="ignore"):
        noise = [evaluate(noisy(graph, random), inputs, bindings=sizes) for _ in range(TRIALS)]
        expected = evaluate(graph, inputs, bindings=sizes)
        assert_within_noise(evaluate(result.graph, inputs, bindings=sizes), expected, noise)


def test_more_than_noise_is_noticed():
    right = {"y": np.array([1.0, np.inf, np.nan, 0.0], np.float32)}
    noise = [{"y": right["y"] * np.float32(1 + sign * 2.0**-23)} for sign in (-1, 1)]
    assert_within_noise({"y": right["y"] * np.float32(1 + 4e-6)}, right, noise)
    for place, wrong in enumerate((1.001, np.nan, np.inf, 1e-3)):
        off = {"y": right["y"].copy()}
        off["y"][place] = wrong
        with pytest.raises(AssertionError, match="expected"):
            assert_within_noise(off, right, noise)


@given(graphs(max_ops=18))
@several
def test_runs_come_to_an_end(graph):
    for _ in range(4):
        result = rewrite(graph, PIPELINE)
        if not result.total:
            return
        graph = result.graph
    raise AssertionError(str(result))
