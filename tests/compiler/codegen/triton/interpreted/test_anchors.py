"""Products, convolutions and attention: odd shapes, dtypes, symbolic and empty dims, epilogues."""

from __future__ import annotations

import numpy as np
import pytest

from kernels_hub.compiler import Graph
from kernels_hub.compiler.codegen.triton.source import generate
from kernels_hub.compiler.engines.triton import ANCHORS
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.rewrite.pipeline import rewrite
from kernels_hub.compiler.schedule.kernel import Attention
from kernels_hub.compiler.schedule.schedule import schedule
from tests.combinations import every_value
from tests.compiler.codegen.triton.held import assert_agrees

FLOATS = ("float32", "float16", "bfloat16")


def kinds(graph) -> list[str]:
    """What is at the anchor of each nest that has an anchor."""
    kernels = schedule(graph, ANCHORS).kernels
    return [
        type(nest.anchor).__name__ for kernel in kernels for nest in kernel.nests if nest.anchor is not None
    ]


@pytest.mark.parametrize("dtype", [*FLOATS, "float64", "int32"])
@pytest.mark.parametrize(("m", "k", "n"), [(37, 20, 50), (1, 70, 5), (65, 1, 1)])
def test_products(dtype, m, k, n, device):
    graph = Graph("product")
    if dtype not in FLOATS:  # multiplied out by loops: slow where they are interpreted
        m, n = min(m, 6), min(n, 9)
    x, w, b = graph.input("x", (m, k), dtype), graph.input("w", (k, n), dtype), graph.input("b", (n,), dtype)
    y = x @ w + b
    graph.output("y", y.binary("maximum", 0))
    assert (kinds(graph) == ["Product"]) == (dtype in FLOATS)
    assert_agrees(graph, device)


@pytest.mark.parametrize("n", [0, 1, 3])
@pytest.mark.parametrize("k", [0, 5, 40])
def test_products_of_symbolic_dims(n, k, device):
    graph = Graph("symbolic")
    graph.symbol("n", 0)
    graph.symbol("k", 0)
    x, w = graph.input("x", ("n", 5, "k"), "float32"), graph.input("w", ("k", 7), "float32")
    graph.output("y", (x @ w) * 2.0)
    assert_agrees(graph, device, {"n": n, "k": k})


def test_products_of_batches_and_turned_operands(device):
    graph = Graph("batches")
    x = graph.input("x", (2, 3, 17, 20), "float32")
    y = graph.input("y", (3, 19, 20), "float32")
    graph.output("a", x @ y.transpose())
    graph.output("b", (x.permute(0, 2, 1, 3).transpose() @ x.permute(0, 2, 1, 3)).unary("tanh"))
    assert_agrees(graph, device)


@pytest.mark.parametrize("tile", ["16x16x16", "64x32x16"])
def test_every_tile_gives_the_same(tile, device):
    graph = Graph("tiles")
    x, w = graph.input("x", (70, 45), "float32"), graph.input("w", (45, 90), "float32")
    graph.output("y", x @ w)
    assert_agrees(graph, device, knobs={"tile": tile})


@pytest.mark.parametrize("dtype", FLOATS)
def test_deep_products_of_few_tiles(dtype, device):
    """They are multiplied in parts, and these are summed."""
    graph = Graph("deep")
    x, w = graph.input("x", (3, 2048), dtype), graph.input("w", (2048, 50), dtype)
    graph.output("y", (x @ w * 0.125).unary("tanh"))
    assert_agrees(graph, device)


CONVOLUTIONS = {
    "strided": (2, 3, (9, 10), 20, (3, 3), (2, 2), (1, 1), ((1, 1), (1, 0)), 1),
    "pointwise": (1, 32, (5, 6), 48, (1, 1), (1, 1), (1, 1), ((0, 0), (0, 0)), 1),
    "depthwise": (2, 8, (6, 7), 8, (3, 3), (1, 1), (2, 2), ((2, 2), (2, 2)), 8),
    "two groups": (1, 32, (5, 6), 64, (3, 3), (1, 1), (1, 1), ((1, 1), (1, 1)), 2),
    "narrow groups": (2, 6, (7, 8), 12, (3, 3), (1, 1), (1, 1), ((1, 1), (1, 1)), 3),
    "one dim": (2, 5, (11,), 7, (3,), (1,), (1,), ((2, 0),), 1),
    "three dims": (2, 5, (4, 5, 6), 7, (3, 2, 1), (1, 1, 2), (1, 1, 1), ((1, 0), (0, 0), (0, 1)), 1),
}


