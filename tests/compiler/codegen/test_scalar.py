"""Scalar expressions: every pointwise op and cast, in C++, against the oracle on special values; literals, indices."""

from __future__ import annotations

import math
import shutil

import numpy as np
import pytest

from kernels_hub.compiler import Graph, evaluate
from kernels_hub.compiler.codegen.cpp.scalar import Cpp
from kernels_hub.compiler.codegen.scalar import size_name
from kernels_hub.compiler.codegen.triton.scalar import Triton
from kernels_hub.compiler.errors import EngineError, TypeRuleError
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.dims import floordiv, mod, symbol
from kernels_hub.compiler.ir.extrema import dim_max, dim_min
from kernels_hub.compiler.ir.op import TensorType, Trait
from kernels_hub.compiler.ir.ops import OPS
from kernels_hub.compiler.ir.ops.conversion import convert
from kernels_hub.compiler.ir.types import BOOL, FLOAT32, FLOAT64, INT8, INT64, UINT64, DType
from kernels_hub.compiler.schedule.index import Loop, Ranges
from kernels_hub.compiler.schedule.kernel import Compute, Guard
from tests.compiler.codegen.cpp_runner import Build, load, loops, run_schedule, store
from tests.compiler.oracle import assert_same

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

DTYPES = [
    types.dtype(name)
    for name in (
        "float32",
        "float64",
        "bfloat16",
        "float16",
        "int8",
        "int32",
        "int64",
        "uint8",
        "uint64",
        "bool",
    )
]
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 3.0, -7.0, 20.0, 0.1, np.inf, -np.inf, np.nan)


def _values(dtype: DType) -> np.ndarray:
    if dtype.is_float:
        return np.array(FLOATS).astype(dtype.numpy)
    if dtype is BOOL:
        return np.array([False, True])
    low, high = dtype.limits
    near = [0, 1, 2, 3, 7, 100, *([] if low == 0 else [-1, -2, -3, -8])]
    return np.array([low, high, *near], dtype.numpy)


def _cases(dtype: DType):
    """(row, operands, dtype of the result) for every op on a dtype; all pairs of special values."""
    for row in OPS.values():
        if Trait.POINTWISE not in row.traits or row.name in {"cast", "bitcast", "complex", "real", "imag"}:
            continue
        count = row.bounds[1]
        assert count is not None
        operands = [BOOL, dtype, dtype] if row.name == "select" else [dtype] * count
        try:
            (result,) = row.infer([TensorType(one, (3,)) for one in operands], {})
        except TypeRuleError:
            continue
        a, b = (one.reshape(-1) for one in np.meshgrid(_values(dtype), _values(dtype)))
        arrays = [np.arange(len(a)) % 2 == 0, a, b] if row.name == "select" else [a, b, np.roll(b, 1)][:count]
        yield row, arrays, result.dtype


@needs_compiler
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_op_computes_what_the_oracle_does(dtype):
    graph, build, inputs = Graph("ops"), Build(f"ops_{dtype}"), {}
    for row, arrays, result in _cases(dtype):
        values = [graph.input(f"{row.name}{i}", x.shape, types.dtype(x.dtype)) for i, x in enumerate(arrays)]
        graph.output(row.name, graph.apply(row.name, *values))
        inputs |= {f"{row.name}{i}": x for i, x in enumerate(arrays)}
        (i,) = loops(i=len(arrays[0]))
        buffers = [build.input(f"{row.name}{k}", types.dtype(x.dtype), len(x)) for k, x in enumerate(arrays)]
        loads = [load(f"v{k}", one, i.index) for k, one in enumerate(buffers)]
        made = Compute("v9", result, row, tuple(one.name for one in loads))
        out = build.output(row.name, result, len(arrays[0]))
        build.kernel(row.name, [i], [], [*loads, made, store(out, "v9", i.index)])
    expected = evaluate(graph, inputs)
    got = run_schedule(build.schedule(), inputs)
    assert len(expected) >= (9 if dtype is BOOL else 16)
    for name, want in expected.items():
        try:
            assert_same(got[name], want)
        except AssertionError as error:
            raise AssertionError(f"{name} of {dtype}: {error}\n{got[name]}\n{want}") from error


def _cast_values(dtype: DType) -> np.ndarray:
    if not dtype.is_float:
        return _values(dtype)
    big = [127.0, 128.5, -129.0, 255.9, 300.0, 70000.0, -70000.0, 3e9, -3e9, 1e18, 1e30, 65504.0, 65520.0]
    with np.errstate(over="ignore"):
        return np.concatenate([_values(dtype), np.array(big).astype(dtype.numpy)])


@needs_compiler
@pytest.mark.parametrize("saturate", [False, True], ids=["wraps", "saturates"])
def test_every_cast_computes_what_the_oracle_does(saturate):
    build, inputs, expected = Build("casts"), {}, {}
    for source in DTYPES:
        values = inputs[str(source)] = _cast_values(source)
        given = build.input(str(source), source, len(values))
        for to in DTYPES:
            if to is source:
                continue
            usable = values
            if to.is_integer and to.bits == 64 and source.is_float and not saturate:
                usable = values[~(np.abs(values.astype(np.float64)) >= 2**63)]  # undefined, in NumPy too
            name, (i,) = f"{source}_{to}", loops(i=len(usable))
            expected[name] = convert(usable, to, saturate=saturate)
            given = build.input(f"{name}_x", source, len(usable))
            inputs[f"{name}_x"] = usable
            out = build.output(name, to, len(usable))
            cast = Compute("v1", to, OPS["cast"], ("v0",), {"dtype": to, "saturate": saturate})
            build.kernel(name, [i], [], [load("v0", given, i.index), cast, store(out, "v1", i.index)])
    got = run_schedule(build.schedule(), inputs)
    for name, want in expected.items():
        a, e = got[name].astype(np.float64), want.astype(np.float64)
        assert np.array_equal(a, e, equal_nan=True), f"{name}: {inputs[name + '_x']}\n{got[name]}\n{want}"


