"""What is known at import: numbers by the ops' references, dims in their algebra, and None where it is not."""

from __future__ import annotations

import numpy as np
import pytest

from kernels_hub.compiler.importers.onnx_values import KnownValues, dims_value, source_inputs
from kernels_hub.compiler.ir.extrema import dim_max
from kernels_hub.compiler.ir.graph import Graph, Value


@pytest.fixture
def graph() -> Graph:
    return Graph("g")


def known(value: Value) -> object:
    array = KnownValues()(value)
    return None if array is None else array.tolist()


def test_numbers(graph: Graph):
    a = graph.constant(np.array([1.5, -2.5], np.float32))
    assert known(a * 2.0) == [3.0, -5.0]
    assert KnownValues()(a.cast("int64")).dtype == np.int64
    assert known((a.cast("int64") + 3).gather(graph.constant(1))) == 1


def test_dims(graph: Graph):
    n, m = graph.symbol("n", 1), graph.symbol("m", 1)
    shape = dims_value(graph, (n, 3, m))
    assert known(shape) == [n, 3, m]
    assert known(shape.gather(graph.constant(0)) * 2 + 1) == 2 * n + 1
    assert known(shape.slice(0, 1, 3).flip(0)) == [m, 3]
    assert known(shape.reduce("prod", 0)) == 3 * n * m
    assert known(shape / 2) == [n // 2, 1, m // 2]
    assert known(shape.maximum(2)) == [dim_max(n, 2), 3, dim_max(m, 2)]
    assert known(shape.eq(0).select(7, shape)) == [n, 3, m]
    assert known(shape.cast("float32") * 2.0) == [2 * n, 6, 2 * m]
    whole = KnownValues()(shape - shape + 5)
    assert whole.dtype == np.int64
    assert whole.tolist() == [5, 5, 5]


def test_what_cannot_be_said(graph: Graph):
    n = graph.symbol("n", 1)
    x = graph.input("x", (n,))
    size = graph.size(n)
    assert known(x.sum()) is None
    assert known(size.eq(4)) is None
    assert known((size - 5) / 2) is None
    assert known(size.cast("float32") * 0.5) is None
    assert known(size.eq(4).select(1, size)) is None
    assert known(graph.iota(n)) is None
    assert known(graph.constant([1]).gather(graph.constant(3))) is None, "an index out of range"


def test_weights_are_known_and_large_values_are_not_computed(graph: Graph):
    w = graph.parameter("w", (2,), data=np.array([1, 2], np.float32))
    assert known(w + 1.0) == [2, 3]
    assert known(graph.parameter("v", (2,))) is None
    big = graph.full((1000, 1000), 1.0)
    assert known(big) is None


def test_inputs_that_a_value_depends_on(graph: Graph):
    x, y, z = (graph.input(name, (2,)) for name in "xyz")
    inner = Graph("inner").input("i", (2,))
    assert set(source_inputs(x + y * 2.0, {})) == {x, y}
    assert source_inputs(inner + 1.0, {inner: z}) == [z]


def test_a_long_chain(graph: Graph):
    value = graph.constant(0)
    for _ in range(5000):
        value = value + 1
    assert known(value) == 5000
