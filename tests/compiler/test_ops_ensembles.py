"""Tree ensembles and pairwise coupling: every engine against a walk from node to node, and libsvm's iteration by row."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from kernels_hub.compiler import compile as compile_graph
from kernels_hub.compiler.errors import CompilerError, EvaluateError, TypeRuleError
from kernels_hub.compiler.ir.evaluate import evaluate
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.ir.ops.ensembles import EQUAL, LEAF, LESS, LESS_OR_EQUAL, NAN_HOLDS

ENGINES = ("cpp", "library", "reference")
SPLITS = np.array([-1.5, -0.0, 0.0, 0.25, 1e-40, -1e-40, np.inf, -np.inf, 3e38], np.float32)
UNIFORM, LOWER, MIXED = (LESS_OR_EQUAL,), (LESS,), (LESS_OR_EQUAL, LESS, EQUAL)


def grown(random: np.random.Generator, trees: int, depth: int, features: int, kinds, *, nan: bool):
    """Roots and nodes (feature, kind, child, split) of trees of any form, some a leaf alone."""
    nodes: list[list[Any]] = []

    def fill(place: int, left: int) -> None:
        if not left or random.random() < 0.2:
            nodes[place] = [0, LEAF, 0, 0.0]
            return
        child = len(nodes)
        nodes.extend([[], []])
        kind = int(random.choice(kinds)) + NAN_HOLDS * bool(nan and random.random() < 0.5)
        split = random.choice(SPLITS) if random.random() < 0.5 else random.standard_normal()
        nodes[place] = [random.integers(features), kind, child, split]
        fill(child, left - 1)
        fill(child + 1, left - 1)

    roots = []
    for _ in range(trees):
        roots.append(len(nodes))
        nodes.append([])
        fill(roots[-1], depth)
    table = np.zeros((len(nodes), 4), np.int32)
    for row, (feature, kind, child, split) in zip(table, nodes, strict=True):
        row[:3] = feature, kind, child
        row[3] = np.float32(split).view(np.int32)
    return np.array(roots, np.int64), table


def walked(x: np.ndarray, roots: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    leaves = np.zeros((len(x), len(roots)), np.int64)
    for (row, tree), _ in np.ndenumerate(leaves):
        at = roots[tree]
        while (kind := nodes[at, 1]) & 3:
            seen, split = x[row, nodes[at, 0]], nodes[at, 3:].view(np.float32)[0]
            holds = {LESS_OR_EQUAL: seen <= split, LESS: seen < split, EQUAL: seen == split}[kind & 3]
            at = nodes[at, 2] + (not (holds or (kind & NAN_HOLDS and np.isnan(seen))))
        leaves[row, tree] = at
    return leaves


def inputs_of(random: np.random.Generator, rows: int, features: int, *, nan: bool) -> np.ndarray:
    x = random.standard_normal((rows, features)).astype(np.float32)
    chosen = random.random(x.shape) < 0.3
    x[chosen] = random.choice(SPLITS, chosen.sum())
    if nan:
        x[random.random(x.shape) < 0.1] = np.nan
        x[random.random(x.shape) < 0.05] = -np.float32(np.nan)
    return x


def forest(
    roots: np.ndarray, nodes: np.ndarray, weights: np.ndarray, aggregate: str = "sum", width="features"
):
    graph = Graph("forest")
    tables = [
        graph.parameter(name, one.shape, one.dtype.name, data=one)
        for name, one in (("roots", roots), ("nodes", nodes), ("weights", weights))
    ]
    x = graph.input("x", ("rows", width))
    graph.output("y", graph.apply("tree_ensemble", x, *tables, aggregate=aggregate))
    return graph


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kinds", [UNIFORM, LOWER, MIXED])
@pytest.mark.parametrize("nan", [False, True])
def test_engines_agree_with_a_walk(engine, kinds, nan):
    random = np.random.default_rng(len(kinds) + nan)
    # Features many and few for the trees; one row, part of a group of rows, whole groups, more than a block.
    for trees, depth, features in ((1, 3, 5), (13, 6, 4), (3, 4, 300), (40, 7, 20)):
        roots, nodes = grown(random, trees, depth, features, kinds, nan=nan)
        weights = random.standard_normal((len(nodes), 3)).astype(np.float32)
        run = compile_graph(forest(roots, nodes, weights), "cpu", engines=(engine,))
        for rows in (1, 5, 16, 83):
            x = inputs_of(random, rows, features, nan=nan)
            expected = weights[walked(x, roots, nodes)].sum(1, dtype=np.float64).astype(np.float32)
            found = run.arrays([x])["y"]
            np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6, err_msg=f"{trees} {rows}")
            with pytest.raises(AssertionError):
                np.testing.assert_allclose(found, expected + 1e-3, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("aggregate", ["sum", "min", "max"])
def test_aggregates_columns_and_strides(engine, aggregate):
    random = np.random.default_rng(5)
    roots, nodes = grown(random, 9, 5, 6, MIXED, nan=True)
    for columns in (1, 2, 150):
        weights = random.standard_normal((len(nodes), columns)).astype(np.float32)
        weights[random.random(weights.shape) < 0.01] = np.inf if aggregate == "min" else -np.inf
        graph = Graph("forest")
        x = graph.input("x", (6, "rows"))
        tables = [
            graph.input("roots", ("trees",), "int64"), graph.input("nodes", ("nodes", 4), "int32"),
            graph.input("weights", (columns, "nodes")).permute(1, 0),
        ]  # fmt: skip
        said = graph.apply("tree_ensemble", x.permute(1, 0), *tables, aggregate=aggregate)
        graph.output("y", said * 2.0 + 1.0)
        run = compile_graph(graph, "cpu", engines=(engine,))
        rows = inputs_of(random, 37, 6, nan=True)
        leaves = weights[walked(rows, roots, nodes)].astype(np.float64)
        expected = getattr(leaves, aggregate)(1) * 2 + 1
        given = [np.ascontiguousarray(rows.T), roots, nodes, np.ascontiguousarray(weights.T)]
        np.testing.assert_allclose(run.arrays(given)["y"], expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("engine", ENGINES)
def test_no_rows_and_no_trees(engine):
    nodes, weights = np.array([[0, LEAF, 0, 0]], np.int32), np.ones((1, 2), np.float32)
    run = compile_graph(forest(np.zeros(3, np.int64), nodes, weights), "cpu", engines=(engine,))
    assert run.arrays([np.zeros((0, 4), np.float32)])["y"].shape == (0, 2)
    assert run.arrays([np.zeros((2, 0), np.float32)])["y"].tolist() == [[3, 3], [3, 3]]
    for aggregate in ("sum", "min"):
        none = compile_graph(
            forest(np.zeros(0, np.int64), nodes, weights, aggregate), "cpu", engines=(engine,)
        )
        assert none.arrays([np.zeros((2, 4), np.float32)])["y"].tolist() == [[0, 0], [0, 0]]


BROKEN = {
    "no such child": ([0], [[0, LESS, 7, 0], [0, LEAF, 0, 0], [0, LEAF, 0, 0]]),
    "no such root": ([3], [[0, LEAF, 0, 0]]),
    "a root below 0": ([-1], [[0, LEAF, 0, 0]]),
    "no such feature": ([0], [[9, LESS, 1, 0], [0, LEAF, 0, 0], [0, LEAF, 0, 0]]),
    "a cycle": ([0], [[0, LESS, 0, 0x7F800000], [0, LEAF, 0, 0]]),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("broken", BROKEN)
def test_nodes_that_are_no_trees_are_an_error(engine, broken):
    roots, nodes = (np.array(one, kind) for one, kind in zip(BROKEN[broken], ("int64", "int32"), strict=True))
    graph = forest(roots, nodes, np.ones((len(nodes), 1), np.float32))
    run = compile_graph(graph, "cpu", engines=(engine,))
    for rows in (1, 8):
        with pytest.raises(CompilerError, match="tree"):
            run.arrays([np.zeros((rows, 4), np.float32)])


def test_operands_that_are_refused():
    graph = Graph("forest")
    x, roots = graph.input("x", (3, 4)), graph.input("roots", (2,), "int64")
    nodes, weights = graph.input("nodes", (5, 4), "int32"), graph.input("weights", (5, 1))
    for wrong, why in (
        ((x.cast("float64"), roots, nodes, weights), "float32, not float64"),
        ((x, roots.cast("float32"), nodes, weights), "int32 or int64"),
        ((x, roots, nodes.cast("int64"), weights), "int32, not int64"),
        ((x, roots, nodes, graph.input("short", (4, 1))), "dim 0 of the weights"),
    ):
        with pytest.raises(TypeRuleError, match=why):
            graph.apply("tree_ensemble", *wrong)
    with pytest.raises(TypeRuleError, match="no number of classes has 4 pairs"):
        graph.apply("pairwise_coupling", x)


# -- pairwise coupling


def coupled(sure: np.ndarray, classes: int) -> np.ndarray:
    """A row as libsvm's multiclass_probability has it, in float64."""
    r = np.zeros((classes, classes))
    for value, (i, j) in zip(sure, itertools.combinations(range(classes), 2), strict=True):
        r[i, j], r[j, i] = value, 1 - value
    q = np.zeros_like(r)
    for t in range(classes):
        for j in range(classes):
            if j != t:
                q[t, t] += r[j, t] ** 2
                q[t, j] = -r[j, t] * r[t, j]
    p = np.full(classes, 1 / classes)
    for _ in range(max(100, classes)):
        sums = q @ p
        total = p @ sums
        if abs(sums - total).max() < 0.005 / classes:
            break
        for t in range(classes):
            step = (total - sums[t]) / q[t, t]
            p[t] += step
            total = (total + step * (step * q[t, t] + 2 * sums[t])) / (1 + step) ** 2
            sums = (sums + step * q[t]) / (1 + step)
            p /= 1 + step
    return p


