"""Reductions of floats as Clang compiles them: its own begin with the greatest finite number, which infinities are not."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kernels_hub.compiler import Graph
from kernels_hub.compiler.codegen.cpp.translation_unit import generate
from kernels_hub.compiler.runtime.toolchain import RUNTIME
from kernels_hub.compiler.schedule.schedule import schedule

ROOT = Path(__file__).parents[3]
SOURCE = """#include "scalar.h"
extern "C" float greatest(const float* x, int64_t n) {
  float found = -__builtin_inff();
#pragma omp simd reduction(KH_MAX : found)
  for (int64_t i = 0; i < n; ++i) found = x[i] > found ? x[i] : found;
  return found;
}
extern "C" double least(const double* x, int64_t n) {
  double found = __builtin_inf();
#pragma omp simd reduction(KH_MIN : found)
  for (int64_t i = 0; i < n; ++i) found = x[i] < found ? x[i] : found;
  return found;
}
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++, to link")
def test_rows_of_infinities(tmp_path):
    pytest.importorskip("ziglang", reason="needs Clang, which ziglang brings")
    (tmp_path / "rows.cpp").write_text(SOURCE)
    clang = [sys.executable, "-m", "ziglang", "c++"]  # which would build its C++ library, to link
    includes = [f"-I{RUNTIME}", f"-I{ROOT / 'tools' / 'wheels' / 'runtime'}"]
    flags = ["-std=c++20", "-O3", "-fopenmp", "-fPIC", "-w", *includes]
    subprocess.run([*clang, *flags, "-c", tmp_path / "rows.cpp", "-o", tmp_path / "rows.o"], check=True)
    subprocess.run(["g++", "-shared", tmp_path / "rows.o", "-o", tmp_path / "rows.so"], check=True)
    library = ctypes.CDLL(str(tmp_path / "rows.so"))
    library.greatest.restype, library.least.restype = ctypes.c_float, ctypes.c_double
    for count in (1, 40, 1000):
        for extreme, kind, function in (
            (-np.inf, np.float32, library.greatest),
            (np.inf, np.float64, library.least),
        ):
            row = np.full(count, extreme, kind)
            assert function(ctypes.c_void_p(row.ctypes.data), ctypes.c_int64(count)) == extreme
            row[count // 2] = 5
            assert function(ctypes.c_void_p(row.ctypes.data), ctypes.c_int64(count)) == 5


@pytest.mark.parametrize("kind", ["max", "min"])
def test_generated_loops_use_them(kind):
    graph = Graph("rows")
    graph.output("y", graph.input("x", (4, 100)).reduce(kind, [1]))
    assert f"reduction(KH_{kind.upper()} : " in generate(schedule(graph)).source
