"""Features, linear classifiers and support vector machines of ai.onnx.ml, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from kernels_hub.compiler import compile as compile_model
from kernels_hub.compiler.errors import EvaluateError
from kernels_hub.compiler.importers.onnx import OnnxImportError, import_onnx
from kernels_hub.compiler.ir.evaluate import evaluate
from kernels_hub.compiler.ir.verify import verify

RANDOM = np.random.default_rng(3)
FEATURES = RANDOM.standard_normal((20, 3)).astype(np.float32)
HOLES = np.where(RANDOM.random((20, 3)) < 0.3, np.nan, FEATURES).astype(np.float32)
NUMBERS = RANDOM.integers(0, 5, (20, 1))


def floats(*shape: int) -> list[float]:
    return RANDOM.standard_normal(shape).astype(np.float32).reshape(-1).tolist()


def support(classes: int, kernel: str = "RBF", **more: Any) -> dict[str, Any]:
    """Attributes of an SVMClassifier: two vectors a class."""
    pairs = classes * (classes - 1) // 2
    return {
        "classlabels_ints": list(range(3, 3 + classes)), "vectors_per_class": [2] * classes, "rho": floats(pairs),
        "support_vectors": floats(2 * classes, 3), "coefficients": floats(classes - 1, 2 * classes),
        "kernel_type": kernel, "kernel_params": [0.5, 0.1, 3.0], **more,
    }  # fmt: skip


def likely(classes: int) -> dict[str, Any]:
    pairs = classes * (classes - 1) // 2
    return support(classes, prob_a=floats(pairs), prob_b=floats(pairs))


def regressor(kernel: str) -> dict[str, Any]:
    return {
        "n_supports": 4, "support_vectors": floats(4, 3), "coefficients": floats(4), "rho": [0.3],
        "kernel_type": kernel, "kernel_params": [0.5, 0.1, 3.0],
    }  # fmt: skip


CASES: Mapping[str, tuple[str, np.ndarray, int, dict[str, Any]]] = {
    **{f"normalizer {norm}": ("Normalizer", np.vstack([FEATURES, np.zeros((1, 3), np.float32)]), 1, {"norm": norm})
       for norm in ("MAX", "L1", "L2")},
    "imputer": ("Imputer", HOLES, 1, {"imputed_value_floats": [1.0, 2.0, 3.0], "replaced_value_float": float("nan")}),
    "imputer of integers": ("Imputer", NUMBERS, 1, {"imputed_value_int64s": [9], "replaced_value_int64": 2}),
    "one hot": ("OneHotEncoder", NUMBERS, 1, {"cats_int64s": [0, 2, 4], "zeros": 1}),
    "one hot, of nothing else": ("OneHotEncoder", NUMBERS, 1, {"cats_int64s": [4, 3, 2, 1, 0], "zeros": 0}),
    "features": ("FeatureVectorizer", FEATURES, 1, {"inputdimensions": [3]}),
    "linear, three classes": ("LinearClassifier", FEATURES, 2, {
        "coefficients": floats(3, 3), "intercepts": floats(3), "classlabels_ints": [1, 2, 7], "post_transform": "SOFTMAX",
    }),
    "linear, one row of two classes": ("LinearClassifier", FEATURES, 2, {
        "coefficients": floats(1, 3), "intercepts": floats(1), "classlabels_ints": [4, 6],
    }),
    "machine, two classes": ("SVMClassifier", FEATURES, 2, support(2)),
    "machine, three classes": ("SVMClassifier", FEATURES, 2, support(3, "POLY")),
    "machine, likely, two": ("SVMClassifier", FEATURES, 2, likely(2)),
    "machine, likely, four": ("SVMClassifier", FEATURES, 2, likely(4)),
    **{f"machine, a number, {kernel}": ("SVMRegressor", FEATURES, 1, regressor(kernel))
       for kernel in ("LINEAR", "POLY", "RBF", "SIGMOID")},
    "machine, one class": ("SVMRegressor", FEATURES, 1, {**regressor("RBF"), "one_class": 1}),
}  # fmt: skip


def model(op: str, x: np.ndarray, outputs: int, **attrs: Any) -> onnx.ModelProto:
    names = [f"y{place}" for place in range(outputs)]
    node = helper.make_node(op, ["x"], names, domain="ai.onnx.ml", **attrs)
    info = helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), ["n", *x.shape[1:]])
    graph = helper.make_graph([node], "g", [info], [onnx.ValueInfoProto(name=name) for name in names])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize("name", CASES)
def test_it_computes_what_onnx_runtime_does(name: str):
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    op, x, outputs, attrs = CASES[name]
    made = model(op, x, outputs, **attrs)
    wanted = onnxruntime.InferenceSession(made.SerializeToString()).run(None, {"x": x})
    found = evaluate(verify(import_onnx(made)), {"x": x})
    for mine, theirs in zip(found.values(), wanted, strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_allclose(mine.reshape(theirs.shape), theirs, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("wait", [False, True])
def test_what_is_no_category_fails_the_call_where_the_model_says_so(wait: bool):
    made = model("OneHotEncoder", NUMBERS, 1, cats_int64s=[4, 3, 2, 1, 0], zeros=0)
    run = compile_model(made, "cpu", wait=wait)
    assert run.arrays({"x": NUMBERS})["y0"].sum() == NUMBERS.size
    with pytest.raises(EvaluateError, match="y0.*out of range"):
        run(NUMBERS + 1)


def test_probabilities_of_pairs_are_no_loop():
    op, x, outputs, attrs = CASES["machine, likely, four"]
    names = [node.op.name for node in import_onnx(model(op, x, outputs, **attrs)).live()]
    assert names.count("pairwise_coupling") == 1
    assert "loop" not in names


def test_near_vectors_far_from_zero_keep_their_distance():
    """As a product and two norms, distances of 1e-2 would be lost among squares of 1e7."""
    vectors = 3000 + np.array([[0, 0, 0], [0.01, 0, 0], [0, 0.02, 0], [0, 0, 0.03]], np.float32)
    attrs = {
        **regressor("RBF"),
        "support_vectors": vectors.reshape(-1).tolist(),
        "kernel_params": [1e3, 0.0, 0.0],
    }
    made = model("SVMRegressor", vectors, 1, **attrs)
    found = next(iter(evaluate(import_onnx(made), {"x": vectors}).values())).reshape(-1)
    apart = ((vectors[:, None].astype(np.float64) - vectors) ** 2).sum(-1)
    expected = np.exp(-1e3 * apart) @ np.float32(attrs["coefficients"]) + 0.3
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_scores_come_as_an_array_where_a_model_makes_maps_of_them():
    scores = np.array([[0.25, 0.75]], np.float32)
    node = helper.make_node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_int64s=[0, 1])
    maps = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    result = helper.make_value_info("y", helper.make_sequence_type_proto(maps))
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 2])
    graph = helper.make_graph([node], "g", [info], [result])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("ai.onnx.ml", 3)])
    np.testing.assert_array_equal(evaluate(import_onnx(made), {"x": scores})["y"], scores)


@pytest.mark.parametrize(
    ("op", "attrs", "reason"),
    [
        ("OneHotEncoder", {"cats_strings": ["a", "b"]}, "categories are strings.*encode them as numbers"),
        (
            "LinearClassifier",
            {"coefficients": [1.0] * 6, "classlabels_strings": ["a", "b"]},
            "labels are strings",
        ),
        ("DictVectorizer", {"string_vocabulary": ["a"]}, "it takes maps.*turn them into numbers before"),
    ],
)
def test_what_cannot_be_had_says_what_to_do_instead(op: str, attrs: dict[str, Any], reason: str):
    with pytest.raises(OnnxImportError, match=reason):
        import_onnx(model(op, FEATURES, 1, **attrs))
