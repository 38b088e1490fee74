"""Random graphs, scheduled, generated, compiled and run with poisoned memory, against the oracle."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings

from kernels_hub.compiler import Graph, evaluate
from kernels_hub.compiler.codegen.cpp.translation_unit import generate
from kernels_hub.compiler.errors import EvaluateError
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.runtime.toolchain import Isa, machine_isas
from kernels_hub.compiler.schedule.expand import expanded
from kernels_hub.compiler.schedule.inlining import unsupported
from kernels_hub.compiler.schedule.schedule import schedule
from tests.combinations import every_value
from tests.compiler.codegen.cpp_runner import run_schedule, weights_of
from tests.compiler.oracle import array, assert_same
from tests.compiler.strategies import OTHER_SIZES, SIZES, assert_same_outputs, graphs
from tests.fuzz.harness import budget

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

QUICK = Isa("quick", (*machine_isas()[0].flags, "-O1"), frozenset())
"""Vector instructions, but little time in the compiler."""


def check(
    graph: Graph, sizes: dict[str, int], tolerance: float, level: Isa | None = QUICK, **options
) -> None:
    """The outputs of the generated code are the oracle's."""
    inputs = graph.dummy_inputs(0, sizes)
    expected = evaluate(graph, inputs, bindings=sizes)
    made = schedule(graph)
    weights = weights_of(graph, made)
    got = run_schedule(made, inputs, weights, sizes, level, **options)
    assert_same_outputs({name: got[name] for name in expected}, expected, tolerance)


@settings(max_examples=budget(4, 8), suppress_health_check=list(HealthCheck), deadline=None)
@given(graph=graphs(max_ops=24))
def test_generated_code_computes_what_the_oracle_does(graph):
    assume(not unsupported(expanded(graph)))
    for sizes in (SIZES, OTHER_SIZES):
        check(graph, sizes, 4e-2, round_ops=True)


@pytest.mark.slow
@settings(max_examples=budget(20, 300), suppress_health_check=list(HealthCheck), deadline=None)
@given(graph=graphs(dtypes=("float32", "float64", "int32", "int64", "int8", "bool")))
def test_generated_code_computes_what_the_oracle_does_precisely(graph):
    assume(not unsupported(expanded(graph)))
    for sizes in (SIZES, OTHER_SIZES):
        check(graph, sizes, 1e-4)


REDUCTIONS = ("sum", "prod", "max", "min", "mean")


def reductions(dtype: str) -> Graph:
    """Every reduction of a dtype, along each axis and all, for dims that are no multiple of anything."""
    graph = Graph(f"reductions_{dtype}")
    n = graph.symbol("n")
    x = graph.input("x", (n, 37, 83), dtype)
    for kind in ("any", "all") if dtype == "bool" else REDUCTIONS[: None if "float" in dtype else 4]:
        for axes in ((0,), (1,), (2,), (0, 2), (1, 2), (0, 1, 2)):
            graph.output(f"{kind}{axes}", x.reduce(kind, list(axes)))
    if dtype != "bool":
        for kind in ("argmax", "argmin"):
            for axis in range(3):
                graph.output(f"{kind}{axis}", graph.apply(kind, x, axis=axis))
    return graph


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "int8", "int64", "bool"])
def test_reductions(dtype):
    graph = reductions(dtype)
    x = array(5, 37, 83, dtype=dtype)
    if "float" in dtype:
        x = np.abs(x) ** np.float32(0.25) if dtype == "float32" else x
        x[3, 5, 7] = x[3, 5, 9] = x.max()
        x[1, 2, 3] = np.nan
    expected = evaluate(graph, {"x": x})
    got = run_schedule(schedule(graph), {"x": x}, sizes={"n": 5}, level=QUICK)
    for name, want in expected.items():
        try:
            assert_same(got[name], want)
        except AssertionError as error:
            raise AssertionError(f"{name} of {dtype}: {error}") from error


