"""Loops as C++, with poisoned memory, against the oracle; rewritten ones, too."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch

from kernels_hub.compiler import Graph, compile, evaluate
from kernels_hub.compiler.codegen.cpp.translation_unit import generate
from kernels_hub.compiler.errors import EvaluateError
from kernels_hub.compiler.rewrite.pipeline import rewrite
from kernels_hub.compiler.schedule.kernel import Role
from kernels_hub.compiler.schedule.regions import Repeat
from kernels_hub.compiler.schedule.schedule import schedule
from tests.compiler.codegen.cpp_runner import run_schedule, weights_of
from tests.compiler.codegen.test_cpp_random import QUICK
from tests.compiler.loop_graphs import NO_TURNS, OTHER_SIZES, SIZES, WIDTH, loop_graph
from tests.compiler.strategies import assert_same_outputs
from tests.fuzz.harness import budget

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@pytest.mark.parametrize("seed", range(budget(5, 200)))
def test_random_loops_compute_what_the_oracle_does(seed):
    graph = loop_graph(seed)
    simplified = rewrite(graph).graph
    for form in (graph, simplified):
        made = schedule(form)
        assert any(isinstance(kernel, Repeat) for kernel in made.kernels)
        for sizes in (SIZES, OTHER_SIZES, NO_TURNS):
            inputs = graph.dummy_inputs(seed, sizes)
            expected = evaluate(graph, inputs, bindings=sizes)
            assert_same_outputs(evaluate(form, inputs, bindings=sizes), expected, 1e-4)
            got = run_schedule(made, inputs, weights_of(form, made), sizes, QUICK)
            assert_same_outputs({name: got[name] for name in expected}, expected, 1e-4)


def test_the_source_is_the_same_each_time():
    """It is the key of what was compiled."""
    assert len({generate(schedule(loop_graph(seed))).source for seed in [3] * 4}) == 1


def scan_of(body: Graph, *operands, states: int) -> Graph:
    """A graph of one scan. operands: (name, shape)."""
    graph = Graph("scanned")
    values = [graph.input(name, shape) for name, shape in operands]
    made = graph.add("scan", values, {"body": body, "states": states, "sequences": len(values) - states})
    for place, value in enumerate(made.results):
        graph.output(str(place), value)
    return graph


def test_weights_in_a_body_are_packed_once():
    body = Graph("turn")
    state, element, w = body.input("s", (1, 32)), body.input("e", (1, 32)), body.input("w", (32, 32))
    body.output("s", (body.apply("matmul", state, w) + element).tanh())
    body.freeze()
    graph = Graph("packed")
    x, h = graph.input("x", ("t", 1, 32)), graph.input("h", (1, 32))
    weight = graph.parameter("w", (32, 32), data=np.eye(32, dtype=np.float32))
    graph.output(
        "y", graph.add("scan", (h, x, weight), {"body": body, "states": 1, "sequences": 1}).results[0]
    )
    made = schedule(graph)
    (loop,) = [kernel for kernel in made.kernels if isinstance(kernel, Repeat)]
    assert loop.turn[0].nests[0].anchor.b.buffer.role is Role.PARAMETER
    assert len(generate(made).packed) == 1
    run = compile(graph, "cpu", engines=("cpp",))
    x, h = torch.randn(6, 1, 32), torch.randn(1, 32)
    expected = h
    for element in x:
        expected = torch.tanh(expected + element)
    torch.testing.assert_close(run(x, h), expected)


def endless(limit: float) -> Graph:
    """Doubles a number until it is no longer below `limit`."""
    body = Graph("turn")
    body.input("number", (), "int64")
    x = body.input("x", (3,))
    doubled = x * 2.0
    body.output("go on", doubled.reduce("max", (0,)) < limit)
    body.output("x", doubled)
    body.freeze()
    graph = Graph("doubled")
    x = graph.input("x", (3,))
    operands = (graph.constant(np.int64(2**63 - 1)), x.reduce("max", (0,)) < limit, x)
    graph.output("x", graph.add("loop", operands, {"body": body, "carried": 1, "count": 0}).results[0])
    return graph


def test_a_loop_that_the_data_end():
    run = compile(endless(100.0), "cpu", engines=("cpp",))
    for start, end in ((1.0, 128.0), (60.0, 120.0), (100.0, 100.0)):
        assert run(torch.tensor([start, 0.0, -start])).tolist() == [end, 0.0, -end]


def test_an_index_of_a_turn_that_is_out_of_range():
    body = Graph("turn")
    number, total = body.input("number", (), "int64"), body.input("total", (2,))
    x = body.input("x", ("t", 2))
    body.output("go on", body.constant(value=True))
    body.output("total", total + x.gather(number, 0))
    body.freeze()
    graph = Graph("far")
    trips, x, start = (
        graph.input("trips", (), "int64"),
        graph.input("x", ("t", 2)),
        graph.input("start", (2,)),
    )
    made = graph.add(
        "loop", (trips, graph.constant(value=True), start, x), {"body": body, "carried": 1, "count": 0}
    )
    graph.output("total", made.results[0])
    run = compile(graph, "cpu", engines=("cpp",))
    x = torch.arange(6.0).reshape(3, 2)
    assert run(torch.tensor(3), x, torch.zeros(2)).tolist() == [6.0, 9.0]
    assert run(torch.tensor(-5), x, torch.ones(2)).tolist() == [1.0, 1.0]
    with pytest.raises(EvaluateError, match="out of range"):
        run(torch.tensor(4), x, torch.zeros(2))


@pytest.mark.parametrize("trips", [0, 2, 5])
def test_a_loop_that_does_not_run_as_often_as_its_stacks_are_long(trips):
    body = Graph("turn")
    body.input("number", (), "int64")
    x = body.input("x", (2,))
    body.output("go on", body.constant(value=True))
    body.output("x", x + 1.0)
    body.output("y", x)
    body.freeze()
    graph = Graph("short")
    times, x = graph.input("times", (), "int64"), graph.input("x", (2,))
    made = graph.add("loop", (times, graph.constant(value=True), x), {"body": body, "carried": 1, "count": 3})
    graph.output("y", made.results[1])
    run = compile(graph, "cpu", engines=("cpp",))
    assert run(torch.tensor(3), torch.zeros(2)).tolist() == [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]
    with pytest.raises(EvaluateError, match="another number of times"):
        run(torch.tensor(trips), torch.zeros(2))


def test_elements_whose_size_is_a_sum():
    body = Graph("turn")
    n = body.symbol("n")
    state, element = body.input("s", (n + 1, 2)), body.input("e", (n + 1, 2))
    body.output("s", state + element)
    body.output("y", element * 2.0)
    body.freeze()
    graph = Graph("sums")
    x = graph.input("x", ("t", "n + 1", 2))
    start = graph.full(("n + 1", 2), 0.0)
    made = graph.add("scan", (start, x), {"body": body, "states": 1, "sequences": 1})
    graph.output("s", made.results[0])
    graph.output("y", made.results[1])
    run = compile(graph, "cpu", engines=("cpp",))
    for turns, rows in ((3, 4), (2, 1)):
        x = torch.randn(turns, rows, 2)
        total, doubled = run(x)
        torch.testing.assert_close(total, x.sum(0))
        torch.testing.assert_close(doubled, x * 2)


def test_states_that_swap_places():
    """What one turn writes the next reads, though nothing is copied."""
    body = Graph("turn")
    a, b, element = body.input("a", (WIDTH,)), body.input("b", (WIDTH,)), body.input("e", (WIDTH,))
    body.output("a", b)
    body.output("b", a + element)
    body.freeze()
    graph = scan_of(body, ("a", (WIDTH,)), ("b", (WIDTH,)), ("x", ("t", WIDTH)), states=2)
    run = compile(graph, "cpu", engines=("cpp",))
    for turns in range(5):
        a, b, x = torch.randn(WIDTH), torch.randn(WIDTH), torch.randn(turns, WIDTH)
        expected = a, b
        for element in x:
            expected = expected[1], expected[0] + element
        for got, one in zip(run(a, b, x), expected, strict=True):
            torch.testing.assert_close(got, one)
