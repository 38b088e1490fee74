"""Whole graphs on the library engine: random ones, regions, sizes that the data tell; and the plan that it makes."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from kernels_hub.compiler import Graph, evaluate
from kernels_hub.compiler.engines import guard
from kernels_hub.compiler.engines.engine import Device
from kernels_hub.compiler.engines.library import ENGINE
from kernels_hub.compiler.engines.tensors import to_array, to_tensor
from kernels_hub.compiler.errors import EngineError, PlanError
from kernels_hub.compiler.ir import graph as graphs_of_ir
from kernels_hub.compiler.ir.extrema import substitute
from tests.compiler.engines.executed import CPU, assert_agrees
from tests.compiler.strategies import OTHER_SIZES, SIZES, assert_same_outputs, graphs


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_random_graphs(graph):
    """Symbolic dims, one plan for several sizes. Errors grow along a graph: what the ops do exactly is tested above."""
    assert ENGINE.check(graph, CPU)
    plan = guard.compiled(ENGINE, graph, CPU)
    for sizes in (SIZES, OTHER_SIZES, SIZES):
        inputs = graph.dummy_inputs(0, sizes)
        if not _told(graph):
            return
        outputs = plan.compute([to_tensor(inputs[name]) for name in graph.inputs])
        actual = {
            name: to_array(tensor, value.dtype)
            for (name, value), tensor in zip(graph.outputs.items(), outputs, strict=True)
        }
        assert_same_outputs(actual, dict(evaluate(graph, inputs)), 2e-2)


def _told(graph):
    """Whether shapes of inputs tell every symbol."""
    shown = {name for value in graph.inputs.values() for dim in value.shape if not isinstance(dim, int) for name in
             (one.name for one in dim.symbols)}  # fmt: skip
    return shown >= {one for one in graph.symbols if any(one in str(value.type) for value in graph.values)}


def test_sizes_that_the_data_tell():
    graph = Graph("found")
    x = graph.input("x", (3, 4))
    places = graph.apply("nonzero", x, count=graph.symbol("count"))
    graph.output("places", places)
    graph.output("double", (places + places).cast("float32"))
    data = np.array([[0, 1, 0, 2], [0, 0, 0, 0], [3, 0, 0, 4.0]], np.float32)
    assert_agrees(ENGINE, graph, [data])
    assert_agrees(ENGINE, graph, [np.zeros((3, 4), np.float32)])


def loop_body():
    body = Graph("body")
    i, a = body.input("i", (), "int64"), body.input("a", (2,))
    body.output("go on", i < 3)
    body.output("a", a * 2.0)
    body.output("seen", a)
    return body


def test_loops_scans_and_branches():
    graph = Graph("control")
    x = graph.input("x", (2,))
    limit, go_on = graph.input("limit", (), "int64"), graph.constant(True)
    loop = graph.add("loop", (limit, go_on, x), {"body": loop_body(), "carried": 1, "count": 4})
    graph.output("last", loop.results[0])
    graph.output("all", loop.results[1])
    add = Graph("add")
    total = add.input("total", (2,)) + add.input("x", (2,))
    add.output("total", total)
    add.output("running", total)
    scan = graph.add("scan", (x, loop.results[1]), {"body": add, "states": 1, "sequences": 1})
    graph.output("sum", scan.results[0])
    graph.output("sums", scan.results[1])
    branches = []
    for number in (1.0, -1.0):
        branch = Graph("branch")
        branch.output("y", branch.input("x", (2,)) * number)
        branches.append(branch)
    positive = x.slice(0, 0, 1).reshape() > 0.0
    graph.output(
        "signed", graph.add("if", (positive, x), {"then": branches[0], "otherwise": branches[1]}).results[0]
    )
    for data in ([1.0, 2.0], [-1.0, 5.0]):
        assert_agrees(ENGINE, graph, [np.array(data, np.float32), np.array(9)])


def test_a_loop_that_runs_otherwise_than_its_results_say():
    graph = Graph("control")
    x, limit = graph.input("x", (2,)), graph.input("limit", (), "int64")
    loop = graph.add(
        "loop", (limit, graph.constant(True), x), {"body": loop_body(), "carried": 1, "count": 4}
    )
    graph.output("all", loop.results[1])
    plan = guard.compiled(ENGINE, graph, CPU)
    with pytest.raises(EngineError, match="ran 2 times, but its stacked results are 4 long"):
        plan.compute([torch.ones(2), torch.tensor(2)])


# -- the plan


def small():
    graph = Graph("small")
    x = graph.input("x", ("n", 4))
    w = graph.parameter("w", (4, 3), data=np.arange(12, dtype=np.float32).reshape(4, 3))
    graph.output("y", x @ w)
    graph.output("x again", x)
    graph.output("w", w)
    return graph


def test_outputs_are_nobody_elses_memory():
    x = torch.ones(2, 4)
    plan = guard.compiled(ENGINE, small(), CPU)
    outputs = plan.compute([x])
    for one in outputs:
        one.zero_()
    again = plan.compute([torch.ones(2, 4)])
    assert x.sum() == 8
    assert again[2].sum() == 66 and again[0].sum() == 132


def test_execute_writes_where_it_is_told():
    x = torch.ones(5, 4)
    plan = guard.compiled(ENGINE, small(), CPU)
    outputs = [torch.empty(5, 3), torch.empty(5, 4), torch.empty(4, 3)]
    plan.execute([x], outputs)
    for one, found in zip(outputs, plan.compute([x]), strict=True):
        assert torch.equal(one, found)
    with pytest.raises(PlanError, match="output 'y' is torch.float32\\[5, 3\\], got"):
        plan.execute([x], [torch.empty(5, 2), *outputs[1:]])
    with pytest.raises(PlanError, match="there are 3 outputs, got 1"):
        plan.execute([x], outputs[:1])


def test_serialized_plans_compute_the_same():
    plan = guard.compiled(ENGINE, small(), CPU)
    payload = plan.serialize()
    again = guard.loaded(ENGINE, payload, CPU)
    assert again.signature == plan.signature
    for one, other in zip(again.compute([torch.ones(2, 4)]), plan.compute([torch.ones(2, 4)]), strict=True):
        assert torch.equal(one, other)
    for place in range(0, len(payload), 37):
        damaged = bytearray(payload)
        damaged[place] ^= 1
        with pytest.raises(PlanError):
            guard.loaded(ENGINE, bytes(damaged), CPU)
    with pytest.raises(PlanError):
        guard.loaded(ENGINE, payload[:-1], CPU)
    with pytest.raises(PlanError, match="is for cpu, not for cuda:0"):
        guard.loaded(ENGINE, payload, Device("cuda"))


def test_what_cannot_be_computed_is_an_error_of_the_call():
    graph = Graph("nothing")
    x = graph.input("x", ("n", 3))
    graph.output("y", graph.apply("argmax", x, axis=0))
    plan = guard.compiled(ENGINE, graph, CPU)
    assert plan.compute([torch.eye(3)])[0].tolist() == [0, 1, 2]
    with pytest.raises(
        EngineError, match=r"library.* graph nothing: %1 = argmax\(%0\): .*there is no element"
    ):
        plan.compute([torch.ones(0, 3)])
    graph = Graph("nothing")
    graph.output("y", graph.apply("argmax", graph.input("x", (0, 3)), axis=0))
    plan = guard.compiled(ENGINE, graph, CPU)
    with pytest.raises(EngineError, match="there is no element"):
        plan.compute([torch.ones(0, 3)])


def test_one_plan_serves_many_threads():
    """Each with sizes of its own, more sets of them than are kept."""
    plan = guard.compiled(ENGINE, many_sizes(), CPU)
    wrong = []

    def work(seed):
        for turn in range(12):
            n, m = 1 + (seed + turn) % 5, 1 + (seed * 3 + turn) % 7
            x, y = torch.full((n, m), float(seed)), torch.arange(m * 1.0)
            (found,) = plan.compute([x, y])
            if not torch.equal(found, torch.cat([x.flip(0) + y, x * n])):
                wrong.append((seed, turn))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert wrong == []


def many_sizes():
    graph = Graph("sizes")
    n, m = graph.symbol("n", 1), graph.symbol("m", 1)
    x, y = graph.input("x", (n, m)), graph.input("y", (m,))
    scaled = x * graph.size("n", "float32").broadcast_to((n, m))
    graph.output("z", graph.apply("concat", x.flip(0) + y.broadcast_to((n, m)), scaled, axis=0))
    return graph


def test_profile_has_a_row_a_step():
    rows = guard.compiled(ENGINE, small(), CPU).profile([torch.ones(2, 4)], 2)
    assert [row.name for row in rows] == ["%2 matmul"]
    assert rows[0].seconds > 0 and rows[0].flops == 2 * 2 * 4 * 3 and rows[0].engine == "library"


def test_a_dim_is_computed_once_for_all_steps(monkeypatch):
    graph = Graph("case")
    n = graph.symbol("n")
    value = graph.input("x", (n, 6), "float32")
    for _ in range(5):
        value = value.reshape((n * 2, 3)).tanh().reshape((n, 6))
    graph.output("y", value)
    plan = guard.compiled(ENGINE, graph, CPU)
    asked = []
    monkeypatch.setattr(
        graphs_of_ir, "substitute", lambda *given: asked.append(given[0]) or substitute(*given)
    )
    (y,) = plan.compute([torch.zeros(4, 6)])
    assert y.shape == (4, 6)
    assert sorted(map(str, asked)) == ["2*n", "n"]


def test_declines_say_what_and_where():
    graph = Graph("narrow")
    x = graph.input("x", (4,), "int4")
    graph.output("y", x + x)
    answer = ENGINE.check(graph, CPU)
    assert not answer and answer.reason == "%1: add of int4" and answer.values == {1}
    assert "no arrays for the parameters 'w'" in ENGINE.check(without_weights(), CPU).reason
    assert "not on tpu" in ENGINE.check(small(), Device("tpu")).reason
    with pytest.raises(EngineError, match="narrow"):
        ENGINE.compile(graph, CPU, {})
    with pytest.raises(EngineError, match="no knob 'tile'"):
        ENGINE.compile(small(), CPU, {"tile": 3})


def without_weights():
    graph = Graph("empty")
    graph.output("y", graph.parameter("w", (3,)) * 2.0)
    return graph


def test_wrong_inputs():
    plan = guard.compiled(ENGINE, small(), CPU)
    with pytest.raises(PlanError, match="takes 1 inputs, got 2"):
        plan.compute([torch.ones(2, 4)] * 2)
    with pytest.raises(ValueError, match=r"graph small: input 'x' float32\[n, 4\] got \[2, 5\]"):
        plan.compute([torch.ones(2, 5)])


@pytest.mark.parametrize("executes", [False, True])
def test_a_callers_autocast_changes_nothing(executes):
    """The products would be of bfloat16, and so would their results be."""
    graph = Graph("product")
    x = graph.input("x", (4, 8))
    graph.output("y", x @ graph.constant(np.ones((8, 8), np.float32)))
    plan = guard.compiled(ENGINE, graph, CPU)
    given = torch.full((4, 8), 1.0009765625)  # no number of bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        if executes:
            plan.execute([given], [found := torch.empty(4, 8)])
        else:
            (found,) = plan.compute([given])
    assert found.dtype is torch.float32 and torch.equal(found, given @ torch.ones(8, 8))
