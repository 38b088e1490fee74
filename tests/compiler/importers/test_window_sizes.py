"""Pooling windows that are larger than what they pool: ONNX Runtime's answer, or a refusal, and never an empty mean."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from kernels_hub.compiler import compile
from kernels_hub.compiler.errors import DimError
from kernels_hub.compiler.importers.onnx import import_onnx
from tests.combinations import every_pair

onnxruntime = pytest.importorskip("onnxruntime", reason="needs the package onnxruntime")


def model(op: str, size: str, attributes: str, after: str = "") -> onnx.ModelProto:
    last = f"z = {after} (y)" if after else "z = Identity (y)"
    return onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> pooled (float[1, 2, {size}] x) => (float[a, b, c, d] z) '
        f"{{ y = {op} <{attributes}> (x) {last} }}"
    )


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize(
    ("size", "window", "stride", "pad"),
    [(2, 3, 2, 0), (1, 4, 2, 1), (2, 3, 1, 0), (3, 5, 4, 0), (5, 3, 2, 0)],
)
def test_fixed_sizes_have_onnx_runtimes_windows(op: str, size: int, window: int, stride: int, pad: int):
    attributes = f"kernel_shape = [{window}, {window}], strides = [{stride}, {stride}], pads = {[pad] * 4}"
    made = model(op, f"{size}, {size}", attributes)
    x = np.random.default_rng(0).standard_normal((1, 2, size, size)).astype(np.float32)
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x": x})
    found = compile(made)(x)
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("stride", [1, 2])
def test_a_size_too_small_for_the_windows_is_refused_where_onnx_runtime_refuses_it(stride: int):
    """It was a mean of nothing, NaN."""
    attributes = f"kernel_shape = [3, 3], strides = [{stride}, {stride}]"
    run = compile(model("MaxPool", "h, 8", attributes, "GlobalAveragePool"))
    x = np.ones((1, 2, 5, 8), np.float32)
    np.testing.assert_array_equal(np.asarray(run(x)), np.ones((1, 2, 1, 1), np.float32))
    for size in (1, 2) if stride == 1 else (1,):
        with pytest.raises(DimError, match=f"h = {size} contradicts h >= 3"):
            run(x[:, :, :size])


@every_pair(
    op=["MaxPool", "AveragePool"],
    sizes=[(3, 2, 0), (4, 2, 1), (5, 3, 0), (2, 2, 0)],
    after=["", "GlobalAveragePool"],
)
def test_open_sizes_have_onnx_runtimes_answers_where_it_has_one(
    op: str, sizes: tuple[int, int, int], after: str
):
    """The windows' only place is one that sees less than a window: sizes of their own, compiled as they come."""
    window, stride, pad = sizes
    attributes = f"kernel_shape = [{window}, {window}], strides = [{stride}, {stride}], pads = {[pad] * 4}"
    made = model(op, "h, 8", attributes, after)
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    run = compile(made, wait=True)
    answered = 0
    for size in (9, *range(1, window), 7):
        x = np.random.default_rng(size).standard_normal((1, 2, size, 8)).astype(np.float32)
        try:
            (expected,) = session.run(None, {"x": x})
        except onnxruntime.capi.onnxruntime_pybind11_state.Fail:
            with pytest.raises(DimError):
                run(x)
            continue
        if expected.size == 0:
            continue
        answered += size + 2 * pad < window
        np.testing.assert_allclose(np.asarray(run(x)), expected, rtol=1e-5, atol=1e-6)
        (found,) = run.arrays({"x": x}).values()
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert answered or pad


def test_windows_behind_one_another():
    text = "{ y = MaxPool <kernel_shape = [3, 3], strides = [2, 2]> (x) z = MaxPool <kernel_shape = [3, 3]> (y) }"
    graph = import_onnx(
        onnx.parser.parse_model(
            f'<ir_version: 8, opset_import: ["": 17]> twice (float[1, 2, h, w] x) => (float[a, b, c, d] z) {text}'
        )
    )
    assert [one.min for one in graph.inputs["x"].shape[2].symbols] == [7], "(7 - 3) // 2 + 1 is 3"


def test_what_fits_every_size_stays_as_it_was():
    attributes = "kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]"
    graph = import_onnx(model("MaxPool", "h, w", attributes))
    assert [one.min for dim in graph.inputs["x"].shape[2:] for one in dim.symbols] == [1, 1]
