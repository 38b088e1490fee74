"""Products read nothing outside of their operands, which lie here between pages that no process may read."""

from __future__ import annotations

import pytest

from tests.compiler.codegen.runtime_harness import arguments, build, needs_compiler, targets

pytestmark = needs_compiler

SOURCE = """
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gemm_few_rows.h"

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
extern "C" void set_threads(int64_t n) { omp_set_num_threads(static_cast<int>(n)); }
"""


@pytest.fixture(scope="module", params=targets())
def library(request, tmp_path_factory):
    made = build(tmp_path_factory.mktemp("bounds"), "bounds", SOURCE, request.param)
    made.set_threads(*arguments(1))
    return made


@pytest.mark.parametrize("m", [1, 3, 8, 9, 13, 14, 15, 16, 29, 64, 70])
def test_nothing_outside_is_read(library, m):
    assert library.ending(*arguments(m)) == 0


def test_reading_outside_would_be_seen(library):
    assert library.ending_behind() < 0
