"""What of ONNX's norms depends on the weights that a file holds."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from kernels_hub.compiler import evaluate
from kernels_hub.compiler.importers.onnx import import_onnx

X = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 5])


def instance_norm(scale, bias):
    weights = {"scale": np.array(scale, np.float32), "bias": np.array(bias, np.float32)}
    graph = helper.make_graph(
        [helper.make_node("InstanceNormalization", ["x", "scale", "bias"], ["y"])],
        "norm",
        [X],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3, 5])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return import_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]))


@pytest.mark.parametrize(
    ("scale", "bias", "used"),
    [([1, 1, 1], [0, 0, 0], 0), ([1, 1, 2], [0, 0, 0], 2), ([1, 1, 1], [0, np.nan, 0], 2), ([0, 0, 0], [0, 0, 0], 2)],
)  # fmt: skip
def test_an_instance_norm_of_ones_and_zeros_has_no_weights(scale, bias, used):
    graph = instance_norm(scale, bias)
    live = {node.attrs["name"] for node in graph.live() if node.op.name == "parameter"}
    assert len(live) == used
    x = np.random.default_rng(0).standard_normal((2, 3, 5)).astype(np.float32)
    off = x - x.mean(-1, keepdims=True)
    normal = off / np.sqrt((off * off).mean(-1, keepdims=True) + 1e-5)
    expected = normal * np.array(scale, np.float32)[:, None] + np.array(bias, np.float32)[:, None]
    np.testing.assert_allclose(evaluate(graph, [x])["y"], expected, rtol=1e-5, atol=1e-6)
