"""Detection: non-maximum suppression, of boxes known at import."""

from __future__ import annotations

import math

import numpy as np

from kernels_hub.compiler.importers.onnx_node import OnnxNode, onnx_op
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.types import Array


@onnx_op("NonMaxSuppression", since=10)
def non_max_suppression(node: OnnxNode) -> Value:
    """How many boxes are left decides the result's shape, and no op of the IR decides that one after the other."""
    boxes, scores = (
        node.known(node.input(place), what) for place, what in enumerate(("the boxes", "the scores"))
    )
    limit, overlap, least = (
        default if node.optional(place) is None else float(node.number(node.input(place), what))
        for place, what, default in (
            (2, "the number of boxes", 0.0),
            (3, "the overlap", 0.0),
            (4, "the score", -math.inf),
        )
    )
    corners = _corners(boxes) if node.attr("center_point_box", 0) else boxes
    chosen = [
        (batch, kind, box)
        for batch in range(scores.shape[0])
        for kind in range(scores.shape[1])
        for box in _chosen(corners[batch], scores[batch, kind], int(limit), overlap, least)
    ]
    return node.constant(np.array(chosen, np.int64).reshape(-1, 3))


def _corners(boxes: Array) -> Array:
    x, y, width, height = np.moveaxis(boxes, -1, 0)
    return np.stack([y - height / 2, x - width / 2, y + height / 2, x + width / 2], -1)


def _chosen(boxes: Array, scores: Array, limit: int, overlap: float, least: float) -> list[int]:
    left: list[int] = []
    for one in np.argsort(-scores, kind="stable").tolist():
        if len(left) >= limit:
            break
        if scores[one] > least and all(_overlap(boxes[one], boxes[other]) <= overlap for other in left):
            left.append(one)
    return left


def _overlap(a: Array, b: Array) -> float:
    """Intersection over union of boxes (y1, x1, y2, x2), corners in any order."""
    low = np.maximum(np.minimum(a[:2], a[2:]), np.minimum(b[:2], b[2:]))
    high = np.minimum(np.maximum(a[:2], a[2:]), np.maximum(b[:2], b[2:]))
    shared = float(np.prod(np.maximum(high - low, 0)))
    areas = [float(np.prod(np.abs(box[2:] - box[:2]))) for box in (a, b)]
    union = sum(areas) - shared
    return shared / union if union > 0 else 0.0
