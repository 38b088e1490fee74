"""Generated Metal, compiled by the host's compiler under a shim of `metal_stdlib`, against the reference evaluator."""

from __future__ import annotations

import re

import numpy as np
import pytest

from kernels_hub.compiler import Graph
from kernels_hub.compiler.codegen.metal.scalar import TYPES
from kernels_hub.compiler.codegen.metal.spellings import SPELLINGS
from kernels_hub.compiler.engines.metal import scheduled_source
from kernels_hub.compiler.errors import EvaluateError, TypeRuleError
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.op import TensorType, Trait
from kernels_hub.compiler.ir.ops import OPS
from kernels_hub.compiler.ir.types import BOOL, DType
from kernels_hub.compiler.runtime.toolchain import find_compiler
from tests.compiler.codegen.metal.metal_runner import assert_right, compare, plan_of, run_metal
from tests.compiler.oracle import array

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler")

DTYPES = [types.dtype(name) for name in TYPES]
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 3.0, -7.0, 20.0, 0.1, 1e-6, np.inf, -np.inf, np.nan)
NO_EXPRESSION = {"cast", "bitcast", "complex", "real", "imag"}
"""Casts have tests of their own; Metal has no complex numbers."""


def _values(dtype: DType) -> np.ndarray:
    if dtype.is_float:
        return np.array(FLOATS).astype(dtype.numpy)
    if dtype is BOOL:
        return np.array([False, True])
    low, high = dtype.limits
    return np.array([low, high, 0, 1, 2, 3, 7, 100, *([] if low == 0 else [-1, -2, -3, -8])], dtype.numpy)


