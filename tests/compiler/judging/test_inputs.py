"""Inputs made for a graph: both sides of what it compares, its constants, every id, every mask, every size."""

from __future__ import annotations

import numpy as np
import pytest

from kernels_hub.compiler import Graph, evaluate
from kernels_hub.compiler.errors import DimError
from kernels_hub.compiler.judging import Judge, judging_inputs


def of(graph: Graph, **options):
    return {one.name: one.arrays for one in judging_inputs(graph, **options)}


def test_floats_of_every_kind():
    graph = Graph("any")
    graph.output("y", graph.input("x", (8, 8)).tanh())
    x = np.concatenate([one["x"].ravel() for one in of(graph).values()])
    assert np.isnan(x).any() and np.isposinf(x).any() and np.isneginf(x).any()
    assert (np.signbit(x) & (x == 0)).any() and (~np.signbit(x) & (x == 0)).any()
    finite = np.abs(x[np.isfinite(x) & (x != 0)])
    assert finite.max() == np.finfo(np.float32).max and finite.min() < np.finfo(np.float32).tiny
    assert (x == 1).any() and (x == -0.5).any()


@pytest.mark.parametrize(
    ("build", "at"),
    [
        (lambda x: x.minimum(x.like(1000.0)), 1000.0),
        (lambda x: (x * 2.0 + 1.0) < 7.0, 3.0),
        (lambda x: (-x).exp() < 1.0, 0.0),
        (lambda x: x.reshape(16).maximum(x.reshape(16).like(0.25)), 0.25),
        (lambda x: (x - 0.125).unary("floor"), 1.125),
    ],
)
def test_constants_are_propagated_back_to_inputs(build, at):
    graph = Graph("back")
    graph.output("y", build(graph.input("x", (4, 4))))
    x = np.concatenate([one["x"].ravel() for one in of(graph).values()])
    exact = np.float32(at)
    assert (x == exact).any()
    assert (x == np.nextafter(exact, np.float32(np.inf))).any()
    assert (x == np.nextafter(exact, np.float32(-np.inf))).any()


def test_sides_that_do_not_lead_back_are_looked_for():
    graph = Graph("far")
    total = graph.input("x", (4, 8)).exp().sum(1)
    graph.output(
        "y", total < graph.constant(np.full(4, 1e-3, np.float32) * np.arange(1, 5, dtype=np.float32))
    )
    found = judging_inputs(graph)
    assert not found.missed
    seen = [evaluate(graph, one.arrays)["y"] for one in found]
    assert any(one.any() for one in seen) and any((~one).any() for one in seen)
    assert any("to a side of" in one.name for one in found)


def test_what_cannot_be_reached_is_said():
    graph = Graph("never")
    square = graph.input("x", (4,)).unary("abs")
    graph.output("y", square.minimum(square.like(-1.0)))
    assert any("minimum" in one and "a < b" in one for one in judging_inputs(graph).missed)


def test_all_ids_of_a_lookup():
    graph = Graph("embedding")
    table = graph.parameter("table", (100, 4), "float32", np.zeros((100, 4), np.float32))
    graph.output("y", table.gather(graph.input("ids", (2, 16), "int64"), 0))
    found = judging_inputs(graph)
    ids = np.concatenate([one.arrays["ids"].ravel() for one in found])
    assert set(range(100)) <= set(ids.tolist()) and ids.min() < 0 and ids.max() < 100
    large = Graph("large")
    table = large.parameter("table", (50_000, 1), "float32", np.zeros((50_000, 1), np.float32))
    large.output("y", table.gather(large.input("ids", (64,), "int32"), 0))
    found = judging_inputs(large)
    ids = set(np.concatenate([one.arrays["ids"].ravel() for one in found]).tolist())
    assert {0, 1, 49_998, 49_999, 1023, 1024} <= ids
    assert any("50000 ids" in one for one in found.missed)


def attention(mask_dtype: str) -> Graph:
    graph = Graph("attention")
    q, k, mask = (
        graph.input("q", (2, 4, 8)),
        graph.input("k", (2, 8, 4)),
        graph.input("mask", (4, 4), mask_dtype),
    )
    scores = q @ k
    wide = mask.broadcast_to((2, 4, 4))
    hidden = wide.select(scores, -np.inf) if mask_dtype == "bool" else scores + wide
    graph.output("y", hidden.softmax(-1))
    return graph


def test_masks_of_every_kind():
    seen = [one["mask"] for one in of(attention("bool")).values()]
    causal = np.tril(np.ones((4, 4), bool))
    for wanted in (np.ones((4, 4), bool), np.zeros((4, 4), bool), causal):
        assert any((one == wanted).all() for one in seen)
    added = [one["mask"] for one in of(attention("float32")).values()]
    for wanted in (np.where(causal, 0, -np.inf), np.full((4, 4), -np.inf)):
        assert any((one == wanted).all() for one in added)
    assert any((one == np.where(causal, 0, np.finfo(np.float32).min)).all() for one in added)


def test_other_sizes():
    graph = Graph("sizes")
    graph.symbol("n", 0)
    graph.output("y", graph.input("x", ("n", 3)).tanh())
    shapes = {one["x"].shape for one in of(graph, sizes={"n": 5}).values()}
    assert {(0, 3), (1, 3), (5, 3), (7, 3)} <= shapes
    assert {one["x"].shape for one in of(graph, sizes={"n": 5}, other_sizes=False).values()} == {(5, 3)}
    with pytest.raises(DimError, match="bind n"):
        judging_inputs(graph)


def test_the_same_seed_gives_the_same():
    graph = Graph("same")
    graph.output("y", graph.input("x", (4, 4)).maximum(graph.input("z", (4, 4))))
    first, second, other = (of(graph, seed=seed) for seed in (3, 3, 4))
    assert list(first) == list(second)
    for name, arrays in first.items():
        assert all(np.array_equal(arrays[one], second[name][one], equal_nan=True) for one in arrays)
    assert not np.array_equal(first["ordinary"]["x"], other["ordinary"]["x"])


def test_inputs_on_which_a_loop_does_not_end_do_not_judge():
    """An infinity is never halved."""
    body = Graph("turn")
    body.input("number", (), "int64")
    halved = body.input("x", (4,)) * 0.5
    body.output("go on", halved.reduce("max", (0,)) > 1.0)
    body.output("x", halved)
    body.freeze()
    graph = Graph("halved")
    x = graph.input("x", (4,))
    operands = (graph.constant(np.int64(2**63 - 1)), x.reduce("max", (0,)) > 1.0, x)
    graph.output("x", graph.add("loop", operands, {"body": body, "carried": 1, "count": 0}).results[0])
    judge = Judge(graph)
    assert len(judge.cases) >= 3
    assert any("has not ended after" in reason for reason in judge.skipped)
