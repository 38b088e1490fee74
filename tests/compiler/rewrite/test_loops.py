"""Loops after the rewrites: fewer states, scans for counted loops, products taken out; the same numbers."""

from __future__ import annotations

import numpy as np
import pytest

from kernels_hub.compiler import Graph, evaluate
from kernels_hub.compiler.errors import EvaluateError
from kernels_hub.compiler.rewrite.pipeline import rewrite
from kernels_hub.compiler.rewrite.rule import Options
from tests.compiler.loop_graphs import NO_TURNS, OTHER_SIZES, SIZES, loop_graph
from tests.compiler.strategies import assert_same_outputs
from tests.fuzz.harness import budget


@pytest.mark.parametrize("seed", range(1000, 1000 + budget(30, 2000)))
def test_random_loops_keep_their_numbers(seed):
    graph = loop_graph(seed)
    simplified = rewrite(graph).graph
    exact = rewrite(graph, options=Options(rounding=False)).graph
    for sizes in (SIZES, OTHER_SIZES, NO_TURNS):
        inputs = graph.dummy_inputs(seed, sizes)
        expected = evaluate(graph, inputs, bindings=sizes)
        assert_same_outputs(evaluate(simplified, inputs, bindings=sizes), expected, 1e-4)
        assert_same_outputs(evaluate(exact, inputs, bindings=sizes), expected)


def cell(*, backwards: bool = False) -> Graph:
    """A recurrent cell as a loop over places, with a counter and a weight that are carried along."""
    body = Graph("turn")
    number, counter = body.input("number", (), "int64"), body.input("counter", (), "int32")
    state, weight = body.input("state", ("n", 4)), body.input("weight", (4, 4))
    x, own, scale = body.input("x", ("t", "n", 4)), body.input("own", (4, 4)), body.input("scale", (4,))
    place = (number * -1) + 9 if backwards else counter
    element = body.apply("matmul", x.gather(place, 0), own)
    after = (element + body.apply("matmul", state, weight) * scale.exp().broadcast_to(state.shape)).tanh()
    for name, value in {"go on": body.constant(value=True), "counter": counter + 1, "state": after,
                        "weight": weight, "y": after * 2.0}.items():  # fmt: skip
        body.output(name, value)
    body.freeze()
    graph = Graph("cell")
    length = 10 if backwards else graph.symbol("t")
    x, h = graph.input("x", (length, "n", 4)), graph.input("h", ("n", 4))
    own, weight, scale = (
        graph.input(name, shape) for name, shape in (("own", (4, 4)), ("w", (4, 4)), ("s", (4,)))
    )
    operands = (
        graph.size(length),
        graph.constant(value=True),
        graph.constant(np.int32(0)),
        h,
        weight,
        x,
        own,
        scale,
    )
    if backwards:
        body = rebound(body)
    made = graph.add("loop", operands, {"body": body, "carried": 3, "count": length})
    graph.output("last", made.results[1])
    graph.output("all", made.results[3])
    return graph


def rebound(body: Graph) -> Graph:
    """The body for ten places."""
    bound = body.bind({"t": 10})
    bound.freeze()
    return bound


@pytest.mark.parametrize("backwards", [False, True])
def test_a_recurrent_cell(backwards):
    graph = cell(backwards=backwards)
    outcome = rewrite(graph)
    fired = outcome.fired["loops"]
    assert fired["unchanged_state"] == fired["counter"] == fired["loop_to_scan"] == 1
    assert fired["product_of_elements"] == fired["same_in_each_turn"] == 1
    (scan,) = [node for node in outcome.graph.live() if node.op.name in {"loop", "scan"}]
    assert scan.op.name == "scan" and scan.attrs["states"] == 1
    inside = [node.op.name for node in scan.attrs["body"].live()]
    assert inside.count("matmul") == 1 and "exp" not in inside and "gather" not in inside
    sizes = {"n": 3, "t": 10}
    inputs = graph.dummy_inputs(0, sizes)
    assert_same_outputs(evaluate(outcome.graph, inputs), evaluate(graph, inputs), 1e-5)


def test_no_product_is_taken_out_where_rounding_may_not_change():
    fired = rewrite(cell(), options=Options(rounding=False)).fired["loops"]
    assert not fired["product_of_elements"] and fired["loop_to_scan"] == 1


def test_a_counter_that_is_needed_outside_stays():
    graph = cell()
    graph.output("counter", next(node for node in graph.live() if node.op.name == "loop").results[0])
    outcome = rewrite(graph)
    assert not outcome.fired["loops"]["counter"]
    inputs = graph.dummy_inputs(0, {"n": 2, "t": 6})
    assert evaluate(outcome.graph, inputs)["counter"] == 6


def test_what_may_fail_stays_in_the_loop():
    """An index that is out of range is no error in a loop without turns."""
    body = Graph("turn")
    body.input("number", (), "int64")
    total, table, place = (
        body.input("total", (3,)),
        body.input("table", (4, 3)),
        body.input("place", (), "int64"),
    )
    body.output("go on", body.constant(value=True))
    body.output("total", total + table.gather(place, 0).exp())
    body.freeze()
    graph = Graph("guarded")
    trips, total = graph.input("trips", (), "int64"), graph.input("total", (3,))
    table, place = graph.input("table", (4, 3)), graph.input("place", (), "int64")
    operands = (trips, graph.constant(value=True), total, table, place)
    graph.output("total", graph.add("loop", operands, {"body": body, "carried": 1, "count": 0}).results[0])
    simplified = rewrite(graph).graph
    given = {"total": np.ones(3, np.float32), "table": np.ones((4, 3), np.float32), "place": np.int64(9)}
    assert evaluate(simplified, {**given, "trips": np.int64(0)})["total"].tolist() == [1.0, 1.0, 1.0]
    with pytest.raises(EvaluateError, match="out of range"):
        evaluate(simplified, {**given, "trips": np.int64(1)})
