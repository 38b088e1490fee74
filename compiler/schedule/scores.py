"""Takes a recognized attention apart into products, scores and softmax."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.graph import Graph, Value
from kernels_hub.compiler.ir.op import Trait
from kernels_hub.compiler.ir.types import DType
from kernels_hub.compiler.schedule.index import Ranges
from kernels_hub.compiler.schedule.views import loops_of, walk

_BESIDE = {types.BOOL, types.INT32, types.INT64}
"""Dtypes that scores may go through beside those of anchors."""

ANCHOR_DTYPES: frozenset[DType] = frozenset({types.FLOAT32, types.FLOAT16, types.BFLOAT16})
"""Dtypes of the operands that anchors take, where nothing else is said; float32 is among them always."""


@dataclass(frozen=True)
class AttentionParts:
    """q, k, v: values of the graph. `product` (q @ k^T) and `scores` (what the softmax is of): of the callee.

    groups: how many heads of q share one of k and v. blank: a row whose scores are all -inf gives 0, not NaN.
    """

    q: Value
    k: Value
    v: Value
    product: Value
    scores: Value
    groups: int
    blank: bool


def attention_parts(value: Value, dtypes: frozenset[DType] = ANCHOR_DTYPES) -> AttentionParts | None:
    """The parts, or None where it is no attention that the anchor can do: (batch, heads, length, width).

    dtypes: those that anchors take.
    """
    if value.op_name != "call" or value.attrs["callee"].name != "attention":
        return None
    callee = value.attrs["callee"]
    (result,) = callee.outputs.values()
    if value.rank != 4 or result.dtype not in dtypes:
        return None
    if any(operand.dtype is not result.dtype for operand in value.operands[:3]):
        return None
    given = dict(zip(callee.inputs.values(), value.operands, strict=True))
    if result.op_name != "matmul":
        return None
    weights, blank = _uncast(result.operands[0]), False
    if weights.op_name == "select":
        blank = _number("blank", callee, given) == 0 and _number("fill", callee, given) == -math.inf
        if not blank:
            return None
        weights = _uncast(weights.operands[2])
    if weights.op_name != "softmax" or weights.attrs["axis"] != 3:
        return None
    scores = weights.operands[0]
    product = _product(scores, dtypes | _BESIDE)
    if product is None:
        return None
    q, _ = product.operands
    heads = value.shape[1]
    k, k_groups = _shared_heads(product.operands[1], heads, (0, 1, 3, 2))
    v, v_groups = _shared_heads(result.operands[1], heads, (0, 1, 2, 3))
    if q not in given or k not in given or v not in given or k_groups is None or k_groups != v_groups:
        return None
    return AttentionParts(given[q], given[k], given[v], product, scores, k_groups, blank)


def _uncast(value: Value) -> Value:
    """Weights before they were rounded to the dtype of what they weigh."""
    return value.operands[0] if value.op_name == "cast" and value.operands[0].dtype.is_float else value


def _number(name: str, callee: Graph, values: Mapping[Value, Value]) -> Any:
    """The constant that goes into an input of the callee; None where it is none."""
    inner = callee.inputs.get(name)
    return values[inner].scalar if inner is not None else None


def _product(scores: Value, dtypes: frozenset[DType]) -> Value | None:
    """The product under the pointwise ops that make scores of it."""
    values: set[Value] = set()
    seen: set[Value] = set()
    stack = [scores]
    while stack:
        value = stack.pop()
        if value in seen:
            continue
        seen.add(value)
        if value.op_name == "matmul":
            values.add(value)
        elif Trait.POINTWISE in value.op.traits:
            stack += value.operands
    return values.pop() if len(values) == 1 and all(value.dtype in dtypes for value in seen) else None


def _shared_heads(value: Value, heads: object, order: tuple[int, ...]) -> tuple[Value, int | None]:
    """The operand behind repeats of its heads, and how often each is repeated; None if it is something else."""
    loops = loops_of(value)
    ranges = Ranges(loops)
    variables = tuple(loop.index for loop in loops)
    base, index = walk(value, variables, ranges)
    if base.rank != 4:
        return base, None
    wanted = [variables[axis] for axis in order]
    few = base.shape[1]
    if not isinstance(few, int) or not isinstance(heads, int) or not few:
        return base, 1 if list(index) == wanted and few == heads else None
    groups, left = divmod(heads, few)
    wanted[1] = 0 if few == 1 else ranges.divide(wanted[1], groups)
    return base, groups if not left and list(index) == wanted else None
