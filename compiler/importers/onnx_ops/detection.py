# ruff: noqa: D103 (what an importer does is what ONNX says of its op)
"""Detection: non-maximum suppression."""

from __future__ import annotations

import math

from kernels_hub.compiler.importers.onnx_node import OnnxNode, onnx_op
from kernels_hub.compiler.importers.onnx_ops.indexing import selected
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.types import INT64


@onnx_op("NonMaxSuppression", since=10)
def non_max_suppression(node: OnnxNode) -> Value:
    boxes, scores = node.input(0), node.input(1)
    if node.attr("center_point_box", 0):
        x, y, width, height = (boxes.slice(2, index, index + 1) for index in range(4))
        high, wide = height / 2.0, width / 2.0
        boxes = node.graph.apply("concat", y - high, x - wide, y + high, x + wide, axis=2)
    limit, overlap, least = (
        node.constant(default, dtype) if node.optional(place) is None else node.input(place).reshape(())
        for place, default, dtype in ((2, 0, INT64), (3, 0.0, scores.dtype), (4, -math.inf, scores.dtype))
    )
    (places,) = selected(node, "suppress_boxes", boxes, scores, limit, overlap, least)
    return places.transpose()
