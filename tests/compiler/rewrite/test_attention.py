"""Attention in the spellings of importers and exporters: found with its operands, declined with reasons, no bit changed."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kernels_hub.compiler import Graph, evaluate, verify
from kernels_hub.compiler.rewrite.attention import ATTENTION, SCALES
from kernels_hub.compiler.rewrite.engine import apply_rules
from kernels_hub.compiler.rewrite.explain import explain_firing, explain_rule
from kernels_hub.compiler.rewrite.outline import composite, operand
from kernels_hub.compiler.rewrite.pipeline import SIMPLIFY, rewrite
from kernels_hub.compiler.rewrite.rule import Options
from tests.compiler.strategies import assert_same_outputs

RULE = {rule.name: rule for rule in ATTENTION.rules}["attention"]
SCALE = SCALES[0]
LOWEST = float(np.finfo(np.float32).min)
HEADS, GROUPS = ("n", 4, 5, 8), ("n", 2, 5, 8)


def scores(q, k):
    return (q @ k.transpose()) * 0.25


def rows_blank(kept, soft, to=0.0):
    """As torch has it: rows that nothing is kept of are 0."""
    empty = ~kept.reduce("any", -1, keepdims=True)
    return empty.broadcast_to(soft.shape).select(to, soft)


def additive(q, k, v, mask):
    return (scores(q, k) + mask).softmax(-1) @ v


def additive_blank(q, k, v, mask, axis=-1):
    masked = scores(q, k) + mask
    empty = masked.max(axis, keepdims=True).eq(-math.inf)
    return empty.broadcast_to(masked.shape).select(0.0, masked.softmax(-1)) @ v


def chosen(q, k, v, mask):
    kept = mask < 0
    return (
        rows_blank(kept, kept.broadcast_to((*q.shape[:3], 5)).select(scores(q, k), -math.inf).softmax(-1)) @ v
    )


def chosen_hidden(q, k, v, mask):
    return (mask < 0).broadcast_to((*q.shape[:3], 5)).select(-1e9, scores(q, k)).softmax(-1) @ v


def exported(q, k, v, mask):
    """As torch's exporters write a mask of bools: 0 or the lowest number is added, NaN are blank."""
    low = (mask < 0).select(mask.like(0.0), LOWEST)
    soft = (scores(q, k) + low).softmax(-1)
    return soft.unary("isnan").select(0.0, soft) @ v


def specified(q, k, v, mask):
    """As ONNX defines its Attention: rows are blank where the mask alone is nothing but -inf."""
    low = (mask < 0).select(mask.like(0.0), -math.inf)
    return specified_of(q, k, v, low)


def specified_of(q, k, v, low):
    masked = scores(q, k) + low
    empty = low.max(-1, keepdims=True).eq(-math.inf)
    return empty.broadcast_to(masked.shape).select(0.0, masked.softmax(-1)) @ v


def divided(q, k, v, mask):
    return ((q @ k.transpose()) / 2.0 + mask).softmax(-1) @ v


SPELLINGS = {
    "added": (additive, {"q", "k", "v", "scale", "mask"}),
    "added, blank": (additive_blank, {"q", "k", "v", "scale", "mask", "blank"}),
    "chosen, blank": (chosen, {"q", "k", "v", "scale", "kept", "fill", "blank"}),
    "hidden": (chosen_hidden, {"q", "k", "v", "scale", "hidden", "fill"}),
    "exported": (exported, {"q", "k", "v", "scale", "kept", "fill", "blank"}),
    "specified": (specified, {"q", "k", "v", "scale", "kept", "fill", "blank"}),
    "specified, of floats": (specified_of, {"q", "k", "v", "scale", "mask", "blank"}),
    "divided": (divided, {"q", "k", "v", "scale", "mask"}),
}
MASKS = {"whole": ("n", 4, 5, 5), "of keys": ("n", 1, 1, 5), "of queries and keys": (5, 5)}


def graph_of(build, *shapes, dtype="float32"):
    graph = Graph("attention")
    names = ("q", "k", "v", "mask")
    given = [graph.input(name, shape, dtype) for name, shape in zip(names, shapes, strict=False)]
    graph.output("y", build(*given))
    return graph


def inputs_of(graph):
    """Special numbers among queries, keys, values and masks; a row that is masked whole."""
    inputs = {name: array.copy() for name, array in graph.dummy_inputs(0, {"n": 2}).items()}
    inputs["q"][0, 0, 0, :3] = [np.nan, np.inf, -0.0]
    inputs["k"][0, 1, 1, 0] = -np.inf
    inputs["v"][-1, -1, :2, 0] = [np.nan, np.inf]
    if "mask" in inputs:
        inputs["mask"][..., 1] = -np.inf
        inputs["mask"][-1:] = -np.inf
    return inputs


