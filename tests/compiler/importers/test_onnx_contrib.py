"""Ops of com.microsoft and linear ones of ai.onnx.ml, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from kernels_hub.compiler.errors import OnnxImportError
from kernels_hub.compiler.importers.onnx import import_onnx
from kernels_hub.compiler.ir.evaluate import evaluate
from kernels_hub.compiler.ir.verify import verify

X, ROW = (2, 3, 8), (8,)
CASES: Mapping[str, tuple[str, str, list[tuple[int, ...]], list[str], dict[str, Any]]] = {
    "product": ("com.microsoft", "FusedMatMul", [(2, 3, 4), (4, 5)], ["y"], {"alpha": 0.5}),
    "product of transposed": (
        "com.microsoft", "FusedMatMul", [(2, 4, 3), (2, 5, 4)], ["y"], {"transA": 1, "transB": 1},
    ),
    "gelu": ("com.microsoft", "Gelu", [X], ["y"], {}),
    "gelu with a bias": ("com.microsoft", "BiasGelu", [X, ROW], ["y"], {}),
    "gelu by tanh": ("com.microsoft", "FastGelu", [X, ROW], ["y"], {}),
    "gelu by sigmoid": ("com.microsoft", "QuickGelu", [X], ["y"], {"alpha": 1.5}),
    "layer norm": ("com.microsoft", "SkipLayerNormalization", [X, X, ROW, ROW, ROW], ["y", "", "", "sum"], {}),
    "layer norm without shift": ("com.microsoft", "SkipLayerNormalization", [X, X, ROW], ["y"], {"epsilon": 1e-3}),
    "rms norm": ("com.microsoft", "SkipSimplifiedLayerNormalization", [X, X, ROW, ROW], ["y", "", "", "sum"], {}),
    "scaler": ("ai.onnx.ml", "Scaler", [(5, 3)], ["y"], {"offset": [1.0, 2.0, 3.0], "scale": [0.5, 2.0, 1.0]}),
    "scaler of one number": ("ai.onnx.ml", "Scaler", [(5, 3)], ["y"], {"offset": [1.0], "scale": [0.5]}),
    "regressor": (
        "ai.onnx.ml", "LinearRegressor", [(5, 3)], ["y"],
        {"coefficients": [1.0, 2.0, 3.0, -1.0, 0.5, 4.0], "intercepts": [0.5, -0.5], "targets": 2},
    ),
}  # fmt: skip


def model(
    domain: str, op: str, shapes: list[tuple[int, ...]], outputs: list[str], **attrs: Any
) -> onnx.ModelProto:
    names = [f"x{place}" for place in range(len(shapes))]
    node = helper.make_node(op, names, outputs, domain=domain, **attrs)
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in zip(names, shapes, strict=True)
    ]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs if name]
    graph = helper.make_graph([node], "g", inputs, results)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize("case", CASES)
def test_it_computes_what_onnx_runtime_does(case: str):
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    domain, op, shapes, outputs, attrs = CASES[case]
    made = model(domain, op, shapes, outputs, **attrs)
    random = np.random.default_rng(0)
    inputs = {f"x{place}": random.standard_normal(shape, np.float32) for place, shape in enumerate(shapes)}
    expected = onnxruntime.InferenceSession(made.SerializeToString()).run(None, inputs)
    graph = import_onnx(made)
    verify(graph)
    for found, wanted in zip(evaluate(graph, inputs).values(), expected, strict=True):
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=3e-6)


def test_what_is_not_taken_is_refused():
    refused = {"coefficients": [1.0, 2.0, 3.0], "post_transform": "LOGISTIC"}
    with pytest.raises(OnnxImportError, match="post_transform LOGISTIC is not taken"):
        import_onnx(model("ai.onnx.ml", "LinearRegressor", [(5, 3)], ["y"], **refused))
