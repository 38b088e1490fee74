"""Pointwise nests and reductions: every op and dtype, rows in registers and in passes, special values, no elements."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels_hub.compiler import Graph, evaluate
from kernels_hub.compiler.engines import guard
from kernels_hub.compiler.engines.engine import Decline, Device
from kernels_hub.compiler.engines.triton import ENGINE
from kernels_hub.compiler.errors import EngineError, EvaluateError, TypeRuleError
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.op import Trait
from kernels_hub.compiler.ir.ops import OPS
from kernels_hub.compiler.schedule.inlining import DTYPES
from tests.combinations import every_value
from tests.compiler.codegen.triton.held import assert_agrees, results
from tests.compiler.oracle import array
from tests.compiler.strategies import assert_same_outputs

NAMES = sorted(one.name for one in DTYPES)
UNSPELLED = {"pow of int", "pow of uint"}


@pytest.mark.parametrize("dtype", NAMES)
def test_every_pointwise_op(dtype, device):
    """One graph for all of a dtype; the special values of floats among the elements."""
    row = types.dtype(dtype)
    graph = Graph("pointwise")
    operands = [graph.input(name, (5, 7), dtype) for name in "ab"]
    condition = graph.input("c", (5, 7), "bool")
    count = 0
    for op in OPS.values():
        if Trait.POINTWISE not in op.traits or op.name in {"complex", "real", "imag", "bitcast"}:
            continue
        attrs = {"dtype": types.INT32} if op.name == "cast" else {}
        given = [condition, *operands] if op.name == "select" else operands[: op.bounds[1]]
        if op.name == "cast" and row.is_float:
            continue  # of numbers beyond the range of an integer
        try:
            value = graph.apply(op.name, *given, **attrs)
        except TypeRuleError:
            continue
        if op.spell("triton", row.kind) is None:
            assert f"{op.name} of {row.kind}" in UNSPELLED
            continue
        graph.output(op.name, value)
        count += 1
    assert count > 5
    a, b = array(5, 7, dtype=dtype, seed=1), array(5, 7, dtype=dtype, seed=2)
    if row.is_float:
        a[0] = b[:5, 1].T[0] = np.inf
        a[0, 1], a[1, 1], a[2, 1], b[3, 3] = -np.inf, np.nan, 0, 0
    elif row.is_integer:
        a[0, 0], b[0, 0], b[1] = row.limits[0], row.limits[1], 0
    arrays = [a, b, array(5, 7, dtype="bool")]
    with np.errstate(all="ignore"):
        expected = evaluate(graph, arrays)
    tolerance = {"float64": 1e-9, "float32": 2e-5}.get(dtype, 4e-2)
    assert_same_outputs(results(graph, arrays, device), expected, tolerance)


LENGTHS = {"whole": (5, 33), "looped": (2, 17001), "across": (17, 300), "one": (1, 1), "none": (3, 0)}
KINDS = ("sum", "prod", "max", "min", "any", "all", "argmax", "argmin")


@every_value(
    length=LENGTHS, dtype=["float32", "float64", "bfloat16", "int8", "int32", "int64", "uint8", "bool"]
)
def test_reductions(length, dtype, device):
    shape = LENGTHS[length]
    graph = Graph("reductions")
    x, factors = graph.input("x", shape, dtype), graph.input("factors", shape, dtype)
    axis = 0 if length == "across" else 1
    row = types.dtype(dtype)
    for kind in KINDS:
        if kind.startswith("arg") and not shape[axis]:
            continue
        try:
            value = (
                graph.apply(kind, x, axis=axis)
                if kind.startswith("arg")
                else graph.apply(f"reduce_{kind}", factors if kind == "prod" else x, axes=(axis,))
            )
        except TypeRuleError:
            continue
        graph.output(kind, value)
    if length == "across":  # rows are what lies side by side
        shape = (300, 17)
        graph = Graph("across")
        graph.output("sum", graph.input("x", shape, dtype).cast("float32").reduce("sum", [0]))
    given = array(*shape, dtype=dtype)
    if row.is_float and given.size > 40:
        given[:2] *= np.asarray(0.01).astype(given.dtype)
        given[0, 3], given[-1, 1] = np.nan, -np.inf
    factors = given
    if (
        row.is_float and given.size > 40
    ):  # else infinity meets what underflowed or not, by the order of products
        factors = np.where(np.isfinite(given), np.sign(given) * (1 + np.abs(given) * 1e-5), given).astype(
            given.dtype
        )
    assert_agrees(
        graph, device, arrays=[given if dtype == "bfloat16" else factors, factors][: len(graph.inputs)]
    )


@every_value(
    length=[0, 1, 37, 1500], dtype=["float32", "float64", "bfloat16", "int8", "int32", "int64", "uint8"]
)
def test_running_reductions(length, dtype, device):
    """Along rows; and down columns, where there are few: the interpreter takes seconds for many."""
    graph = Graph("running")
    x = graph.input("x", (3, length), dtype)
    for kind in ("sum", "prod", "max", "min"):
        y = x.cumulate(kind, 1, reverse=kind == "min")
        graph.output(kind, y)
        graph.output(f"{kind}_after", y * x)
        if length < 100:
            graph.output(f"{kind}_down", x.cumulate(kind, 0, exclusive=kind in {"sum", "prod"}))
    assert_agrees(graph, device, arrays=[_for_products(3, length, dtype)])


@pytest.mark.parametrize(
    ("dtype", "length"),
    [
        ("float32", 200),
        ("int8", 200),
        *(
            pytest.param(dtype, 1500, marks=pytest.mark.exhaustive)
            for dtype in ("float32", "float64", "bfloat16", "int8", "int32", "int64", "uint8")
        ),
    ],
)
def test_running_reductions_down_many_columns(dtype, length, device):
    graph = Graph("down")
    x = graph.input("x", (3, length), dtype)
    for kind in ("sum", "prod", "max", "min"):
        graph.output(kind, x.cumulate(kind, 0, exclusive=kind in {"sum", "prod"}))
    assert_agrees(graph, device, arrays=[_for_products(3, length, dtype)])


def _for_products(rows, length, dtype):
    """An array whose running products stay in range; of floats, with a NaN."""
    given = array(rows, length, dtype=dtype)
    if types.dtype(dtype).is_float and length > 3:
        given = (1 + np.sign(given) * 0.01 / length).astype(given.dtype)
        given[0, 3] = np.nan
    return given


@pytest.mark.parametrize("n", [0, 1, 6, 40])
def test_norms_and_softmax_of_symbolic_rows(n, device):
    graph = Graph("norms")
    graph.symbol("n", 0)
    x = graph.input("x", ("n", 37), "float32")
    mean = x.mean(-1, keepdims=True)
    centred = x - mean
    graph.output("norm", centred * ((centred * centred).mean(-1, keepdims=True) + 1e-5).unary("rsqrt"))
    graph.output("softmax", x.softmax(-1))
    graph.output("columns", x.softmax(0))
    graph.output("total", x.reduce("sum", [0, 1]))
    assert_agrees(graph, device, {"n": n})


def test_long_rows_in_passes(device):
    graph = Graph("passes")
    x = graph.input("x", (2, 20000), "float32")
    graph.output("softmax", x.softmax(-1))
    graph.output("centred", x - x.mean(-1, keepdims=True))
    assert_agrees(graph, device)


def test_an_index_out_of_range_is_an_error(device):
    graph = Graph("lookup")
    x, at = graph.input("x", (5, 6), "float32"), graph.input("at", (3,), "int64")
    graph.output("y", x.gather(at, 0) * 2.0)
    table = array(5, 6)
    assert_agrees(graph, device, arrays=[table, np.array([0, -5, 4])])
    for wrong in (5, -6):
        with pytest.raises(EvaluateError, match=r"graph lookup: .*out of range of a dim of 5"):
            results(graph, [table, np.array([0, wrong, 1])], device)


def test_a_plan_is_written_and_loaded(device):
    graph = Graph("kept")
    x = graph.input("x", (4, 5), "float32")
    w = graph.parameter("w", (5, 3), "float32", array(5, 3))
    graph.output("y", (x @ w).unary("exp"))
    plan = guard.compiled(ENGINE, graph, device, {"block": 512})
    again = guard.loaded(ENGINE, plan.serialize(), device)
    given = array(4, 5, seed=3)
    first, second = (results(graph, [given], device, plan=one)["y"] for one in (plan, again))
    assert np.array_equal(first, second)
    rows = again.profile([torch.from_numpy(given).to("cpu" if device.type == "cpu" else "cuda")], 2)
    assert [one.name for one in rows] == [one.name for one in plan.plan.schedule.kernels]


def test_knobs_are_checked(device):
    graph = Graph("knobs")
    graph.output("y", graph.input("x", (4,), "float32") + 1.0)
    for knobs, words in (
        ({"block": 3}, "power of two"),
        ({"tile": "8x8"}, "64x64x32"),
        ({"speed": 1}, "no knob"),
    ):
        with pytest.raises(EngineError, match=words):
            ENGINE.compile(graph, device, knobs)


def test_what_it_declines_it_says(device):
    graph = Graph("declined")
    x = graph.input("x", (4,), "int32")
    y = x.binary("pow", x)
    graph.output("y", y)
    answer = ENGINE.check(graph, device)
    assert isinstance(answer, Decline)
    assert "pow" in answer.reason and answer.values == {y.id}
    other = Device("cuda") if device.type == "cpu" else Device("cpu")
    assert not ENGINE.check(Graph("none"), other)


def test_few_long_rows_in_two_phases(device):
    graph = Graph("phases")
    x = graph.input("x", (2, 12288), "float32")
    graph.output("total", (x * x).reduce("sum", [1]) * 0.5)
    graph.output("most", x.reduce("max", [0, 1]))
    graph.output("any", (x > 3.0).reduce("any", [0, 1]))
    plan = guard.compiled(ENGINE, graph, device, {})
    assert any(len(kernel.nests) == 2 for kernel in plan.plan.schedule.kernels)
    assert_agrees(graph, device)


def test_sizes_that_no_input_tells_are_declined(device):
    graph = Graph("untold")
    graph.symbol("n", 1)
    y = graph.input("x", (), "float32").broadcast_to(("n",))
    graph.output("y", y)
    answer = ENGINE.check(graph, device)
    assert isinstance(answer, Decline)
    assert "tells the size n" in answer.reason and answer.values == {y.id}


@pytest.mark.parametrize("to", ["float16", "bfloat16", "float32", "int8", "bool"])
def test_casts(to, device):
    graph = Graph("casts")
    for source in NAMES:
        if types.dtype(source).is_float and types.dtype(to).is_integer:
            continue  # of numbers beyond the range of an integer
        graph.output(f"of_{source}", graph.input(source, (3, 5), source).cast(to))
        graph.output(f"one_{source}", graph.input(f"{source}_0", (), source).cast(to))
    assert_agrees(graph, device)