def recognised(graph):
    """The call that a graph is after the pass, all numbers kept bit by bit."""
    outcome = ATTENTION.run(graph, Options())
    assert outcome.fired["attention"] == 1, explain_rule(graph, RULE)
    verify(outcome.graph)
    inputs = inputs_of(graph)
    assert_same_outputs(evaluate(outcome.graph, inputs), evaluate(graph, inputs))
    (found,) = (node.results[0] for node in outcome.graph.nodes if node.op.name == "call")
    assert composite(found) == "attention"
    return found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", SPELLINGS)
def test_masks(name, mask, dtype):
    build, operands = SPELLINGS[name]
    found = recognised(graph_of(build, HEADS, HEADS, HEADS, MASKS[mask], dtype=dtype))
    assert set(found.attrs["callee"].inputs) == operands
    masked = next(operand(found, one) for one in ("mask", "kept", "hidden") if one in operands)
    assert masked.op_name not in {"broadcast", "reshape"}, "the mask stands as it was before it was broadcast"


def test_scores_in_a_wider_dtype():
    def build(q, k, v):
        wide = q.matmul(k.transpose(), to="float32") * 0.5
        return wide.softmax(-1).cast("bfloat16") @ v

    def cast(q, k, v):
        return scores(q, k).cast("float32").softmax(-1).cast("bfloat16") @ v

    for one in (build, cast):
        found = recognised(graph_of(one, HEADS, HEADS, HEADS, dtype="bfloat16"))
        assert list(found.attrs["callee"].inputs) == ["q", "k", "v", "scale"]


def test_keys_that_are_turned_in_one_permute():
    def build(q, k, v):
        return (q @ k.exp().permute(0, 2, 3, 1)).softmax(-1) @ v

    found = recognised(graph_of(build, HEADS, ("n", 5, 4, 8), HEADS))
    key = operand(found, "k")
    assert key.op_name == "permute" and key.attrs["order"] == (0, 2, 1, 3)
    assert list(map(str, key.shape)) == list(map(str, found.operands[2].shape))


def grouped(x, *, axis=2):
    """Heads, each repeated for two queries; along another axis, the heads in another order."""
    shape = [*x.shape]
    shape.insert(axis, 2)
    axes = tuple(one for one in range(5) if one != axis)
    return x.broadcast(tuple(shape), axes).reshape("n", 4, *x.shape[-2:])


def test_groups_of_heads():
    found = recognised(
        graph_of(lambda q, k, v: additive(q, grouped(k), grouped(v), 0.5), HEADS, GROUPS, GROUPS)
    )
    assert [one.op_name for one in found.operands[:3]] == ["input"] * 3


