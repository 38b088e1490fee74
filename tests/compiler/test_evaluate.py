"""The oracle: what it reports, watches, refuses and drops; regions; sizes that only the data tell."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from kernels_hub.compiler import Graph, evaluate, parse_graph, print_graph, rebuild, verify
from kernels_hub.compiler.errors import (
    DimError,
    EvaluateError,
    GraphError,
    NonFiniteError,
    ShapeError,
    TypeRuleError,
)
from kernels_hub.compiler.ir.dims import symbol
from kernels_hub.compiler.ir.op import Op
from kernels_hub.compiler.ir.ops import OPS


def test_the_report_has_a_row_an_op_and_totals():
    graph = Graph("g")
    x = graph.input("x", ("n", 3))
    with graph.origin("head"):
        graph.output("y", (x * 2.0).log().softmax())
    data = np.array([[1, 2, 3], [0, 1, -1]], np.float32)
    report = evaluate(graph, [data], debug=True).report
    rows = {row.op: row for row in report.rows}
    assert rows["input"].shape == (2, 3) and rows["softmax"].origin == "head"
    assert rows["mul"].statistics.greatest == 6 and rows["mul"].statistics.mean == 2
    assert (rows["log"].statistics.nans, rows["log"].statistics.infinities) == (1, 1)
    assert rows["log"].statistics.least == pytest.approx(np.log(2))
    assert report.totals["mul"][0] == 1 and sum(count for count, _ in report.totals.values()) == len(
        report.rows
    )
    text = str(report)
    assert "float32[2, 3]" in text and "1/1" in text
    assert "first NaN or infinity: %4 = log(%3): 1 NaN and 1 infinite of 6 elements" in text


def test_the_watch_names_the_first_op_that_makes_a_nan():
    graph = Graph("g")
    x = graph.input("x", (3,))
    with graph.origin("layer.7"):
        y = x.log()
    graph.output("y", y.exp() + y)
    good, bad = np.ones(3, np.float32), np.array([1, -1, 2], np.float32)
    evaluate(graph, [good], watch=True)
    with pytest.raises(NonFiniteError, match=r"%1 = log\(%0\) \(from layer.7\).* makes the first: 1 NaN"):
        evaluate(graph, [bad], watch=True)
    evaluate(graph, [np.array([np.nan, 1, 1], np.float32)], watch=True)  # brought in, not made


def test_inputs_that_do_not_fit():
    graph = Graph("g")
    graph.symbol("n", 1, 4)
    x, y = graph.input("x", ("n", 3)), graph.input("y", ("n", "2*k"))
    graph.output("z", x), graph.output("w", y)
    ones = lambda *shape: np.ones(shape, np.float32)  # noqa: E731
    assert list(evaluate(graph, {"y": ones(2, 4), "x": ones(2, 3)})) == ["z", "w"]
    wrong = {
        r"needs the inputs 'y'": (EvaluateError, {"x": ones(2, 3)}),
        r"has no inputs 'q'; it has 'x', 'y'": (
            EvaluateError,
            {"x": ones(2, 3), "y": ones(2, 4), "q": ones(1)},
        ),
        r"takes 2 inputs, got 1": (EvaluateError, [ones(2, 3)]),
        r"input 'x' is float32\[n, 3\], got float64\[2, 3\]": (EvaluateError, [np.ones((2, 3)), ones(2, 4)]),
        r"dim 1 of input 'x' \[n, 3\] is 3, but dim 1 given \[2, 5\] is 5": (
            ShapeError,
            [ones(2, 5), ones(2, 4)],
        ),
        r"dim 0 of input 'y' \[n, 2\*k\] is 2, but dim 0 given \[3, 4\] is 3": (
            ShapeError,
            [ones(2, 3), ones(3, 4)],
        ),
        r"n = 5 contradicts n in 1..4": (DimError, [ones(5, 3), ones(5, 4)]),
        r"dim 1 of input 'y'": (ShapeError, [ones(2, 3), ones(2, 3)]),
        r"another rank": (ShapeError, [ones(2), ones(2, 4)]),
    }
    for message, (error, inputs) in wrong.items():
        with pytest.raises(error, match=message):
            evaluate(graph, inputs)
    with pytest.raises(ShapeError, match="is 3, but dim 0 given"):
        evaluate(graph, [ones(2, 3), ones(2, 4)], bindings={"n": 3})
    graph.output("v", graph.size("free"))
    with pytest.raises(EvaluateError, match="the sizes of free are not known"):
        evaluate(graph, [ones(2, 3), ones(2, 4)])
    assert evaluate(graph, [ones(2, 3), ones(2, 4)], bindings={"free": 7})["v"] == 7


def test_an_op_that_fails_is_named_with_its_shapes():
    graph = Graph("g")
    x = graph.input("x", (3, 2))
    with graph.origin("embed"):
        graph.output("y", x.gather(graph.input("i", (2,), "int64"), 0))
    message = r"%2 = gather\(%0, %1\) \(from embed\) of float32\[3, 2\], int64\[2\]: index 3 is out of range of a dim of 3"
    with pytest.raises(EvaluateError, match=message):
        evaluate(graph, [np.zeros((3, 2), np.float32), np.array([0, 3])])


def test_arrays_are_dropped_after_their_last_use(monkeypatch):
    living, most = set(), [0]
    row = OPS["tanh"]

    def counted(step):
        result = row.numpy(step).view(_Tracked)
        living.add(key := id(result))
        weakref.finalize(result, living.discard, key)
        most[0] = max(most[0], len(living))
        return result

    monkeypatch.setitem(
        OPS,
        "tanh",
        Op(
            **{f: getattr(row, f) for f in ("name", "doc", "arity", "dtype", "shape", "traits")},
            numpy=counted,
        ),
    )
    graph = Graph("g")
    x = graph.input("x", (8,))
    for _ in range(50):
        x = x.tanh()
    graph.output("y", x)
    evaluate(graph, [np.ones(8, np.float32)])
    gc.collect()
    assert 1 <= most[0] <= 3


class _Tracked(np.ndarray):
    pass


# -- regions


def region(name, types, build):
    graph = Graph(name)
    values = [graph.input(f"a{i}", shape, dtype) for i, (shape, dtype) in enumerate(types)]
    for i, value in enumerate(build(*values)):
        graph.output(f"r{i}", value)
    return graph


FLOAT, INT, BOOL = ((), "float32"), ((), "int64"), ((), "bool")


def test_if_runs_one_branch():
    vector = (("n",), "float32")
    then = region("then", [vector], lambda x: [x * 2.0])
    otherwise = region("otherwise", [vector], lambda x: [x.log()])
    graph = Graph("g")
    x = graph.input("x", ("n",))
    node = graph.add("if", [graph.input("c", (), "bool"), x], {"then": then, "otherwise": otherwise})
    graph.output("y", node.results[0])
    verify(parse_graph(print_graph(verify(graph))))
    data = np.array([-1, 2], np.float32)
    assert evaluate(graph, {"x": data, "c": np.array(True)}, watch=True)["y"].tolist() == [-2, 4]
    assert np.isnan(evaluate(rebuild(graph).graph, {"x": data, "c": np.array(False)})["y"][0])
    short = region("short", [vector], lambda x: [x.sum(0).unsqueeze(0)])
    with pytest.raises(ShapeError, match="number 0 of the results of otherwise"):
        graph.add("if", [graph.constant(True), x], {"then": then, "otherwise": short})


def test_loop_stops_by_count_or_condition():
    body = region(
        "body", [INT, FLOAT, FLOAT], lambda i, total, step: [total + step < 10.0, total + step, total]
    )
    graph = Graph("g")
    trips, step = graph.input("trips", (), "int64"), graph.input("step", ())
    count = symbol("count")
    node = graph.add(
        "loop",
        [trips, graph.constant(True), graph.constant(0.0), step],
        {"body": body, "carried": 1, "count": count},
    )
    graph.output("total", node.results[0]), graph.output("each", node.results[1])
    verify(parse_graph(print_graph(verify(graph))))

    def run(trips, step, count):
        return evaluate(graph, [np.array(trips), np.float32(step)], bindings={"count": count})

    assert run(3, 2.0, 3)["total"] == 6 and run(3, 2.0, 3)["each"].tolist() == [0, 2, 4]
    assert run(100, 4.0, 3)["total"] == 12
    assert run(0, 4.0, 0)["each"].shape == (0,)
    with pytest.raises(EvaluateError, match="ran 3 times"):
        run(3, 2.0, 5)
    with pytest.raises(TypeRuleError, match="the body: number 1 is float32"):
        graph.add(
            "loop",
            [trips, graph.constant(True), graph.constant(1), step],
            {"body": body, "carried": 1, "count": 1},
        )


def test_scan_is_a_running_sum():
    row = ((3,), "float32")
    body = region("body", [row, row, FLOAT], lambda total, x, scale: [total + x * scale, total])
    graph = Graph("g")
    x = graph.input("x", ("n", 3))
    start = graph.full((3,), 0.0)
    node = graph.add("scan", [start, x, graph.constant(2.0)], {"body": body, "states": 1, "sequences": 1})
    graph.output("total", node.results[0]), graph.output("before", node.results[1])
    verify(parse_graph(print_graph(verify(graph))))
    data = np.arange(12, dtype=np.float32).reshape(4, 3)
    result = evaluate(graph, [data])
    assert np.array_equal(result["total"], 2 * data.sum(0))
    assert np.array_equal(result["before"], 2 * (np.cumsum(data, 0) - data))
    assert evaluate(graph, [data[:0]])["before"].shape == (0, 3)


def test_call_keeps_a_graph_closed():
    callee = region("callee", [FLOAT], lambda x: [x + 1.0, x * 2.0])
    graph = Graph("g")
    node = graph.add("call", [graph.input("x", ())], {"callee": callee})
    for i, value in enumerate(node.results):
        graph.output(f"y{i}", value)
    assert [float(v) for v in evaluate(graph, [np.float32(3)]).values()] == [4, 6]
    with pytest.raises(GraphError, match="region of another by now"):
        callee.inputs["a0"].exp()
    with_weights = Graph("weights")
    with_weights.parameter("w", ())
    with pytest.raises(TypeRuleError, match="has parameters"):
        graph.add("call", [], {"callee": with_weights})


# -- sizes that only the data tell


def test_nonzero_defines_a_size():
    graph = Graph("g")
    x = graph.input("x", ("n", 3))
    places = graph.apply("nonzero", x > 0.0, count=symbol("found", 0))
    taken = graph.apply("gather_nd", x, places.transpose())
    graph.output("sum", taken.sum()), graph.output("count", graph.size("found"))
    again = rebuild(verify(parse_graph(print_graph(graph)))).graph
    data = np.array([[1, -1, 2], [0, 3, -5]], np.float32)
    for one in (graph, verify(again)):
        assert [float(v) for v in evaluate(one, [data]).values()] == [6, 3]
    with pytest.raises(GraphError, match="defines 'n', which graph g uses before"):
        graph.apply("nonzero", x > 1.0, count=symbol("n"))
    with pytest.raises(EvaluateError, match="found is 2, but the data make it 3"):
        evaluate(graph, [data], bindings={"found": 2})


def test_a_value_becomes_a_size_and_keeps_what_defines_it_alive():
    graph = Graph("g")
    size = graph.input("size", (), "int64")
    graph.apply("define_size", size, symbol=symbol("s", 1))
    graph.output("y", graph.iota("s + 1"))
    live = rebuild(graph).graph
    assert [node.op.name for node in live.nodes] == ["input", "define_size", "iota"]
    assert evaluate(verify(live), [np.array(3)])["y"].tolist() == [0, 1, 2, 3]
    with pytest.raises(EvaluateError, match="s = 0 contradicts s >= 1"):
        evaluate(live, [np.array(0)])


def test_memory_that_is_out_is_told_with_the_op():
    """NumPy's own error takes a shape where others take a message."""
    graph = Graph("large")
    graph.output("y", graph.input("x", (1,)).broadcast_to((1 << 44,)) + 1.0)
    with pytest.raises(MemoryError, match=r"= add\(.*17592186044416.*Unable to allocate"):
        evaluate(graph, [np.ones(1, np.float32)])