@pytest.mark.parametrize(
    ("engine", "dtype"),
    [
        (engine, dtype)
        for engine in ENGINES
        for dtype in ("float32", "float64")
        if (engine, dtype) != ("cpp", "float64")
    ],
)
@pytest.mark.parametrize("classes", [2, 3, 7])
def test_coupling_as_libsvm_does_it(classes, engine, dtype):
    random = np.random.default_rng(classes)
    pairs = classes * (classes - 1) // 2
    graph = Graph("coupling")
    sure = graph.input("sure", (pairs, "rows"), dtype).permute(1, 0)
    graph.output("y", graph.apply("pairwise_coupling", sure) * 3.0)
    run = compile_graph(graph, "cpu", engines=(engine,))
    for rows in (0, 1, 3, 16, 77):
        given = random.uniform(1e-7, 1 - 1e-7, (pairs, rows)).astype(dtype)
        expected = np.array([coupled(row, classes) for row in given.T.astype(np.float64)]).reshape(
            rows, classes
        )
        # A row that ends a step earlier or later is off by what that step is worth.
        np.testing.assert_allclose(run.arrays([given])["y"] / 3, expected, atol=2e-3)
        np.testing.assert_allclose(evaluate(graph, [given])["y"], run.arrays([given])["y"], atol=1e-5)


def test_the_reference_says_what_is_wrong():
    nodes = np.array([[9, LESS, 1, 0], [0, LEAF, 0, 0], [0, LEAF, 0, 0]], np.int32)
    graph = forest(np.zeros(1, np.int64), nodes, np.ones((3, 1), np.float32))
    with pytest.raises(EvaluateError, match="feature 9 of 4"):
        evaluate(graph, [np.zeros((1, 4), np.float32)])