def running(dtype: str) -> Graph:
    """Every running reduction of a dtype, along each axis, with what comes before and after in the same nest."""
    graph = Graph(f"running_{dtype}")
    n = graph.symbol("n")
    x = graph.input("x", (n, 37, 5), dtype)
    for kind in ("sum", "prod", "max", "min"):
        for axis in range(3):
            y = (x + x).cumulate(kind, axis, exclusive=False, reverse=axis == 1)
            graph.output(f"{kind}{axis}", y)
            graph.output(f"{kind}{axis}_after", y * x)
    ones = graph.constant(np.ones((), x.dtype.numpy)).broadcast_to((n, 1, 7))
    for axis in range(3):  # of 1, too
        graph.output(f"ones{axis}", ones.cumulate("sum", axis, exclusive=axis == 2))
    graph.output("last", x.cumulate("sum", 1).reduce("max", [1]))
    return graph


@every_value(dtype=["float32", "bfloat16", "float64", "int8", "int64"], size=[5, 1, 0])
def test_running_reductions(dtype, size):
    graph, x = running(dtype), array(size, 37, 5, dtype=dtype)
    if "float" in dtype and size > 3:
        x[3, 5, 4] = np.nan
    expected = evaluate(graph, {"x": x})
    got = run_schedule(schedule(graph), {"x": x}, sizes={"n": size}, level=QUICK)
    tolerance = 4e-2 if dtype == "bfloat16" else 1e-5
    assert_same_outputs({name: got[name] for name in expected}, expected, tolerance)


@every_value(dtype=["float32", "bfloat16", "float64", "int8", "int64", "bool"], size=[4, 1, 0])
def test_orders(dtype, size):
    """Of many equal elements, and of NaN; what is read where they say, in the same nest."""
    graph = Graph("orders")
    n = graph.symbol("n")
    x = graph.input("x", (n, 7, 5), dtype)
    for axis in range(3):
        for down in (False, True):
            order = x.along("argsort", axis, descending=down)
            graph.output(f"order{axis}{down}", order)
            graph.output(f"sorted{axis}{down}", x.gather_elements(order, axis))
            if axis and dtype != "bool":
                best = x.along("argtopk", axis, k=axis * 2, largest=down)
                graph.output(f"best{axis}{down}", best + 1)
    data = array(size, 7, 5, dtype=dtype)
    if "float" in dtype:
        data = np.round(data.astype(np.float32)).astype(data.dtype)
        data[:, 3:5, 2] = np.nan
    expected = evaluate(graph, {"x": data})
    got = run_schedule(schedule(graph), {"x": data}, sizes={"n": size}, level=QUICK)
    assert_same_outputs({name: got[name] for name in expected}, expected)


REDUCE = ("none", "add", "mul", "max", "min")


def scatters(dtype: str, reduction: str) -> Graph:
    """Along each axis, over fewer places than there are, and at tuples; what is written is made in the same nest."""
    graph = Graph(f"scatters_{dtype}_{reduction}")
    n = graph.symbol("n")
    x, u = graph.input("x", (n, 6, 20), dtype), graph.input("u", (n, 4, 20), dtype)
    at = graph.input("at", (n, 4, 20), "int64")
    nodes, edges = graph.input("nodes", (9,), "int32"), graph.input("edges", (9, 2), "int64")
    rows, pairs = graph.input("rows", (9, 6, 20), dtype), graph.input("pairs", (9, 3), dtype)
    zeros = graph.constant(np.zeros((), x.dtype.numpy)).broadcast_to((4, 6, 20))
    square = graph.constant(np.ones((4, 5, 3), x.dtype.numpy))

    def scattered(name: str, op: str, base: Value, places: Value, updates: Value, **attrs: int) -> None:
        y = base.apply(op, base, places, updates, reduction=reduction, **attrs)
        graph.output(name, y)
        graph.output(f"{name}_after", y.select(y, y) if dtype == "bool" else y + y)

    for axis in range(3):
        scattered(f"elements{axis}", "scatter_elements", x, at, u, axis=axis)
    spread = nodes.reshape(9, 1, 1).broadcast_to(rows.shape)
    scattered("spread", "scatter_elements", zeros, spread, rows, axis=0)
    scattered("last", "scatter_elements", rows, at.slice(0, 0, 0).cast("int32"), u.slice(0, 0, 0), axis=2)
    scattered("nodes", "scatter_nd", zeros, nodes.unsqueeze(1), rows)
    sent = rows if dtype == "bool" else rows.apply("gather", rows, nodes, axis=0) + rows
    scattered("sent", "scatter_nd", zeros, nodes.unsqueeze(1), sent)
    scattered("pairs", "scatter_nd", square, edges, pairs)
    scattered(
        "lone",
        "scatter_nd",
        pairs.slice(1, 0, 1).reshape((9,)),
        edges.slice(1, 0, 1),
        pairs.slice(1, 1, 2).reshape((9,)),
    )
    return graph


