"""Weighed scores and totals of scores, found by rules of one reduction each: one kernel, and the numbers of the oracle."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels_hub.compiler import Graph, compile, differentiate, evaluate, import_torch, verify
from kernels_hub.compiler.engines import native_plan
from kernels_hub.compiler.engines.triton import ANCHORS
from kernels_hub.compiler.judging.judge import Judge
from kernels_hub.compiler.rewrite.explain import explain_rule
from kernels_hub.compiler.rewrite.outline import composite
from kernels_hub.compiler.rewrite.pipeline import SIMPLIFY, rewrite
from kernels_hub.compiler.rewrite.rule import Options
from kernels_hub.compiler.rewrite.scores import RULES, Scores
from kernels_hub.compiler.schedule.kernel import Attention, Weights
from kernels_hub.compiler.schedule.schedule import schedule
from tests.compiler.rewrite.naive_attention import Module, inputs_of
from tests.compiler.rewrite.scored_rows import TOTALS, WEIGHED
from tests.compiler.schedule.run import run_schedule
from tests.compiler.strategies import assert_same_outputs

CASES = WEIGHED | TOTALS
RULE = {rule.name: rule for rule in RULES}


@pytest.fixture(autouse=True)
def _denormals(monkeypatch):
    """Inputs of the judge have numbers whose products are denormals; some masks are one."""
    monkeypatch.setattr(native_plan, "FLUSH_DENORMALS", False)


def imported(name):
    return import_torch(Module(CASES[name].forward), inputs_of(CASES[name]))


@pytest.mark.parametrize("name", CASES)
def test_scores_are_one_kernel(name):
    result = rewrite(imported(name), after=lambda _, graph: verify(graph))
    for anchors in ({}, {"anchors": ANCHORS}):
        (kernel,) = schedule(result.graph, **anchors).kernels
        (nest,) = kernel.nests
        assert isinstance(nest.anchor, Attention)
        assert nest.anchor.weights is (Weights.SCORES if name in WEIGHED else Weights.TOTAL)
    end = "weighed_scores" if name in WEIGHED else "logsumexp_of_"
    assert end in str(result) and "scores_of_heads" in str(result), "the path is printed"


@pytest.mark.parametrize("name", CASES)
def test_compiled_scores_are_what_the_oracle_says(name):
    """On inputs of all sizes, infinities and NaN, masks of nothing but -inf, and what masks are compared with."""
    inputs, graph = inputs_of(CASES[name]), imported(name)
    run = compile(graph, "cpu", engines=("cpp",))
    torch.testing.assert_close(run(*inputs), CASES[name].forward(*inputs))
    assert Judge(graph)(lambda arrays: dict(run.plan.execute(arrays))) is None


@pytest.mark.parametrize("name", CASES)
def test_scheduled_scores_are_what_the_oracle_says(name):
    graph = rewrite(imported(name)).graph
    arrays = {key: one.numpy() for key, one in zip(graph.inputs, inputs_of(CASES[name]), strict=True)}
    got, wanted = run_schedule(schedule(graph), graph, arrays, {}), evaluate(graph, arrays)
    for key, one in wanted.items():
        np.testing.assert_allclose(got[key], one, 2e-5, 2e-5)


# -- any scores

FUNCTIONS = {
    "relu": lambda x: x.maximum(0.0),
    "sigmoid": lambda x: x.unary("sigmoid"),
    "tanh": lambda x: x.unary("tanh") * 2.0,
    "power": lambda x: x.unary("exp"),
    "square": lambda x: x * x,
    "none": lambda x: x,
}
SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 100.0, -100.0)


@st.composite
def scored(draw):
    """A graph of rank 2 to 5 with symbolic lengths: scores scaled, masked, under functions; then weighed, or a total."""
    graph = Graph("scored")
    rank = draw(st.integers(2, 5))
    outer = [draw(st.integers(1, 3)) for _ in range(rank - 2)]
    width, wide = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    for name in "st":
        graph.symbol(name, 0)
    q, k = graph.input("q", (*outer, "s", width)), graph.input("k", (*outer, "t", width))
    x = (q @ k.transpose()) * draw(st.sampled_from([1.0, -0.5, 0.0]))
    mask = draw(st.sampled_from(["none", "keys", "all", "chosen", "hidden"]))
    if mask != "none":
        axes = (rank - 1,) if mask == "keys" else tuple(range(draw(st.integers(0, rank - 2)), rank))
        spread = graph.input("m", [x.shape[axis] for axis in axes]).broadcast(x.shape, axes)
        x = (
            x + spread
            if mask in {"keys", "all"}
            else (spread > 0).select(x, -np.inf if mask == "hidden" else 0.5)
        )
    x = FUNCTIONS[draw(st.sampled_from(list(FUNCTIONS)))](x)
    how = draw(st.sampled_from(["weighed", "weighed", "guarded", "shifted", "plain"]))
    top = x.max(-1, keepdims=True)
    if how == "weighed":
        y = x @ graph.input("v", (*outer, "t", wide))
    elif how == "plain":
        y = x.unary("exp").sum(-1, keepdims=draw(st.booleans())).unary("log")
    else:
        low = top.unary("isinf").select(0.0, top) if how == "guarded" else top
        y = low + (x - low).unary("exp").sum(-1, keepdims=True).unary("log")
    graph.output("y", y)
    return graph


@given(scored(), st.sampled_from([(4, 5), (1, 9), (3, 1), (2, 0), (0, 3)]), st.booleans())
@settings(max_examples=150, deadline=None)
def test_any_scores_keep_every_bit(graph, lengths, special):
    sizes = dict(zip("st", lengths, strict=True))
    inputs = graph.dummy_inputs(0, sizes)
    if special:
        numbers = itertools.cycle(SPECIAL)
        for array in inputs.values():
            array.reshape(-1)[:: max(1, array.size // 5)] = [
                next(numbers) for _ in array.reshape(-1)[:: max(1, array.size // 5)]
            ]
    outcome = Scores().run(rewrite(graph, (SIMPLIFY,)).graph, Options())
    verify(outcome.graph)
    with np.errstate(all="ignore"):
        found = evaluate(outcome.graph, inputs, bindings=sizes)
        assert_same_outputs(found, evaluate(graph, inputs, bindings=sizes))


# -- what is no kernel


def graph_of(build, *shapes):
    graph = Graph("case")
    graph.output("y", build(*(graph.input(name, shape) for name, shape in zip("qkvm", shapes, strict=False))))
    return graph


FOUR, WIDE = ("n", 4, 5, 8), ("n", 4, 5, 300)


def relu(q, k, v):
    return (q @ k.transpose()).maximum(0.0) @ v


def twice(q, k, v):
    x = (q @ k.transpose()).maximum(0.0)
    return x @ v + x.sum(-1, keepdims=True)


def weights(q, k, v):
    w = q.graph.parameter("w", (8, 8), data=np.ones((8, 8), np.float32))
    return (q @ w.broadcast(("n", 4, 8, 8), (2, 3))).maximum(0.0) @ w.broadcast(
        ("n", 4, 8, 8), (2, 3)
    ) + k * v


def of_queries(q, k, _):
    x = q @ k.transpose()
    return (x.unary("exp").sum(-2)).unary("log")


def maximum_of_none(q, k):
    q.graph.symbol("t", 0)
    x = q @ k.transpose()
    top = x.max(-1, keepdims=True)
    return (x - top).unary("exp").sum(-1, keepdims=True).unary("log") + top


def by_another_maximum(q, k, v):
    x = q @ k.transpose()
    top = (x + v.sum(-1, keepdims=True)).max(-1, keepdims=True)
    return (x - top).unary("exp").sum(-1, keepdims=True).unary("log") + top


MISSES = {
    "wide queries": (lambda q, k, _: q @ k.transpose(), (WIDE,) * 3, "scores_of_heads", "not known to be narrower"),
    "wide values": (relu, (FOUR, FOUR, WIDE), "weighed_scores", None),
    "a scale alone": (lambda q, k, v: (q @ k.transpose() * 0.5) @ v, (FOUR,) * 3, "weighed_scores", None),
    "used twice": (twice, (FOUR,) * 3, "weighed_scores", None),
    "weights": (weights, (FOUR,) * 3, "scores_of_heads", "better kernels"),
    "one value": (lambda q, _, __: q @ q.transpose(), (FOUR,) * 3, "scores_of_heads", "the same value"),
    "a sum along the queries": (of_queries, (FOUR,) * 3, "logsumexp_of_powers", None),
    "a maximum of no keys": (maximum_of_none, (FOUR, ("n", 4, "t", 8)), "shifted_logsumexp", None),
    "another maximum": (by_another_maximum, (FOUR,) * 3, "shifted_logsumexp", None),
}  # fmt: skip


@pytest.mark.parametrize("name", MISSES)
def test_what_becomes_no_kernel_stays_as_it_was(name):
    build, shapes, rule, reason = MISSES[name]
    graph = graph_of(build, *shapes)
    outcome = Scores().run(graph, Options())
    assert outcome.graph is graph and not outcome.fired
    if reason is not None:
        assert reason in str(explain_rule(graph, RULE[rule]))


def test_what_is_grown_beside_a_kernel_is_written_out():
    def build(q, k, v):
        return relu(q, k, v).sum(-1) + (q @ (k * 2.0).transpose()).unary("tanh").sum(-1)

    graph = graph_of(build, FOUR, FOUR, FOUR)
    outcome = Scores().run(graph, Options())
    assert [composite(one.results[0]) for one in outcome.graph.nodes if one.op.name == "call"] == [
        "attention"
    ]
    inputs = graph.dummy_inputs(0, {"n": 2})
    assert_same_outputs(evaluate(outcome.graph, inputs), evaluate(graph, inputs))


def test_gradients_pass_through_scores():
    graph = rewrite(graph_of(relu, (2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 8)), (SIMPLIFY, Scores())).graph
    assert any(composite(node.results[0]) == "attention" for node in graph.nodes if node.op.name == "call")
    tensors = [torch.randn(shape, requires_grad=True) for shape in ((2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 8))]
    q, k, v = tensors
    result = torch.relu(q @ k.transpose(-1, -2)) @ v
    result.sum().backward()
    found = differentiate(graph)
    arrays = {name: one.detach().numpy() for name, one in zip("qkv", tensors, strict=True)}
    outputs = evaluate(found.forward, arrays)
    ones = {"y": np.ones(result.shape, np.float32)}
    got = evaluate(found.backward, found.backward_inputs(arrays, outputs, ones))
    for name, one in zip("qkv", tensors, strict=True):
        np.testing.assert_allclose(got[found.gradients[name]], one.grad.numpy(), 1e-4, 1e-5)
