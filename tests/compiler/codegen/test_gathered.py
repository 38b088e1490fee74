"""Loops that read by an index which data gave: vectors are made of them where a select follows, too."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from kernels_hub.compiler import Graph, compile, evaluate
from kernels_hub.compiler.codegen.cpp.translation_unit import generate
from kernels_hub.compiler.schedule.schedule import schedule
from kernels_hub.cxx_compiler import FLAGS
from tests.compiler.codegen.runtime_harness import RUNTIME, needs_compiler, targets

pytestmark = needs_compiler


def masked(dtype: str = "float32") -> Graph:
    """Rows read at clamped places; 0 where the place is negative."""
    graph = Graph("masked")
    x, at = graph.input("x", (4, 50), dtype), graph.input("at", (4, 96), "int32")
    read = x.gather_elements(at.clamp(0, 49), 1)
    graph.output("y", (at >= 0).select(read * read, 0))
    return graph


@pytest.mark.skipif(targets() in (("native",), ("x86-64",)), reason="vectors of x86-64 with FMA")
def test_a_select_of_what_was_read_is_made_vectors_of(tmp_path: Path) -> None:
    source = generate(schedule(masked())).source

    (tmp_path / "masked.cpp").write_text(source)
    command = ["g++", *FLAGS, f"-march={targets()[0]}", f"-I{RUNTIME}", "-c", "-fopt-info-vec-optimized"]
    command += [str(tmp_path / "masked.cpp"), "-o", str(tmp_path / "masked.o")]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert "loop vectorized" in told, source


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "float16", "int8"])
def test_selects_of_what_was_read(dtype: str) -> None:
    graph = masked(dtype)
    x = np.arange(-100, 100).reshape(4, 50).astype(dtype) / (1 if "int" in dtype else 8)
    if "float" in dtype:
        x[:, 0], x[:, -1] = np.nan, np.inf
    at = np.random.default_rng(0).integers(-60, 110, (4, 96)).astype(np.int32)
    (wanted,) = evaluate(graph, [x.astype(dtype), at]).values()
    found = compile(graph, "cpu", engines=("cpp",))(x.astype(dtype), at)
    np.testing.assert_array_equal(found, wanted)
