"""Places of the greatest and the least along rows, which C++ searches for block by block, and the values there."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from kernels_hub.compiler import Graph, evaluate
from kernels_hub.compiler.runtime.toolchain import machine_isas
from kernels_hub.compiler.schedule.schedule import schedule
from tests.compiler.codegen.cpp_runner import run_schedule
from tests.compiler.oracle import assert_same

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

DTYPES = ("float32", "float64", "float16", "int64", "int8")
LENGTHS = (1, 15, 16, 511, 512, 513, 1500)


def searched() -> Graph:
    """Both places and both extrema of rows of each dtype, and of the rows of a matrix as one."""
    graph = Graph("places")
    for dtype in DTYPES:
        x = graph.input(dtype, (4, 3, "n"), dtype)
        for kind in ("max", "min"):
            graph.output(f"{dtype}_at_{kind}", x.along(f"arg{kind}", 2))
            graph.output(f"{dtype}_{kind}", x.reduce(kind, (2,)))
    joined = x.graph.inputs["float32"].reshape((4, 3 * x.shape[2]))
    graph.output("joined", joined.along("argmax", 1))
    return graph


def rows(dtype: str, length: int) -> np.ndarray:
    """Few different values, so that equals abound; NaN and infinities in floats."""
    random = np.random.default_rng(length)
    x = random.integers(0, 100, (4, 3, length)).astype(dtype)
    if dtype.startswith("float"):
        x -= 50
        x[0, 1, length // 2 :: 3] = np.nan
        x[1, 0] = -np.inf
        x[1, 1] = np.inf
        x[2, 0, length // 3] = -np.inf
        x[2, 1] = np.nan
        x[3, 0, :] = 0.0
        x[3, 0, length // 2] = -0.0
    else:
        x[1, 0] = np.iinfo(dtype).min
        x[1, 1] = np.iinfo(dtype).max
    return x


@pytest.mark.parametrize("level", machine_isas(), ids=lambda level: level.name)
def test_places_are_the_oracles(level):
    graph = searched()
    made = schedule(graph)
    for length in LENGTHS:
        inputs, sizes = {dtype: rows(dtype, length) for dtype in DTYPES}, {"n": length}
        got = run_schedule(made, inputs, sizes=sizes, level=level)
        for name, expected in evaluate(graph, inputs, bindings=sizes).items():
            assert_same(got[name], expected, 0.0)


@pytest.mark.parametrize("length", [15, 16, 512, 700])
def test_lengths_that_are_known(length):
    graph = Graph("known")
    x = graph.input("x", (3, length))
    graph.output("at", (x * 2.0).along("argmax", 1))
    graph.output("most", (x * 2.0).reduce("max", (1,)))
    graph.output("sum", (x * 2.0).sum(1))
    inputs = {"x": rows("float32", length)[:3, 1]}
    got = run_schedule(schedule(graph), inputs)
    for name, expected in evaluate(graph, inputs).items():
        assert_same(got[name], expected, 1e-6)