def _pointwise(dtype: DType):
    """(row, operands) for every op of the table that takes a dtype: all pairs of special values."""
    a, b = (one.reshape(-1) for one in np.meshgrid(_values(dtype), _values(dtype)))
    for row in OPS.values():
        if Trait.POINTWISE not in row.traits or row.name in NO_EXPRESSION:
            continue
        operands = [BOOL, dtype, dtype] if row.name == "select" else [dtype] * row.bounds[1]
        try:
            row.infer([TensorType(one, (3,)) for one in operands], row.normalise({}))
        except TypeRuleError:
            continue
        yield row, [np.arange(len(a)) % 2 == 0, a, b] if row.name == "select" else [a, b, b][: len(operands)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_pointwise_op(dtype):
    graph, inputs = Graph(f"ops_{dtype}"), []
    for row, arrays in _pointwise(dtype):
        values = [graph.input(f"{row.name}{i}", x.shape, types.dtype(x.dtype)) for i, x in enumerate(arrays)]
        graph.output(row.name, graph.apply(row.name, *values))
        inputs += arrays
    assert len(graph.outputs) >= (9 if dtype is BOOL else 16)
    assert_right(graph, inputs)


def test_no_spelling_names_the_standard_library_of_cpp():
    for dtype in DTYPES:
        for row, _ in _pointwise(dtype):
            text = SPELLINGS.of(row, dtype.kind)
            assert text is not None, f"{row.name} of {dtype}"
            assert "std::" not in text


@pytest.mark.parametrize("source", DTYPES, ids=str)
def test_every_cast(source):
    big = np.array([127.0, 128.5, -129.0, 300.0, 70000.0, -70000.0, 3e9, -3e9, 1e18, 65504.0, 65520.0])
    values = _values(source)
    if source.is_float:
        with np.errstate(over="ignore"):
            values = np.concatenate([values, big.astype(source.numpy)])
    graph = Graph(f"casts_of_{source}")
    x = graph.input("x", values.shape, source)
    for to in DTYPES:
        for saturate in (False, True):
            name = f"{to}, saturated" if saturate else str(to)
            graph.output(name, x.apply("cast", x, dtype=to, saturate=saturate))
    assert_right(graph, [values])


def test_bitcasts():
    graph, inputs = Graph("bits"), []
    for source, to in (
        ("float32", "int32"),
        ("int64", "uint64"),
        ("bfloat16", "int16"),
        ("float16", "uint16"),
    ):
        values = _values(types.dtype(source))
        graph.output(source, graph.input(f"x_{source}", values.shape, source).bitcast(to))
        inputs.append(values)
    got = run_metal(graph, inputs)
    for x, y in zip(inputs, got.values(), strict=True):
        assert x.tobytes() == y.tobytes()


REDUCTIONS = ("sum", "prod", "max", "min", "mean")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32", "int64", "uint8"])
def test_reductions(dtype):
    graph = Graph("reductions")
    value = graph.input("x", ("n", 7, 33), dtype)
    for axes in ((1,), (0, 2), (0, 1, 2)):
        for name in REDUCTIONS if types.dtype(dtype).is_float else REDUCTIONS[:-1]:
            graph.output(f"{name} over {axes}", graph.apply(f"reduce_{name}", value, axes=axes))
    assert_right(graph, [array(5, 7, 33, dtype=dtype)])


def test_reductions_of_special_values():
    x = np.array([[1, np.nan, 3], [np.inf, 2, -np.inf], [-0.0, 0.0, -1], [5, 5, 5]], np.float32)
    graph = Graph("special")
    value = graph.input("x", ("n", 3), "float32")
    for name in ("argmax", "argmin", "softmax", "log_softmax", "cumsum", "cumprod", "cummax", "cummin"):
        graph.output(name, graph.apply(name, value, axis=1))
    for name in ("max", "min", "sum"):
        graph.output(f"reduce_{name}", graph.apply(f"reduce_{name}", value, axes=(0,)))
    graph.output("any", graph.apply("reduce_any", value.binary("lt", 0.0), axes=(1,)))
    graph.output("all", graph.apply("reduce_all", value.binary("lt", 6.0), axes=(1,)))
    assert_right(graph, [x])


def test_a_long_sum_keeps_its_digits():
    graph = Graph("long")
    graph.output("y", graph.apply("reduce_sum", graph.input("x", (1, 1 << 20), "float32"), axes=(1,)))
    assert_right(graph, [np.full((1, 1 << 20), 0.1, np.float32)])


PRODUCTS = {
    "one tile": ((4, 4), (4, 4)),
    "ragged": ((7, 13), (13, 9)),
    "a row": ((1, 40), (40, 33)),
    "a column": ((33, 40), (40, 1)),
    "batches": ((2, 3, 5, 6), (2, 3, 6, 7)),
    "deep": ((3, 500), (500, 5)),
    "no depth": ((3, 0), (0, 5)),
    "no rows": ((0, 3), (3, 5)),
}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32"])
def test_products(dtype):
    graph, inputs = Graph("products"), []
    for name, shapes in PRODUCTS.items():
        a, b = (graph.input(f"{name} {word}", shape, dtype) for word, shape in zip("ab", shapes, strict=True))
        graph.output(name, a @ b)
        inputs += [array(*shape, dtype=dtype, seed=i) for i, shape in enumerate(shapes)]
    assert_right(graph, inputs)


def test_a_product_with_what_comes_after_it():
    graph = Graph("linear")
    x, w = graph.input("x", ("n", 12), "float32"), graph.parameter("w", (10, 12), "float32")
    graph.weights["w"] = array(10, 12, seed=1)
    bias = graph.input("b", (10,), "float32")
    y = (x @ w.transpose(0, 1) + bias).unary("erf") * 2.0
    graph.output("y", y)
    graph.output("rows", y.mean(-1))
    assert_right(graph, [array(9, 12), array(10, seed=2)])


def test_a_convolution_and_a_pool():
    graph = Graph("conv")
    x, w = graph.input("x", ("n", 4, 9, 9), "float32"), graph.input("w", (6, 2, 3, 3), "float32")
    y = graph.apply("conv", x, w, strides=(2, 2), dilations=(1, 1), padding=((1, 1), (1, 0)), groups=2)
    graph.output("y", y.relu())
    graph.output(
        "pooled",
        graph.apply("max_pool", x, kernel=(2, 2), strides=(2, 2), dilations=(1, 1), padding=((0, 0), (0, 1))),
    )
    assert_right(graph, [array(2, 4, 9, 9), array(6, 2, 3, 3, seed=1)])


def test_gathers_and_an_index_that_is_out_of_range():
    graph = Graph("gather")
    x, ids = graph.input("x", (5, 3), "float32"), graph.input("ids", ("n",), "int64")
    graph.output("y", x.gather(ids, 0) * 2.0)
    assert_right(graph, [array(5, 3), np.array([4, -1, 0, -5])])
    with pytest.raises(EvaluateError, match="graph gather"):
        run_metal(graph, [array(5, 3), np.array([0, 5])])


def test_a_plan_serves_several_sizes():
    graph = Graph("sizes")
    x = graph.input("x", ("n", "m"), "float32")
    graph.output("y", x.transpose(0, 1).unary("tanh"))
    plan = plan_of(graph)
    for shape in ((3, 5), (1, 1), (0, 4), (17, 2)):
        (got,) = run_metal(graph, [array(*shape)], plan).values()
        compare({"y": got}, {"y": np.tanh(array(*shape)).T})


def test_a_wrong_result_is_noticed(monkeypatch):
    monkeypatch.setitem(SPELLINGS.own, "exp", "metal::precise::exp2({0})")
    graph = Graph("wrong")
    graph.output("y", graph.input("x", (3,), "float32").exp())
    with pytest.raises(AssertionError, match="y: "):
        assert_right(graph, [np.array([1, 2, 3], np.float32)])


def test_the_text_is_metal():
    """Qualifiers and attributes stand where Metal wants them, and nothing of C++'s own library is used."""
    graph = Graph("text")
    graph.output("y", graph.input("x", ("n", 3), "float16").exp().mean(-1))
    _, program = scheduled_source(graph)
    assert program.source.startswith(
        "// text: generated from a schedule of 1 kernels.\n#include <metal_stdlib>\n"
    )
    assert "std::" not in program.source and "double" not in program.source
    assert re.search(
        r"kernel void run0_0_\w+\(device const half\* in_input0 \[\[buffer\(0\)\]\], device half\* out_output0 "
        r"\[\[buffer\(1\)\]\], (constant int64_t& n_n \[\[buffer\(2\)\]\], )?uint thread_index "
        r"\[\[thread_position_in_grid\]\]\) \{",
        program.source,
    )
