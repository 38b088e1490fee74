"""unique and suppress_boxes against definitions spelled out element by element."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels_hub.compiler import Graph, bind, evaluate, rebuild, symbol, verify
from kernels_hub.compiler.errors import EvaluateError, ShapeError, TypeRuleError
from kernels_hub.compiler.ir.ops import OPS
from tests.compiler.oracle import array, run

COUNT = symbol("count", 0)


def unique(x: np.ndarray, axis: int = 0) -> list[np.ndarray]:
    return run(lambda v: v.graph.add("unique", [v], {"count": COUNT, "axis": axis}).results, x)


@pytest.mark.parametrize(
    "dtype", ["float32", "float16", "bfloat16", "int8", "uint8", "int64", "bool", "float64"]
)
@pytest.mark.parametrize(
    ("shape", "axis"), [((40,), 0), ((30, 2), 0), ((2, 30), 1), ((2, 9, 2), 1), ((0,), 0)]
)
def test_unique(dtype: str, shape: tuple[int, ...], axis: int):
    x = array(*shape, low=-1, high=1.49).round().astype(np.float32)
    x = (x > 0 if dtype == "bool" else abs(x) if dtype == "uint8" else x).astype(array(1, dtype=dtype).dtype)
    slices = [tuple(one.reshape(-1).tolist()) for one in np.moveaxis(x, axis, 0)]
    distinct = sorted(set(slices))
    first, inverse, counts = unique(x, axis)
    assert first.tolist() == [slices.index(one) for one in distinct]
    assert inverse.tolist() == [distinct.index(one) for one in slices]
    assert counts.tolist() == [slices.count(one) for one in distinct]


@pytest.mark.parametrize("axis", [0, 1])
def test_unique_as_torch(axis: int):
    x = array(5, 4, dtype="int64", low=0, high=0.5)
    first, inverse, counts = unique(x, axis)
    values, of, times = torch.unique(torch.from_numpy(x), return_inverse=True, return_counts=True, dim=axis)
    assert np.array_equal(np.take(x, first, axis), values.numpy())
    assert (inverse.tolist(), counts.tolist()) == (of.tolist(), times.tolist())


def test_unique_of_special_values():
    first, inverse, counts = unique(np.array([np.nan, -0.0, np.inf, 0.0, np.nan, -np.inf], np.float32))
    assert first.tolist() == [5, 1, 2, 0]
    assert inverse.tolist() == [3, 1, 2, 1, 3, 0]
    assert counts.tolist() == [1, 2, 1, 2]


def test_the_size_that_unique_defines_goes_on():
    graph = Graph()
    x = graph.input("x", ("n",))
    first, inverse, counts = graph.add("unique", [x], {"count": COUNT}).results
    assert [one.shape for one in (first, inverse, counts)] == [(COUNT,), x.shape, (COUNT,)]
    graph.output("same", x.gather(first, 0).gather(inverse, 0)), graph.output("count", graph.size("count"))
    data = np.array([3, 1, 3, 2], np.float32)
    for one in (graph, rebuild(graph).graph, bind(graph, {"n": 4})):
        same, count = evaluate(verify(one), [data]).values()
        assert (same.tolist(), int(count)) == (data.tolist(), 3)
    with pytest.raises(TypeRuleError, match="complex64 has no order"):
        graph.add("unique", [graph.input("z", (3,), "complex64")], {"count": symbol("other", 0)})
    with pytest.raises(ShapeError, match="axis"):
        graph.add("unique", [x], {"count": symbol("other", 0), "axis": 1})


# -- boxes


def suppress(boxes, scores, limit=100, overlap=0.5, least=-np.inf) -> list[tuple[int, int, int]]:
    operands = [boxes, scores, np.array(limit), np.array(overlap, np.float32), np.array(least, np.float32)]
    found = run(lambda *values: values[0].graph.apply("suppress_boxes", *values, count=COUNT), *operands)
    return list(map(tuple, found.T.tolist()))


def ratio(a: list[int], b: list[int]) -> Fraction:
    """Intersection over union, counted in unit squares."""
    squares = [
        {
            (row, column)
            for row in range(min(box[0], box[2]), max(box[0], box[2]))
            for column in range(min(box[1], box[3]), max(box[1], box[3]))
        }
        for box in (a, b)
    ]
    union = len(squares[0] | squares[1])
    return Fraction(len(squares[0] & squares[1]), union) if union else Fraction(0)


def by_definition(boxes, scores, limit, overlap, least) -> list[tuple[int, int, int]]:
    chosen = []
    for batch in range(scores.shape[0]):
        for kind in range(scores.shape[1]):
            order = sorted(range(scores.shape[2]), key=lambda i, s=scores[batch, kind]: (-s[i], i))
            kept: list[int] = []
            for i in order:
                near = [
                    ratio(boxes[batch, i].astype(int).tolist(), boxes[batch, j].astype(int).tolist())
                    for j in kept
                ]
                if (
                    scores[batch, kind, i] > least
                    and len(kept) < limit
                    and all(one <= overlap for one in near)
                ):
                    kept.append(i)
            chosen += [(batch, kind, i) for i in kept]
    return chosen


@settings(max_examples=80, deadline=None)
@given(
    st.data(),
    st.tuples(st.integers(1, 2), st.integers(1, 2), st.integers(0, 6)),
    st.integers(0, 4),
    st.sampled_from([0.0, 0.25, 0.5, 1.0]),
    st.sampled_from([-np.inf, 0.0, 0.5]),
)
def test_suppress_boxes(data, sizes, limit, overlap, least):
    batches, kinds, count = sizes
    corners = data.draw(
        st.lists(st.integers(0, 5), min_size=batches * count * 4, max_size=batches * count * 4)
    )
    marks = data.draw(
        st.lists(st.integers(-2, 4), min_size=batches * kinds * count, max_size=batches * kinds * count)
    )
    boxes = np.array(corners, np.float32).reshape(batches, count, 4)
    scores = (np.array(marks, np.float32) / 4).reshape(batches, kinds, count)
    assert suppress(boxes, scores, limit, overlap, least) == by_definition(
        boxes, scores, limit, overlap, least
    )


def test_the_definition_tells_boxes_apart():
    boxes = np.array([[[0, 0, 2, 2], [0, 0, 2, 1], [3, 3, 5, 5]]], np.float32)
    scores = np.array([[[0.5, 0.75, 0.25]]], np.float32)
    assert by_definition(boxes, scores, 9, 0.5, -1) == [(0, 0, 1), (0, 0, 0), (0, 0, 2)]
    assert by_definition(boxes, scores, 9, 0.4, -1) == [(0, 0, 1), (0, 0, 2)]


def test_scores_that_are_nan_choose_nothing():
    boxes = np.array([[[0, 0, 1, 1], [2, 2, 3, 3]]], np.float32)
    assert suppress(boxes, np.array([[[np.nan, 1]]], np.float32)) == [(0, 0, 1)]
    with pytest.raises(EvaluateError, match="a threshold is NaN"):
        suppress(boxes, np.ones((1, 1, 2), np.float32), overlap=np.nan)


def test_refusals():
    row = OPS["suppress_boxes"]

    def of(
        *shapes: tuple[int, ...],
        dtypes: tuple[str, ...] = ("float32", "float32", "int64", "float32", "float32"),
    ):
        graph = Graph()
        values = [graph.input(str(i), s, d) for i, (s, d) in enumerate(zip(shapes, dtypes, strict=True))]
        return graph.add(row, values, {"count": symbol("count", 0)})

    good = ((1, 5, 4), (1, 2, 5), (), (), ())
    assert str(of(*good).results[0].type) == "int64[3, count]"
    with pytest.raises(
        ShapeError, match=r"dim 1 of the boxes \[1, 5, 4\] is 5, but dim 2 of the scores \[1, 2, 6\] is 6"
    ):
        of((1, 5, 4), (1, 2, 6), (), (), ())
    with pytest.raises(ShapeError, match="is 3, but the number of a box's corners is 4"):
        of((1, 5, 3), (1, 2, 5), (), (), ())
    with pytest.raises(ShapeError, match=r"overlap \(operand 3\) has rank 1, expected 0"):
        of((1, 5, 4), (1, 2, 5), (), (1,), ())
    with pytest.raises(TypeRuleError, match=r"scores \(operand 1\) are floats, not int64"):
        of(*good, dtypes=("float32", "int64", "int64", "float32", "float32"))
