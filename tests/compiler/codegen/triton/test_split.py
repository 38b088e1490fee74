"""Long reductions of few rows in two nests: what the schedule computes stays the same, nest by nest in NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from kernels_hub.compiler import Graph, evaluate
from kernels_hub.compiler.codegen.triton.split import split_reductions
from kernels_hub.compiler.schedule.schedule import schedule
from tests.compiler.oracle import array, assert_same
from tests.compiler.schedule.run import run_schedule


def build(shape, axes, *, softmax: bool = False) -> Graph:
    graph = Graph("long")
    x = graph.input("x", shape, "float32")
    if softmax:
        graph.output("y", x.softmax(-1))
        return graph
    total = (x * 0.5).unary("exp").reduce("sum", axes)
    graph.output("y", total * 2.0 + 1.0)
    graph.output("z", x.reduce("max", axes))
    graph.output("any", (x > 1.9).reduce("any", axes))
    return graph


@pytest.mark.parametrize(
    ("shape", "axes", "split"),
    [
        ((16384,), [0], True),
        ((3, 12288), [1], True),
        ((12288, 40), [0], True),
        ((2, 96, 5, 96), [1, 3], True),
        ((3, 12289), [1], False),  # a prime
        ((3, 4096), [1], False),
        ((400, 12288), [1], False),
        ((0, 12288), [1], False),
    ],
)
def test_split_schedules_compute_the_same(shape, axes, split):
    graph = build(shape, axes)
    before = schedule(graph)
    after = split_reductions(before)
    assert (after is not before) == split
    given = {"x": array(*shape)}
    expected = evaluate(graph, given)
    found = run_schedule(after, graph, given, {})
    for name in expected:
        assert_same(found[name], expected[name], 2e-5)


@pytest.mark.parametrize(
    ("left", "right", "parts"),
    [
        ((3, 2048), (2048, 50), 4),
        ((2, 3, 5, 1536), (2, 3, 1536, 7), 3),
        ((2, 5, 4096), (4096, 40), 8),
        ((1, 12288), (12288, 24), 16),
        ((3, 900), (900, 50), 1),  # too short
        ((3, 1046), (1046, 50), 1),  # no divisor that is fit
        ((900, 2048), (2048, 900), 1),  # tiles enough
        ((0, 2048), (2048, 50), 1),
    ],
)
def test_products_of_few_tiles_are_split_along_their_depth(left, right, parts):
    graph = Graph("deep")
    x, w = graph.input("x", left, "float32"), graph.input("w", right, "float32")
    w = w.broadcast_to((*left[:-2], *right)) if len(right) < len(left) else w
    bias = graph.input("b", right[-1:], "float32")
    graph.output("y", ((x @ w) + bias).binary("maximum", 0.0))
    before = schedule(graph)
    after = split_reductions(before)
    added = [one for one in after.buffers if one not in before.buffers]
    assert [one.shape[0] for one in added] == ([parts] if parts > 1 else [])
    given = {"x": array(*left), "w": array(*right, seed=1), "b": array(*right[-1:], seed=2)}
    if 0 not in left:
        assert_same(run_schedule(after, graph, given, {})["y"], evaluate(graph, given)["y"], 2e-4)


def test_rows_that_are_needed_again_stay_whole():
    before = schedule(build((20, 16384), [1], softmax=True))
    assert split_reductions(before) is before


def test_a_wrong_part_is_noticed():
    graph = build((16384,), [0])
    given = {"x": array(16384)}
    good = run_schedule(split_reductions(schedule(graph)), graph, given, {})
    given["x"][-1] += np.float32(9.0)
    with pytest.raises(AssertionError):
        assert_same(run_schedule(split_reductions(schedule(graph)), graph, given, {})["z"], good["z"])
