"""The text of generated Triton: golden, and the same for the same graph.

To accept other texts, read the difference, then

    ACCEPT_GOLDEN=1 python -m pytest tests/compiler/codegen/triton/test_source.py
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kernels_hub.compiler import Graph
from kernels_hub.compiler.codegen.triton.options import Options
from kernels_hub.compiler.codegen.triton.source import generate
from kernels_hub.compiler.ir.types import FLOAT32
from kernels_hub.compiler.rewrite.pipeline import rewrite
from kernels_hub.compiler.schedule.schedule import schedule

GOLDEN = Path(__file__).parent / "golden"


def scale_and_shift() -> Graph:
    """bfloat16 in and out, a vector along rows, symbolic rows: positions are as wide as the sizes need."""
    graph = Graph("scale_and_shift")
    graph.symbol("n", 1)
    x, w = graph.input("x", ("n", 40), "bfloat16"), graph.input("w", (40,), "bfloat16")
    graph.output("y", x * w + 1.0)
    return graph


def softmax() -> Graph:
    """Rows of a length that only a call tells: in registers, or else in passes."""
    graph = Graph("softmax")
    graph.symbol("n", 1)
    graph.output("y", graph.input("x", (64, "n"), "float32").softmax(-1))
    return graph


def linear() -> Graph:
    """A product, a bias and an activation: one kernel; batches are rows."""
    graph = Graph("linear")
    x = graph.input("x", (2, 50, 96), "float32")
    w = graph.parameter("w", (96, 200), "float32", np.zeros((96, 200), np.float32))
    y = x @ w + graph.input("b", (200,), "float32")
    graph.output("y", y.binary("maximum", 0.0))
    return graph


def attention() -> Graph:
    """Scores scaled and masked inside of the online softmax."""
    graph = Graph("attention")
    q, k, v = (graph.input(name, (1, 2, 40, 16), "float32") for name in "qkv")
    scores = (q @ k.transpose()) * 0.25 + graph.input("bias", (40, 40), "float32")
    graph.output("y", scores.softmax(-1) @ v)
    return rewrite(graph).graph


CASES: tuple[Callable[[], Graph], ...] = (scale_and_shift, softmax, linear, attention)


@pytest.mark.parametrize("case", CASES, ids=lambda one: one.__name__)
def test_the_text_is_the_golden_one(case):
    text = generate(schedule(case()), Options(arch="sm_90")).source
    assert generate(schedule(case()), Options(arch="sm_90")).source == text
    compile(text, case.__name__, "exec")
    file = GOLDEN / f"{case.__name__}.py.txt"
    if os.environ.get("ACCEPT_GOLDEN"):
        file.write_text(text)
    assert text == file.read_text()


def test_positions_are_as_wide_as_the_buffers_need():
    def text_of(rows: int) -> str:
        graph = Graph("wide")
        graph.output("y", graph.input("x", (rows, 1 << 16), "float32") + 1.0)
        return generate(schedule(graph, frozenset({FLOAT32}))).source

    assert "tl.int64" not in text_of(1 << 14)
    assert "tl.program_id(0).to(tl.int64)" in text_of(1 << 16)


def test_nothing_is_launched_where_there_is_nothing():
    graph = Graph("nothing")
    graph.output("y", graph.input("x", (0, 4), "float32") + 1.0)
    source = generate(schedule(graph)).source
    assert "@triton.jit" not in source and "pass" in source
