"""Products of few rows with a right operand that is not packed: sizes around every block's edge, strides, NaN."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiler.codegen.runtime_harness import arguments, build, needs_compiler, targets

pytestmark = needs_compiler

SOURCE = """
#include "gemm_few_rows.h"
extern "C" {
int64_t lanes() { return kh::kLanes; }
int serves(int64_t m, int64_t n, int64_t k, int64_t sk, int64_t tk, int64_t tn) {
  return kh::has_few_rows(m, n, k, sk, tk, tn); }
// c += acc: a piece that comes twice, or never, shows.
void product(int64_t m, int64_t n, int64_t k, const float* a, int64_t sm, int64_t sk, const float* b, int64_t tk,
             int64_t tn, float* c) {
  const auto add = [=](int64_t i, int64_t j, int64_t count, const float* acc) {
    for (int64_t x = 0; x < count; ++x) c[i * n + j + x] += acc[x];
  };
  kh::few_rows(m, n, k, a, sm, sk, b, tk, tn, add);
}
void set_threads(int64_t n) { omp_set_num_threads(static_cast<int>(n)); }
}
"""


@pytest.fixture(scope="module", params=targets())
def library(request, tmp_path_factory):
    return build(tmp_path_factory.mktemp("few_rows"), "few_rows", SOURCE, request.param)


def matrix(random, rows, columns, transposed):
    """A matrix whose memory is exactly as large as it is: what lies around it is not read, or the test would crash."""
    made = random.standard_normal((columns, rows) if transposed else (rows, columns), np.float32)
    return made.T if transposed else made


def strides(x):
    return [one // 4 for one in x.strides]


def check(library, m, n, k, turned_a, turned_b, seed=0, threads=1):
    random = np.random.default_rng(seed)
    a, b = matrix(random, m, k, turned_a), matrix(random, k, n, turned_b)
    (sm, sk), (tk, tn) = strides(a), strides(b)
    if not library.serves(*arguments(m, n, k, sk, tk, tn)):
        return False
    c = np.zeros((m, n), np.float32)
    library.set_threads(*arguments(threads))
    library.product(*arguments(m, n, k, a, sm, sk, b, tk, tn, c))
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64), rtol=1e-4, atol=1e-4)
    return True


@pytest.mark.parametrize("threads", [1, 2])
def test_sizes(library, threads):
    """Around the edges of vectors, blocks of columns and pieces that threads take."""
    served = 0
    for m in (1, 2, 3, 4, 5, 8):
        for n in (1, 4, 15, 16, 17, 31, 33, 64, 127, 255, 256, 257, 271, 272, 513, 700):
            for k in (1, 2, 15, 16, 33, 200):
                served += check(library, m, n, k, False, False, threads=threads)
                served += check(library, m, n, k, False, True, threads=threads)
    assert served > 800


@given(
    st.integers(1, 9),
    st.integers(1, 600),
    st.integers(0, 300),
    st.booleans(),
    st.booleans(),
    st.integers(0, 99),
)
@settings(max_examples=60)
def test_any_product(library, m, n, k, turned_a, turned_b, seed):
    check(library, m, n, k, turned_a, turned_b, seed, threads=1 + seed % 2)


def test_what_it_is_for(library):
    def serves(*given):
        return bool(library.serves(*arguments(*given)))

    assert serves(1, 64, 1, 1, 64, 1) and serves(8, 64, 64, 64, 1, 64) is False
    assert serves(8, 64, 64, 1, 1, 64)
    assert (
        not serves(9, 64, 64, 1, 64, 1) and not serves(0, 64, 64, 1, 64, 1) and not serves(1, 64, 0, 1, 64, 1)
    )
    assert not serves(1, 64, 64, 1, 128, 2)


def test_special_values_stay_in_their_rows_and_columns(library):
    random = np.random.default_rng(0)
    for turned in (False, True):
        a, b = matrix(random, 3, 40, False), matrix(random, 40, 70, turned)
        a[1, 7], b[3, 21] = np.nan, np.inf
        c = np.zeros((3, 70), np.float32)
        library.product(*arguments(3, 70, 40, a, *strides(a), b, *strides(b), c))
        finite = np.isfinite(c)
        assert not finite[1].any() and not finite[:, 21].any()
        assert finite[[0, 2]][:, [one for one in range(70) if one != 21]].all()
