"""Ranges of whole numbers: what a graph computes always lies in them, and an index that does is not checked again."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels_hub.compiler import Graph, evaluate
from kernels_hub.compiler.ir import types, value_ranges
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.value_ranges import is_index
from kernels_hub.compiler.schedule.kernel import Bound
from kernels_hub.compiler.schedule.schedule import schedule

STEPS = (
    "add", "sub", "mul", "maximum", "minimum", "clamp", "floor", "ceil", "round", "trunc", "int8", "int32", "uint8",
    "float32", "select", "number", "negate", "reshape",
)  # fmt: skip
ANYTHING = np.array(
    [-np.inf, -3e9, -7.5, -2.5, -1.0, -0.5, 0.0, 0.5, 1.5, 2.5, 300.0, 3e9, np.inf, np.nan], np.float32
)


def applied(step: str, a: Value, number: int) -> Value:
    if step in {"add", "sub", "mul", "maximum", "minimum"}:
        return a.binary(step, number)
    if step == "clamp":
        return a.clamp(min(number, 3), max(number, 3))
    if step in {"floor", "ceil", "round", "trunc"}:
        return a.unary(step) if a.dtype.is_float else a
    if step == "select":
        return (a > number).select(a, number)
    if step == "number":
        return a.unary("isnan").select(number, a) if a.dtype.is_float else a
    if step == "negate":
        return 0 - a
    if step == "reshape":
        return a.reshape((2, 7)).reshape((14,))
    return a.cast(types.dtype(step))


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(-5, 200)), min_size=1, max_size=8))
def test_what_is_computed_lies_in_its_range(steps: list[tuple[str, int]]) -> None:
    graph = Graph("steps")
    value = graph.input("x", (14,))
    made = [value]
    for step, number in steps:
        if value.dtype.kind == "uint":
            number = abs(number)
        if value.dtype.bits == 8:
            number = min(number, 100)
        value = applied(step, value, number)
        made.append(value)
    for number, one in enumerate(made):
        graph.output(f"y{number}", one)
    with np.errstate(all="ignore"):
        found = evaluate(graph, [ANYTHING])
    for number, one in enumerate(made):
        known = value_ranges._bounds(one, 24, {})
        if known is not None:
            array = found[f"y{number}"].astype(np.float64)
            assert (known[0] <= array).all() and (array <= known[1]).all(), (one.node, known, array)


def index(graph: Graph, kind: str) -> Value:
    x = graph.input("at", (6,), "float32" if kind.startswith("float") else "int64")
    return {
        "int clamped": lambda: x.clamp(0, 9),
        "int clamped, too far": lambda: x.clamp(0, 10),
        "int clamped, negative": lambda: x.clamp(-1, 9),
        "int clamped below alone": lambda: x.maximum(0),
        "int clamped, then doubled": lambda: x.clamp(0, 4) * 2 + 1,
        "int as it is": lambda: x,
        "float clamped": lambda: x.clamp(0.0, 9.5).cast(types.INT64),
        "float clamped, no number elsewhere": lambda: (
            x.unary("isnan").select(2.0, x).clamp(0.0, 9.5).cast(types.INT64)
        ),
        "float clamped, in int32": lambda: (
            x.unary("isnan").select(2.0, x).clamp(-4.0, 20.0).unary("floor").cast(types.INT32).clamp(0, 9)
        ),
    }[kind]()


@pytest.mark.parametrize(
    ("kind", "known"),
    [
        ("int clamped", True),
        ("int clamped, too far", False),
        ("int clamped, negative", False),
        ("int clamped below alone", False),
        ("int clamped, then doubled", True),
        ("int as it is", False),
        ("float clamped", False),
        ("float clamped, no number elsewhere", True),
        ("float clamped, in int32", True),
    ],
)
def test_an_index_that_is_known_to_be_one_is_not_checked(kind: str, known: bool) -> None:
    graph = Graph("picked")
    at = index(graph, kind)
    graph.output("y", graph.input("x", (3, 10)).gather_elements(at.broadcast_to((3, 6)), 1))
    assert is_index(at, 10) == known
    bounds = [one for kernel in schedule(graph).kernels for nest in kernel.nests for one in nest.body]
    assert any(isinstance(one, Bound) for one in bounds) != known


def test_a_table_of_indices_is_known() -> None:
    graph = Graph("table")
    table = graph.constant(np.array([0, 3, 9]))
    assert is_index(table, 10) and not is_index(table, 9)
    assert not is_index(graph.constant(np.array([0, -3])), 10)
    assert is_index(table.reshape((3, 1)).broadcast_to((3, 4)), 10)


def test_what_wraps_is_not_known() -> None:
    graph = Graph("wraps")
    x = graph.input("x", (4,), "int8").maximum(0)
    assert is_index(x.minimum(100), 101)
    assert not is_index(x.minimum(100) + 100, 300)
