"""Ops that pick some of what there is, how many only the data tell: distinct slices, boxes that do not overlap.

Each defines a symbol for how many it picks, and gives their places; a gather at these gives what is there.
"""

from __future__ import annotations

import numpy as np

from kernels_hub.compiler.errors import EvaluateError, TypeRuleError
from kernels_hub.compiler.ir.op import (
    INT,
    SYMBOL,
    Attr,
    Attrs,
    Op,
    Operands,
    ReferenceCall,
    Shape,
    TensorType,
    Trait,
    axis_in,
    require_equal,
    require_integer,
    require_rank,
    show,
)  # fmt: skip
from kernels_hub.compiler.ir.ops.conversion import widened
from kernels_hub.compiler.ir.types import INT64, Array, DType

# -- unique


def _unique(operands: Operands, attrs: Attrs) -> tuple[TensorType, ...]:
    (x,) = operands
    if x.dtype.is_complex:
        raise TypeRuleError(f"{x.dtype} has no order")
    size = x.shape[axis_in(attrs["axis"], x.rank)]
    return tuple(TensorType(INT64, (dim,)) for dim in (attrs["count"], size, attrs["count"]))


def _run_unique(step: ReferenceCall) -> tuple[Array, ...]:
    x = widened(step.operands[0])
    axis = None if x.ndim == 1 else step.attrs["axis"]
    _, first, inverse, counts = np.unique(
        x, return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    return tuple(one.reshape(-1).astype(np.int64) for one in (first, inverse, counts))


# -- non-maximum suppression


_SUPPRESS = (("boxes", 3), ("scores", 3), ("limit", 0), ("overlap", 0), ("least", 0))
"""Operands and their ranks."""


def _suppress(operands: Operands, _: Attrs) -> DType:
    for index, (what, rank) in enumerate(_SUPPRESS):
        operand = operands[index]
        if what == "limit":
            require_integer(operand, what)
        elif not operand.dtype.is_float:
            raise TypeRuleError(f"{what} (operand {index}) are floats, not {operand.dtype}")
        require_rank(operand, rank, f"{what} (operand {index})")
    return INT64


def _suppressed(operands: Operands, attrs: Attrs) -> Shape:
    boxes, scores = (operand.shape for operand in operands[:2])
    require_equal(
        boxes[0], scores[0], f"dim 0 of the boxes {show(boxes)}", f"dim 0 of the scores {show(scores)}"
    )
    require_equal(
        boxes[1], scores[2], f"dim 1 of the boxes {show(boxes)}", f"dim 2 of the scores {show(scores)}"
    )
    require_equal(boxes[2], 4, f"dim 2 of the boxes {show(boxes)}", "the number of a box's corners")
    return (3, attrs["count"])


def _run_suppressed(step: ReferenceCall) -> Array:
    boxes, scores, limit, overlap, least = step.operands
    boxes, scores = widened(boxes), widened(scores)
    if np.isnan(float(overlap)) or np.isnan(float(least)):
        raise EvaluateError("a threshold is NaN")
    chosen = [
        (batch, kind, box)
        for batch in range(scores.shape[0])
        for kind in range(scores.shape[1])
        for box in _kept(boxes[batch], scores[batch, kind], int(limit), float(overlap), float(least))
    ]
    return np.array(chosen, np.int64).reshape(-1, 3).T


def _kept(boxes: Array, scores: Array, limit: int, overlap: float, least: float) -> list[int]:
    """Boxes by falling score, each unless it overlaps one before it too much."""
    kept: list[int] = []
    waiting = np.argsort(-scores, kind="stable")
    waiting = waiting[scores[waiting] > least]
    while waiting.size and len(kept) < limit:
        first, waiting = waiting[0], waiting[1:]
        kept.append(int(first))
        waiting = waiting[~(_overlaps(boxes[first], boxes[waiting]) > overlap)]
    return kept


def _overlaps(box: Array, others: Array) -> Array:
    """Intersection over union of (y1, x1, y2, x2), corners in any order; 0 where both are empty."""
    low = np.maximum(np.minimum(box[:2], box[2:]), np.minimum(others[:, :2], others[:, 2:]))
    high = np.minimum(np.maximum(box[:2], box[2:]), np.maximum(others[:, :2], others[:, 2:]))
    shared = np.prod(np.maximum(high - low, 0), -1)
    union = np.prod(np.abs(box[2:] - box[:2])) + np.prod(np.abs(others[:, 2:] - others[:, :2]), -1) - shared
    ratio: Array = np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)
    return ratio


_COUNT = Attr("count", SYMBOL)

ROWS = (
    Op("unique", "Where each distinct slice along an axis comes first, slices in sorted order; which of these each "
       "slice is; how often each occurs. NaN is one value where the operand is a vector. Defines the symbol `count`.",
       1, _run_unique, signature=_unique, attrs=(_COUNT, Attr("axis", INT, 0)), traits=Trait.INDEXING,
       defines="count", source="numpy.unique; ONNX Unique"),
    Op("suppress_boxes", "Non-maximum suppression of boxes[b, i, (y1, x1, y2, x2)] by scores[b, class, i]: for each "
       "batch and class, at most `limit` boxes of scores above `least`, of any two whose intersection over union is "
       "above `overlap` the one of the higher score; the places (b, class, i), a column each. Operands: boxes, scores, "
       "limit, overlap, least. Defines the symbol `count`.",
       5, _run_suppressed, _suppress, _suppressed, attrs=(_COUNT,), traits=Trait.INDEXING, defines="count",
       source="ONNX NonMaxSuppression"),
)  # fmt: skip
