"""No rule's pattern holds two reductions: what is made of several is found step by step."""

from __future__ import annotations

from itertools import product

import pytest

from kernels_hub.compiler.ir.ops import OPS
from kernels_hub.compiler.rewrite.explain import rule_passes
from kernels_hub.compiler.rewrite.heads import FOUR_DIMS
from kernels_hub.compiler.rewrite.pattern import (
    Any,
    Bind,
    Once,
    OneOf,
    Op,
    Pattern,
    Through,
    Where,
    one_of,
    through,
)
from kernels_hub.compiler.rewrite.scores import RULES as SCORES
from kernels_hub.compiler.rewrite.softmax import DIVIDED, SHIFTED

REDUCTIONS = {"matmul", "softmax", *(name for name in OPS if name.startswith("reduce_"))}
PATTERNS = {name: rule.pattern for name, (rule, _) in rule_passes().items()}


def alternatives(pattern: Pattern) -> set[frozenset[int]]:
    """For each way in which a pattern may match, the parts of it that are reductions; one named twice is one."""
    if isinstance(pattern, OneOf):
        return set().union(*map(alternatives, pattern.choices))
    if isinstance(pattern, Through | Where | Once):
        return alternatives(pattern.inner)
    if not isinstance(pattern, Op):
        return {frozenset()}
    own = frozenset({id(pattern)} if pattern.names & REDUCTIONS else ())
    return {own.union(*inner) for inner in product(*map(alternatives, pattern.operands))}


def most_reductions(pattern: Pattern) -> int:
    return max(map(len, alternatives(pattern)))


def test_no_pattern_holds_two_reductions():
    rules = {rule.name for rule in (*SCORES, *DIVIDED.rules, *SHIFTED.rules, *FOUR_DIMS.rules)}
    assert PATTERNS.keys() >= {"attention", "attention_blank", "softmax"} | rules
    assert not [name for name, pattern in PATTERNS.items() if most_reductions(pattern) > 1]


TOP = Op("reduce_max", Any("x"))
COUNTED = {
    "alone": (Op("reduce_sum", Any("x"), axes=Bind("axes")), 1),
    "pointwise": (Op("exp", Any("x")), 0),
    "of a call": (Op("matmul", Op("call"), Any("v")), 1),
    "under casts": (Op("matmul", through("cast", Op("softmax", Any("x")).once()), Any("v")), 2),
    "one or the other": (one_of(TOP, Op("softmax", Any("x"))), 1),
    "beside each other": (Op("add", TOP, Op("reduce_min", Any("x")).where(lambda _: None)), 2),
    "twice the same": (Op("select", Op("isinf", TOP), Any("y"), TOP), 1),
    "in one way of two": (Op("exp", one_of(Any("x"), Op("matmul", Op("matmul", Any("x"), Any("y")), Any("z")))), 2),
}  # fmt: skip


@pytest.mark.parametrize("name", COUNTED)
def test_reductions_are_counted(name):
    pattern, wanted = COUNTED[name]
    assert most_reductions(pattern) == wanted
