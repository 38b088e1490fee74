"""Builds a C++ harness around the runtime headers for each instruction set of this machine."""

from __future__ import annotations

import ctypes
import functools
import platform
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

RUNTIME = Path(__file__).parents[3] / "compiler" / "native"
NEEDS = {"x86-64-v4": "avx512f", "x86-64-v3": "avx2", "x86-64": "sse2"}
FLAGS = (
    *("-std=c++20", "-O3", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"),
    *("-fPIC", "-shared", "-Wall", "-Wextra", "-Werror"),
)

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@functools.cache
def targets() -> tuple[str, ...]:
    """Values of -march that this machine runs, the best first."""
    if platform.machine() != "x86_64":
        return ("native",)
    flags = set(Path("/proc/cpuinfo").read_text().split()) if Path("/proc/cpuinfo").exists() else {"sse2"}
    return tuple(target for target, flag in NEEDS.items() if flag in flags)


def extremes() -> tuple[str, ...]:
    """The widest vectors and the narrowest."""
    return tuple(dict.fromkeys((targets()[0], targets()[-1])))


def build(folder: Path, name: str, source: str, target: str, *flags: str) -> ctypes.CDLL:
    """The library of a source that includes the headers, for one target."""
    text, library = folder / f"{name}.cpp", folder / f"{name}-{target}.so"
    text.write_text(source)
    wide = ("-mprefer-vector-width=512",) if target == "x86-64-v4" else ()
    command = [
        "g++",
        *FLAGS,
        *flags,
        f"-march={target}",
        *wide,
        f"-I{RUNTIME}",
        str(text),
        "-o",
        str(library),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]
    return ctypes.CDLL(str(library))


products = given(
    m=st.integers(1, 90),
    n=st.integers(1, 150),
    k=st.one_of(st.integers(1, 70), st.sampled_from([511, 1025, 2100])),
    a_turned=st.booleans(),
    b_turned=st.booleans(),
    threads=st.integers(1, 3),
)
"""Draws a product a (m, k) @ b (k, n), either transposed in memory, and how many threads multiply."""


def arguments(*values):
    """What ctypes passes: integers as int64, floats as float, arrays as their address."""
    return [
        ctypes.c_int64(value)
        if isinstance(value, (int, bool))
        else ctypes.c_float(value)
        if isinstance(value, float)
        else value.ctypes.data_as(ctypes.c_void_p)  # keeps the array alive
        for value in values
    ]
