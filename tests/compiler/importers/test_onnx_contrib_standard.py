"""Ops of com.microsoft that ONNX has as well, and quantized embeddings, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from kernels_hub.compiler.errors import EvaluateError
from kernels_hub.compiler.importers.onnx import import_onnx
from kernels_hub.compiler.ir.evaluate import evaluate
from kernels_hub.compiler.ir.verify import verify

RANDOM = np.random.default_rng(5)


def normal(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape, np.float32)


def numbers(*shape: int, dtype: Any = np.uint8) -> np.ndarray:
    return RANDOM.integers(0, 127, shape).astype(dtype)


@dataclass
class Node:
    """One node. inputs: of the call; weights: of the model; order: names of its operands where some are left out."""

    op: str
    inputs: Mapping[str, np.ndarray] = field(default_factory=dict)
    weights: Mapping[str, np.ndarray] = field(default_factory=dict)
    attrs: Mapping[str, Any] = field(default_factory=dict)
    outputs: Sequence[str] = ("y",)
    order: Sequence[str] = ()
    domain: str = "com.microsoft"

    def model(self) -> onnx.ModelProto:
        names = self.order or [*self.inputs, *self.weights]
        node = helper.make_node(self.op, names, self.outputs, domain=self.domain, **self.attrs)
        infos = [
            helper.make_tensor_value_info(
                name,
                helper.np_dtype_to_tensor_dtype(array.dtype),
                ["n" if not axis else size for axis, size in enumerate(array.shape)],
            )
            for name, array in self.inputs.items()
        ]
        results = [onnx.ValueInfoProto(name=name) for name in self.outputs]
        weights = [onnx.numpy_helper.from_array(array, name) for name, array in self.weights.items()]
        graph = helper.make_graph([node], "g", infos, results, weights)
        opsets = [helper.make_opsetid("", 17 if self.domain else 9), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def quantized(*names: str) -> dict[str, np.ndarray]:
    """Scales and zero points of tables, by their names."""
    scales = {f"{name} scale": np.array(0.01 * (place + 1), np.float32) for place, name in enumerate(names)}
    return scales | {f"{name} zero": np.array(50 + place, np.uint8) for place, name in enumerate(names)}


def embedded(*tables: str) -> Node:
    """An embedding of words (and of segments, where they are among the tables) with a mask."""
    ids = {"ids": numbers(2, 5, dtype=np.int32) % 9}
    if "segments" in tables:
        ids["kinds"] = numbers(2, 5, dtype=np.int32) % 2
    masks = {"mask": np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], np.int32)}
    rows = {"words": 9, "places": 6, "segments": 2}
    weights = {name: numbers(rows[name], 8) if name in rows else numbers(8) for name in tables}
    every = ("words", "places", "segments", "gamma", "beta")
    order = [name if name in {*tables, *ids, *masks} else "" for name in ("ids", "kinds", *every, "mask")]
    for what in ("scale", "zero"):
        order += [f"{name} {what}" if name in tables else "" for name in every]
    op, outputs = "QEmbedLayerNormalization", ("y", "lengths")
    return Node(op, ids | masks, weights | quantized(*tables), {"epsilon": 1e-5}, outputs, order)


CONVOLUTION = {
    "x scale": np.array(0.02, np.float32), "x zero": np.array(60, np.uint8), "w": numbers(4, 3, 3, 3, dtype=np.int8),
    "w scale": np.array(0.01, np.float32), "w zero": np.array(0, np.int8), "y scale": np.array(0.1, np.float32),
    "y zero": np.array(128, np.uint8), "bias": numbers(4, dtype=np.int32),
}  # fmt: skip
CASES: Mapping[str, Node] = {
    "samples of a grid": Node(
        "GridSample", {"x": normal(2, 3, 5, 6), "grid": 0.7 * normal(2, 4, 4, 2)},
        attrs={"mode": "bilinear", "padding_mode": "border", "align_corners": 1},
    ),
    "triangle": Node("Trilu", {"x": normal(2, 5, 5)}, {"k": np.array(1)}, {"upper": 0}),
    "range": Node("Range", weights={"start": np.array(2), "limit": np.array(9), "delta": np.array(3)}),
    "range by ones": Node("Range", weights={"start": np.array(2, np.float32), "limit": np.array(9, np.float32)}),
    "new axis": Node("ExpandDims", {"x": normal(2, 5)}, {"axis": np.array(-1, np.int32)}),
    "unique": Node("Unique", {"x": np.array([3, 1, 3, 2, 1], np.float32)}, outputs=("y", "places", "counts")),
    "pad": Node("Pad", {"x": normal(2, 5)}, {"pads": np.array([0, 1, 0, 2]), "value": np.array(1.5, np.float32)}),
    "gathered": Node("GatherND", {"x": normal(3, 5)}, {"places": np.array([[0, 1], [2, 3]])}),
    "convolution": Node("QLinearConv", {"x": numbers(2, 3, 8, 9)}, CONVOLUTION),
    "convolution, channels last": Node(
        "QLinearConv", {"x": numbers(2, 8, 9, 3)}, CONVOLUTION,
        {"channels_last": 1, "pads": [1, 1, 1, 1], "strides": [2, 1]},
    ),
    "greatest, channels last": Node(
        "NhwcMaxPool", {"x": numbers(2, 8, 9, 3)},
        attrs={"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 0]},
    ),
    "windows": Node("UnfoldTensor", {"x": normal(2, 9, 3)}, attrs={"dim": 1, "size": 3, "step": 2}),
    "integers of 16 bits": Node(
        "MatMulInteger16", {"a": numbers(3, 4, dtype=np.int16)}, {"b": numbers(4, 5, dtype=np.int16)}
    ),
    "batch of rows": Node(
        "FusedMatMul", {"a": normal(4, 2, 3, 5)}, {"b": normal(2, 3, 5, 6)}, {"transBatchA": 1}
    ),
    "batch of both": Node(
        "FusedMatMul", {"a": normal(4, 2, 3, 5)}, {"b": normal(5, 2, 3, 6)}, {"transBatchA": 1, "transBatchB": 1}
    ),
    "affine": Node("Affine", {"x": normal(2, 5)}, attrs={"alpha": 1.5, "beta": 0.5}, domain=""),
    "scaled": Node("Scale", {"x": normal(2, 5)}, attrs={"scale": 1.5}, domain=""),
    "hyperbolic": Node("ScaledTanh", {"x": normal(2, 5)}, attrs={"alpha": 1.5, "beta": 0.5}, domain=""),
    "softplus": Node("ParametricSoftplus", {"x": normal(2, 5)}, attrs={"alpha": 1.5, "beta": 0.5}, domain=""),
    "image": Node("ImageScaler", {"x": normal(1, 3, 4, 5)}, attrs={"scale": 1.5, "bias": [0.1, 0.2, 0.3]}, domain=""),
    "border": Node("Crop", {"x": normal(1, 3, 7, 8)}, attrs={"border": [1, 2, 1, 1]}, domain=""),
    "border and size": Node(
        "Crop", {"x": normal(1, 3, 7, 8)}, attrs={"border": [1, 2, 0, 0], "scale": [3, 4]}, domain=""
    ),
    "slice": Node("DynamicSlice", {"x": normal(6, 6)}, {"from": np.array([1]), "to": np.array([4])}, domain=""),
    "embedding": embedded("words", "places", "segments", "gamma", "beta"),
    "embedding without segments": embedded("words", "places", "gamma", "beta"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_it_computes_what_onnx_runtime_does(case: str):
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    node = CASES[case]
    made = node.model()
    expected = onnxruntime.InferenceSession(made.SerializeToString()).run(None, dict(node.inputs))
    found = evaluate(verify(import_onnx(made)), node.inputs).values()
    for mine, theirs in zip(found, expected, strict=True):
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=3e-6)


SCATTERED = """<ir_version: 8, opset_import: ["": 17]> g (float[n, 4] x, float[6] s) => (y)
<float nothing = {0}, int64[1] first = {0}> {
    is_there = Greater(x, nothing)
    by_axis = NonZero(is_there)
    places = Transpose<perm = [1, 0]>(by_axis)
    size = Shape<start = 0, end = 1>(places)
    updates = Slice(s, first, size)
    y = ScatterND(x, places, updates)
}"""


def test_updates_are_as_many_as_the_places_that_data_tell():
    """As both exporters of PyTorch write masked_scatter; where there are fewer, the call fails as in ONNX Runtime."""
    graph = verify(import_onnx(onnx.parser.parse_model(SCATTERED)))
    updates = np.arange(10, 16, dtype=np.float32)
    for rows in (1, 3):
        x = np.where(np.arange(4 * rows).reshape(rows, 4) % 3 == 1, 1, -1).astype(np.float32)
        expected = x.copy()
        expected[x > 0] = updates[: (x > 0).sum()]
        np.testing.assert_array_equal(evaluate(graph, {"x": x, "s": updates})["y"], expected)
    with pytest.raises(EvaluateError, match="out of range"):
        evaluate(graph, {"x": np.ones((2, 4), np.float32), "s": updates})
