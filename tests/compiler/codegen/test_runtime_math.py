"""The runtime's elementary functions over the range of float, against float64; its conversions, bit by bit."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch

from tests.compiler.codegen.runtime_harness import (
    FLAGS,
    RUNTIME,
    arguments,
    build,
    needs_compiler,
    targets,
)

pytestmark = needs_compiler

# name -> (reference in float64, ulp that vector_math.h states)
FUNCTIONS = {
    "exp": (torch.exp, 1.05),
    "expm1": (torch.expm1, 1.5),
    "exp2": (torch.exp2, 1.0),
    "log": (torch.log, 0.8),
    "log1p": (torch.log1p, 1.5),
    "log2": (torch.log2, 1.3),
    "tanh": (torch.tanh, 2.5),
    "erf": (torch.erf, 1.05),
    "sigmoid": (torch.sigmoid, 2.5),
    "sin": (torch.sin, 1.6),
    "cos": (torch.cos, 1.6),
    "rsqrt": (torch.rsqrt, 1.5),
    "tan": (torch.tan, 1.7),
    "asin": (torch.asin, 0.8),
    "acos": (torch.acos, 1.1),
    "atan": (torch.atan, 1.4),
    "sinh": (torch.sinh, 1.7),
    "cosh": (torch.cosh, 1.5),
    "asinh": (torch.asinh, 1.3),
    "acosh": (torch.acosh, 1.3),
    "atanh": (torch.atanh, 1.3),
}
REMAINDERS = {"fmod": np.fmod, "remainder": np.remainder, "floor_divide": np.floor_divide}
WITHOUT_FMA = 1.0  # more, where products are rounded on their own
SPECIAL = [
    0.0,
    1.0,
    np.inf,
    np.nan,
    2.0**-149,
    2.0**-127,
    2.0**-126,
    3.4028235e38,
    0.5,
    2.0,
    3.0,
    88.722,
    103.97,
]
SPECIAL = np.array([*SPECIAL, *(-x for x in SPECIAL)], np.float32)

SOURCE = """
#include "scalar.h"
#include "types.h"
#define UNARY(name) extern "C" void t_##name(int64_t n, const float* x, float* y) { \\
  _Pragma("omp simd") for (int64_t i = 0; i < n; ++i) y[i] = kh::name(x[i]); }
#define CONVERT(name) extern "C" void to_##name(int64_t n, const float* x, kh::name* y) { \\
  for (int64_t i = 0; i < n; ++i) y[i] = kh::name(x[i]); } \\
  extern "C" void from_##name(int64_t n, const kh::name* x, float* y) { \\
  for (int64_t i = 0; i < n; ++i) y[i] = x[i]; }
FUNCTIONS
CONVERT(f16) CONVERT(bf16)
extern "C" void narrow_row(int64_t n, const float* x, kh::f16* y) { kh::narrow(x, n, y); }
extern "C" void widen_row(int64_t n, const kh::f16* x, float* y) { kh::widen(x, n, y); }
#define BINARY(name) extern "C" void t_##name(int64_t n, const float* x, const float* y, float* z) { \\
  _Pragma("omp simd") for (int64_t i = 0; i < n; ++i) z[i] = kh::name(x[i], y[i]); }
BINARY(pow) BINARY(atan2) REMAINDERS
"""
SOURCE = SOURCE.replace("REMAINDERS", " ".join(f"BINARY({name})" for name in REMAINDERS))
SOURCE = SOURCE.replace("FUNCTIONS", " ".join(f"UNARY({name})" for name in (*FUNCTIONS, "exp2_falling")))


@pytest.fixture(scope="module", params=targets())
def library(request, tmp_path_factory):
    return request.param, build(tmp_path_factory.mktemp("math"), "math", SOURCE, request.param)


def error_in_ulp(actual: np.ndarray, reference: np.ndarray) -> float:
    """The largest error of float32 numbers in units in the last place; infinite where a special value or a
    zero's sign differs.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = reference.astype(np.float32)
        exact = np.isnan(reference) | np.isinf(reference) | (reference == 0)
        same = np.where(np.isnan(reference), np.isnan(actual), actual == rounded)
        same &= (reference != 0) | (np.signbit(actual) == np.signbit(reference))
        if not same[exact].all():
            return np.inf
        limit = np.float64(np.finfo(np.float32).max)
        unit = np.spacing(np.minimum(np.abs(reference[~exact]), limit).astype(np.float32)).astype(np.float64)
        # Infinity stands for 2^128, as in rounding.
        shown = np.clip(actual[~exact].astype(np.float64), -(2.0**128), 2.0**128)
        wanted = np.clip(reference[~exact], -(2.0**128), 2.0**128)
        return float(np.nan_to_num(np.abs(shown - wanted) / unit, nan=np.inf).max(initial=0.0))


