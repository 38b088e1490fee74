"""The runtime's matrix products: sizes around every block's edge, strides, epilogues, NaN and infinity."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiler.codegen.runtime_harness import arguments, build, needs_compiler, targets

pytestmark = needs_compiler

SOURCE = """
#include "gemm.h"
using kh::gemm;
extern "C" {
int64_t packed_size(int64_t k, int64_t n) { return kh::packed_size(k, n); }
void pack(int64_t k, int64_t n, const float* b, int64_t sk, int64_t sn, float* packed) {
  kh::pack(b, k, n, sk, sn, packed); }
// c += acc: a piece that comes twice, or never, shows.
void product(int64_t m, int64_t n, int64_t k, const float* a, int64_t sm, int64_t sk, const float* packed,
             const float* bias, float* c) {
  kh::gemm(m, n, k, a, sm, sk, packed, [=](int64_t i, int64_t j, int64_t count, const float* acc) {
    for (int64_t x = 0; x < count; ++x) c[i * n + j + x] += acc[x] + bias[j + x];
  });
}
void gated(int64_t m, int64_t n, int64_t k, const float* a, int64_t sm, int64_t sk, const float* gate,
           const float* up, float* c, float* d) {
  kh::gemm_gated(m, n, k, a, sm, sk, gate, up,
                 [=](int64_t i, int64_t j, int64_t count, const float* g, const float* u) {
    for (int64_t x = 0; x < count; ++x) c[i * n + j + x] += g[x], d[i * n + j + x] += u[x];
  });
}
void batched(int64_t batch, int64_t m, int64_t n, int64_t k, const float* a, int64_t sb, int64_t sm, int64_t sk,
             const float* b, int64_t tb, int64_t tk, int64_t tn, float* c) {
  kh::gemm_batched(batch, m, n, k, [=](int64_t i) { return a + i * sb; }, sm, sk,
                   [=](int64_t i) { return b + i * tb; }, tk, tn,
                   [=](int64_t one, int64_t i, int64_t j, int64_t count, const float* acc) {
    for (int64_t x = 0; x < count; ++x) c[(one * m + i) * n + j + x] += acc[x];
  });
}
void set_threads(int64_t n) { omp_set_num_threads(static_cast<int>(n)); }
}
"""


@pytest.fixture(scope="module", params=targets())
def library(request, tmp_path_factory):
    return build(tmp_path_factory.mktemp("gemm"), "gemm", SOURCE, request.param)


def matrix(random, rows, columns, transposed=False):
    """A matrix whose memory is exactly as large as it is, in either order; NaN around it would be read."""
    if transposed:
        return np.ascontiguousarray(random.standard_normal((columns, rows), np.float32)).T
    return random.standard_normal((rows, columns), np.float32)


def strides(x: np.ndarray) -> list[int]:
    return [stride // x.itemsize for stride in x.strides]


def packed(library, b: np.ndarray) -> np.ndarray:
    size = library.packed_size(*arguments(*b.shape))
    guarded = np.full(size + 64, np.pi, np.float32)
    library.pack(*arguments(*b.shape, b, *strides(b), guarded))
    assert (guarded[size:] == np.float32(np.pi)).all()
    return guarded[:size]


def assert_product(actual: np.ndarray, a: np.ndarray, b: np.ndarray, *, plus=0.0) -> None:
    """Error below 4e-7 sqrt(k), relative to |a| @ |b|: what float32 sums in blocks stay under."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    error = np.abs(actual - (a @ b + plus)) / (np.abs(a) @ np.abs(b) + np.abs(plus) + 1e-30)
    assert error.max(initial=0.0) <= 4e-7 * max(a.shape[-1], 1) ** 0.5, f"error {error.max():.3g}"


SIZES = [
    *((m, 70, 33) for m in (1, 2, 3, 4, 5, 6, 7, 13, 14, 15, 27, 28, 29, 57, 127)),
    *((29, n, 40) for n in (1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 1000)),
    *((30, 48, k) for k in (0, 1, 2, 15, 16, 17, 255, 256, 257, 511, 513, 1500)),
    *((0, 5, 5), (5, 0, 5), (1, 1, 1), (1, 1000, 300), (4, 300, 1000), (300, 200, 300)),
]


@pytest.mark.parametrize("threads", [1, 2])
def test_sizes(library, threads):
    library.set_threads(*arguments(threads))
    random = np.random.default_rng(0)
    for m, n, k in SIZES:
        a, b, bias = matrix(random, m, k), matrix(random, k, n), matrix(random, 1, n)
        c = np.zeros((m, n), np.float32)
        library.product(*arguments(m, n, k, a, *strides(a), packed(library, b), bias, c))
        assert_product(c, a, b, plus=bias.astype(np.float64))


@settings(max_examples=60, deadline=None)
@given(
    shape=st.tuples(st.integers(0, 70), st.integers(0, 80), st.integers(0, 300)),
    orders=st.tuples(st.booleans(), st.booleans()),
    threads=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_any_strides(library, shape, orders, threads, seed):
    m, n, k = shape
    library.set_threads(*arguments(threads))
    random = np.random.default_rng(seed)
    a, b = matrix(random, m, k, orders[0]), matrix(random, k, n, orders[1])
    up = matrix(random, k, n, not orders[1])
    c, zero = np.zeros((m, n), np.float32), np.zeros(n, np.float32)
    right = packed(library, b)
    library.product(*arguments(m, n, k, a, *strides(a), right, zero, c))
    assert_product(c, a, b)
    gates, ups = np.zeros((m, n), np.float32), np.zeros((m, n), np.float32)
    library.gated(*arguments(m, n, k, a, *strides(a), right, packed(library, up), gates, ups))
    assert_product(gates, a, b)
    assert_product(ups, a, up)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("batch", "m", "n", "k"), [(1, 40, 50, 60), (5, 17, 33, 20), (3, 1, 70, 9), (0, 4, 4, 4)]
)
@pytest.mark.parametrize("transposed", [False, True])
def test_batches(library, threads, batch, m, n, k, transposed):
    library.set_threads(*arguments(threads))
    random = np.random.default_rng(1)
    a = random.standard_normal((batch, m, k), np.float32)
    b = random.standard_normal((batch, n, k) if transposed else (batch, k, n), np.float32)
    b = b.swapaxes(1, 2) if transposed else b
    c = np.zeros((batch, m, n), np.float32)
    library.batched(*arguments(batch, m, n, k, a, *strides(a), b, *strides(b), c))
    assert_product(c, a, b)


def test_special_values_stay_in_their_rows_and_columns(library):
    random = np.random.default_rng(2)
    a, b = matrix(random, 30, 20), matrix(random, 20, 35)
    a[3, 4], a[29, 0], b[5, 34] = np.inf, np.nan, -np.inf
    c = np.zeros((30, 35), np.float32)
    library.product(*arguments(30, 35, 20, a, 20, 1, packed(library, b), np.zeros(35, np.float32), c))
    with np.errstate(invalid="ignore"):
        expected = a.astype(np.float64) @ b.astype(np.float64)
    assert np.array_equal(np.isnan(c), np.isnan(expected))
    assert np.array_equal(np.isposinf(c), np.isposinf(expected))
    assert np.array_equal(np.isneginf(c), np.isneginf(expected))


def test_the_comparison_sees_errors():
    random = np.random.default_rng(3)
    a, b = matrix(random, 8, 50), matrix(random, 50, 8)
    good = (a.astype(np.float64) @ b).astype(np.float32)
    assert_product(good, a, b)
    good[2, 3] *= 1.001
    with pytest.raises(AssertionError, match="error"):
        assert_product(good, a, b)
