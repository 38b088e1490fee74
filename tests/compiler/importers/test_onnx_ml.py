"""N-grams, optimizers and trees as tensor arithmetic, against ONNX's reference and against definitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from kernels_hub.compiler.importers.onnx import OnnxImportError, import_onnx
from kernels_hub.compiler.ir.evaluate import evaluate
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.ir.types import DTYPES
from kernels_hub.compiler.ir.verify import verify

DOMAINS = {"": 20, "ai.onnx.ml": 5, "ai.onnx.preview.training": 1}


def model(
    op: str,
    inputs: Sequence[tuple[str, Sequence[int | str]]],
    outputs: int,
    domain: str = "",
    opset: int = 0,
    **attrs: Any,
) -> onnx.ModelProto:
    """One op on inputs of (dtype, shape)."""
    names = [f"x{place}" for place in range(len(inputs))]
    node = helper.make_node(op, names, [f"y{place}" for place in range(outputs)], domain=domain, **attrs)
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(DTYPES[dtype].numpy), shape)
        for name, (dtype, shape) in zip(names, inputs, strict=True)
    ]
    graph = helper.make_graph([node], "g", infos, [onnx.ValueInfoProto(name=name) for name in node.output])
    versions = {**DOMAINS, **({domain: opset} if opset else {})}
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(*one) for one in versions.items()])


def close(mine: np.ndarray, theirs: np.ndarray) -> None:
    assert mine.shape == theirs.shape
    assert mine.dtype == theirs.dtype
    np.testing.assert_allclose(mine, theirs, rtol=2e-6, atol=1e-6)


def agrees(one: onnx.ModelProto, *arrays: np.ndarray, dtypes: Sequence[Any] = ()) -> Graph:
    """The graph, after it gave what the reference gives (cast, where its dtypes are not those of the standard)."""
    graph = verify(import_onnx(one))
    feeds = {info.name: array for info, array in zip(one.graph.input, arrays, strict=True)}
    wanted = ReferenceEvaluator(one).run(None, feeds)
    for place, (mine, theirs) in enumerate(zip(evaluate(graph, feeds).values(), wanted, strict=True)):
        close(mine, np.asarray(theirs, dtypes[place] if dtypes else theirs.dtype))
    return graph


def refusal(one: onnx.ModelProto) -> str:
    with pytest.raises(OnnxImportError) as error:
        import_onnx(one)
    return error.value.unsupported[0].reason


def test_close_rejects_wrong_numbers():
    x = np.ones(3, np.float32)
    for wrong in (x + 1e-4, x[:2], x.astype(np.float64)):
        with pytest.raises(AssertionError):
            close(wrong, x)


# -- n-grams

POOL = {
    "ngram_counts": [0, 3, 9],
    "pool_int64s": [1, 2, 0, 1, 2, 2, 2, 0, 1, 0, 1, 2, 2, 2, 2],
    "ngram_indexes": [3, 0, 1, 2, 6, 4, 5, 8],
}


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize(
    ("lengths", "skip"), [((1, 1), 4), ((1, 2), 0), ((1, 3), 2), ((2, 3), 5), ((3, 3), 1)]
)
def test_ngrams(mode: str, lengths: tuple[int, int], skip: int):
    weights = [0.5, 2.0, 3.0, 0.25, 1.0, 7.0, 11.0, 13.0, 17.0]
    attrs = {
        **POOL, "mode": mode, "weights": weights, "max_skip_count": skip,
        "min_gram_length": lengths[0], "max_gram_length": lengths[1],
    }  # fmt: skip
    for shape in ((12,), (4, 12), (3, 2), (1, 1)):
        x = np.random.default_rng(0).integers(0, 4, shape)
        wanted = agrees(model("TfIdfVectorizer", [("int64", shape)], 1, **attrs), x)
        axes = ["rows", "columns"][2 - len(shape) :]
        graph = verify(import_onnx(model("TfIdfVectorizer", [("int64", axes)], 1, **attrs)))
        close(*(next(iter(evaluate(one, [x]).values())) for one in (graph, wanted)))


def test_ngrams_that_are_refused():
    attrs = {
        "mode": "TF",
        "max_skip_count": 0,
        "min_gram_length": 1,
        "max_gram_length": 1,
        "ngram_counts": [0],
    }
    strings = model("TfIdfVectorizer", [("int64", [3])], 1, **attrs, pool_strings=["a"], ngram_indexes=[0])
    assert "strings have no place in the IR" in refusal(strings)
    short = {**attrs, "mode": "IDF", "weights": [1.0], "pool_int64s": [5], "ngram_indexes": [4]}
    assert (
        refusal(model("TfIdfVectorizer", [("int64", [3])], 1, **short)) == "there are 1 weights for 5 places"
    )
    odd = {**attrs, "ngram_counts": [0, 1], "pool_int64s": [5, 6], "ngram_indexes": [0]}
    assert (
        refusal(model("TfIdfVectorizer", [("int64", [3])], 1, **odd)) == "the pool has 1 numbers for 2-grams"
    )


# -- optimizers

OPTIMIZERS = [
    ("Adagrad", 1, {"norm_coefficient": 0.01, "epsilon": 1e-5, "decay_factor": 0.1}),
    ("Adam", 2, {"norm_coefficient": 0.01, "norm_coefficient_post": 0.05, "alpha": 0.95, "beta": 0.999, "epsilon": 1e-5}),
    ("Momentum", 1, {"norm_coefficient": 0.01, "alpha": 0.95, "beta": 0.85, "mode": "standard"}),
    ("Momentum", 1, {"norm_coefficient": 0.01, "alpha": 0.95, "beta": 0.85, "mode": "nesterov"}),
]  # fmt: skip


@pytest.mark.parametrize("updates", [0, 1, 1000])
@pytest.mark.parametrize("tensors", [1, 2])
@pytest.mark.parametrize(("op", "states", "attrs"), OPTIMIZERS)
def test_optimizers(op: str, states: int, attrs: dict[str, Any], tensors: int, updates: int):
    random = np.random.default_rng(0)
    shapes = [(2, 3), (5,)][:tensors] * (2 + states)
    arrays = [abs(random.standard_normal(shape)).astype(np.float32) for shape in shapes]
    inputs = [("float32", ()), ("int64", ()), *(("float32", shape) for shape in shapes)]
    one = model(op, inputs, tensors * (1 + states), "ai.onnx.preview.training", **attrs)
    scalars = np.array(0.1, np.float32), np.array(updates)
    agrees(one, *scalars, *arrays, dtypes=[np.float32] * len(one.graph.output))


def test_optimizers_whose_operands_do_not_add_up():
    inputs = [("float32", ()), ("int64", ()), *[("float32", (2,))] * 5]
    one = model("Adagrad", inputs, 2, "ai.onnx.preview.training")
    assert refusal(one) == "5 tensors are no 3 for each that is updated"
    attrs = {"alpha": 0.9, "beta": 0.9, "norm_coefficient": 0.0, "mode": "fast"}
    one = model("Momentum", inputs[:5], 2, "ai.onnx.preview.training", **attrs)
    assert refusal(one) == "the mode is 'fast'; it must be standard or nesterov"
