"""bfloat16 and float16 on the C++ engine: the runtime's kernels take them, sum in float32 and round once."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kernels_hub.compiler import Graph
from kernels_hub.compiler.codegen.cpp.translation_unit import generate
from kernels_hub.compiler.engines.cpp import ENGINE
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.rewrite.pipeline import rewrite
from kernels_hub.compiler.runtime.toolchain import find_compiler
from kernels_hub.compiler.schedule.schedule import schedule
from tests.combinations import all_but, every_value
from tests.compiler.engines.executed import TOLERANCE, assert_agrees, results

pytestmark = [
    pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler"),
    pytest.mark.parametrize("dtype", ["bfloat16", "float16"]),
]


def random(*shape, dtype, seed=0, scale=1.0):
    return (scale * np.random.default_rng(seed).standard_normal(shape)).astype(types.dtype(dtype).numpy)


def calls(graph: Graph) -> str:
    return generate(schedule(graph)).source


def linear(dtype, transposed):
    """Weights as torch has them (o, i), or as ONNX has (i, o); a bias behind."""
    graph = Graph("linear")
    x = graph.input("x", ("n", 7, 40), dtype)
    shape = (50, 40) if transposed else (40, 50)
    weight = graph.parameter("w", shape, dtype, random(*shape, dtype=dtype, seed=1, scale=0.2))
    bias = graph.parameter("b", (50,), dtype, random(50, dtype=dtype, seed=2))
    product = x @ (weight.transpose() if transposed else weight)
    graph.output("y", product + bias)
    return graph


@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("rows", [1, 5])
def test_linear(dtype, transposed, rows):
    graph = linear(dtype, transposed)
    assert "kh::multiply(" in calls(graph)
    assert_agrees(ENGINE, graph, [random(rows, 7, 40, dtype=dtype)])


def test_products_of_activations(dtype):
    graph = Graph("batched")
    a = graph.input("a", (3, 20, 33), dtype)
    b = graph.input("b", (3, 17, 33), dtype)
    graph.output("y", a @ b.transpose())
    assert "kh::multiply_batched(" in calls(graph)
    assert_agrees(ENGINE, graph, [random(3, 20, 33, dtype=dtype), random(3, 17, 33, dtype=dtype, seed=1)])


@every_value(sizes=[(32, 1, 3), (3, 1, 5), (16, 16, 3), (16, 1, 1)], constant=[True, False])
def test_convolutions(dtype, sizes, constant):
    channels, groups, kernel = sizes
    graph = Graph("conv")
    x = graph.input("x", (2, channels, 9, 11), dtype)
    out = 16 if groups > 1 else 40
    shape = (out, channels // groups, kernel, kernel)
    w = random(*shape, dtype=dtype, seed=1, scale=0.2)
    weight = graph.parameter("w", shape, dtype, w) if constant else graph.input("w", shape, dtype)
    pads = ((kernel // 2, kernel // 2),) * 2
    graph.output(
        "y", graph.apply("conv", x, weight, strides=(1, 1), dilations=(1, 1), padding=pads, groups=groups)
    )
    assert "kh::convolve(" in calls(graph)
    given = [random(2, channels, 9, 11, dtype=dtype)]
    assert_agrees(ENGINE, graph, given if constant else [*given, w])


@pytest.mark.parametrize("mask", [None, "added", "kept"])
def test_attention(dtype, mask):
    graph = Graph("attention")
    q, k, v = (
        graph.input(name, (2, 4, length, 24), dtype) for name, length in (("q", 19), ("k", 33), ("v", 33))
    )
    scores = (q @ k.transpose()) * 0.2
    given = [random(2, 4, one, 24, dtype=dtype, seed=one) for one in (19, 33, 34)]
    given[2] = given[2][:, :, :33]
    if mask == "added":
        scores = scores + graph.input("mask", (19, 33), dtype).broadcast_to(scores.shape)
        given.append(random(19, 33, dtype=dtype, seed=3))
    elif mask == "kept":
        kept = graph.input("mask", (19, 33), "bool").broadcast_to(scores.shape)
        scores = kept.select(scores, -math.inf)
        given.append(np.random.default_rng(4).random((19, 33)) < 0.7)
    graph.output("y", scores.softmax(-1) @ v)
    found = rewrite(graph).graph
    assert "kh::attend" in calls(found)
    assert_agrees(ENGINE, found, given)


@pytest.mark.parametrize("weights", ["sigmoid", "total"])
def test_scores_that_are_no_softmax(dtype, weights):
    graph = Graph(weights)
    q, k, v = (
        graph.input(name, (2, 4, length, 24), dtype) for name, length in (("q", 19), ("k", 33), ("v", 33))
    )
    scores = (q @ k.transpose()) * 0.2 + graph.input("mask", (19, 33), dtype).broadcast_to((2, 4, 19, 33))
    if weights == "sigmoid":
        graph.output("y", scores.unary("sigmoid") @ v)
    else:
        graph.output("y", scores.unary("exp").sum(-1).unary("log") + v.sum((2, 3), keepdims=True).squeeze(-1))
    given = [random(2, 4, one, 24, dtype=dtype, seed=one) for one in (19, 33, 34)]
    given[2] = given[2][:, :, :33]
    found = rewrite(graph).graph
    assert "kh::attend" in calls(found)
    assert_agrees(ENGINE, found, [*given, random(19, 33, dtype=dtype, seed=3)])


def test_what_follows_in_the_same_nest_is_rounded_where_it_is_stored(dtype):
    graph = linear(dtype, True)
    y = graph.outputs["y"]
    graph.output("z", y.unary("tanh") * 3.0)
    assert_agrees(ENGINE, graph, [random(3, 7, 40, dtype=dtype)])


@pytest.mark.parametrize("size", all_but([0, 1, 15, 64, 255, 256, 257, 700], 1, 64, 255))
def test_loops_of_any_length(dtype, size):
    """float16 is converted in blocks, a vector at a time; a short one, and what is left of it, element by element."""
    graph = Graph("loops")
    graph.symbol("n", 0)
    x, y = graph.input("x", (3, "n"), dtype), graph.input("y", (3, "n"), dtype)
    total = (x + y) * x
    graph.output("total", total)
    graph.output("wide", total.cast("float32"))
    graph.output("narrow", (total.cast("float32") * 0.3).cast(dtype))
    graph.output("kept", total.cast("float32").cast("float16").cast("float32"))
    graph.output("sums", (x * y).sum((1,)))
    graph.output("long", x.unary("erf") * y.unary("tanh"))
    if size > 0:
        graph.output("centred", x - x.mean((1,), keepdims=True))
    given = [random(3, size, dtype=dtype), random(3, size, dtype=dtype, seed=1)]
    assert_agrees(ENGINE, graph, given, tolerance=TOLERANCE[dtype])


def test_what_is_only_moved_keeps_its_bits(dtype):
    graph = Graph("moved")
    x = graph.input("x", (256, 256), dtype)
    graph.output("turned", x.permute(1, 0))
    graph.output("flipped", x.flip(1))
    graph.output("padded", x.pad([(1, 0), (0, 3)], 0))
    bits = np.arange(2**16, dtype=np.uint16).reshape(256, 256)
    found = results(ENGINE, graph, [bits.view(types.dtype(dtype).numpy)])
    for name, expected in (
        ("turned", bits.T),
        ("flipped", bits[:, ::-1]),
        ("padded", np.pad(bits, ((1, 0), (0, 3)))),
    ):
        assert np.array_equal(found[name].view(np.uint16), expected), name
