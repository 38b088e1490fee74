"""Products of float16 whose right operand is packed as it is, against float64, for each instruction set."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hypothesis import settings

from tests.compiler.codegen.runtime_harness import arguments, build, needs_compiler, products, targets

SOURCE = """
#include "gemm_halves.h"
extern "C" {
int64_t has_halves() { return kh::kHasHalves; }
int64_t packed_floats(int64_t k, int64_t n) { return kh::halves_size(k, n); }
void multiply(int64_t m, int64_t n, int64_t k, const kh::f16* a, int64_t stride_m, int64_t stride_k,
              const kh::f16* b, int64_t b_stride_k, int64_t b_stride_n, float* packed, float* c) {
  kh::pack_halves(b, k, n, b_stride_k, b_stride_n, packed);
  auto add = [=](int64_t i, int64_t j, int64_t count, const float* acc) {
    for (int64_t x = 0; x < count; ++x) c[i * n + j + x] += acc[x];
  };
  kh::product(m, n, k, kh::HalvesMatrix{{a, stride_m, stride_k}}, add, packed);
}
void set_threads(int64_t n) { omp_set_num_threads(static_cast<int>(n)); }
}
"""


@pytest.fixture(scope="module", params=targets())
def library(request, tmp_path_factory):
    library = build(tmp_path_factory.mktemp("halves"), "halves", SOURCE, request.param)
    library.has_halves.restype = library.packed_floats.restype = ctypes.c_int64
    if not library.has_halves():
        pytest.skip(f"{request.param} widens no vector of float16")
    return library


def product(library, a, b):
    """a @ b of arrays of float16 in any memory order."""
    (m, k), n = a.shape, b.shape[1]
    size = library.packed_floats(*arguments(k, n))
    packed = np.full(size + 1, np.nan, np.float32)
    packed[size] = 7
    c = np.zeros((m, n), np.float32)
    strides = [one // 2 for one in (*a.strides, *b.strides)]
    library.multiply(*arguments(m, n, k), *arguments(a, *strides[:2], b, *strides[2:], packed, c))
    assert packed[size] == 7, "written beyond the end"
    return c


@needs_compiler
@settings(max_examples=60, deadline=None)
@products
def test_any_product(library, m, n, k, a_turned, b_turned, threads):
    random = np.random.default_rng(m * n * k)
    library.set_threads(*arguments(threads))
    a = random.standard_normal((k, m) if a_turned else (m, k)).astype(np.float16)
    b = random.standard_normal((n, k) if b_turned else (k, n)).astype(np.float16)
    a, b = a.T if a_turned else a, b.T if b_turned else b
    expected = a.astype(np.float64) @ b.astype(np.float64)
    assert np.abs(product(library, a, b) - expected).max() <= 1e-6 + 4e-7 * k


@needs_compiler
def test_every_value_is_widened_as_it_is(library):
    """Subnormals, infinities and NaN too."""
    values = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    found = product(library, np.ones((1, 1), np.float16), values[None])
    np.testing.assert_array_equal(found[0], values.astype(np.float32))
