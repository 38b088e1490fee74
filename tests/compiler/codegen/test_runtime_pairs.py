"""Products of bfloat16 in pairs and on AMX, where the processor has the instructions, against float64."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from tests.compiler.codegen.runtime_harness import arguments, build, needs_compiler, products, targets

SOURCE = """
#include "gemm_amx.h"
extern "C" {
int64_t has_pairs() { return kh::has_pairs(); }
int64_t has_amx() { return kh::has_amx(); }
int64_t packed_floats(int64_t k, int64_t n) { return kh::packed_size(kh::pairs_of(k), n); }
void multiply(bool amx, int64_t m, int64_t n, int64_t k, const kh::bf16* a, int64_t stride_m, int64_t stride_k,
              const kh::bf16* b, int64_t b_stride_k, int64_t b_stride_n, float* packed, float* c) {
  kh::pack_pairs(b, k, n, b_stride_k, b_stride_n, packed);
  auto add = [=](int64_t i, int64_t j, int64_t count, const float* acc) {
    for (int64_t x = 0; x < count; ++x) c[i * n + j + x] += acc[x];
  };
  const kh::PairsMatrix left{a, stride_m, stride_k, k};
  if (amx) return kh::product(m, n, kh::pairs_of(k), kh::AmxMatrix{left}, add, packed);
  kh::product(m, n, kh::pairs_of(k), left, add, packed);
}
void set_threads(int64_t n) { omp_set_num_threads(static_cast<int>(n)); }
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    library = build(tmp_path_factory.mktemp("pairs"), "pairs", SOURCE, targets()[0])
    library.has_pairs.restype = library.has_amx.restype = library.packed_floats.restype = ctypes.c_int64
    if not library.has_pairs():
        pytest.skip("needs a processor with AVX-512's BF16 extension")
    return library


@pytest.fixture(params=["pairs", "amx"])
def amx(request, library):
    """Whether products are on AMX."""
    if request.param == "amx" and not library.has_amx():
        pytest.skip("needs a processor with AMX for bfloat16")
    return ctypes.c_bool(request.param == "amx")


def bfloat16(random, *shape):
    """Values, and their upper halves."""
    bits = (random.standard_normal(shape, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64), bits


@needs_compiler
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@products
def test_any_product(library, amx, m, n, k, a_turned, b_turned, threads):
    random = np.random.default_rng(m * n * k)
    library.set_threads(*arguments(threads))
    a, a_bits = bfloat16(random, *((k, m) if a_turned else (m, k)))
    b, b_bits = bfloat16(random, *((n, k) if b_turned else (k, n)))
    packed = np.full(library.packed_floats(*arguments(k, n)), np.nan, np.float32)
    c = np.zeros((m, n), np.float32)
    a_strides, b_strides = (1, m) if a_turned else (k, 1), (1, k) if b_turned else (n, 1)
    library.multiply(amx, *arguments(m, n, k, a_bits, *a_strides, b_bits, *b_strides, packed, c))
    expected = (a.T if a_turned else a) @ (b.T if b_turned else b)
    assert np.abs(c - expected).max() <= 1e-6 + 4e-7 * k
