"""Loops on the pool's threads: every index once, from several callers, nested, after a fork, and denormals."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tests.compiler.codegen.runtime_harness import build, needs_compiler, targets

pytestmark = needs_compiler

SOURCE = """
#include "parallel.h"
extern "C" void configure(int pool, int flush, int threads) {
  kh::use_pool = pool;
  kh::flush_denormals = flush;
  omp_set_num_threads(threads);
}
extern "C" void count(int64_t n, int64_t grain, int32_t* seen) {
  kh::parallel(n, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) __atomic_fetch_add(&seen[i], 1, __ATOMIC_RELAXED);
  });
}
extern "C" void count_tasks(int64_t n, int32_t* seen) {
  kh::parallel_tasks(n, [&](kh::Tickets& tickets) {
    for (int64_t i = tickets.next(); i >= 0; i = tickets.next()) __atomic_fetch_add(&seen[i], 1, __ATOMIC_RELAXED);
  });
}
extern "C" void count_nested(int64_t n, int32_t* seen) {
  kh::parallel(n, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) count(n, 1, seen + i * n);
  });
}
extern "C" void halve(int64_t n, float* x) {
  const kh::CallState state;
  kh::parallel(n, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) x[i] *= 0.5f;
  });
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    made = build(tmp_path_factory.mktemp("pool"), "pool", SOURCE, targets()[-1])
    for name in ("count", "count_tasks", "count_nested", "halve"):
        function = getattr(made, name)
        function.argtypes = [ctypes.c_int64] * (2 if name == "count" else 1) + [ctypes.c_void_p]
    return made


def counted(library: ctypes.CDLL, name: str, n: int, *more: int) -> np.ndarray:
    seen = np.zeros(n * n if name == "count_nested" else n, np.int32)
    getattr(library, name)(n, *more, seen.ctypes.data)
    return seen


@pytest.mark.parametrize("pool", [0, 1])
@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_every_index_once(library, pool, threads):
    library.configure(pool, 0, threads)
    for n in (0, 1, 2, 5, 64, 1001):
        for grain in (1, 3, 100):
            assert (counted(library, "count", n, grain) == 1).all()
        assert (counted(library, "count_tasks", n) == 1).all()
    assert (counted(library, "count_nested", 30) == 1).all()


def test_loops_of_several_threads_at_once_and_after_sleep(library):
    library.configure(1, 0, 3)
    wrong = []

    def work() -> None:
        library.configure(1, 0, 3)  # OpenMP's number is of each thread
        for turn in range(300):
            if not (counted(library, "count", 97, 1) == 1).all():
                wrong.append(turn)
            if turn % 100 == 99:
                time.sleep(0.01)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not wrong


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_the_child_of_a_fork_has_threads_of_its_own(library):
    library.configure(1, 0, 3)
    assert (counted(library, "count", 50, 1) == 1).all()
    child = os.fork()
    if child == 0:
        os._exit(0 if (counted(library, "count", 50, 1) == 1).all() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("pool", [0, 1])
def test_denormals_are_flushed_in_all_threads_and_kept_outside(library, pool):
    small = np.float32(1e-39)
    for flush, expected in ((1, 0), (0, small * np.float32(0.5))):
        library.configure(pool, flush, 3)
        x = np.full(1000, small)
        library.halve(len(x), x.ctypes.data)
        assert (x == expected).all()
        assert np.float32(1e-39) * np.float32(0.5) != 0
        assert np.full(100, small).sum() != 0


def test_another_library_of_the_process_takes_turns(library, tmp_path: Path):
    other = build(tmp_path, "other", SOURCE, targets()[0])
    other.count.argtypes = [ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
    other.configure(1, 0, 3)
    library.configure(1, 0, 3)
    for _ in range(200):
        assert (counted(library, "count", 64, 1) == 1).all()
        assert (counted(other, "count", 64, 1) == 1).all()