@needs_compiler
def test_bits_are_kept_by_bitcasts():
    build, inputs = Build("bitcasts"), {}
    pairs = (("float32", "int32"), ("int64", "float64"), ("bfloat16", "int16"), ("float16", "uint16"))
    for source, to in pairs:
        inputs[source] = _values(types.dtype(source))
        (i,) = loops(i=len(inputs[source]))
        given, out = build.input(source, source, i.extent), build.output(to, to, i.extent)
        cast = Compute("v1", types.dtype(to), OPS["bitcast"], ("v0",), {"dtype": types.dtype(to)})
        build.kernel(source, [i], [], [load("v0", given, i.index), cast, store(out, "v1", i.index)])
    got = run_schedule(build.schedule(), inputs)
    for source, to in pairs:
        assert np.array_equal(got[to].view(np.uint8), inputs[source].view(np.uint8)), (source, to)


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (0.1, FLOAT32, "0.1f"),
        (-0.0, FLOAT32, "(-0.0f)"),
        (1e-45, FLOAT32, "1e-45f"),
        (1 / 3, FLOAT64, "0.3333333333333333"),
        (math.nan, FLOAT32, "std::numeric_limits<float>::quiet_NaN()"),
        (-math.inf, FLOAT64, "(-std::numeric_limits<double>::infinity())"),
        (1.01, types.BFLOAT16, "1.0078125f"),
        (-128, INT8, "std::int8_t{-128}"),
        (-(1 << 63), INT64, "INT64_MIN"),
        ((1 << 64) - 1, UINT64, "std::uint64_t{18446744073709551615u}"),
        (True, BOOL, "true"),
    ],
)
def test_literals(value, dtype, text):
    assert Cpp().literal(value, dtype) == text


def test_literals_in_triton():
    triton = Triton()
    assert triton.literal(-math.inf, FLOAT32) == 'float("-inf")'
    assert triton.literal(-0.0, FLOAT32) == "(-0.0)"
    assert triton.literal(-3, INT8) == "(-3)"
    assert triton.literal(False, BOOL) == "False"


def test_indices():
    i, n = Loop("$i", 8), symbol("n", 1)
    cpp = Cpp(Ranges([i]))
    assert cpp.index(3 * i.index + n * i.index - 2) == "i * 3 + i * n_n - 2"
    assert cpp.index(floordiv(i.index + 1, 3)) == "((i + 1) / 3)"
    assert cpp.index(mod(i.index + 2, n)) == "((i + 2) % n_n)"
    assert cpp.index(mod(i.index - 1, n)) == "kh::floor_mod((i - 1), n_n)"
    assert cpp.index(floordiv(i.index - 4, n)) == "kh::floor_div((i - 4), n_n)"
    assert cpp.index(dim_min(n, 7)) in {
        "kh::min<std::int64_t>({7, n_n})",
        "kh::min<std::int64_t>({n_n, 7})",
    }
    below = Triton(Ranges([i])).index(floordiv(i.index - 4, n))
    assert below == "(((i - 4) - tl.where((i - 4) < 0, n_n - 1, 0)) // n_n)"
    assert "tl.maximum" in Triton().index(dim_max(n, symbol("m")))


def test_guards_that_are_known_to_hold_are_left_out():
    i = Loop("$i", 8)
    cpp = Cpp(Ranges([i]))
    assert cpp.test([Guard(i.index, 0, 8)]) == "true"
    assert cpp.test([Guard(i.index - 1, 0, 7), Guard(i.index, 0, 8)]) == "0 <= i - 1"
    assert cpp.test([Guard(i.index, 0, 7)]) == "i < 7"


def test_an_op_without_spelling_is_refused():
    with pytest.raises(EngineError, match="pow of int32 has no Triton spelling"):
        Triton().compute(Compute("v1", types.INT32, OPS["pow"], ("a", "b")), ["a", "b"], [types.INT32] * 2)


def test_narrow_floats_are_rounded_by_casts_and_where_asked():
    half = types.FLOAT16
    add = Compute("v2", half, OPS["add"], ("a", "b"))
    assert Cpp().compute(add, ["a", "b"], [half, half]) == "a + b"
    assert Cpp(round_ops=True).compute(add, ["a", "b"], [half, half]) == "kh::rounded<kh::f16>(a + b)"
    cast = Compute("v2", half, OPS["cast"], ("a",), {"dtype": half, "saturate": False})
    assert Cpp().compute(cast, ["a"], [FLOAT32]) == "kh::rounded<kh::f16>(a)"


def test_names_of_sizes_are_told_apart():
    names = [
        "n",
        "a.b",
        "a-b",
        "a_b",
        "_a_b",
        "a_b_",
        "…",
        "….",
        "a" * 60,
        "a" * 61,
        "\ud800",
        "x_a_b",
        "A.b",
    ]
    assert size_name("batch") == "n_batch"
    assert len({size_name(name) for name in names}) == len(names)
    assert all(size_name(name).isascii() and size_name(name).isidentifier() for name in names)
