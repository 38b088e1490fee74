"""DynamicQuantizeLSTM against ONNX Runtime with one thread: the reference, and both engines of the CPU."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from kernels_hub.compiler import compile as compile_graph
from kernels_hub.compiler.importers.onnx import import_onnx
from kernels_hub.compiler.ir.evaluate import evaluate
from tests.combinations import every_pair

runtime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")

INPUT, HIDDEN = 5, 18
NAMES = ("x", "w", "r", "b", "lengths", "h", "c", "p", "w_scale", "w_zero", "r_scale", "r_zero")
RESULTS = ("y", "yh", "yc")


def model(
    direction: str,
    batch: int,
    given: set[str],
    *,
    signed: bool,
    per_channel: bool,
    seed: int = 0,
    time: int = 9,
) -> tuple[onnx.ModelProto, Mapping[str, np.ndarray]]:
    """A model of one node whose weights are initializers, and what it is given."""
    random = np.random.default_rng(seed)
    ways = 2 if direction == "bidirectional" else 1
    kind, low = (np.int8, -127) if signed else (np.uint8, 0)
    weights: dict[str, np.ndarray] = {}
    for name, rows in (("w", INPUT), ("r", HIDDEN)):
        weights[name] = random.integers(low, low + 255, (ways, rows, 4 * HIDDEN)).astype(kind)
        shape = (ways, 4 * HIDDEN) if per_channel else (ways,)
        weights[f"{name}_scale"] = random.uniform(0.004, 0.008, shape).astype(np.float32)
        weights[f"{name}_zero"] = np.full(shape, 0 if signed else random.integers(90, 160), kind)
    feeds = {"x": random.standard_normal((time, batch, INPUT), np.float32)}
    for name, width in (("b", 8 * HIDDEN), ("p", 3 * HIDDEN)):
        if name in given:
            weights[name] = random.standard_normal((ways, width), np.float32) * np.float32(0.2)
    for name in {"h", "c"} & given:
        feeds[name] = random.standard_normal((ways, batch, HIDDEN), np.float32)
    if "lengths" in given:
        feeds["lengths"] = random.permutation(np.arange(batch) * 3 % (time + 1)).astype(np.int32)
    used = [name if name in weights or name in feeds else "" for name in NAMES]
    node = helper.make_node(
        "DynamicQuantizeLSTM", used, RESULTS, domain="com.microsoft", hidden_size=HIDDEN, direction=direction
    )
    kinds = {"lengths": TensorProto.INT32}
    graph = helper.make_graph(
        [node], "g",
        [helper.make_tensor_value_info(n, kinds.get(n, TensorProto.FLOAT), one.shape) for n, one in feeds.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in RESULTS],
        [numpy_helper.from_array(one, name) for name, one in weights.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9), feeds


GIVEN = {"x": set(), "states": {"b", "h", "c"}, "lengths": {"b", "h", "c", "lengths"}}


def wanted(one: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1  # with more, each has a part of the batch, and a range of its own
    found: list[np.ndarray] = runtime.InferenceSession(one.SerializeToString(), options).run(None, feeds)
    return found


def agree(found: Mapping[str, np.ndarray], expected: list[np.ndarray]) -> None:
    for name, one in zip(RESULTS, expected, strict=True):
        np.testing.assert_allclose(found[name], one, rtol=1e-5, atol=2e-6, err_msg=name)


@every_pair(direction=["forward", "reverse", "bidirectional"], signed=[True, False], given=GIVEN)
def test_states_are_rounded_as_onnx_runtime_rounds_them(direction, signed, given):
    for batch in (1, 6):
        one, feeds = model(direction, batch, GIVEN[given], signed=signed, per_channel=signed)
        expected, graph = wanted(one, feeds), import_onnx(one)
        assert [node.op.name for node in graph.live()].count("recurrent") == 1
        found = evaluate(graph, feeds)
        agree(found, expected)
        for engine in ("cpp", "library"):
            agree(compile_graph(graph, "cpu", engines=(engine,)).arrays(feeds), expected)
        with pytest.raises(AssertionError):  # the rounding is what it is about
            agree({name: one + np.float32(1e-4) for name, one in found.items()}, expected)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("time", [4, 11])
def test_peepholes_are_scans_that_round_as_well(direction, time):
    for given in ({"b", "p"}, {"p", "h", "c", "lengths"}):
        one, feeds = model(direction, 3, given, signed=False, per_channel=False, time=time)
        agree(evaluate(import_onnx(one), feeds), wanted(one, feeds))
