"""Reshapes in front of permutes, gathers of everything, weights beside one-pixel images; and what folds of iotas."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kernels_hub.compiler import Graph, evaluate, verify
from kernels_hub.compiler.rewrite.affine import AFFINE
from kernels_hub.compiler.rewrite.engine import apply_rules
from kernels_hub.compiler.rewrite.explain import explain_rule
from kernels_hub.compiler.rewrite.fold import FoldConstants
from kernels_hub.compiler.rewrite.indices import EVERYTHING
from kernels_hub.compiler.rewrite.regroup import REGROUP, groups
from kernels_hub.compiler.rewrite.rule import Options
from tests.compiler.strategies import assert_same_outputs

RULES = {rule.name: rule for rule in (*REGROUP, *EVERYTHING, *AFFINE)}


def graph_of(build, shape=("n", 4, 6)):
    graph = Graph("case")
    graph.symbol("n", 1)
    graph.output("y", build(graph.input("x", shape)))
    return graph


def gather(x, indices, axis):
    indices = (
        x.graph.iota(indices) if isinstance(indices, (int, str)) else x.graph.constant(np.array(indices))
    )
    return x.apply("gather", x, indices, axis=axis)


def places(x, *shape):
    return x.apply("gather_nd", x, x.graph.constant(np.stack(np.indices(shape), -1)))


def grid(x, shape, axes):
    """Indices of every element of x: those of dim i run along axes[i] of shape."""
    parts = [
        x.graph.iota(dim).broadcast(shape, (axis,)).unsqueeze(len(shape))
        for dim, axis in zip(x.shape, axes, strict=True)
    ]
    return x.apply("gather_nd", x, x.graph.apply("concat", *parts, axis=len(shape)))


def grid_of(x, *sizes):
    """Indices of places, of so many dims."""
    shape = (*sizes, 1)
    parts = [x.graph.iota(size).broadcast(shape, (axis,)) for axis, size in enumerate(sizes)]
    return x.graph.apply("concat", *parts, axis=len(sizes))


def order_of(keys, descending=False):
    return keys.along("argsort", 0, descending=descending)


def scattered(base, order, updates):
    """updates, written to base where an order says."""
    return base.apply("scatter_nd", base, order.reshape((*order.shape, 1)), updates)


def marked(x, places, axis, number=1.0, start=None):
    """A number at places, as DeepSeek marks the groups of experts that were chosen."""
    x = x if start is None else start
    updates = x.graph.constant(np.float32(number)).broadcast(places.shape, ())
    return x.apply("scatter_elements", x, places, updates, axis=axis)


def inverse(keys, size, count=None, descending=False):
    """The inverse of the order of some keys, as transformers takes back that of its experts."""
    graph, order = keys.graph, order_of(keys, descending)
    base = graph.constant(0).broadcast((size,), ())
    if count is not None:
        order = order.slice(0, 0, count)
    return scattered(base, order, graph.iota(size if count is None else count))


FIRES = {
    "gather_grid": [
        lambda x: grid(x, x.shape, (0, 1, 2)), lambda x: grid(x, ("n", 1, 4, 5, 6), (0, 2, 4)),
        lambda x: grid(x.slice(1, 0, 1).squeeze(1), ("n", 2, 1, 6), (0, 3)),
    ],
    "scatter_order": [
        lambda x: inverse(x.slice(1, 0, 1).slice(2, 0, 1).reshape(("n",)), "n"),
        lambda x: inverse(x.sum(0).reshape((24,)), 24, descending=True),
    ],
    "scatter_number": [
        lambda x: marked(x, x.along("argtopk", 2, k=3, largest=True), 2),
        lambda x: marked(x, x.along("argsort", 1, descending=True).slice(1, 0, 4), 1, number=-7.0),
        lambda x: marked(x, x.apply("argmax", x, axis=2).reshape(("n", 4, 1)), 2, number=-math.inf),
    ],
    "scatter_one": [
        lambda x: inverse(x.sum(0).reshape((24,)).slice(0, 0, 1), 1),
        lambda x: x.graph.constant(np.array([7])).apply(
            "scatter_nd", x.graph.constant(np.array([7])), order_of(x.sum(0).reshape((24,)).slice(0, 3, 4)).reshape((1, 1)),
            x.graph.input("u", (1,), "int64")),
    ],
    "iota_is_not_negative": [
        lambda x: x.graph.constant(0).broadcast(("n",), ()).binary("le", x.graph.iota("n")).broadcast(x.shape, (0,)).select(x, 1.0),
        lambda x: x.graph.constant(-3).broadcast((6,), ()).binary("le", x.graph.iota(6)).broadcast(x.shape, (2,)).select(x, 1.0),
    ],
    "split_before_permute": [
        lambda x: x.permute(1, 0, 2).reshape((2, 2, "n", 6)), lambda x: x.permute(2, 1, 0).reshape((2, 3, 1, 4, "n")),
        lambda x: x.permute(0, 2, 1).reshape(("n", 6, 1, 4)), lambda x: x.permute(1, 2, 0).reshape((2, 2, 3, 2, "n", 1)),
    ],
    "permute_without_ones": [
        lambda x: x.reshape(("n", 1, 4, 1, 6)).permute(3, 4, 0, 2, 1).reshape((6, -1)),
        lambda x: x.reshape(("n", 24, 1)).permute(0, 2, 1).reshape(("n", 2, 12)),
    ],
    "gather_everything": [
        lambda x: gather(x, range(4), 1), lambda x: gather(x, [[0, 1, 2], [3, 4, 5]], 2),
        lambda x: gather(x, [[[0, 1, 2, 3]]], 1), lambda x: gather(x, "n", 0), lambda x: gather(x, 6, 2),
    ],
    "gather_every_place": [
        lambda x: places(x.slice(0, 0, 1).squeeze(0), 4, 6), lambda x: places(x.permute(1, 2, 0), 4),
        lambda x: places(x.permute(1, 2, 0), 4, 6),
    ],
    "unsqueezed_weights": [
        lambda x: x + x.graph.parameter("w", (6,), data=np.ones(6, np.float32)).reshape((1, 1, 6)),
        lambda x: x + x.graph.parameter("w", (4, 6), data=np.ones((4, 6), np.float32)).reshape((1, 4, 1, 6)).squeeze(2),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", FIRES)
def test_fires_and_keeps_every_bit(name):
    for build in FIRES[name]:
        graph = graph_of(build, (1, 4, 6) if name == "unsqueezed_weights" else ("n", 4, 6))
        outcome = apply_rules(graph, [RULES[name]])
        assert outcome.fired[name] == 1, explain_rule(graph, RULES[name])
        verify(outcome.graph)
        for size in (1, 3):
            inputs = {key: array.copy() for key, array in graph.dummy_inputs(0, {"n": size}).items()}
            inputs["x"].reshape(-1)[:4] = [np.nan, np.inf, -np.inf, -0.0]
            assert_same_outputs(evaluate(outcome.graph, inputs), evaluate(graph, inputs))


MISSES = {
    "gather_grid": [
        (lambda x: grid(x, ("n", 6, 4), (0, 2, 1)), "in the order of the dims"),
        (lambda x: grid(x.slice(2, 0, 4), ("n", 4), (0, 1, 1)), "along a dim of its own"),
        (lambda x: x.apply("gather_nd", x, grid_of(x, "n", 4, 3)), "not known to be 0, 1"),
        (lambda x: x.apply("gather_nd", x.permute(1, 2, 0), grid_of(x, 4, 6)), "an index for each dim"),
    ],
    "scatter_order": [
        (lambda x: inverse(x.sum(0).reshape((24,)), 24, count=20), "is made by slice, not by argsort"),
        (lambda x: scattered(x.graph.constant(np.zeros(30, np.int64)), order_of(x.sum(0).reshape((24,))), x.graph.iota(24)),
         "does not number all"),
        (lambda x: scattered(x.graph.constant(np.zeros(24, np.int32)), order_of(x.sum(0).reshape((24,))),
                             x.graph.iota(24, "int32")), "is no int64"),
    ],
    "scatter_number": [
        (lambda x: marked(x, x.along("argtopk", 2, k=3, largest=True).slice(1, 0, 2), 2), "does not reach all"),
        (lambda x: marked(x, x.along("argtopk", 1, k=3, largest=True).permute(0, 1, 2), 1, start=x.slice(1, 0, 3)),
         "chooses among others"),
        (lambda x: marked(x, x.graph.input("i", ("n", 4, 2), "int64"), 2), "may count from the end"),
        (lambda x: x.apply("scatter_elements", x, x.along("argtopk", 2, k=6, largest=True), x.exp(), axis=2),
         "is no known number"),
    ],
    "scatter_one": [
        (lambda x: inverse(x.sum(0).reshape((24,)), 24), "is no order of one element"),
        (lambda x: scattered(x.graph.constant(np.zeros(3, np.int64)), order_of(x.sum(0).reshape((24,)).slice(0, 0, 1)),
                             x.graph.iota(1)), "is no order of one element"),
    ],
    "iota_is_not_negative": [
        (lambda x: x.graph.constant(1).broadcast(("n",), ()).binary("le", x.graph.iota("n")), "1 is more than 0"),
        (lambda x: x.graph.iota("n").binary("le", x.graph.constant(0).broadcast(("n",), ())), "is no known number"),
    ],
    "split_before_permute": [
        (lambda x: x.permute(1, 0, 2).reshape((4, -1)), "splits no dim"),
        (lambda x: x.permute(1, 2, 0).reshape((3, 2, 4, "n")), "does not only split"),
        (lambda x: x.permute(1, 0, 2).reshape((2, 2, "n", 6)) + x.permute(1, 0, 2).sum(), "is used 2 times"),
    ],
    "permute_without_ones": [
        (lambda x: x.reshape(("n", 2, 12)).permute(2, 0, 1).reshape((12, -1)), "no dim of one element"),
    ],
    "gather_everything": [
        (lambda x: gather(x, [0, 2, 1, 3], 1), "in order"), (lambda x: gather(x, range(3), 1), "in order"),
        (lambda x: gather(x, [-4, -3, -2, -1], 1), "in order"), (lambda x: gather(x, 3, 1), "not known to be as long"),
        (lambda x: gather(x, range(4), 0), "of a dim that is not known"),
    ],
    "gather_every_place": [
        (lambda x: places(x, 1, 4), "are not known"), (lambda x: places(x.permute(1, 2, 0), 4, 5), "in order"),
        (lambda x: places(x.permute(1, 2, 0), 3, 6), "in order"),
        (lambda x: x.apply("gather_nd", x.permute(1, 0, 2), x.graph.constant(np.arange(-4, 0)[:, None])), "from the end"),
    ],
    "unsqueezed_weights": [
        (lambda x: x + x.graph.parameter("w", (24,)).reshape((1, 4, 6)), "more than to add dims"),
        (lambda x: x.exp().reshape(("n", 4, 6, 1)), "depends on"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", MISSES)
def test_declines_and_says_why(name):
    for build, reason in MISSES[name]:
        graph = graph_of(build)
        fired = apply_rules(graph, [RULES[name]]).fired
        assert reason in str(explain_rule(graph, RULES[name])) and not fired, explain_rule(graph, RULES[name])


def test_groups_of_dims():
    graph = Graph("dims")
    n = graph.symbol("n", 1)
    assert groups((6, 4), (2, 3, 1, 4)) == [(0, 1), (2, 3)]
    assert groups((2 * n, 4), (2, n, 4, 1)) == [(0, 1), (2, 3)]
    assert groups((1, 4), (1, 2, 2)) == [(0,), (1, 2)]
    assert groups((6, 4), (3, 8)) is None and groups((6, 4), (24,)) is None


# -- folding


def test_what_is_made_of_small_iotas_folds():
    def build(x):
        rows, columns = x.graph.iota(4).unsqueeze(1), x.graph.iota(6)
        causal = columns.binary("le", rows + 2)
        return causal.select(x, -1.0)

    graph = graph_of(build)
    folded = FoldConstants().run(graph, Options()).graph
    assert verify(folded) and not {"iota", "le"} & {node.op.name for node in folded.nodes}
    inputs = graph.dummy_inputs(0, {"n": 2})
    assert_same_outputs(evaluate(folded, inputs), evaluate(graph, inputs))
    large = FoldConstants().run(graph, Options(fold_limit=16)).graph
    assert {"iota", "le"} <= {node.op.name for node in large.nodes}, "a mask costs more than what makes it"


def test_a_constant_of_one_number_is_that_number():
    def build(x):
        ones = x.graph.constant(np.ones((4, 6), np.float32))
        zeros = x.graph.constant(np.array([0.0, -0.0, 0.0, 0.0, 0.0, 0.0], np.float32))
        nans = x.graph.constant(np.full(6, np.nan, np.float32))
        return (
            x * ones.broadcast(x.shape, (1, 2))
            + zeros.broadcast(x.shape, (2,))
            + nans.broadcast(x.shape, (2,))
        )

    graph = graph_of(build)
    folded = FoldConstants().run(graph, Options()).graph
    sizes = sorted(node.results[0].type.size for node in folded.nodes if node.op.name == "constant")
    assert sizes == [1, 1, 6], "0.0 and -0.0 are two numbers"
    inputs = graph.dummy_inputs(0, {"n": 2})
    assert_same_outputs(evaluate(folded, inputs), evaluate(graph, inputs))