@every_value(dtype=["float32", "bfloat16", "float64", "int8", "int64", "uint8"], reduction=REDUCE)
def test_scatters(dtype, reduction):
    check_scatters(dtype, reduction)


def test_scatters_of_truth_values():
    check_scatters("bool", "none")


def check_scatters(dtype, reduction):
    """Places that are hit several times, from the end, and in other rows only; NaN; no rows at all."""
    graph = scatters(dtype, reduction)
    made = schedule(graph)
    random = np.random.default_rng(7)
    for size in (0, 1, 5):
        inputs = {
            "x": array(size, 6, 20, dtype=dtype), "u": array(size, 4, 20, dtype=dtype, seed=1),
            "at": random.integers(-min(size, 6), max(min(size, 6), 1), (size, 4, 20)),
            "nodes": random.integers(-4, 4, 9).astype(np.int32), "edges": random.integers(-4, 4, (9, 2)),
            "rows": array(9, 6, 20, dtype=dtype, seed=2), "pairs": array(9, 3, dtype=dtype, seed=3),
        }  # fmt: skip
        if "float" in dtype:
            inputs["rows"][3, 1, 4] = inputs["pairs"][2, 1] = np.nan
        expected = evaluate(graph, inputs)
        got = run_schedule(made, inputs, weights_of(graph, made), {"n": size}, QUICK)
        tolerance = 4e-2 if dtype == "bfloat16" else 1e-5
        assert_same_outputs({name: got[name] for name in expected}, expected, tolerance)


def test_numbers_of_threads_change_no_sum_of_a_scatter():
    """Each place is one thread's, which adds in the order of the updates: of rows, and of blocks of lanes."""
    graph = Graph("threads")
    x, at, u = graph.input("x", ("n", 100)), graph.input("at", ("m",), "int64"), graph.input("u", ("m", 100))
    graph.output("lanes", x.apply("scatter_nd", x, at.unsqueeze(1), u, reduction="add"))
    spread = at.reshape((at.shape[0], 1)).broadcast_to(u.shape).transpose()
    graph.output(
        "rows", x.apply("scatter_elements", x.transpose(), spread, u.transpose(), axis=1, reduction="add")
    )
    made = schedule(graph)
    inputs = {
        "x": array(50, 100),
        "u": array(20_000, 100, seed=1),
        "at": np.random.default_rng(0).integers(0, 50, 20_000),
    }
    expected = inputs["x"].copy()
    np.add.at(expected, inputs["at"], inputs["u"])
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            got = run_schedule(made, inputs, sizes={"n": 50, "m": 20_000}, level=QUICK)
            assert np.array_equal(got["lanes"], expected), threads
            assert np.array_equal(got["rows"], expected.T), threads
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("places", [[0, 4, 1], [0, 1, -5]])
@pytest.mark.parametrize("count", [4, 0])
def test_what_is_out_of_range_is_not_written(count, places):
    """Not even into a dim without elements, where nothing may be written at all."""
    graph = Graph("outside")
    x, updates = graph.input("x", ("n", 3)), graph.input("u", ("m", 3))
    at = graph.input("at", ("m",), "int64")
    graph.output("y", x.apply("scatter_nd", x, at.unsqueeze(1), updates, reduction="add"))
    inputs = {"x": array(count, 3), "u": array(3, 3), "at": np.array(places)}
    with pytest.raises(EvaluateError, match="out of range of a dim of n"):
        run_schedule(schedule(graph), inputs, sizes={"n": count, "m": 3}, level=QUICK)