@every_value(case=CONVOLUTIONS, dtype=["float32", "bfloat16"])
def test_convolutions(case, dtype, device):
    batch, channels, spatial, out, kernel, strides, dilations, padding, groups = CONVOLUTIONS[case]
    graph = Graph("convolution")
    x = graph.input("x", (batch, channels, *spatial), dtype)
    w = graph.input("w", (out, channels // groups, *kernel), dtype)
    b = graph.input("b", (out, *[1] * len(spatial)), dtype)
    y = graph.apply("conv", x, w, strides=strides, dilations=dilations, padding=padding, groups=groups)
    graph.output("y", (y + b).binary("maximum", 0.0))
    assert kinds(graph) == ["Convolution"]
    assert_agrees(graph, device)


def attention(dtype, *, batch=2, heads=4, few=2, queries=9, keys=21, width=10, value=6, mask=None) -> Graph:
    """Grouped heads; mask: None, "bias" (added), "kept" (bool, with a row of which nothing is), "causal"."""
    graph = Graph("attention")
    q = graph.input("q", (batch, heads, queries, width), dtype)
    k, v = (
        graph.input("k", (batch, few, keys, width), dtype),
        graph.input("v", (batch, few, keys, value), dtype),
    )

    def repeated(one):
        shape = one.shape
        wide = graph.apply("broadcast", one, shape=(batch, few, heads // few, *shape[2:]), axes=(0, 1, 3, 4))
        return wide.reshape(batch, heads, *shape[2:])

    scores = graph.apply("matmul", q, repeated(k).transpose(), dtype=types.FLOAT32) * 0.3
    if mask == "bias":
        scores = scores + graph.input("bias", (heads, queries, keys), "float32")
    elif mask is not None:
        if mask == "kept":
            kept = graph.input("kept", (batch, 1, 1, keys), "bool")
        else:
            kept = graph.constant(np.tri(queries, keys, keys - queries, dtype=bool))
        scores = kept.broadcast_to(scores.shape).select(scores, scores.like(-np.inf))
    weights = scores.softmax(-1).cast(dtype)
    graph.output("y", (weights @ repeated(v)) * 0.5)
    return rewrite(graph).graph


def test_attention_of_capped_scores_in_rows_of_two_dims(device):
    graph = Graph("capped")
    q = graph.input("q", (2, 2, 2, 5, 8), "float32").reshape(2, 2, 10, 8)
    k, v = (graph.input(name, (2, 2, 21, 8), "float32") for name in "kv")
    bias = graph.input("bias", (5, 21), "float32").broadcast((2, 2, 2, 5, 21), (3, 4))
    scores = ((q @ k.transpose()) * 0.1).unary("tanh") * 3.0
    weights = (scores.reshape(2, 2, 2, 5, 21) + bias).softmax(-1)
    graph.output("y", weights.reshape(2, 2, 10, 21) @ v)
    graph = rewrite(graph).graph
    assert kinds(graph) == ["Attention"]
    assert_agrees(graph, device)


@every_value(mask=[None, "bias", "kept", "causal"], dtype=["float32", "bfloat16", "float16"])
def test_attention(mask, dtype, device):
    graph = attention(dtype, mask=mask)
    assert kinds(graph) == ["Attention"]
    arrays = list(graph.dummy_inputs(0, {}).values())
    if mask == "kept":
        arrays[3][...] = True
        arrays[3][1, ..., 5:] = False
    assert_agrees(graph, device, arrays=arrays)


@pytest.mark.parametrize(("queries", "keys"), [(70, 70), (9, 90), (90, 70)])
def test_causal_attention_reads_no_keys_that_none_sees(queries, keys, device):
    graph = attention("float32", queries=queries, keys=keys, heads=2, mask="causal")
    assert "causal" in generate(schedule(graph, ANCHORS)).source
    assert_agrees(graph, device)


@pytest.mark.parametrize(("queries", "keys"), [(1, 40), (35, 1), (3, 70)])
def test_attention_of_other_lengths(queries, keys, device):
    assert_agrees(attention("float32", queries=queries, keys=keys, heads=2, width=17, value=33), device)


def test_attention_of_symbolic_lengths(device):
    for sizes in ({"s": 5, "t": 37}, {"s": 1, "t": 1}, {"s": 4, "t": 0}, {"s": 0, "t": 3}):
        graph = Graph("symbolic")
        graph.symbol("s", 0)
        graph.symbol("t", 0)
        q = graph.input("q", (2, 2, "s", 8), "float32")
        k, v = graph.input("k", (2, 2, "t", 8), "float32"), graph.input("v", (2, 2, "t", 8), "float32")
        graph.output("y", ((q @ k.transpose()) * 0.2).softmax(-1) @ v)
        graph = rewrite(graph).graph
        assert kinds(graph) == [Attention.__name__]
        assert_agrees(graph, device, sizes)


def scored(dtype, weights, *, queries=9, keys=21, mask="bias", width=10) -> Graph:
    """Scores that are weights under a function, or of which a total is left; grouped heads, as in `attention`."""
    graph = Graph(weights)
    q = graph.input("q", (2, 4, queries, width), dtype)
    k = graph.input("k", (2, 2, keys, width), dtype)
    repeated = k.broadcast((2, 2, 2, keys, width), (0, 1, 3, 4)).reshape(2, 4, keys, width)
    scores = graph.apply("matmul", q, repeated.transpose(), dtype=types.FLOAT32) * 0.3
    if mask == "bias":
        scores = scores + graph.input("bias", (4, queries, keys), "float32").broadcast_to(scores.shape)
    else:
        kept = graph.constant(np.tri(queries, keys, keys - queries, dtype=bool))
        scores = kept.broadcast_to(scores.shape).select(scores, scores.like(-np.inf))
    if weights == "relu":
        v = graph.input("v", (2, 2, keys, 6), dtype)
        wide = v.broadcast((2, 2, 2, keys, 6), (0, 1, 3, 4)).reshape(2, 4, keys, 6)
        graph.output("y", (scores.maximum(0.0).cast(dtype) @ wide) * 0.5)
    else:
        top = scores.max(-1, keepdims=True)
        top = top.unary("isinf").select(0.0, top)
        total = (scores - top).unary("exp").sum(-1, keepdims=True).unary("log") + top
        graph.output("y", total.squeeze(-1) * 0.5)
    return rewrite(graph).graph


@pytest.mark.parametrize("mask", ["bias", "causal"])
@pytest.mark.parametrize(
    ("weights", "dtype"), [("relu", "float32"), ("relu", "bfloat16"), ("total", "float32")]
)
def test_scores_that_are_no_softmax(weights, mask, dtype, device):
    graph = scored(dtype, weights, mask=mask)
    assert kinds(graph) == ["Attention"]
    assert_agrees(graph, device)


@pytest.mark.parametrize("weights", ["relu", "total"])
def test_scores_of_other_lengths_infinities_and_nan(weights, device):
    for queries, keys in ((1, 40), (35, 1), (40, 70)):
        graph = scored("float32", weights, queries=queries, keys=keys, width=17)
        arrays = list(graph.dummy_inputs(0, {}).values())
        arrays[2][0, 0], arrays[2][1, 0], arrays[2][2, 0, -1] = -np.inf, np.inf, np.nan
        arrays[2][3, :, 0] = np.inf
        assert_agrees(graph, device, arrays=arrays)


@pytest.mark.parametrize("weights", ["relu", "total"])
def test_scores_of_symbolic_lengths(weights, device):
    for sizes in ({"s": 5, "t": 37}, {"s": 4, "t": 0}, {"s": 0, "t": 3}):
        graph = Graph("symbolic")
        graph.symbol("s", 0)
        graph.symbol("t", 0)
        q, k = graph.input("q", (2, 2, "s", 8), "float32"), graph.input("k", (2, 2, "t", 8), "float32")
        scores = (q @ k.transpose()) * 0.2
        if weights == "relu":
            graph.output("y", scores.maximum(0.0) @ graph.input("v", (2, 2, "t", 8), "float32"))
        else:
            graph.output("y", scores.unary("exp").sum(-1).unary("log"))
        graph = rewrite(graph).graph
        assert kinds(graph) == [Attention.__name__]
        assert_agrees(graph, device, sizes)
