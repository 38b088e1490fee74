"""Models that ONNX Runtime saved at its highest level of graph optimization, channels in blocks, against itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from kernels_hub.compiler.importers.onnx import import_onnx
from kernels_hub.compiler.importers.onnx_ops import contrib_nchwc
from kernels_hub.compiler.ir.evaluate import evaluate
from kernels_hub.compiler.ir.verify import verify

RANDOM = np.random.default_rng(3)
BLOCKS = "com.microsoft.nchwc"
MODEL = """<ir_version: 8, opset_import: ["": 17]> net (float[n, 3, h, w] x) => (y, z)
<float six = {6}, float zero = {0}, float[4] twice = {1, 1, 2, 2}> {
    a = Conv<pads = [1, 1, 1, 1], strides = [2, 2]>(x, first, bias)
    b = Relu(a)
    c = Conv<group = 32, pads = [1, 1, 1, 1]>(b, apart)
    d = Clip(c, zero, six)
    e = Conv(d, mixed, narrow)
    f = Conv<pads = [1, 1, 1, 1]>(e, wide)
    g = Add(e, f)
    h = LeakyRelu<alpha = 0.1>(g)
    i = MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]>(b)
    j = Conv<group = 2, pads = [1, 1, 1, 1]>(b, halves)
    k = AveragePool<kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]>(j)
    l = Conv(k, back)
    m = Concat<axis = 1>(i, l)
    y = Resize<mode = "nearest", nearest_mode = "floor", coordinate_transformation_mode = "asymmetric">(m, , twice)
    o = GlobalAveragePool(h)
    p = GlobalMaxPool(h)
    z = Add(o, p)
}"""
SHAPES = {
    "first": (32, 3, 3, 3), "bias": (32,), "apart": (32, 1, 3, 3), "mixed": (24, 32, 1, 1), "narrow": (24,),
    "wide": (24, 24, 3, 3), "halves": (32, 16, 3, 3), "back": (16, 32, 1, 1),
}  # fmt: skip


def net() -> onnx.ModelProto:
    """Convolutions of few channels, of each channel, of groups, and of channels that are no whole blocks."""
    model = onnx.parser.parse_model(MODEL)
    for name, shape in SHAPES.items():
        weight = RANDOM.standard_normal(shape, np.float32) / np.sqrt(np.float32(np.prod(shape[1:])))
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    return model


def test_it_computes_what_onnx_runtime_does(tmp_path: Path):
    runtime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    options, path = runtime.SessionOptions(), tmp_path / "saved.onnx"
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.optimized_model_filepath, options.log_severity_level = str(path), 4
    session = runtime.InferenceSession(net().SerializeToString(), options, providers=["CPUExecutionProvider"])
    saved = onnx.load(path)
    ops = {node.op_type for node in saved.graph.node if node.domain == BLOCKS}
    if not ops:
        pytest.skip("needs a processor for which ONNX Runtime lays channels out in blocks")
    assert {"Conv", "MaxPool", "AveragePool", "ReorderOutput"} <= ops
    graph = verify(import_onnx(path))
    for shape in ((2, 3, 16, 24), (1, 3, 8, 8)):
        x = RANDOM.standard_normal(shape, np.float32)
        found = evaluate(graph, {"x": x}).values()
        for mine, theirs in zip(found, session.run(None, {"x": x}), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("flags", "block"), [("flags\t: avx2 avx512f", 16), ("flags\t: avx avx2", 8)])
def test_blocks_are_those_of_the_processor(monkeypatch: pytest.MonkeyPatch, flags: str, block: int):
    monkeypatch.setattr(contrib_nchwc.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(contrib_nchwc, "cpu_flags", lambda: flags)
    assert contrib_nchwc.block_of_this_machine() == block
    monkeypatch.setattr(contrib_nchwc.platform, "machine", lambda: "aarch64")
    assert contrib_nchwc.block_of_this_machine() == 16
