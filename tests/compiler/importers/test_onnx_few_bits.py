"""Weights of few bits of ONNX files: packed from the file to the kernel, and right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from kernels_hub.compiler import compile as compile_model
from kernels_hub.compiler import load_executable
from kernels_hub.compiler.export.programs import compile_programs
from kernels_hub.compiler.export.source import from_onnx
from kernels_hub.compiler.importers.external_data import FewBitElements
from kernels_hub.compiler.importers.onnx import import_onnx
from kernels_hub.compiler.ir.evaluate import evaluate
from kernels_hub.compiler.rewrite.pipeline import rewrite

RANDOM = np.random.default_rng(0)
OPSETS = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
TYPES = {
    "int4": TensorProto.INT4,
    "uint4": TensorProto.UINT4,
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
}


def elements(name: str, dtype: str, values: np.ndarray) -> TensorProto:
    """An initializer of raw data, two elements of four bits in a byte."""
    flat = values.reshape(-1).astype(np.int16) & 255
    if dtype.endswith("4"):
        flat = np.append(flat & 15, np.zeros(flat.size % 2, np.int16)).reshape(-1, 2)
        flat = flat[:, 0] | flat[:, 1] << 4
    data = flat.astype(np.uint8).tobytes()
    return TensorProto(name=name, data_type=TYPES[dtype], dims=values.shape, raw_data=data)


def dequantized(
    dtype: str, axis: int, depth: int, block: int, *, zeros: bool, columns: int = 40, uses: str = "MatMul"
) -> tuple[onnx.ModelProto, np.ndarray]:
    """x by a weight of DequantizeLinear, and the weight (K, N) in float64."""
    bits, signed = int(dtype[-1]), dtype[0] == "i"
    low = -(1 << bits - 1) if signed else 0
    blocks = -(-depth // block) if block else 1
    values = RANDOM.integers(low, low + (1 << bits), (depth, columns))
    scales = (RANDOM.random((blocks, columns)) * 0.1).astype(np.float32)
    points = RANDOM.integers(low, low + (1 << bits), scales.shape) if zeros else np.zeros(scales.shape, int)
    repeats = np.arange(depth) // (block or depth)
    wide = (values - points[repeats]) * scales[repeats].astype(np.float64)
    turn = (lambda one: one.T) if axis == 1 else (lambda one: one)
    flat = (lambda one: turn(one)) if block else (lambda one: one.reshape(-1))
    weights = [
        elements("w", dtype, turn(values)),
        numpy_helper.from_array(np.ascontiguousarray(flat(scales)), "s"),
    ]
    weights += [elements("z", dtype, flat(points))] if zeros else []
    attrs: dict[str, Any] = {"axis": axis, "block_size": block} if block else {"axis": 1 - axis}
    nodes = [helper.make_node("DequantizeLinear", [one.name for one in weights], ["f"], **attrs)]
    nodes += [helper.make_node("Transpose", ["f"], ["t"], perm=[1, 0])] if axis == 1 else []
    nodes.append(helper.make_node(uses, ["x", "t" if axis == 1 else "f"], ["y"]))
    x = helper.make_tensor_value_info(
        "x", TensorProto.FLOAT, ["batch", "rows" if uses == "MatMul" else depth, depth]
    )
    graph = helper.make_graph(nodes, "g", [x], [onnx.ValueInfoProto(name="y")], weights)
    return helper.make_model(graph, opset_imports=OPSETS, ir_version=10), wide


def names(graph: Any) -> list[str]:
    return [node.op.name for node in graph.live()]


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(
    ("dtype", "block", "depth", "zeros"),
    [("int4", 16, 64, False), ("int4", 32, 101, True), ("uint4", 32, 64, True), ("uint4", 16, 64, False),
     ("int8", 16, 64, True), ("uint8", 32, 70, False), ("int4", 0, 64, True)],
)  # fmt: skip
def test_a_dequantized_weight_is_multiplied_as_it_is_packed(axis, dtype, block, depth, zeros):
    model, wide = dequantized(dtype, axis, depth, block, zeros=zeros)
    graph = import_onnx(model)
    x = RANDOM.standard_normal((2, 3, depth)).astype(np.float32)
    expected = x.astype(np.float64) @ wide
    np.testing.assert_allclose(evaluate(graph, [x])["y"], expected, rtol=1e-5, atol=1e-4)
    packed = rewrite(graph).graph
    assert "matmul_few_bits" in names(packed)
    assert not {"matmul", "dequantize"} & set(names(packed))
    np.testing.assert_allclose(evaluate(packed, [x])["y"], expected, rtol=1e-5, atol=1e-4)
    held = sum(packed.weight(name).nbytes for name in packed.parameters)
    assert held < wide.size * int(dtype[-1]) // 8 * 1.8 + 300


def test_other_operators_take_floats():
    model, wide = dequantized("int4", 0, 40, 8, zeros=True, uses="Add")
    graph = rewrite(import_onnx(model)).graph
    assert names(graph).count("parameter") == 1
    x = np.zeros((1, 40, 40), np.float32)
    np.testing.assert_allclose(evaluate(graph, [x])["y"][0], wide, rtol=1e-5, atol=1e-5)


def test_a_file_of_weights_is_mapped_and_plans_and_layers_have_them_packed(tmp_path: Path):
    model, wide = dequantized("uint4", 1, 256, 32, zeros=True, columns=96)
    path, plan = tmp_path / "model.onnx", tmp_path / "plan"
    onnx.save(model, path, save_as_external_data=True, location="weights", size_threshold=0)
    graph = import_onnx(path)
    programs = compile_programs(from_onnx(path, "Few"), "Few", "float32", "", triton=True)
    assert "matmul_few_bits" in names(programs.graph)
    assert programs.triton is not None, programs.without_triton  # of floats that it makes at each call
    assert {value.dtype.name for value in programs.triton.source.graph.parameters.values()} == {
        "uint8",
        "float32",
    }
    loaded = graph.weights["w"]
    assert isinstance(loaded, FewBitElements)
    made = next(make() for name, make in graph.weights.items() if name.endswith(" weight"))  # type: ignore[operator]
    assert np.shares_memory(made, loaded.data)
    run = compile_model(path, "cpu", engines=("cpp",))
    x = RANDOM.standard_normal((1, 2, 256)).astype(np.float32)
    np.testing.assert_allclose(run(x), x.astype(np.float64) @ wide, rtol=1e-5, atol=1e-4)
    run.save(plan)
    again = load_executable(plan)
    np.testing.assert_array_equal(again(x), run(x))
    assert again.graph is None or "matmul_few_bits" in names(again.graph)


@pytest.mark.parametrize("dtype", ["uint8", "int4", "uint4"])
@pytest.mark.parametrize("zeros", [False, True])
def test_rows_of_a_packed_table_are_gathered_as_they_are(dtype, zeros):
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    rows, width, block = 90, 48, 16
    low = -8 if dtype == "int4" else 0
    if dtype == "uint8":
        table = numpy_helper.from_array(RANDOM.integers(0, 256, (rows, width // 2), np.uint8), "w")
        points = numpy_helper.from_array(RANDOM.integers(0, 256, (rows, 2), np.uint8), "z")
    else:
        table = elements("w", dtype, RANDOM.integers(low, low + 16, (rows, width)))
        points = elements("z", dtype, RANDOM.integers(low, low + 16, (rows, width // block)))
    scales = numpy_helper.from_array(RANDOM.random((rows, width // block)).astype(np.float32), "s")
    node = helper.make_node(
        "GatherBlockQuantized", ["w", "i", "s", *(["z"] if zeros else [])], ["y"], domain="com.microsoft",
        block_size=block, gather_axis=0, quantize_axis=1,
    )  # fmt: skip
    info = helper.make_tensor_value_info("i", TensorProto.INT64, ["n", 2])
    graph = helper.make_graph(
        [node], "g", [info], [onnx.ValueInfoProto(name="y")], [table, scales, *[points] * zeros]
    )
    model = helper.make_model(graph, opset_imports=OPSETS, ir_version=10)
    given = {"i": np.array([[0, 89], [7, 7], [3, 50]])}
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, given)
    run = compile_model(model, "cpu", engines=("cpp",))
    assert run.graph is not None
    assert sum(run.graph.weight(name).nbytes for name in run.graph.parameters) < rows * width
    np.testing.assert_allclose(run(**given), expected, rtol=1e-6, atol=1e-6)


def test_products_of_onnx_runtime_stay_packed():
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    columns, depth, block = 48, 96, 32
    made = {
        "w": RANDOM.integers(0, 256, (columns, 3, 16), np.uint8),
        "s": RANDOM.random(columns * 3).astype(np.float32),
        "z": RANDOM.integers(0, 256, columns * 2, np.uint8),
        "order": RANDOM.permutation(depth).astype(np.int32) // block,
    }
    x = RANDOM.standard_normal((2, depth)).astype(np.float32)
    # An order of groups is spelled out; with zero points beside it, ONNX Runtime takes those of other groups.
    for inputs, kept in ((["w", "s", "z"], True), (["w", "s", "", "order"], False)):
        node = helper.make_node(
            "MatMulNBits",
            ["x", *inputs],
            ["y"],
            domain="com.microsoft",
            K=depth,
            N=columns,
            bits=4,
            block_size=block,
        )
        info = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", depth])
        weights = [numpy_helper.from_array(made[name], name) for name in inputs if name]
        whole = helper.make_graph([node], "g", [info], [onnx.ValueInfoProto(name="y")], weights)
        model = helper.make_model(whole, opset_imports=OPSETS, ir_version=10)
        graph = rewrite(import_onnx(model)).graph
        assert ("matmul_few_bits" in names(graph)) is kept
        (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
        np.testing.assert_allclose(evaluate(graph, [x])["y"], expected, rtol=1e-4, atol=1e-4)