def call(function, *arrays: np.ndarray) -> np.ndarray:
    result = np.empty_like(arrays[0])
    function(*arguments(result.size, *arrays, result))
    return result


def every_float(stride: int) -> np.ndarray:
    bits = np.arange(0, 2**32, stride, np.uint64).astype(np.uint32)
    return np.concatenate([bits.view(np.float32), SPECIAL])


def test_error_of_powers_of_2_that_fall_to_0(library):
    target, functions = library
    x = every_float(8191)
    x = np.concatenate([x[~(x >= 127.5)], np.linspace(-130, 127, 100_000, dtype=np.float32)])
    expected = torch.exp2(torch.from_numpy(x).double()).numpy()
    actual = call(functions.t_exp2_falling, x)
    tiny = expected < 2.0**-126
    assert (actual[expected < 2.0**-127] == 0).all()
    assert (actual[tiny] <= 2.0**-126).all()
    assert error_in_ulp(actual[~tiny], expected[~tiny]) <= 1.0 + (target == "x86-64") * WITHOUT_FMA


@pytest.mark.parametrize("name", FUNCTIONS)
def test_error_over_all_floats(library, name):
    target, functions = library
    reference, bound = FUNCTIONS[name]
    x = every_float(8191)
    expected = reference(torch.from_numpy(x).double()).numpy()
    fused = target != "x86-64"
    assert (
        error_in_ulp(call(getattr(functions, f"t_{name}"), x), expected) <= bound + (not fused) * WITHOUT_FMA
    )


def test_error_of_powers(library):
    _, functions = library
    random = np.random.default_rng(0)
    wide = np.exp2(random.uniform(-149, 128, 60_000)).astype(np.float32)
    near = random.uniform(0.5, 2, 60_000).astype(np.float32)
    bases = np.concatenate([wide, near, -near])
    powers = np.concatenate(
        [random.uniform(-4, 4, 60_000), random.uniform(-150, 150, 60_000), random.integers(-99, 99, 60_000)]
    )
    pairs = np.stack(np.meshgrid(SPECIAL, [*SPECIAL, 7, -7, 2.5, 2.0**24, -(2.0**23) - 1, 2.0**30])).reshape(
        2, -1
    )
    x = np.concatenate([bases, pairs[0]]).astype(np.float32)
    y = np.concatenate([powers, pairs[1]]).astype(np.float32)
    with np.errstate(all="ignore"):
        expected = np.power(x.astype(np.float64), y.astype(np.float64))
        tiny = (expected != 0) & (np.abs(expected) < 2.0**-150)
        huge = np.abs(expected) >= 2.0**129
    expected[tiny] = np.copysign(0, expected[tiny])
    expected[huge] = np.copysign(np.inf, expected[huge])
    assert error_in_ulp(call(functions.t_pow, x, y), expected) <= 0.6


