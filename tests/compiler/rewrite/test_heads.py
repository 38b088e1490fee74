"""Attention and statistics of rows that are written by hand: one kernel each, and the same numbers."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from kernels_hub.compiler import Graph, compile, evaluate, import_torch, verify
from kernels_hub.compiler.engines.triton import ANCHORS
from kernels_hub.compiler.rewrite.engine import apply_rules
from kernels_hub.compiler.rewrite.explain import explain_rule
from kernels_hub.compiler.rewrite.heads import FOUR_DIMS, HEADS
from kernels_hub.compiler.rewrite.pipeline import rewrite
from kernels_hub.compiler.rewrite.rule import Options
from kernels_hub.compiler.schedule.kernel import Attention
from kernels_hub.compiler.schedule.schedule import schedule
from tests.compiler.rewrite.naive_attention import CASES, Module, inputs_of
from tests.compiler.strategies import assert_same_outputs

RULES = {rule.name: rule for rule in (*HEADS, *FOUR_DIMS.rules)}


@pytest.mark.parametrize("name", CASES)
def test_attention_written_by_hand_is_one_kernel(name):
    case = CASES[name]
    inputs = inputs_of(case)
    result = rewrite(import_torch(Module(case.forward), inputs))
    for anchors in ({}, {"anchors": ANCHORS}):
        (kernel,) = schedule(result.graph, **anchors).kernels
        (nest,) = kernel.nests
        assert isinstance(nest.anchor, Attention), result
    (got,) = evaluate(result.graph, [one.numpy() for one in inputs]).values()
    np.testing.assert_allclose(got, case.forward(*inputs).numpy(), 1e-5, 1e-5)


def test_rows_of_large_scores_do_not_overflow_where_no_maximum_is_subtracted():
    case = CASES["no maximum"]
    q, k, v = inputs_of(case)
    graph = rewrite(import_torch(Module(case.forward), (q, k, v))).graph
    (got,) = evaluate(graph, [(q * 1e3).numpy(), k.numpy(), v.numpy()]).values()
    wanted = F.scaled_dot_product_attention(q * 1e3, k, v, scale=0.3)
    np.testing.assert_allclose(got, wanted.numpy(), 1e-4, 1e-4)


# -- statistics of rows


def logsumexp(x, _=None):
    top = x.amax(-1, keepdim=True)
    return (x - top).exp().sum(-1).log() + top.squeeze(-1)


def variance(x, _):
    return (x * x).mean(-1) - x.mean(-1) ** 2


def normed(x, _):
    mean = x.mean(-1, keepdim=True)
    return (x - mean) / ((x * x).mean(-1, keepdim=True) - mean**2 + 1e-5).sqrt()


def losses(x, target):
    return F.cross_entropy(x, target, reduction="none")


def losses_by_hand(x, target):
    return logsumexp(x) - x.gather(1, target.clamp(0)[:, None])[:, 0]


STATISTICS = {
    "logsumexp": logsumexp,
    "variance in one pass": variance,
    "norm in one pass": normed,
    "cross-entropy": losses,
    "cross-entropy by hand": losses_by_hand,
}


def rows():
    """Numbers, and a class for each row, of which one is ignored."""
    torch.manual_seed(0)
    return torch.randn(6, 33), torch.tensor([0, 32, 5, 5, -100, 7])


def statistic(name, x, target):
    return STATISTICS[name](x, target)


@pytest.mark.parametrize("name", STATISTICS)
def test_statistics_of_rows_are_one_kernel(name):
    graph = import_torch(Module(partial(statistic, name)), rows())
    assert len(schedule(rewrite(graph).graph).kernels) == 1


COMPILED = ("soft cap and mask", "groups", "einsum of groups, and a mask")
"""Scores under a function, rows of two dims, and heads that no reshape merges without a copy."""


def test_compiled_all_give_the_same():
    def together(x, target, *inputs):
        left, results = list(inputs), [statistic(name, x, target) for name in STATISTICS]
        return results + [
            CASES[name].forward(*(left.pop(0) for _ in CASES[name].shapes)) for name in COMPILED
        ]

    inputs = (*rows(), *(one for name in COMPILED for one in inputs_of(CASES[name])))
    run = compile((Module(together), inputs), "cpu", engines=("cpp",))
    for name, got, wanted in zip((*STATISTICS, *COMPILED), run(*inputs), together(*inputs), strict=True):
        torch.testing.assert_close(got, wanted, msg=lambda text, name=name: f"{name}: {text}")


def test_a_row_of_which_two_elements_are_picked_is_stored():
    graph = Graph("two")
    x, places = graph.input("x", ("n", 9)), graph.input("places", ("n", 2), "int64")
    graph.output("y", x.along("log_softmax", 1).gather_elements(places, 1))
    assert len(schedule(rewrite(graph).graph).kernels) == 2


def test_sums_along_other_dims_stay_apart():
    graph = Graph("apart")
    x = graph.input("x", (6, 33))
    graph.output("rows", x.sum(1))
    graph.output("columns", (x * x).sum(0))
    assert len(schedule(graph).kernels) == 2


# -- the rules one by one


def graph_of(build, *shapes):
    graph = Graph("attention")
    given = [graph.input(name, shape) for name, shape in zip("qkvm", shapes, strict=False)]
    graph.output("y", build(*given))
    return graph


def outcome_of(name, graph):
    """What a rule does to a graph; one that is grown with, together with those that it builds on."""
    if RULES[name] in FOUR_DIMS.rules:
        return FOUR_DIMS.run(graph, Options())
    return apply_rules(graph, [RULES[name]])


def of_three(q, k, v):
    return (q @ k.transpose()).softmax(-1) @ v


def of_merged_rows(q, k, v):
    return (q @ k.transpose()).softmax(-1).reshape("n", 20, 5) @ v


def cast_twice(q, k, v, m):
    return ((q @ k.transpose()) * 0.5 + m).softmax(-1).cast("float64").cast("float32") @ v


def small(x):
    """Three dims of four."""
    return x.max(1)


Q4, Q3 = ("n", 4, 5, 8), ("n", 5, 8)
FIRES = {
    "view_behind_softmax": [
        (lambda q, k, v: (q @ k.transpose()).permute(1, 0, 3, 2).softmax(2), Q4, Q4, Q4),
        (lambda q, k, v, m: ((q @ k.transpose()).reshape("n", 2, 2, 5, 5) * 2 + m.broadcast(("n", 2, 2, 5, 5), (0, 4)))
         .softmax(-1), Q4, Q4, Q4, ("n", 5)),
        (lambda q, k, v, m: ((q @ k.transpose()).permute(1, 0, 2, 3) + m).softmax(-1), Q4, Q4, Q4, (4, "n", 5, 5)),
    ],
    "rows_of_weights_apart": [
        (of_merged_rows, Q4, Q4, Q3),
        (lambda q, k, v: (q @ k.transpose()).softmax(-1).reshape("n", 2, 10, 5) @ v, *[("n", 2, 2, 5, 8)] * 2, ("n", 2, 5, 8)),
    ],
    "attention_of_four_dims": [
        (of_three, (5, 8), (6, 8), (6, 8)),
        (cast_twice, Q3, Q3, Q3, ("n", 5, 5)),
        (lambda q, k, v, m: ((q @ k.transpose()) + m.broadcast(("n", 2, 2, 5, 5), (1, 4))).softmax(-1) @ v,
         *[("n", 2, 2, 5, 8)] * 3, (2, 5)),
        (lambda q, k, v: ((s := (q @ k.transpose()).softmax(-1) @ v) @ s.transpose()).softmax(-1) @ v, Q3, Q3, Q3),
    ],
    "heads_scores": [(of_three, Q3, Q3, Q3), (of_merged_rows, Q4, Q4, Q3)],
    "heads_steps": [
        (cast_twice, Q3, Q3, Q3, ("n", 5, 5)),
        (lambda q, k, v, m: (m < 0).select(-1e9, (q @ k.transpose()).cast("float64").cast("float32")).softmax(-1) @ v,
         Q3, Q3, Q3, ("n", 5, 5)),
    ],
    "heads_weights": [(of_three, Q3, Q3, Q3)],
    "heads_casts": [(cast_twice, Q3, Q3, Q3, ("n", 5, 5))],
    "heads_rows": [(of_merged_rows, Q4, Q4, Q3)],
}  # fmt: skip
DECLINES = {
    "view_behind_softmax": [
        (lambda q, k, v: (q @ k.transpose()).reshape("n", 4, 25).softmax(-1), "is not the last of"),
        (lambda q, k, v: (q + k).reshape("n", 20, 8).softmax(-1), "is made of 0 products"),
        (lambda q, k, v: (s := (q @ k.transpose()).permute(1, 0, 2, 3)).softmax(-1) + s, "used elsewhere"),
        (lambda q, k, v: (q @ q.graph.parameter("w", (8, 5)).broadcast(("n", 4, 8, 5), (2, 3)))
         .permute(1, 0, 2, 3).softmax(-1), "is made of 0 products"),
    ],
    "rows_of_weights_apart": [
        (lambda q, k, v: (q @ k.transpose()).softmax(-1).reshape("n", 4, 25) @ v.reshape("n", 8, 20).permute(0, 2, 1)
         .broadcast(("n", 20, 8), (0, 1, 2)).pad([(0, 0), (0, 5), (0, 0)]), "does not only merge rows"),
        (lambda q, k, v: (q @ k.transpose()).softmax(-2).reshape("n", 20, 5) @ v.max(1), "not along the keys"),
        (lambda q, k, v: q.softmax(-1).reshape("n", 20, 8) @ v.max(1).transpose(), "made by input, not by call"),
        (lambda q, k, v: (q @ k.transpose()).softmax(-1).reshape("n", 20, 5)
         @ q.graph.parameter("w", (5, 8)).broadcast(("n", 5, 8), (1, 2)), "is a weight"),
        (lambda q, k, v: (w := (q @ k.transpose()).softmax(-1)).reshape("n", 20, 5) @ v.max(1) + w.max(1).reshape("n", 5, 5)
         .pad([(0, 0), (0, 15), (0, 3)]), "used elsewhere"),
    ],
    "attention_of_four_dims": [
        (of_three, "it has four dims"),
        (lambda q, k, v: (q.max(1) @ k.max(1).transpose()).softmax(1) @ v.max(1), "not along the keys"),
        (lambda q, k, v: (w := (q.max(1) @ k.max(1).transpose()).softmax(-1)) @ v.max(1) + w.sum(2, keepdims=True),
         "used elsewhere"),
        (lambda q, k, v: q.max(1).softmax(-1) @ v.max(1).transpose(), "made by reduce_max, not by call"),
        (lambda q, k, v: (w := (small(q) @ small(k).transpose()).softmax(-1)).cast("float64") @ small(v).cast("float64")
         + w.sum(2, keepdims=True).cast("float64"), "used elsewhere"),
        (lambda q, k, v: (q.max(1) @ k.max(1).transpose()).softmax(-1)
         @ q.graph.parameter("w", (5, 8)).broadcast(("n", 5, 8), (1, 2)), "is a weight"),
    ],
    "heads_scores": [
        (lambda q, k, v: of_three(small(q), q.graph.parameter("w", (5, 8)).broadcast(("n", 5, 8), (1, 2)), small(v)),
         "products with weights"),
    ],
    "heads_steps": [
        (lambda q, k, v: ((q := small(q)) @ (k := small(k)).transpose() + k @ q.transpose()).softmax(-1) @ small(v),
         "is made of 2 products"),
        (lambda q, k, v: ((s := small(q) @ small(k).transpose()) * s.tanh()).softmax(-1) @ small(v), "used elsewhere"),
    ],
    "heads_weights": [
        (lambda q, k, v: (small(q) @ small(k).transpose()).softmax(1) @ small(v), "not along the keys"),
        (lambda q, k, v: (s := small(q) @ small(k).transpose()).softmax(-1) @ small(v) + s.sum(2, keepdims=True),
         "used elsewhere"),
    ],
    "heads_casts": [
        (lambda q, k, v: (w := (small(q) @ small(k).transpose()).softmax(-1)).cast("float64") @ small(v).cast("float64")
         + w.sum(2, keepdims=True).cast("float64"), "used elsewhere"),
    ],
    "heads_rows": [
        (lambda q, k, v: (q @ k.transpose()).softmax(-1).reshape("n", 2, 10, 5) @ v.slice(1, 0, 2), "only merge rows"),
        (lambda q, k, v: (q @ k.transpose()).softmax(-1).cast("float64").reshape("n", 20, 5) @ small(v).cast("float64"),
         "which is a cast"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
def test_each_rule_fires_and_keeps_every_bit(name):
    for build, *shapes in FIRES[name]:
        graph = graph_of(build, *shapes)
        outcome = outcome_of(name, graph)
        assert outcome.fired[name], explain_rule(graph, RULES[name])
        verify(outcome.graph)
        assert explain_rule(graph, RULES[name]).matches
        inputs = graph.dummy_inputs(0, dict.fromkeys(graph.symbols, 3))
        for array in inputs.values():
            array.reshape(-1)[3] = np.nan
        assert_same_outputs(evaluate(outcome.graph, inputs), evaluate(graph, inputs), 1e-6)


@pytest.mark.parametrize("name", RULES)
def test_each_rule_declines_with_the_reason(name):
    for build, reason in DECLINES[name]:
        graph = graph_of(build, Q4, Q4, Q4)
        outcome = outcome_of(name, graph)
        assert not outcome.fired
        assert outcome.graph is graph or RULES[name] in HEADS
        assert reason in str(explain_rule(graph, RULES[name]))


def test_every_rule_is_here():
    assert set(RULES) == set(FIRES) == set(DECLINES)
