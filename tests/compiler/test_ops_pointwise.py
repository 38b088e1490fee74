"""Pointwise ops and casts against torch: dtypes, special values, odd shapes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from kernels_hub.compiler.ir.ops import OPS
from kernels_hub.compiler.ir.types import DTYPES
from tests.compiler.oracle import array, assert_same, run, to_torch

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTS = ("int8", "int32", "int64", "uint8")
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, 1e-3, 100.0, -100.0, np.inf, -np.inf, np.nan]

TORCH = {
    "exp": torch.exp, "exp2": torch.exp2, "expm1": torch.expm1, "log": torch.log, "log2": torch.log2,
    "log1p": torch.log1p, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "sin": torch.sin, "cos": torch.cos,
    "tan": torch.tan, "asin": torch.asin, "acos": torch.acos, "atan": torch.atan, "sinh": torch.sinh,
    "cosh": torch.cosh, "tanh": torch.tanh, "asinh": torch.asinh, "acosh": torch.acosh, "atanh": torch.atanh,
    "erf": torch.erf, "sigmoid": torch.sigmoid, "floor": torch.floor, "ceil": torch.ceil, "trunc": torch.trunc,
    "round": torch.round, "neg": torch.neg, "abs": torch.abs, "sign": torch.sgn, "isnan": torch.isnan,
    "isinf": torch.isinf,
}  # fmt: skip
BINARY = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "floordiv": None,
    "mod": torch.remainder, "fmod": torch.fmod, "pow": torch.pow, "maximum": torch.maximum, "minimum": torch.minimum,
    "atan2": torch.atan2, "eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le,
}  # fmt: skip
INTEGER = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul,
    "div": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "floordiv": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "mod": torch.remainder, "fmod": torch.fmod, "maximum": torch.maximum, "minimum": torch.minimum,
    "bitand": torch.bitwise_and, "bitor": torch.bitwise_or, "bitxor": torch.bitwise_xor,
    "eq": torch.eq, "lt": torch.lt, "le": torch.le, "ne": torch.ne,
}  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", TORCH)
def test_functions_of_one_float(name, dtype):
    x = np.concatenate([np.array(SPECIAL), array(20, dtype="float64", low=-4, high=4)]).astype(
        DTYPES[dtype].numpy
    )
    expected = TORCH[name](to_torch(x))
    if name == "sign":
        expected = torch.where(
            torch.isnan(to_torch(x)), to_torch(x), expected
        )  # torch says 0, NumPy and ONNX NaN
    assert_same(run(lambda v: v.unary(name), x), expected)


@given(st.lists(st.floats(-7, 7) | st.floats(-0.01, 0.01) | st.floats(), min_size=1, max_size=64))
@example([0.0005])  # beside the first point of the table but zero, where the value is smallest
def test_the_error_function_is_that_of_c(values):
    x = np.array(values)
    expected = np.array([math.erf(one) for one in values])
    np.testing.assert_allclose(run(lambda v: v.erf(), x), expected, rtol=2e-15, atol=1e-320)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", [name for name in BINARY if BINARY[name]])
def test_functions_of_two_floats(name, dtype):
    x, y = (one.reshape(-1).astype(DTYPES[dtype].numpy) for one in np.meshgrid(SPECIAL, SPECIAL))
    if name in {"mod", "fmod"}:
        keep = np.isfinite(x.astype(float)) & np.isfinite(y.astype(float)) & (y != 0)
        x, y = x[keep], y[keep]
    assert_same(run(lambda a, b: a.binary(name, b), x, y), BINARY[name](to_torch(x), to_torch(y)))


@pytest.mark.parametrize("dtype", INTS)
@pytest.mark.parametrize("name", INTEGER)
def test_functions_of_integers(name, dtype):
    low = 0 if dtype == "uint8" else -40
    x, y = np.meshgrid(np.arange(low, 40, 7), [v for v in (-7, -3, -1, 1, 2, 5) if v > low])
    x, y = x.reshape(-1).astype(dtype), y.reshape(-1).astype(dtype)
    assert_same(run(lambda a, b: a.binary(name, b), x, y), INTEGER[name](to_torch(x), to_torch(y)))


@pytest.mark.parametrize("dtype", INTS)
def test_integers_wrap_shift_and_power(dtype):
    x = np.array([1, 3, 100, 127], dtype)
    assert_same(run(lambda v: v + v, x), to_torch(x) + to_torch(x))
    shift = np.array([1, 2, 0, 3], dtype)
    assert_same(run(lambda a, b: a << b, x, shift), to_torch(x) << to_torch(shift))
    assert_same(run(lambda a, b: a >> b, x, shift), to_torch(x) >> to_torch(shift))
    width = np.full(4, np.dtype(dtype).itemsize * 8, dtype)
    assert_same(run(lambda a, b: a << b, x, width), np.zeros(4, dtype))
    assert_same(run(lambda a, b: a**b, x, shift), to_torch(x) ** to_torch(shift))
    assert_same(run(lambda v: ~v, x), ~to_torch(x))
    if dtype != "uint8":
        assert_same(run(lambda a, b: a << b, x, -shift), np.where(shift == 0, x, 0).astype(dtype))
        assert_same(run(lambda a, b: a >> b, -x, -shift), np.where(shift == 0, -x, -1).astype(dtype))
        assert_same(run(lambda a: a >> 64 if dtype == "int64" else a >> 40, -x), np.full(4, -1, dtype))
        signs = np.array([2, 1, -1, -1], dtype)
        assert_same(run(lambda a: a ** (-3), signs), np.array([0, 1, -1, -1], dtype))


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_numbers(dtype):
    x, y = array(5, dtype=dtype), array(5, dtype=dtype, seed=1)
    for name in ("add", "sub", "mul", "div"):
        assert_same(run(lambda a, b, n=name: a.binary(n, b), x, y), BINARY[name](to_torch(x), to_torch(y)))
    assert_same(run(lambda a: a.exp(), x), to_torch(x).exp())
    assert_same(run(lambda a: a.unary("real"), x), to_torch(x).real)
    assert_same(run(lambda a: a.unary("imag"), x), to_torch(x).imag)
    assert_same(
        run(lambda a, b: a.graph.apply("complex", a, b), x.real.copy(), y.real.copy()), x.real + 1j * y.real
    )
    assert_same(run(lambda a: a.eq(a), x), np.ones(5, bool))


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,), (2, 0, 3)])
def test_scalars_and_nothing(shape):
    x = array(*shape)
    assert_same(run(lambda a: (a * 2.0).exp() - a, x), (to_torch(x) * 2).exp() - to_torch(x))


def test_broadcasting_is_numpys():
    x, y, z = array(3, 1, 4), array(5, 1, seed=1), array(seed=2)
    assert_same(run(lambda a, b, c: a + b * c, x, y, z), x + y * z)


def test_bool_and_select():
    x, y, c = array(4, dtype="bool"), array(4, dtype="bool", seed=1), array(4, dtype="bool", seed=2)
    assert_same(run(lambda a, b: (a & b) | ~(a ^ b), x, y), (x & y) | ~(x ^ y))
    assert_same(run(lambda a, b, c: c.select(a, b), x, y, c), np.where(c, x, y))
    v = array(4)
    assert_same(run(lambda c, v: c.select(v, 7), c, v), np.where(c, v, np.float32(7)))
    assert_same(run(lambda v: v > 0.5, v), v > 0.5)


def test_clamp_with_min_above_max_is_max():
    x = array(6)
    assert_same(run(lambda a: a.clamp(1.0, -1.0), x), torch.clamp(to_torch(x), 1.0, -1.0))


CASTS = ["bool", "int8", "int32", "int64", "uint8", "float16", "bfloat16", "float32", "float64"]


@pytest.mark.parametrize("to", CASTS)
@pytest.mark.parametrize("dtype", CASTS)
def test_casts_within_range(dtype, to):
    x = np.array([0, 1, 2, 3.7, 100], np.float64).astype(DTYPES[dtype].numpy)
    name = {"bool": "bool"}.get(to, to)
    assert_same(run(lambda a: a.cast(to), x), to_torch(x).to(getattr(torch, name)))


@pytest.mark.parametrize(("name", "kept"), [("float8_e4m3fn", 448), ("float8_e5m2", 57344)])
@pytest.mark.parametrize("saturate", [False, True])
def test_casts_to_float8(name, kept, saturate):
    x = np.array([0.0, -0.0, 1.1, -3.3, 300.0, 1e6, -1e6, np.inf, np.nan], np.float32)
    expected = to_torch(x).to(getattr(torch, name)).float().numpy()
    if saturate:
        expected = np.where(np.abs(x) > kept, np.sign(x) * kept, expected).astype(np.float32)
        expected[-1] = np.nan
    elif name == "float8_e4m3fn":
        expected[np.abs(x) > 1e5] = np.nan  # torch saturates some of them
    got = run(lambda a: a.cast(name, saturate=saturate).cast("float32"), x)
    assert_same(got, expected)


def test_casts_out_of_range():
    x = np.array([-1e10, -129.0, -1.5, 7.9, 200.0, 1e30, np.inf, -np.inf, np.nan], np.float32)
    got = run(lambda a: a.cast("int8", saturate=True), x)
    assert got.tolist() == [-128, -128, -1, 7, 127, 127, 127, -128, 0]
    assert run(lambda a: a.cast("int8"), x[1:5]).tolist() == [127, -1, 7, -56]
    assert run(lambda a: a.cast("int4", saturate=True), x).astype(int).tolist() == [
        -8,
        -8,
        -1,
        7,
        7,
        7,
        7,
        -8,
        0,
    ]
    assert run(lambda a: a.cast("uint8", saturate=True), np.array([-3, 300])).tolist() == [0, 255]
    big = np.array([2**63 + 2**40], np.uint64)
    assert run(lambda a: a.cast("float64").cast("uint64"), big).tolist() == [2**63 + 2**40]
    assert run(lambda a: a.cast("int64", saturate=True), np.array([1e19])).tolist() == [2**63 - 1]


@pytest.mark.parametrize("dtype", ["int4", "uint4", "int2", "uint2"])
def test_integers_below_a_byte_wrap(dtype):
    row = DTYPES[dtype]
    low, high = row.limits
    x = np.arange(-20, 20).astype(np.int32)
    got = run(lambda a: a.cast(dtype).cast("int32"), x)
    assert got.tolist() == [(v - low) % (high - low + 1) + low for v in x.tolist()]
    y = np.arange(low, high + 1).astype(np.int8).astype(row.numpy)
    doubled = [(2 * v - low) % (high - low + 1) + low for v in range(low, high + 1)]
    assert run(lambda a: a + a, y).astype(int).tolist() == doubled


def test_bitcast():
    x = array(5)
    assert_same(run(lambda a: a.bitcast("int32"), x), x.view(np.int32))
    assert (
        run(
            lambda a: a.bitcast("uint8").bitcast("float8_e5m2").bitcast("uint8"),
            np.arange(256).astype(np.uint8),
        ).sum()
        == 32640
    )


def test_every_scalar_op_has_a_cpp_spelling():
    from kernels_hub.compiler.ir.op import Trait

    for row in OPS.values():
        if Trait.POINTWISE in row.traits:
            spelling = row.spellings["cpp"]
            kinds = ["float"] if isinstance(spelling, str) else list(spelling)
            for kind in kinds:
                operands = [f"x{i}" for i in range(row.bounds[1])]
                text = row.spell("cpp", kind).format(*operands, dtype="float")
                assert all(operand in text for operand in operands)
