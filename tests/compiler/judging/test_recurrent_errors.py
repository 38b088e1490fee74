"""Errors of recurrent cells: float32 stays within them on inputs of every size, and what is wrong does not."""

from __future__ import annotations

import numpy as np
import pytest

from kernels_hub.compiler import Graph, evaluate
from kernels_hub.compiler.ir.ops.recurrent import GATES, states
from kernels_hub.compiler.judging import bounded

TIME, BATCH, HIDDEN, WAYS = 20, 3, 24, 2


def graph_of(cell: str, dtype: str) -> Graph:
    graph = Graph("cell")
    rows = GATES[cell] * HIDDEN
    x = graph.input("x", (TIME, BATCH, WAYS * rows), dtype)
    weight = graph.input("weight", (WAYS, rows, HIDDEN), dtype)
    more = [graph.input(f"state{index}", (WAYS, BATCH, HIDDEN), dtype) for index in range(states(cell))]
    if cell == "gru_after":
        more.append(graph.input("bias", (WAYS, HIDDEN), dtype))
    options = {"cell": cell, "reverse": False, "lengths": False, "quantized": False}
    graph.output("y", graph.apply("recurrent", x, weight, *more, **options))
    return graph


@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0, 3e4])
@pytest.mark.parametrize("cell", GATES)
def test_single_precision_stays_within_and_errors_do_not(cell, scale):
    random = np.random.default_rng(0)
    graph = graph_of(cell, "float32")
    inputs = {
        name: (random.standard_normal(one.shape) * (scale if name == "x" else 0.2)).astype(np.float32)
        for name, one in graph.inputs.items()
    }
    judged = bounded(graph, inputs)
    single, error = judged.values["y"], judged.bounds["y"]
    exact = evaluate(
        graph_of(cell, "float64"), {name: one.astype(np.float64) for name, one in inputs.items()}
    )
    assert (np.abs(single - exact["y"]) <= error).all()
    other = dict(inputs, weight=np.roll(inputs["weight"], 1, axis=1))  # as gates in another order would be
    wrong = evaluate(graph, other)["y"]
    if scale < 1e3 or cell == "relu":  # beyond, what cells hold is next to nothing beside what they are given
        assert (np.abs(wrong - single) > error).mean() > 0.1
    assert np.median(error) < 1e-3 * max(1.0, float(np.abs(single).max()))
