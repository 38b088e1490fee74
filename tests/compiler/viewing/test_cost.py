"""Costs against what one counts by hand."""

from __future__ import annotations

import numpy as np
import pytest

from kernels_hub.compiler import Graph
from kernels_hub.compiler.errors import DimError
from kernels_hub.compiler.ir.cost import Cost, Costs, default_sizes
from kernels_hub.compiler.viewing.drawing import draw


def cost(build, *shapes, dtype="float32", sizes=None):
    graph = Graph("case")
    value = build(*(graph.input(f"x{k}", shape, dtype) for k, shape in enumerate(shapes)))
    graph.output("y", value)
    return Costs(default_sizes(graph, sizes)).of(value.node)


def apply(op, **attrs):
    return lambda *values: values[0].graph.apply(op, *values, **attrs)


SPATIAL = {"strides": (1, 1), "dilations": (1, 1), "padding": ((1, 1), (1, 1))}

CASES = [
    (apply("matmul"), [(2, 3, 5), (2, 5, 7)], 2 * 2 * 3 * 5 * 7, 4 * 2 * (15 + 35 + 21)),
    (apply("conv", **SPATIAL), [(1, 4, 8, 8), (6, 4, 3, 3)], 2 * 6 * 64 * 4 * 9, 4 * (256 + 216 + 384)),
    (
        apply("conv", **SPATIAL, groups=2),
        [(1, 4, 8, 8), (6, 2, 3, 3)],
        2 * 6 * 64 * 2 * 9,
        4 * (256 + 108 + 384),
    ),
    (
        apply("recurrent", cell="lstm"),
        [(6, 2, 4 * 5), (1, 4 * 5, 5), (1, 2, 5), (1, 2, 5)],
        2 * 6 * 2 * 20 * 5,
        4 * (240 + 100 + 10 + 10 + 7 * 2 * 10),
    ),
    (apply("add"), [(3, 4), (3, 4)], 12, 4 * 36),
    (lambda x: x + x, [(3, 4)], 12, 4 * 24),
    (apply("reduce_sum", axes=(0,)), [(3, 4)], 12, 4 * 16),
    (apply("softmax", axis=1), [(3, 4)], 60, 4 * 24),
    (lambda x: x.permute(1, 0), [(3, 4)], 0, 0),
    (lambda x, b: x + b.broadcast_to(30, 4), [(30, 4), (4,)], 120, 4 * (120 + 4 + 120)),
    (apply("cast", dtype="float16"), [(3, 4)], 0, 4 * 12 + 2 * 12),
]


@pytest.mark.parametrize(("build", "shapes", "flops", "moved"), CASES)
def test_counted_by_hand(build, shapes, flops, moved):
    assert cost(build, *shapes) == Cost(flops, moved)


def test_a_grouped_product_multiplies_each_row_once():
    graph = Graph("case")
    rows, matrices = graph.input("rows", (8, 5)), graph.input("matrices", (3, 5, 7))
    node = graph.apply("grouped_matmul", rows, matrices, graph.input("ends", (3,), "int32")).node
    assert Costs({}).of(node).flops == 2 * 8 * 5 * 7


def test_a_gather_reads_what_it_takes():
    graph = Graph("case")
    x, at = graph.input("x", (1000, 8)), graph.input("at", (3,), "int64")
    node = graph.apply("gather", x, at, axis=0).node
    assert Costs({}).of(node) == Cost(0, 4 * 24 + 8 * 3 + 4 * 24)


def test_symbols():
    build, shapes = apply("matmul"), [("n", 5), (5, 7)]
    assert cost(build, *shapes) == Cost(70, 4 * (5 + 35 + 7), "70*n")
    assert cost(build, *shapes, sizes={"n": 3}).flops == 210
    with pytest.raises(DimError, match="no symbol 'm'"):
        cost(build, *shapes, sizes={"m": 3})


@pytest.mark.parametrize(
    ("trips", "expected"),
    [(7, Cost(70, 7 * 80)), ((1 << 63) - 1, Cost(None, None))],
    ids=["counted", "while"],
)
def test_regions(trips: int, expected: Cost):
    """A loop without a trip count ends when the data say, so that its cost is unknown."""
    body = Graph("body")
    body.input("i", (), "int64")
    x = body.input("x", (10,))
    body.output("go", body.constant(True))
    body.output("x", x + x)
    graph = Graph("loop")
    start = graph.input("x", (10,))
    y = graph.apply("loop", graph.constant(trips), graph.constant(True), start, body=body, carried=1)
    graph.output("y", y)
    assert Costs({}).of(y.node) == expected


def test_a_call_is_one_kernel_and_bears_the_name_of_what_it_calls():
    callee = Graph("gelu")
    x = callee.input("x", (10,))
    callee.output("y", (x * x).exp())
    graph = Graph("calls")
    y = graph.apply("call", graph.input("x", (10,)), callee=callee)
    graph.output("y", y)
    assert Costs({}).of(y.node) == Cost(20, 80)
    drawing = draw(graph)
    assert drawing.boxes[1].title == "gelu"
    assert drawing.counts == {"call gelu": 1, "input": 1}


def test_total_and_counts():
    graph = Graph("two")
    x = graph.input("x", (4,))
    y = (x + graph.constant(np.arange(4, dtype=np.float32))) * x
    graph.output("y", y)
    drawing = draw(graph)
    assert drawing.total.flops == 8
    assert drawing.counts == {"add": 1, "constant": 1, "input": 1, "mul": 1}
    assert [box.op for box in drawing.boxes] == ["input", "add", "mul", "output"]
    assert drawing.boxes[1].rows[0].type == "float32[4]"