def pairs_of_floats(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Random pairs, of any size and of alike size, and every pair of special values and whole numbers."""
    random = np.random.default_rng(0)
    any_size = random.integers(0, 2**32, (2, count), np.uint64).astype(np.uint32).view(np.float32)
    alike = random.normal(size=(2, count)).astype(np.float32)
    whole = random.integers(-99, 99, (2, count)).astype(np.float32)
    edges = np.concatenate([SPECIAL, np.float32([7, -7, 0.1, -0.1, 2.0**24, 1e-45, -3e38])])
    x, y = np.concatenate(
        [any_size, alike, whole, np.stack(np.meshgrid(edges, edges)).reshape(2, -1)], axis=1
    )
    return x, y


def test_error_of_angles_of_points(library):
    target, functions = library
    y, x = pairs_of_floats(400_000)
    with np.errstate(all="ignore"):
        expected = np.arctan2(y.astype(np.float64), x.astype(np.float64))
    tiny = np.abs(expected) < 2.0**-150
    expected[tiny] = np.copysign(0, expected[tiny])
    fused = target != "x86-64"
    assert error_in_ulp(call(functions.t_atan2, y, x), expected) <= 1.5 + (not fused) * WITHOUT_FMA


@pytest.mark.parametrize("name", REMAINDERS)
def test_remainders_are_those_of_numpy(library, name):
    """Exactly: of quotients of up to 277 bits, too."""
    _, functions = library
    x, y = pairs_of_floats(400_000)
    with np.errstate(all="ignore"):
        expected = REMAINDERS[name](x, y)
    actual = call(getattr(functions, f"t_{name}"), x, y)
    number = ~np.isnan(expected)
    assert np.isnan(actual[~number]).all()
    assert np.array_equal(actual[number].view(np.uint32), expected[number].view(np.uint32))


@pytest.mark.parametrize(("name", "dtype"), [("f16", np.float16), ("bf16", ml_dtypes.bfloat16)])
def test_conversions_are_those_of_numpy(library, name, dtype):
    _, functions = library
    x = every_float(4093)
    ties = (np.arange(2**16, dtype=np.uint32) << 16 | 0x8000).view(np.float32)
    halves = np.arange(2**16, dtype=np.uint16)
    with np.errstate(all="ignore"):
        x = np.concatenate(
            [x, ties, (halves.view(np.float16).astype(np.float32).view(np.uint32) + 0x1000).view(np.float32)]
        )
        expected = x.astype(dtype)
        widened = halves.view(dtype).astype(np.float32)
    narrow = np.empty(x.shape, np.uint16)
    getattr(functions, f"to_{name}")(*arguments(x.size, x, narrow))
    number = ~np.isnan(x)
    assert np.array_equal(narrow[number], expected.view(np.uint16)[number])
    assert np.isnan(narrow.view(dtype)[~number].astype(np.float32)).all()
    wide = np.empty(halves.shape, np.float32)
    getattr(functions, f"from_{name}")(*arguments(halves.size, halves, wide))
    number = ~np.isnan(widened)
    assert np.array_equal(wide[number].view(np.uint32), widened[number].view(np.uint32))
    assert np.isnan(wide[~number]).all()


def test_rows_of_float16_are_converted_to_the_bits_of_pytorch(library):
    """NaN keeps its upper bits and becomes quiet."""
    _, functions = library
    halves = np.arange(2**16, dtype=np.uint16)
    x = np.concatenate([every_float(4093), halves.view(np.float16).astype(np.float32), SPECIAL])
    x = x[: x.size // 64 * 64]
    narrow, alone = np.empty((2, x.size), np.uint16)
    functions.narrow_row(*arguments(x.size, x, narrow))
    functions.to_f16(*arguments(x.size, x, alone))
    expected = torch.from_numpy(x).to(torch.float16).view(torch.int16).numpy().view(np.uint16)
    assert np.array_equal(narrow, expected)
    assert np.array_equal(alone, expected)
    wide = np.empty(halves.size, np.float32)
    functions.widen_row(*arguments(halves.size, halves, wide))
    number = ~np.isnan(halves.view(np.float16))
    assert np.array_equal(wide[number], halves.view(np.float16).astype(np.float32)[number])
    assert np.isnan(wide[~number]).all()


@pytest.mark.parametrize("count", [0, 1, 3, 4, 7, 8, 9, 15, 16, 17, 31, 33, 256])
def test_rows_of_float16_end_where_they_end(library, count):
    _, functions = library
    x = np.arange(1, 301, dtype=np.float32)
    narrow, wide = np.zeros(300, np.float16), np.zeros(300, np.float32)
    functions.narrow_row(*arguments(count, x, narrow))
    functions.widen_row(*arguments(count, x.astype(np.float16), wide))
    for found in (narrow, wide):
        assert np.array_equal(found[:count], x[:count])
        assert not found[count:].any()


EPILOGUE = """extern "C" void behind_NAME(const float* w, const float* x, float* y, const float* packed) {
  kh::multiply(0, 64, 256, 8, x, 8, 1, packed, [=](int64_t, int64_t row, int64_t j, int64_t count, const float* acc) {
    _Pragma("omp simd") for (int64_t l = 0; l < count; ++l) y[row * 256 + j + l] = kh::NAME(acc[l] + w[j + l]);
  });
}
"""


COMPOSED = """extern "C" void OUTER_of_INNER(int64_t n, const float* x, float* y) {\
 _Pragma("omp simd") for (int64_t i = 0; i < n; ++i) y[i] = kh::OUTER(kh::INNER(x[i])); }
"""


def vectorised(folder: Path, blocks: list[str]) -> set[int]:
    """The lines of loops that the compiler makes vectors of; the first block begins in the third."""
    (folder / "loops.cpp").write_text('#include "scalar.h"\n#include "linked.h"\n' + "".join(blocks))
    command = ["g++", *FLAGS, f"-march={targets()[0]}", f"-I{RUNTIME}", "-c", "-fopt-info-vec-optimized"]
    command += [str(folder / "loops.cpp"), "-o", str(folder / "loops.o")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {
        int(line) for line in re.findall(r"loops\.cpp:(\d+):\d+: optimized: loop vectorized", done.stderr)
    }


@pytest.mark.skipif(targets() in (("native",), ("x86-64",)), reason="vectors of x86-64 with FMA")
def test_functions_behind_a_product_vectorise(tmp_path):
    """In a loop of their own they may, and not here, where what is loaded depends on what was computed."""
    names = [*FUNCTIONS, "exp_falling", "exp2_falling"]
    lines = vectorised(tmp_path, [EPILOGUE.replace("NAME", name) for name in names])
    each = EPILOGUE.count("\n")
    assert [name for place, name in enumerate(names) if 5 + each * place not in lines] == []


@pytest.mark.exhaustive
@pytest.mark.skipif(targets() in (("native",), ("x86-64",)), reason="vectors of x86-64 with FMA")
def test_functions_of_functions_vectorise(tmp_path):
    """What one of them gives for its bounds decides what the next asks: such questions must stay selects of numbers."""
    few = ["exp", "log1p", "sin", "asin", "acosh"]
    pairs = [(outer, inner) for outer in FUNCTIONS for inner in FUNCTIONS if outer in few or inner in few]
    blocks = [COMPOSED.replace("OUTER", outer).replace("INNER", inner) for outer, inner in pairs]
    lines = vectorised(tmp_path, blocks)
    assert [pair for place, pair in enumerate(pairs) if 3 + place not in lines] == []


TWO_OPERANDS = """extern "C" void NAME_of_products(int64_t n, const float* x, const float* y, float* z) {\
 _Pragma("omp simd") for (int64_t i = 0; i < n; ++i) z[i] = kh::NAME(x[i] * y[i], y[i] + x[i]); }
"""


@pytest.mark.skipif(targets() in (("native",), ("x86-64",)), reason="vectors of x86-64 with FMA")
def test_functions_of_two_operands_vectorise(tmp_path):
    names = ["pow", "atan2", *REMAINDERS]
    lines = vectorised(tmp_path, [TWO_OPERANDS.replace("NAME", name) for name in names])
    assert [name for place, name in enumerate(names) if 3 + place not in lines] == []


def test_the_measure_sees_errors():
    exact = np.array([1.0, 0.0, np.inf, np.nan, 4e38])
    right = np.array([1.0, 0.0, np.inf, np.nan, np.inf], np.float32)
    assert error_in_ulp(right, exact) < 0.6 or error_in_ulp(right[:4], exact[:4]) == 0
    assert error_in_ulp(np.nextafter(right[:1], np.float32(2)), exact[:1]) == 1
    for i, wrong in enumerate([np.nan, -0.0, np.nan, 0.0]):
        assert error_in_ulp(np.float32([wrong]), exact[i : i + 1]) == np.inf