MISSES = {
    "along the queries": (lambda q, k, v: (q @ k.transpose()).softmax(-2) @ v, "not along the keys"),
    "no transpose": (lambda q, k, v: (q @ k.reshape("n", 4, 8, 5)).softmax(-1) @ v, "made by reshape, not by permute"),
    "used twice": (lambda q, k, v: (w := (q @ k.transpose()).softmax(-1)) @ v + w.sum(-1, keepdims=True), "is used"),
    "one value": (lambda q, k, v: (q @ q.transpose()).softmax(-1) @ v, "two operands are the same value"),
    "blank columns": (
        lambda q, k, v: additive_blank(q, k, v, v @ v.transpose(), axis=-2), "rows that are made blank are not"),
    "blank where nothing is hidden": (
        lambda q, k, v: rows_blank(
            h := v @ v.transpose() < 0, h.select(-1e9, q @ k.transpose()).softmax(-1)) @ v, "the same value"),
    "blank of others": (
        lambda q, k, v: rows_blank(v @ v.transpose() < 0, ((q @ k.transpose()).softmax(-1))) @ v, "not masked so"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISSES)
def test_attention_declines(name):
    build, reason = MISSES[name]
    graph = graph_of(build, HEADS, HEADS, HEADS)
    outcome = ATTENTION.run(graph, Options())
    assert outcome.graph is graph and not outcome.fired
    assert reason in str(explain_rule(graph, RULE))


def test_an_explanation_names_the_step_that_came_nearest():
    graph = graph_of(MISSES["along the queries"][0], HEADS, HEADS, HEADS)
    for found in (explain_rule(graph, RULE), explain_firing(graph, RULE)):
        assert found.reason == "the softmax is along 2, not along the keys (attention_weights)"
        assert found.root is not None and found.root.op_name == "softmax" and found.matched > 2
    found = explain_firing(graph_of(divided, HEADS, HEADS, HEADS, (5, 5)), RULE)
    assert [value.op_name for value in found.matches] == ["matmul"]


def test_heads_that_are_repeated_in_another_order_are_no_groups():
    def build(q, k, v):
        return (q @ grouped(k, axis=1).transpose()).softmax(-1) @ grouped(v, axis=1)

    graph = graph_of(build, HEADS, GROUPS, GROUPS)
    found = recognised(graph)
    assert [one.op_name for one in found.operands] == ["input", "reshape", "reshape"], "all heads go in"
    assert operand(found, "k").shape[1] == 4


ONE = ("n", 1, 5, 8)


@pytest.mark.parametrize("spelling", [additive, chosen, exported, divided])
def test_one_head_of_keys_and_values_goes_in_once(spelling):
    """As a product spreads it over the heads of q."""

    def build(q, k, v):
        wide = (q.shape[0], 4, *k.shape[2:])
        mask = q.slice(-1, 0, 5)  # of other rows in each head
        return spelling(q, Spread(k, wide), v.broadcast_to(wide), mask)

    graph = graph_of(build, HEADS, ONE, ONE)
    simple = rewrite(graph, (SIMPLIFY,)).graph
    found = ATTENTION.run(simple, Options())
    assert found.fired["attention"] == 1
    inputs = graph.dummy_inputs(0, {"n": 3})
    assert_same_outputs(evaluate(found.graph, inputs), evaluate(graph, inputs), 0.0)
    (call,) = [node.results[0] for node in found.graph.nodes if composite(node.results[0]) == "attention"]
    assert [str(operand(call, name).shape[1]) for name in "qkv"] == ["4", "1", "1"]


class Spread:
    """Keys of one head: turned, and then spread, as torch.export writes a product with them."""

    def __init__(self, k, wide):
        self.k, self.wide = k, wide

    def transpose(self):
        return self.k.transpose().broadcast_to((*self.wide[:2], self.wide[3], self.wide[2]))


def test_one_head_of_keys_alone_is_not_shared():
    def build(q, k, v):
        return divided(q, Spread(k, ("n", 4, 5, 8)), v, 0.5)

    simple = rewrite(graph_of(build, HEADS, ONE, HEADS), (SIMPLIFY,)).graph
    assert not ATTENTION.run(simple, Options()).fired
    assert "and v has not" in str(explain_rule(simple, RULE))


def test_one_head_of_values_alone_goes_in_spread():
    def build(q, k, v):
        return divided(q, k, v.broadcast_to(("n", 4, 5, 8)), 0.5)

    found = recognised(rewrite(graph_of(build, HEADS, HEADS, ONE), (SIMPLIFY,)).graph)
    assert list(map(str, operand(found, "v").shape)) == ["n", "4", "5", "8"]


def test_keys_that_alone_are_repeated_go_in_repeated():
    found = recognised(graph_of(lambda q, k, v: additive(q, grouped(k), v, 0.5), HEADS, GROUPS, HEADS))
    assert [operand(found, one).op_name for one in "qkv"] == ["input", "reshape", "input"]


# -- the scale of scores


def spread(q, k, v):
    q, k = q * 0.5, k * 0.25
    return (q.exp() if v is None else q) @ k.transpose()


def test_a_scale_that_is_spread_is_gathered():
    graph = graph_of(spread, HEADS, HEADS, HEADS)
    outcome = apply_rules(graph, [SCALE])
    assert outcome.fired == {"scale_of_scores": 1}
    verify(outcome.graph)
    found = outcome.graph.outputs["y"]
    assert found.op_name == "mul" and found.operands[1].scalar == 0.125
    assert {one.op_name for one in found.operands[0].operands} == {"input", "permute"}
    inputs = inputs_of(graph)
    assert_same_outputs(evaluate(outcome.graph, inputs), evaluate(graph, inputs), 1e-5)


SCALE_MISSES = {
    "narrow": (spread, "float16", "unscaled scores may be too large"),
    "one side": (lambda q, k, v: (q * 0.5) @ k.transpose(), "float32", "made by"),
    "no number": (lambda q, k, v: (q * 0.5) @ (k * v).transpose(), "float32", "is no known number"),
    "used twice": (lambda q, k, v: (s := q * 0.5) @ (k * 0.5).transpose() @ v + s, "float32", "is used 2 times"),
    "view used twice": (
        lambda q, k, v: (q * 0.5) @ (t := (k * 0.5).transpose()) @ t.transpose(), "float32", "is used 2 times"),
}  # fmt: skip


@pytest.mark.parametrize("name", SCALE_MISSES)
def test_scale_of_scores_declines(name):
    build, dtype, reason = SCALE_MISSES[name]
    graph = graph_of(build, HEADS, HEADS, HEADS, dtype=dtype)
    assert not apply_rules(graph, [SCALE]).fired
    assert reason in str(explain_rule(graph, SCALE))
