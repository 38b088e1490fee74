"""Random graphs of smooth ops, views, reductions and products in float64: any of them passes the gradcheck."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels_hub.compiler import Graph, Value, evaluate, rewrite
from kernels_hub.compiler.autodiff import differentiate
from tests.compiler.autodiff.gradcheck import assert_gradient, gradcheck, gradients

SIZES = {"n": 2, "m": 3}
UNARY = ("tanh", "sigmoid", "erf", "sin", "neg", "atan", "asinh")


@st.composite
def smooth_graphs(draw: Any) -> Graph:
    """Values stay small: each op is bounded, or followed by one that is."""
    graph = Graph("random")
    shape = st.sampled_from([("n", 3), (2, "m"), ("n", "m"), (3,), (2, 3)])
    values = [graph.input(name, draw(shape), "float64") for name in "ab"]
    values.append(graph.parameter("w", draw(shape), "float64"))
    for _ in range(draw(st.integers(1, 8))):
        x = draw(st.sampled_from(values))
        values.append(_step(draw, graph, x, values))
    for place in range(draw(st.integers(1, 2))):
        graph.output(f"y{place}", draw(st.sampled_from(values[3:])))
    return graph


def _step(draw: Any, graph: Graph, x: Value, values: list[Value]) -> Value:
    kind = draw(st.sampled_from(["unary", "unary", "binary", "view", "reduce", "softmax", "matmul", "parts"]))
    axis = draw(st.integers(0, x.rank - 1)) if x.rank else 0
    if kind == "binary":
        other = next((one for one in reversed(values) if one.shape == x.shape), x)
        op = draw(st.sampled_from(["add", "sub", "mul"]))
        return x.binary(op, other).tanh() if op == "mul" else x.binary(op, other)
    if kind == "view" and x.rank:
        return draw(st.sampled_from([x.reshape(-1), x.flip(axis), x.unsqueeze(0), x.broadcast_to(2, *x.shape),
                                     x.transpose() if x.rank > 1 else x * 0.5, x.pad([(1, 0)] * x.rank, 0.5)]))  # fmt: skip
    if kind == "reduce" and x.rank:
        return x.reduce(draw(st.sampled_from(["sum", "mean"])), axis, keepdims=draw(st.booleans())).tanh()
    if kind == "softmax" and x.rank:
        return x.along(draw(st.sampled_from(["softmax", "log_softmax"])), axis)
    if kind == "matmul" and x.rank > 1:
        return x.matmul(x.transpose()).unary("tanh")
    if kind == "parts" and x.rank:
        half = x.slice(axis, 0, x.shape[axis] // 2)
        return graph.apply("concat", x, half, axis=axis)
    return x.unary(draw(st.sampled_from(UNARY)))


def _arrays(graph: Graph) -> tuple[dict[str, Any], dict[str, Any]]:
    random = np.random.default_rng(3)
    drawn = {
        name: random.uniform(-1, 1, [SIZES.get(str(dim), dim) for dim in value.shape])
        for name, value in (graph.inputs | graph.parameters).items()
    }
    return {one: drawn[one] for one in graph.inputs}, {one: drawn[one] for one in graph.parameters}


def _bound(graph: Graph) -> bool:
    """Whether shapes of inputs tell all sizes, and an output depends on an input."""
    used = {one for node in graph.live() for one in node.symbols()}
    told = {str(dim) for value in graph.inputs.values() for dim in value.shape}
    live = {one for node in graph.live() for one in node.operands}
    return all(one.name in told for one in used) and any(
        value in live for value in (*graph.inputs.values(), *graph.parameters.values())
    )


@settings(max_examples=60, deadline=None)
@given(smooth_graphs())
def test_gradients(graph: Graph):
    if _bound(graph):
        inputs, weights = _arrays(graph)
        gradcheck(graph, inputs, weights=weights)


@settings(max_examples=40, deadline=None)
@given(smooth_graphs())
def test_rewritten(graph: Graph):
    """Rewriting the forward and the backward changes no gradient."""
    if not _bound(graph):
        return
    inputs, weights = _arrays(graph)
    both = differentiate(graph)
    cotangents = {name: np.ones_like(one) for name, one in evaluate(graph, inputs, weights=weights).items()}
    expected = gradients(both, inputs, cotangents, weights)
    outputs = evaluate(rewrite(both.forward).graph, inputs, weights=weights)
    found = evaluate(
        rewrite(both.backward).graph, both.backward_inputs(inputs, outputs, cotangents), weights=weights
    )
    for name, one in both.gradients.items():
        assert_gradient(name, found[one], expected[name], 1e-9)
