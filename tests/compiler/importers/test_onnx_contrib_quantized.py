"""Quantized ops and attention of com.microsoft, against ONNX Runtime."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from kernels_hub.compiler.importers.onnx import OnnxImportError, import_onnx
from kernels_hub.compiler.ir.evaluate import evaluate
from kernels_hub.compiler.ir.verify import verify

RANDOM = np.random.default_rng(0)
SCALE, ZERO = np.float32(0.02), np.uint8(120)
COLUMNS = np.array([0.01, 0.02, 0.03, 0.015, 0.025], np.float32)


def bytes_of(*shape: int, dtype: Any = np.uint8) -> np.ndarray:
    low, high = (0, 256) if dtype == np.uint8 else (-128, 128)
    return RANDOM.integers(low, high, shape).astype(dtype)


def real(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape, np.float32)


def four_bits(name: str, *shape: int) -> np.ndarray:
    low, high = (-8, 8) if name == "int4" else (0, 16)
    return RANDOM.integers(low, high, shape).astype(getattr(ml_dtypes, name))


@dataclass(frozen=True)
class Case:
    """An op on operands (None: left out), those at the places `weights` as initializers."""

    op: str
    operands: Sequence[np.ndarray | np.generic | None]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    weights: Sequence[int] = ()
    outputs: Sequence[str] = ("y",)
    domain: str = "com.microsoft"
    step: int = 0
    """By how much a result of 8 bits may differ: rounding at a tie."""


PLACES = np.array([[3, 0], [6, 6]])
X = (bytes_of(2, 3, 8, 8), SCALE, ZERO)
OTHER = (bytes_of(2, 3, 8, 8), np.float32(0.03), np.uint8(100))
RESULT = (np.float32(0.05), np.uint8(110))
HIDDEN, HEADS = real(2, 5, 8), 2
QKV, BIAS = real(8, 24), real(24)
ROTATION = (np.cos(np.outer(np.arange(9), [1.0, 0.1])), np.sin(np.outer(np.arange(9), [1.0, 0.1])))
COSINES, SINES = (one.astype(np.float32) for one in ROTATION)

CASES: dict[str, Case] = {
    "sum": Case("QLinearAdd", (*X, *OTHER, *RESULT), step=1),
    "sum with a row": Case("QLinearAdd", (*X, bytes_of(8), *OTHER[1:], *RESULT), step=1),
    "product": Case("QLinearMul", (*X, *OTHER, *RESULT), step=1),
    "sigmoid": Case("QLinearSigmoid", (*X, np.float32(1 / 256), np.uint8(0)), weights=(1, 2, 3, 4), step=1),
    "leaky relu": Case("QLinearLeakyRelu", (*X, *RESULT), {"alpha": 0.1}, weights=(1, 2, 3, 4), step=1),
    "softmax": Case(
        "QLinearSoftmax", (*X, np.float32(1 / 256), np.uint8(0)), {"axis": -1, "opset": 13}, weights=(1, 2, 3, 4),
        step=1,
    ),
    "pool": Case(
        "QLinearAveragePool", (*X, *RESULT), {"kernel_shape": [2, 2], "strides": [2, 2]}, weights=(1, 2, 3, 4), step=1
    ),
    "global pool": Case("QLinearGlobalAveragePool", (*X, *RESULT), weights=(1, 2, 3, 4), step=1),
    "concatenation": Case("QLinearConcat", (*RESULT, *X, *OTHER), {"axis": 1}, weights=(0, 1, 3, 4, 6, 7), step=1),
    "gemm": Case("QGemm", (
        bytes_of(4, 6), SCALE, ZERO, bytes_of(5, 6, dtype=np.int8), COLUMNS, np.zeros(5, np.int8),
        RANDOM.integers(-500, 500, 5).astype(np.int32),
    ), {"transB": 1}, weights=(1, 2, 3, 4, 5, 6)),
    "product of integers": Case("MatMulIntegerToFloat", (
        bytes_of(2, 4, 6), bytes_of(6, 5, dtype=np.int8), SCALE, COLUMNS, ZERO, np.zeros(5, np.int8), real(5),
    ), weights=(1, 2, 3, 4, 5, 6)),
    "product quantized on the way": Case("DynamicQuantizeMatMul", (
        real(2, 4, 6), bytes_of(6, 5, dtype=np.int8), COLUMNS, np.zeros(5, np.int8), real(5),
    ), weights=(1, 2, 3, 4)),
    "four bits": Case("MatMulNBits", (
        real(3, 70), bytes_of(5, 3, 16), real(15) * np.float32(0.1), bytes_of(5 * 2),
    ), {"K": 70, "N": 5, "bits": 4, "block_size": 32}, weights=(1, 2, 3)),
    "four bits without zero points": Case(
        "MatMulNBits", (real(3, 64), bytes_of(5, 2, 16), real(10)), {"K": 64, "N": 5, "bits": 4, "block_size": 32},
        weights=(1, 2),
    ),
    "eight bits": Case(
        "MatMulNBits", (real(3, 64), bytes_of(5, 2, 32), real(10)), {"K": 64, "N": 5, "bits": 8, "block_size": 32},
        weights=(1, 2),
    ),
    "four bits of bitsandbytes": Case(
        "MatMulBnb4", (real(3, 64), bytes_of(160), abs(real(10))), {"K": 64, "N": 5, "block_size": 32, "quant_type": 1},
        weights=(1, 2),
    ),
    "rows of four bits": Case(
        "GatherBlockQuantized", (bytes_of(7, 16), np.array([[3, 0], [6, 6]]), real(7, 2)),
        {"bits": 4, "block_size": 16, "gather_axis": 0, "quantize_axis": 1}, weights=(0, 2),
    ),
    "four bits, more than is computed while a model is imported": Case(
        "MatMulNBits", (real(2, 1024), bytes_of(160, 32, 16), real(160 * 32) * np.float32(0.01)),
        {"K": 1024, "N": 160, "bits": 4, "block_size": 32}, weights=(1, 2),
    ),
    "rows of signed four bits": Case(
        "GatherBlockQuantized", (four_bits("int4", 7, 32), PLACES, real(7, 2)),
        {"block_size": 16, "gather_axis": 0, "quantize_axis": 1}, weights=(0, 2),
    ),
    "columns of four bits, zero points": Case(
        "GatherBlockQuantized", (four_bits("uint4", 32, 7), PLACES, real(2, 7), four_bits("uint4", 2, 7)),
        {"block_size": 16, "gather_axis": 1, "quantize_axis": 0}, weights=(0, 2, 3),
    ),
    "rows of bytes, zero points": Case(
        "GatherBlockQuantized", (bytes_of(7, 32), PLACES, real(7, 2), bytes_of(7, 2)),
        {"bits": 8, "block_size": 16, "gather_axis": 0, "quantize_axis": 1}, weights=(0, 2, 3),
    ),
    "attention": Case("Attention", (HIDDEN, QKV, BIAS), {"num_heads": HEADS}),
    "attention, lengths": Case("Attention", (HIDDEN, QKV, BIAS, np.array([3, 5], np.int32)), {"num_heads": HEADS}),
    "attention, a mask": Case(
        "Attention", (HIDDEN, QKV, BIAS, (RANDOM.random((2, 5)) < 0.7).astype(np.int32)), {"num_heads": HEADS}
    ),
    "attention, causal": Case("Attention", (HIDDEN, QKV, BIAS), {"num_heads": HEADS, "unidirectional": 1}),
    "attention, a past": Case(
        "Attention", (HIDDEN, QKV, BIAS, None, real(2, 2, HEADS, 3, 4)), {"num_heads": HEADS, "unidirectional": 1},
        outputs=("y", "present"),
    ),
    "attention, a bias of scores": Case(
        "Attention", (HIDDEN, QKV, BIAS, None, None, real(2, HEADS, 5, 5)), {"num_heads": HEADS}
    ),
    "attention of 8 bits": Case("QAttention", (
        bytes_of(2, 5, 8), bytes_of(8, 24), BIAS, SCALE, np.float32(0.01), None, ZERO, np.uint8(128),
    ), {"num_heads": HEADS}, weights=(1, 2)),
    "many heads": Case("MultiHeadAttention", (real(2, 5, 8), real(2, 7, 8), real(2, 7, 8), BIAS), {"num_heads": HEADS}),
    "many heads, a mask of keys": Case("MultiHeadAttention", (
        real(2, 5, 8), real(2, 7, 8), real(2, 7, 8), None, (RANDOM.random((2, 7)) < 0.7).astype(np.int32),
    ), {"num_heads": HEADS}),
    "many heads, keys of another sequence": Case("MultiHeadAttention", (
        real(2, 5, 8), real(2, HEADS, 7, 4), real(2, HEADS, 7, 4), BIAS,
    ), {"num_heads": HEADS}),
    "many heads, a past": Case("MultiHeadAttention", (
        real(2, 5, 8), real(2, 5, 8), real(2, 5, 8), None, None, None, real(2, HEADS, 3, 4), real(2, HEADS, 3, 4),
    ), {"num_heads": HEADS}, outputs=("y", "k", "v")),
    "rotary": Case("RotaryEmbedding", (real(2, 5, 8), np.arange(10).reshape(2, 5) % 7, COSINES, SINES)),
    "rotary, heads and pairs": Case(
        "RotaryEmbedding", (real(2, 3, 5, 4), np.array([2]), COSINES, SINES), {"interleaved": 1}
    ),
    "embeddings": Case("EmbedLayerNormalization", (
        RANDOM.integers(0, 9, (2, 5)).astype(np.int32), RANDOM.integers(0, 2, (2, 5)).astype(np.int32),
        real(9, 8), real(6, 8), real(2, 8), real(8), real(8), np.ones((2, 5), np.int32),
    ), outputs=("y", "lengths")),
    "gemm, then relu": Case("FusedGemm", (real(3, 4), real(4, 5), real(5)), {"activation": "Relu"}),
    "convolution, then leaky relu": Case("FusedConv", (real(1, 3, 8, 8), real(4, 3, 3, 3), real(4)), {
        "kernel_shape": [3, 3], "activation": "LeakyRelu", "activation_params": [0.2],
    }),
    "distances": Case("CDist", (real(4, 3), real(6, 3)), {"metric": "euclidean"}),
    "quantized in the old domain": Case("QuantizeLinear", (real(3, 4), SCALE, ZERO)),
    "layer norm of an old opset": Case(
        "LayerNormalization", (real(3, 8), real(8), real(8)), {"epsilon": 1e-3}, domain=""
    ),
    "rms norm by its other name": Case("SimplifiedLayerNormalization", (real(3, 8), real(8)), domain=""),
}  # fmt: skip


def model(case: Case) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    given = {place: np.asarray(one) for place, one in enumerate(case.operands) if one is not None}
    names = [f"x{place}" if place in given else "" for place in range(len(case.operands))]
    node = helper.make_node(case.op, names, list(case.outputs), domain=case.domain, **case.attrs)
    weights = [numpy_helper.from_array(given[place], names[place]) for place in case.weights]
    fed = {names[place]: one for place, one in given.items() if place not in case.weights}
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(one.dtype), one.shape)
        for name, one in fed.items()
    ]
    results = [onnx.ValueInfoProto(name=name) for name in case.outputs]
    graph = helper.make_graph([node], "g", infos, results, weights)
    opsets = [helper.make_opsetid("", 15), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), fed


@pytest.mark.parametrize("name", CASES)
def test_it_computes_what_onnx_runtime_does(name: str):
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    case = CASES[name]
    made, fed = model(case)
    expected = onnxruntime.InferenceSession(made.SerializeToString()).run(None, fed)
    graph = import_onnx(made)
    verify(graph)
    for mine, theirs in zip(evaluate(graph, fed).values(), expected, strict=True):
        assert mine.dtype == theirs.dtype
        assert mine.shape == theirs.shape
        if mine.dtype.kind == "f":
            np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-5)
        else:
            assert np.max(np.abs(mine.astype(int) - theirs.astype(int))) <= case.step


def test_a_weight_that_is_spelled_out_is_in_memory_once_and_as_long_as_it_is_held():
    graph = import_onnx(model(CASES["four bits of bitsandbytes"])[0])
    (make,) = (weight for weight in graph.weights.values() if callable(weight))
    table = make()
    assert make() is table
    assert not table.flags.writeable
    expected, seen = table.copy(), weakref.ref(table)
    del table
    assert seen() is None
    np.testing.assert_array_equal(make(), expected)


def test_what_is_not_taken_says_so():
    fed = (real(2, 5, 8), real(8, 24), real(24))
    for attrs, reason in (
        ({"do_rotary": 1}, "do_rotary"),
        ({"past_present_share_buffer": 1}, "share a buffer"),
    ):
        made, _ = model(Case("Attention", fed, {"num_heads": 2, **attrs}))
        with pytest.raises(OnnxImportError, match=reason):
            import_onnx(made)
