"""Products that are multiplied without packing: sizes around blocks' edges, strides, NaN, and what they read."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels_hub.compiler import Graph, compile, evaluate
from tests.combinations import all_but
from tests.compiler.codegen.runtime_harness import arguments, build, needs_compiler, targets

pytestmark = needs_compiler

SOURCE = """
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gemm_few_rows.h"
extern "C" {
// c += acc: a piece that comes twice, or never, shows.
int product(int64_t m, int64_t n, int64_t k, const float* a, int64_t sm, int64_t sk, const float* b, int64_t tk,
            int64_t tn, float* c) {
  const auto add = [=](int64_t i, int64_t j, int64_t count, const float* acc) {
    for (int64_t x = 0; x < count; ++x) c[i * n + j + x] += acc[x];
  };
  return kh::multiplied_in_place(m, n, k, a, sm, sk, b, tk, tn, add);
}
void set_threads(int64_t n) { omp_set_num_threads(static_cast<int>(n)); }
}

static constexpr int64_t kPage = 4096;

// Memory for so many floats that begins behind, or ends before, a page that cannot be read.
static float* guarded(int64_t floats, bool ends) {
  const int64_t inside = kh::round_up(floats * 4, kPage);
  char* const all = static_cast<char*>(
      mmap(nullptr, inside + 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  mprotect(all, kPage, PROT_NONE);
  mprotect(all + kPage + inside, kPage, PROT_NONE);
  float* const begin = reinterpret_cast<float*>(ends ? all + kPage + inside - floats * 4 : all + kPage);
  for (int64_t i = 0; i < floats; ++i) begin[i] = 1.0f;
  return begin;
}

static bool multiply(int64_t m, int64_t n, int64_t k, bool turned_a, bool turned_b, bool ends) {
  const float* const a = guarded(m * k, ends);
  const float* const b = guarded(k * n, ends);
  const int64_t sm = turned_a ? 1 : k, sk = turned_a ? m : 1, tk = turned_b ? 1 : n, tn = turned_b ? k : 1;
  bool right = true;
  const auto check = [&](int64_t, int64_t, int64_t count, const float* acc) {
    for (int64_t x = 0; x < count; ++x) right &= acc[x] == static_cast<float>(k);
  };
  kh::multiplied_in_place(m, n, k, a, sm, sk, b, tk, tn, check);
  std::vector<float> packed(kh::packed_size(k, n));
  kh::pack(b, k, n, tk, tn, packed.data());
  kh::gemm(m, n, k, a, sm, sk, packed.data(), check);
  return right;
}

// How a process ends that multiplies m rows: 0, 1 where numbers are wrong, or the signal that ended it, negative.
extern "C" int ending(int64_t m) {
  const pid_t child = fork();
  if (child == 0) {
    bool right = true;
    for (const int64_t n : {1, 4, 15, 16, 17, 24, 32, 33, 100})
      for (const int64_t k : {1, 7, 15, 16, 17, 31, 48, 65})
        for (int way = 0; way < 8; ++way) right &= multiply(m, n, k, way & 1, way & 2, way & 4);
    _exit(right ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

extern "C" int ending_behind(void) {  // what the others are compared with: it reads one float too many
  const pid_t child = fork();
  if (child == 0) {
    const volatile float* const a = guarded(10, true);
    _exit(a[10] != 0 ? 2 : 3);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}
"""


@pytest.fixture(scope="module", params=all_but(targets(), *targets()[1:-1]))
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
    c = np.zeros((m, n), np.float32)
    library.set_threads(*arguments(threads))
    if not library.product(*arguments(m, n, k, a, *strides(a), b, *strides(b), c)):
        assert not c.any()
        return False
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64), rtol=1e-4, atol=1e-4)
    return True


@pytest.mark.parametrize("threads", [1, 2])
def test_sizes(library, threads):
    """Around the edges of vectors, blocks of columns and pieces that threads take."""
    served = 0
    for few in (1, 2, 3, 5, 8):
        for many in (1, 15, 17, 64, 255, 257, 272, 513):
            for k in (1, 15, 16, 33, 200):
                for turned in (False, True):
                    served += check(library, few, many, k, False, turned, threads=threads)
                    served += check(library, many, few, k, turned, True, threads=threads)
    assert served > 600


@pytest.mark.parametrize("k", [255, 256, 257, 512, 600, 4095, 4096, 4097, 4112, 8200])
def test_depths_around_those_that_are_summed_apart(library, k):
    for rows, columns, turned in ((1, 17, False), (3, 33, False), (8, 40, False), (1, 1, True), (4, 7, True)):
        assert check(library, rows, columns, k, False, turned)


@given(
    st.integers(1, 40), st.integers(1, 600), st.integers(0, 300), st.booleans(), st.booleans(),
    st.booleans(), st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=60)
def test_any_product(library, few, many, k, turned_a, turned_b, columns, seed):
    m, n = (many, few) if columns else (few, many)
    check(library, m, n, k, turned_a, turned_b, seed, threads=1 + seed % 2)


def test_what_is_packed(library):
    assert not check(library, 9, 64, 64, False, False), "many rows"
    assert not check(library, 64, 9, 64, False, True), "many columns"
    assert not check(library, 8, 300, 64, True, True), (
        "rows that do not lie along the depth, while the columns do"
    )
    assert not check(library, 0, 64, 8, False, False)
    assert not check(library, 4, 64, 0, False, False)


@pytest.mark.parametrize("weight", [False, True])
@pytest.mark.parametrize("turned", [False, True])
def test_products_of_graphs(weight, turned):
    """Those that are packed else, of a batch and of weights, which threads share; with what follows them."""
    random = np.random.default_rng(0)
    for batch, m, k, n in (
        (3, 20, 40, 1),
        (1, 70, 33, 3),
        (5, 9, 64, 4),
        (2, 300, 100, 2),
        (3, 20, 40, 7),
        (4, 6, 16, 31),
    ):
        b = random.standard_normal((n, k) if turned else (k, n), np.float32)
        graph = Graph("few")
        x = graph.input("x", (batch, m, k))
        w = graph.parameter("w", b.shape, data=b) if weight else graph.input("w", (batch, *b.shape))
        axes = (1, 0) if weight else (0, 2, 1)
        graph.output("y", (x @ (w.permute(*axes) if turned else w) + 1.0).maximum(0.0))
        inputs = {"x": random.standard_normal((batch, m, k), np.float32)}
        if not weight:
            inputs["w"] = random.standard_normal((batch, *b.shape), np.float32)
        run = compile(graph, "cpu", engines=("cpp",))
        expected = evaluate(graph, inputs)["y"]
        np.testing.assert_allclose(run(*inputs.values()), expected, rtol=1e-4, atol=1e-4)


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


@pytest.mark.parametrize("m", [1, 3, 8, 9, 13, 14, 15, 16, 29, 64, 70])
def test_nothing_outside_is_read(library, m):
    """Operands lie between pages that no process may read."""
    library.set_threads(*arguments(1))
    assert library.ending(*arguments(m)) == 0


def test_reading_outside_would_be_seen(library):
    assert library.ending_behind() < 0
