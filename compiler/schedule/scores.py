"""Takes a recognized attention apart into products, scores and softmax; also logarithms of sums of scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.graph import Graph, Value
from kernels_hub.compiler.ir.op import Trait
from kernels_hub.compiler.ir.types import DType
from kernels_hub.compiler.schedule.index import Ranges
from kernels_hub.compiler.schedule.kernel import Weights
from kernels_hub.compiler.schedule.views import loops_of, walk

_BESIDE = {types.BOOL, types.INT32, types.INT64}
"""Dtypes that scores may go through beside those of anchors."""

ANCHOR_DTYPES: frozenset[DType] = frozenset({types.FLOAT32, types.FLOAT16, types.BFLOAT16})
"""Dtypes of the operands that anchors take, where nothing else is said; float32 is among them always."""


@dataclass(frozen=True)
class AttentionParts:
    """q, k, v: values of the graph. `product` (q @ k^T) and `scores` (what the softmax is of): of the callee.

    groups: how many heads of q share one of k and v. blank: a row whose scores are all -inf gives 0, not NaN.
    v: None of totals (see `Weights`).
    """

    q: Value
    k: Value
    v: Value | None
    product: Value
    scores: Value
    groups: int
    blank: bool
    weights: Weights = Weights.SOFTMAX

    @property
    def strided(self) -> tuple[Value, ...]:
        """Operands that lie in memory, in strides."""
        return (self.q, self.k) if self.v is None else (self.q, self.k, self.v)


def attention_parts(value: Value, dtypes: frozenset[DType] = ANCHOR_DTYPES) -> AttentionParts | None:
    """The parts, or None where it is no attention that the anchor can do: (batch, heads, length, width).

    dtypes: those that anchors take.
    """
    if value.op_name != "call" or value.attrs["callee"].name not in _READERS:
        return None
    callee = value.attrs["callee"]
    (result,) = callee.outputs.values()
    if value.rank != 4 or result.dtype not in dtypes:
        return None
    given = dict(zip(callee.inputs.values(), value.operands, strict=True))
    read = _READERS[callee.name](callee, result, given)
    if read is None:
        return None
    product = _product(read.scores, dtypes | _BESIDE)
    if product is None or (read.weights is not Weights.SOFTMAX and not _reads_inputs(read.scores, product)):
        return None
    q, turned = product.operands
    heads = value.shape[1]
    k, groups = _shared_heads(turned, heads, (0, 1, 3, 2))
    v, v_groups = None, groups
    if read.v is not None:
        v, v_groups = _shared_heads(read.v, heads, (0, 1, 2, 3))
    operands = [one for one in (q, k, v) if one is not None]
    if groups is None or groups != v_groups or any(one not in given for one in operands):
        return None
    if any(given[one].dtype is not result.dtype for one in operands):
        return None
    return AttentionParts(
        given[q], given[k], None if v is None else given[v], product, read.scores, groups, read.blank, read.weights
    )  # fmt: skip


@dataclass(frozen=True)
class _Read:
    """What the result of a callee is made of, in it."""

    scores: Value
    v: Value | None
    weights: Weights
    blank: bool = False


def _read_attention(callee: Graph, result: Value, given: Mapping[Value, Value]) -> _Read | None:
    if result.op_name != "matmul":
        return None
    v = result.operands[1]
    weights = _uncast(result.operands[0])
    if _is_softmax(weights):
        return _Read(weights.operands[0], v, Weights.SOFTMAX)
    if weights.op_name == "select" and _is_softmax(soft := _uncast(weights.operands[2])):
        blank = _number("blank", callee, given) == 0 and _number("fill", callee, given) == -math.inf
        return _Read(soft.operands[0], v, Weights.SOFTMAX, blank) if blank else None
    return _Read(weights, v, Weights.SCORES)


def _is_softmax(value: Value) -> bool:
    return value.op_name == "softmax" and value.attrs["axis"] == 3


def _read_total(callee: Graph, result: Value, given: Mapping[Value, Value]) -> _Read | None:
    """Scores that a maximum is subtracted from, or that exponentials are taken of as they are."""
    del result, given
    maxima = [node.operands[0] for node in callee.nodes if node.op.name == "reduce_max"]
    powers = [node.operands[0].operands[0] for node in callee.nodes if node.op.name == "reduce_sum"]
    return _Read((maxima or powers)[0], None, Weights.TOTAL) if powers else None


_READERS: Mapping[str, Callable[[Graph, Value, Mapping[Value, Value]], _Read | None]] = {
    "attention": _read_attention,
    "logsumexp_of_scores": _read_total,
}


def _reads_inputs(scores: Value, product: Value) -> bool:
    """Whether all that scores are made of, but their product, are views of operands, and numbers."""
    stack = [scores]
    while stack:
        value = stack.pop()
        if value is not product:
            reads = Trait.POINTWISE in value.op.traits or Trait.VIEW in value.op.traits
            if value.operands and not reads:
                return False
            stack += value.operands
    return True


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
