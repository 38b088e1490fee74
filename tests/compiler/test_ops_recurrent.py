"""Recurrent cells: the reference against ONNX's, every engine against the reference, over random shapes and options."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from kernels_hub.compiler import compile as compile_graph
from kernels_hub.compiler.errors import ShapeError, TypeRuleError
from kernels_hub.compiler.importers.onnx import import_onnx
from kernels_hub.compiler.ir.evaluate import evaluate
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.ir.ops.recurrent import GATES, states
from tests.fuzz.harness import EXHAUSTIVE

RANDOM = np.random.default_rng(0)
CELLS = tuple(GATES)


def normal(*shape: int) -> np.ndarray:
    return (0.5 * RANDOM.standard_normal(shape)).astype(np.float32)


def recurrent(cell: str, time: int, batch: int, hidden: int, ways: int, *, reverse=False, lengths=False):
    """A graph of the op, with the weight a parameter and every size of the input a symbol; and its inputs."""
    graph = Graph(cell)
    gates = GATES[cell]
    x = graph.input("x", ("time", "batch", ways * gates * hidden))
    inputs = {"x": normal(time, batch, ways * gates * hidden)}
    weight = graph.parameter("w", (ways, gates * hidden, hidden), data=normal(ways, gates * hidden, hidden))
    operands = [x, weight]
    for place in range(states(cell)):
        operands.append(graph.input(f"state{place}", (ways, "batch", hidden)))
        inputs[f"state{place}"] = normal(ways, batch, hidden)
    if cell == "gru_after":
        operands.append(graph.parameter("b", (ways, hidden), data=normal(ways, hidden)))
    if lengths:
        operands.append(graph.input("lengths", ("batch",), "int64"))
        inputs["lengths"] = RANDOM.integers(0, time + 1, batch)
    graph.output("y", graph.apply("recurrent", *operands, cell=cell, reverse=reverse, lengths=lengths))
    return graph, inputs


SHAPES = ((1, 1, 1, 1), (5, 1, 16, 2), (3, 2, 33, 1), (2, 3, 64, 2), (4, 7, 20, 1), (1, 9, 130, 2))


IN_TURNS = [(shape, place % 2 == 1) for place, shape in enumerate(SHAPES)]
"""Each size with lengths, or without."""


@pytest.mark.parametrize("engine", ["cpp", "library"])
@pytest.mark.parametrize("cell", CELLS)
def test_engines_agree_with_the_reference(cell, engine):
    for shape, lengths in itertools.product(SHAPES, (False, True)) if EXHAUSTIVE else IN_TURNS:
        graph, inputs = recurrent(cell, *shape, reverse=shape[0] == 3, lengths=lengths)
        expected = evaluate(graph, inputs)["y"]
        found = compile_graph(graph, "cpu", engines=(engine,)).arrays(inputs)["y"]
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6, err_msg=f"{shape} {lengths}")
        wrong = expected.copy()
        wrong[-1] += 1e-3
        with pytest.raises(AssertionError):
            np.testing.assert_allclose(found, wrong, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("cell", CELLS)
def test_one_sequence_gives_the_same_bits_on_any_number_of_threads(cell):
    """Its large weight is shared by threads in each step."""
    graph, inputs = recurrent(cell, 6, 1, 300, 1)
    run = compile_graph(graph, "cpu", engines=("cpp",))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = run.arrays(inputs)["y"]
        for threads in (2, 3, 8):
            torch.set_num_threads(threads)
            for _ in range(3):
                np.testing.assert_array_equal(run.arrays(inputs)["y"], alone)
    finally:
        torch.set_num_threads(before)
    expected = evaluate(graph, inputs)["y"]
    np.testing.assert_allclose(alone, expected, atol=5e-4 * max(1.0, float(np.abs(expected).max())))


def model(
    op: str, direction: str, time: int, batch: int, hidden: int, given: set[str], **attrs
) -> onnx.ModelProto:
    gates, ways = {"LSTM": 4, "GRU": 3, "RNN": 1}[op], 2 if direction == "bidirectional" else 1
    names = ["x", "w", "r", "b", "lengths", "h", "c"]
    shapes = {
        "x": (time, batch, 5), "w": (ways, gates * hidden, 5), "r": (ways, gates * hidden, hidden),
        "b": (ways, 2 * gates * hidden), "lengths": (batch,), "h": (ways, batch, hidden), "c": (ways, batch, hidden),
    }  # fmt: skip
    used = names[: 7 if op == "LSTM" else 6]
    inputs = [name if name in given or name in "xwr" else "" for name in used]
    types = {"lengths": TensorProto.INT32}
    outputs = ["y", "yh", "yc"][: 3 if op == "LSTM" else 2]
    node = helper.make_node(op, inputs, outputs, hidden_size=hidden, direction=direction, **attrs)
    values = [
        helper.make_tensor_value_info(n, types.get(n, TensorProto.FLOAT), shapes[n]) for n in inputs if n
    ]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    graph = helper.make_graph([node], "g", values, results)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("LSTM", {}),
        ("GRU", {}),
        ("GRU", {"linear_before_reset": 1}),
        ("RNN", {}),
        ("RNN", {"activations": ["Relu"]}),
    ],
)
def test_models_become_one_op_that_gives_what_onnx_does(op, attrs, direction):
    if direction == "bidirectional" and "activations" in attrs:
        attrs = {"activations": attrs["activations"] * 2}
    for given in (set(), {"b", "h", "c"}):
        one = model(op, direction, 4, 2, 6, given, **attrs)
        graph = import_onnx(one)
        assert [node.op.name for node in graph.live()].count("recurrent") == 1
        feeds = {
            value.name: normal(*(dim.dim_value for dim in value.type.tensor_type.shape.dim))
            for value in one.graph.input
        }
        try:
            wanted = ReferenceEvaluator(one).run(None, feeds)
        except (NotImplementedError, RuntimeError, ValueError, IndexError):  # of directions that it has not
            import onnxruntime

            wanted = onnxruntime.InferenceSession(one.SerializeToString()).run(None, feeds)
        for name, expected in zip(("y", "yh", "yc"), wanted, strict=False):
            np.testing.assert_allclose(evaluate(graph, feeds)[name], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("attrs", [{}, {"clip": 0.7}])
@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_lengths_are_those_of_onnx_runtime(op, attrs):
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    for direction, layout in itertools.product(("forward", "reverse", "bidirectional"), (0, 1)):
        one = model(op, direction, 5, 4, 4, {"b", "h", "c", "lengths"}, **attrs)
        feeds = {
            value.name: normal(*(dim.dim_value for dim in value.type.tensor_type.shape.dim))
            for value in one.graph.input
        } | {"lengths": np.array([5, 2, 0, 1], np.int32)}
        wanted = onnxruntime.InferenceSession(one.SerializeToString()).run(None, feeds)
        if layout:  # ONNX Runtime has it not: its results in the other order
            node = one.graph.node[0]
            node.attribute.append(helper.make_attribute("layout", 1))
            for value in one.graph.input:
                if value.name in {"x", "h", "c"}:
                    del value.type.tensor_type.shape.dim[:]
                    feeds[value.name] = np.ascontiguousarray(feeds[value.name].swapaxes(0, 1))
                    for size in feeds[value.name].shape:
                        value.type.tensor_type.shape.dim.add().dim_value = size
            wanted = [wanted[0].transpose(2, 0, 1, 3), *(end.swapaxes(0, 1) for end in wanted[1:])]
        found = evaluate(import_onnx(one), feeds)
        for name, expected in zip(("y", "yh", "yc"), wanted, strict=False):
            np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "attrs", [{"clip": 0.5}, {"activations": ["Relu", "Tanh", "Tanh"]}, {"input_forget": 1}]
)
def test_other_options_are_scans(attrs):
    names = [node.op.name for node in import_onnx(model("LSTM", "forward", 9, 1, 4, set(), **attrs)).live()]
    assert "recurrent" not in names
    assert "scan" in names


def test_nan_and_infinity_go_through():
    graph, inputs = recurrent("lstm", 3, 2, 16, 1)
    inputs["x"][1, 0, 0], inputs["x"][1, 1, 16] = np.nan, np.inf
    expected = evaluate(graph, inputs)["y"]
    found = compile_graph(graph, "cpu", engines=("cpp",)).arrays(inputs)["y"]
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)


def test_it_refuses():
    graph = Graph("g")
    x, h = graph.input("x", (3, 2, 16)), graph.input("h", (1, 2, 4))
    w = graph.input("w", (1, 16, 4))
    with pytest.raises(TypeRuleError, match="lstm takes 4 operands, got 3"):
        graph.apply("recurrent", x, w, h, cell="lstm")
    with pytest.raises(ShapeError):
        graph.apply("recurrent", x, w, h, cell="gru")
    with pytest.raises(TypeRuleError, match="only the states of an lstm are quantized, not those of gru"):
        graph.apply("recurrent", x, w.cast("int8"), h, h, h, cell="gru", quantized=True)
    with pytest.raises(TypeRuleError, match="a quantized cell has a weight of int8, not float32"):
        graph.apply("recurrent", x, w, h, h, h, h, cell="lstm", quantized=True)
    with pytest.raises(TypeRuleError, match="floats of one dtype"):
        graph.apply("recurrent", x, w, h.cast("float64"), h.cast("float64"), cell="lstm")
