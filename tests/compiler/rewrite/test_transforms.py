"""Transforms that write their frequencies in the order of dims in which they are taken."""

from __future__ import annotations

import numpy as np
import pytest

from kernels_hub.compiler import Graph, evaluate
from kernels_hub.compiler.rewrite.pipeline import rewrite
from kernels_hub.compiler.rewrite.rule import Options
from kernels_hub.compiler.rewrite.transforms import Transposed


def spectrum(rows: int = 12, form: str = "half"):
    graph = Graph("spectrum")
    x = graph.input("x", (2, rows, 10))
    return graph, graph.apply("fourier", x, axis=2, form=form).parts()


def axes(graph: Graph) -> list[int]:
    return [node.attrs["axis"] for node in graph.live() if node.op.name == "fourier"]


@pytest.mark.parametrize("form", ["half", "full"])
@pytest.mark.parametrize("order", [(0, 2, 1), (2, 0, 1), (2, 1, 0)])
def test_parts_that_are_permuted(form: str, order: tuple[int, ...]):
    graph, parts = spectrum(form=form)
    turned = [part.permute(*order) for part in parts]
    graph.output("y", turned[0] * 2.0 + turned[1])
    graph.output("pairs", graph.apply("concat", *(part.unsqueeze(-1) for part in turned), axis=3))
    assert not Transposed().run(graph, Options(rounding=False)).fired
    found = Transposed().run(graph, Options())
    least = found.graph.outputs["y"].shape[-1]
    assert found.fired.total() == (2 if least >= 8 else 0)
    assert axes(found.graph) == [order.index(2) if least >= 8 else 2]
    x = np.random.default_rng(0).standard_normal((2, 12, 10)).astype(np.float32)
    for name, value in evaluate(graph, [x]).items():
        np.testing.assert_allclose(evaluate(found.graph, [x])[name], value, rtol=1e-6, atol=1e-6)
    if least >= 8:
        assert "concat" not in {node.op.name for node in rewrite(graph).graph.live()}


def test_what_stays():
    """Other users than permutes, other orders, an output on the way, transforms too few to fill vectors."""
    for rows, order, other in (
        (12, (0, 2, 1), "plain"), (12, (0, 2, 1), "order"), (12, (0, 2, 1), "output"), (4, (0, 2, 1), ""),
        (12, (1, 0, 2), ""),
    ):  # fmt: skip
        graph, parts = spectrum(rows)
        graph.output("y", parts[0].permute(*order))
        if other == "plain":
            graph.output("other", parts[1] * 2.0)
        elif other == "order":
            graph.output("other", parts[1].permute(2, 1, 0))
        elif other == "output":
            graph.output("other", parts[1])
        found = Transposed().run(graph, Options())
        assert not found.fired
        assert axes(found.graph) == [2]
