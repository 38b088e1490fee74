"""Recognised parts run as PyTorch's fused functions, with the callee's numbers; what only looks like one does not."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kernels_hub.compiler import Graph, evaluate
from kernels_hub.compiler.engines.library import ENGINE
from kernels_hub.compiler.engines.library_ops.composites import composite_kernel
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.rewrite.pipeline import rewrite
from tests.compiler.engines.executed import array, assert_agrees, assert_close, results

DTYPES = ("float32", "float64", "float16", "bfloat16")
ROUNDINGS = {"float32": 5e-6, "float64": 1e-11, "float16": 6e-3, "bfloat16": 4e-2}
"""The callee rounds after every op, the fused function once."""


def gelu(x):
    return x * 0.5 * ((x * math.sqrt(0.5)).unary("erf") + 1.0)


def gelu_tanh(x):
    return x * 0.5 * (((x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)).unary("tanh") + 1.0)


def silu(x):
    return x * x.unary("sigmoid")


def quick(x):
    return x * (x * 1.702).unary("sigmoid")


def normed(x, axis=-1, eps=1e-5):
    centred = x - x.mean(axis, keepdims=True)
    return centred / ((centred * centred).mean(axis, keepdims=True) + eps).unary("sqrt")


def rms(x, eps=1e-6):
    return x * ((x * x).mean(-1, keepdims=True) + eps).unary("rsqrt")


def layer_norm(x, weight, bias):
    return normed(x) * weight + bias


def rotary(x, cos, sin):
    low, high = x.slice(-1, 0, 4), x.slice(-1, 4, 8)
    return x * cos + x.graph.apply("concat", -high, low, axis=x.rank - 1) * sin


def group_norm(x, weight, bias):
    found = normed(x.reshape(2, 3, -1)).reshape(*x.shape)
    return found * weight.reshape(6, 1, 1) + bias.reshape(6, 1, 1)


CASES = {
    "gelu": (gelu, [("n", 5)]),
    "gelu_tanh": (gelu_tanh, [("n", 5)]),
    "silu": (silu, [("n", 5)]),
    "gelu_quick": (quick, [("n", 5)]),
    "gated_silu": (lambda gate, up: silu(gate) * up, [("n", 5), ("n", 5)]),
    "gated_gelu": (lambda gate, up: gelu(gate) * up, [("n", 5), ("n", 5)]),
    "layer_norm": (layer_norm, [("n", 4, 6), (6,), (6,)]),
    "rms_norm": (lambda x, weight: rms(x) * weight, [("n", 4, 6), (6,)]),
    "rotary": (rotary, [("n", 4, 3, 8), (3, 8), (3, 8)]),
    "group_norm": (group_norm, [(2, 6, 4, 5), (6,), (6,)]),
}


def graph_of(build, shapes, dtype):
    graph = Graph("case")
    graph.symbol("n", 1)
    graph.output("y", build(*(graph.input(f"x{i}", shape, dtype) for i, shape in enumerate(shapes))))
    return rewrite(graph).graph


def calls(graph):
    return {
        node.attrs["callee"].name: composite_kernel(node, "cpu")
        for node in graph.live()
        if node.op.name == "call"
    }


def inputs_of(shapes, dtype, n=3):
    return [
        array(tuple(n if dim == "n" else dim for dim in shape), dtype, seed=i)
        for i, shape in enumerate(shapes)
    ]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_fused(name, dtype):
    build, shapes = CASES[name]
    graph = graph_of(build, shapes, dtype)
    found = calls(graph)
    assert list(found) == [name] and found[name] is not None
    for n in (3, 1):
        assert_agrees(ENGINE, graph, inputs_of(shapes, dtype, n), tolerance=ROUNDINGS[dtype])


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "silu", "gelu_quick"])
def test_activations_of_special_values(name):
    build, _ = CASES[name]
    x = np.array([0.0, -0.0, 1e-30, 30, -30, 1e4, -1e4, np.inf, np.nan, 5, -5], np.float32)
    for shape in ((11,), (1, 11), (11, 1), (2, 3, 11)):
        numbers = np.broadcast_to(x if shape[-1] == 11 else x[:, None], shape).copy()
        assert_agrees(ENGINE, graph_of(build, [shape], "float32"), [numbers])


def test_constants_that_were_rounded_keep_their_numbers():
    """1.702 in bfloat16 is 1.703125: close enough to be recognised, and not the function that PyTorch has."""
    graph = graph_of(lambda x: x * (x * 1.703125).unary("sigmoid"), [(50,)], "float32")
    assert calls(graph) == {"gelu_quick": None}
    assert_agrees(ENGINE, graph, [array((50,), "float32")], scale=False)


@pytest.mark.parametrize(
    "name", ["gelu", "silu", "layer_norm", "rms_norm", "attention", "rotary", "gated_silu", "group_norm"]
)
def test_a_name_alone_says_nothing(name):
    """A callee that computes something else under a known name runs as written."""
    callee = Graph(name)
    callee.output("y", callee.input("x", (3, 4)) * 2.0 + callee.input("eps", (3, 4)))
    graph = Graph("case")
    a, b = graph.input("a", (3, 4)), graph.input("b", (3, 4))
    graph.output("y", graph.add("call", (a, b), {"callee": callee}).results[0])
    assert calls(graph) == {name: None}
    assert_agrees(ENGINE, graph, [array((3, 4), "float32"), array((3, 4), "float32", seed=1)])


# -- attention


def scores(q, k):
    return (q @ k.transpose()) * 0.25


def plain(q, k, v, _):
    return scores(q, k).softmax(-1) @ v


def additive(q, k, v, mask):
    return (scores(q, k) + mask).softmax(-1) @ v


def additive_blank(q, k, v, mask):
    masked = scores(q, k) + mask
    empty = masked.max(-1, keepdims=True).eq(-math.inf)
    return empty.broadcast_to(masked.shape).select(0.0, masked.softmax(-1)) @ v


def chosen(q, k, v, mask, fill=-math.inf):
    kept = (mask >= 0).broadcast_to(tuple(scores(q, k).shape))
    return kept.select(scores(q, k), fill).softmax(-1) @ v


def chosen_blank(q, k, v, mask, fill=-math.inf):
    kept = mask >= 0
    empty = ~kept.reduce("any", -1, keepdims=True)
    soft = kept.broadcast_to(tuple(scores(q, k).shape)).select(scores(q, k), fill).softmax(-1)
    return empty.broadcast_to(soft.shape).select(0.0, soft) @ v


def hidden(q, k, v, mask):
    return (mask < 0).broadcast_to(tuple(scores(q, k).shape)).select(LOWEST, scores(q, k)).softmax(-1) @ v


def exported(q, k, v, mask):
    low = (mask >= 0).select(mask.like(0.0), LOWEST)
    soft = (scores(q, k) + low).softmax(-1)
    return soft.unary("isnan").select(0.0, soft) @ v


LOWEST = float(np.finfo(np.float32).min)
SPELLINGS = {
    "plain": plain,
    "additive": additive,
    "additive, blank": additive_blank,
    "chosen": chosen,
    "chosen, low": lambda *xs: chosen(*xs, fill=LOWEST),
    "chosen, blank": chosen_blank,
    "chosen, low, blank": lambda *xs: chosen_blank(*xs, fill=LOWEST),
    "hidden": hidden,
    "exported": exported,
}
MASKS = {"whole": ("n", 4, 5, 7), "of keys": ("n", 1, 1, 7), "of queries and keys": (5, 7)}


def attention_inputs(shapes, dtype, n):
    """Masks of 0 and minus infinity, with rows that are masked whole."""
    q, k, v, mask = inputs_of(shapes, dtype, n)
    mask = np.where(mask > 0, 0, -np.inf)
    mask[..., 0, :] = -np.inf
    return [q, k, v, mask.astype(q.dtype)]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", SPELLINGS)
def test_attention(name, mask):
    """Rows that are masked whole are what the spelling makes of them: NaN, 0, or all alike."""
    shapes = [("n", 4, 5, 8), ("n", 4, 7, 8), ("n", 4, 7, 8), MASKS[mask]]
    graph = graph_of(SPELLINGS[name], shapes, "float32")
    found = calls(graph)
    assert list(found) == ["attention"] and found["attention"] is not None
    for n in (2, 1):
        arrays = attention_inputs(shapes, "float32", n)
        assert_agrees(ENGINE, graph, arrays[: len(graph.inputs)], tolerance=5e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_of_dtypes(dtype):
    shapes = [("n", 4, 5, 8), ("n", 4, 7, 8), ("n", 4, 7, 8), (5, 7)]
    graph = graph_of(additive, shapes, dtype)
    arrays = attention_inputs(shapes, dtype, 2)
    wide = evaluate(graph_of(additive, shapes, "float64"), [one.astype(np.float64) for one in arrays])["y"]
    actual = results(ENGINE, graph, arrays)["y"]
    assert_close(actual, wide.astype(types.dtype(dtype).numpy), tolerance=ROUNDINGS[dtype])


def test_grouped_heads():
    def repeated(x):
        wide = x.unsqueeze(2).reshape(2, 2, 7, 8)
        return wide.graph.apply("broadcast", wide, shape=(2, 2, 3, 7, 8), axes=(0, 1, 3, 4)).reshape(
            2, 6, 7, 8
        )

    def build(q, k, v):
        return scores(q, repeated(k)).softmax(-1) @ repeated(v)

    shapes = [(2, 6, 5, 8), (2, 2, 7, 8), (2, 2, 7, 8)]
    graph = graph_of(build, shapes, "float32")
    assert calls(graph)["attention"] is not None
    assert_agrees(ENGINE, graph, inputs_of(shapes, "float32"), tolerance=5e-6)


def test_a_mask_that_is_not_low_enough_runs_as_written():
    """-1e4 under rows that are masked whole gives all keys the same weight; added, it would not."""
    shapes = [("n", 4, 5, 8), ("n", 4, 7, 8), ("n", 4, 7, 8), (5, 7)]
    graph = graph_of(lambda *xs: chosen(*xs, fill=-1e4), shapes, "float32")
    assert calls(graph) == {"attention": None}
    assert_agrees(ENGINE, graph, attention_inputs(shapes, "float32", 2), tolerance=5e-6)
