"""Tests of one rule: where it fires, where it declines and why, and that the numbers stay."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kernels_hub.compiler import Graph, Value, evaluate, verify
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.ops.conversion import convert
from kernels_hub.compiler.rewrite.engine import apply_rules
from kernels_hub.compiler.rewrite.explain import explain_rule
from tests.compiler.strategies import assert_same_outputs

SPECIAL = (0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 2.5, -3.0, 1e-6, 6.5, 1e30)
SIZES = {"n": len(SPECIAL) ** 2}
TOLERANCE = {"float32": 1e-5, "float64": 1e-12, "float16": 4e-3, "bfloat16": 3e-2}


@dataclass(frozen=True)
class Case:
    """build(x, y) on two inputs of (n, 3), n symbolic, of a dtype; reason: part of why the rule declines."""

    build: Callable[[Value, Value], Value]
    dtypes: tuple[str, ...] = ("float32",)
    reason: str = ""


def special(row: types.DType) -> tuple[np.ndarray, np.ndarray]:
    """(n, 3) arrays in which every special value meets every other one."""
    numbers = np.array(SPECIAL)
    if not row.is_float:
        numbers = np.array([0, 1, 2, 3, 5, 7, -1, -2, -128, 127, 64, 9] if row.kind == "int" else [0, 1] * 6)
    pairs = np.array(list(itertools.product(numbers, numbers)))
    with np.errstate(all="ignore"):
        x, y = (convert(np.repeat(pairs[:, place : place + 1], 3, 1), row) for place in (0, 1))
    x[:, 1], y[:, 2] = x[::-1, 1].copy(), y[::-1, 2].copy()
    return x, y


def graph_of(case: Case, dtype: str) -> Graph:
    graph = Graph("case")
    x, y = graph.input("x", ("n", 3), dtype), graph.input("y", ("n", 3), dtype)
    graph.output("result", case.build(x, y))
    return graph


def check_fires(rule, case: Case) -> None:
    """The rule fires, on a plain graph and at an output; the graph is sound; the numbers are the same."""
    for dtype in case.dtypes:
        graph = graph_of(case, dtype)
        outcome = apply_rules(graph, [rule])
        assert outcome.fired[rule.name], f"{dtype}: {explain_rule(graph, rule)}\n{graph}"
        verify(outcome.graph)
        assert explain_rule(graph, rule).matches
        inputs = special(types.dtype(dtype))
        expected = evaluate(graph, inputs)
        actual = evaluate(outcome.graph, inputs)
        assert_same_outputs(actual, expected, 0.0 if rule.exact else TOLERANCE[dtype])


def check_declines(rule, case: Case) -> None:
    """The rule does not fire, and says why."""
    assert case.reason
    for dtype in case.dtypes:
        graph = graph_of(case, dtype)
        assert not apply_rules(graph, [rule]).fired, f"{dtype}\n{graph}"
        assert case.reason in str(explain_rule(graph, rule)), str(explain_rule(graph, rule))