ENDS = {
    "some": (0, 3, 3, 9),
    "all": (2, 5, 7, 10),
    "one": (10, 10, 10, 10),
    "none": (0, 0, 0, 0),
    "more": (1, 4, 9, 30),
}


@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_products_in_groups(dtype, ends):
    """By weights, which are packed, and by what a call brings; rows behind the last group are 0."""
    graph = Graph("groups")
    x, last = graph.input("x", ("n", 37), dtype), graph.input("ends", (4,), "int32")
    weights = array(4, 37, 150, dtype=dtype, seed=1)
    for name, w in (
        ("packed", graph.parameter("w", weights.shape, dtype, data=weights)),
        (
            "turned",
            graph.parameter("v", (4, 150, 37), dtype, data=weights.swapaxes(1, 2).copy()).permute(0, 2, 1),
        ),
        ("given", graph.input("u", weights.shape, dtype)),
    ):
        y = x.apply("grouped_matmul", x, w, last, dtype="float32")
        graph.output(name, y + graph.iota(150, "float32").broadcast(y.shape, (1,)))
    made = schedule(graph)
    inputs = {"x": array(10, 37, dtype=dtype), "ends": np.array(ENDS[ends], np.int32), "u": weights}
    expected = evaluate(graph, inputs)
    got = run_schedule(made, inputs, weights_of(graph, made), {"n": 10}, QUICK)
    assert_same_outputs({name: got[name] for name in expected}, expected, 1e-5)


def test_sums_of_float32_are_as_accurate_as_pairwise_ones():
    graph = Graph("sums")
    n = graph.symbol("n")
    x = graph.input("x", (n, 100), "float32")
    for axes in ((0,), (1,), (0, 1)):
        graph.output(f"y{axes}", x.sum(list(axes)))
    data = array(40_000, 100, low=0.0, high=1.0)
    got = run_schedule(schedule(graph), {"x": data}, sizes={"n": len(data)})
    for axes in ((0,), (1,), (0, 1)):
        exact = data.astype(np.float64).sum(axes)
        mine, pairwise = (
            np.sqrt(np.mean(((one - exact) / exact) ** 2)) for one in (got[f"y{axes}"], data.sum(axes))
        )
        assert mine <= max(6e-8, 1.2 * pairwise), axes


def test_transpositions():
    graph = Graph("transpositions")
    n = graph.symbol("n")
    x, row = graph.input("x", (n, 45, 3, 70), "float32"), graph.input("row", (45,), "float32")
    y = x + row.reshape(45, 1, 1).broadcast_to(x.shape)
    for order in ((0, 3, 2, 1), (3, 2, 1, 0), (1, 3, 0, 2), (2, 0, 3, 1)):
        graph.output(f"y{order}", y.permute(*order) * 2.0)
    made = schedule(graph)
    assert "rows_" in generate(made).source, "no loop is tiled"
    for size in (37, 1, 0):
        inputs = {"x": array(size, 45, 3, 70), "row": array(45, seed=1)}
        expected = evaluate(graph, inputs)
        got = run_schedule(made, inputs, sizes={"n": size}, level=QUICK)
        assert_same_outputs({name: got[name] for name in expected}, expected)
