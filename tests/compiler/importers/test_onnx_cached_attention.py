"""GroupQueryAttention of com.microsoft, against ONNX Runtime: prompts, steps, kept keys, windows, sinks."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from kernels_hub.compiler import compile as compile_model
from kernels_hub.compiler.errors import OnnxImportError
from kernels_hub.compiler.importers.onnx import import_onnx
from kernels_hub.compiler.ir.evaluate import evaluate
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.ir.verify import verify

HEADS, KEPT, WIDTH, LONGEST = 4, 2, 16, 64


class Call:
    """A model with one node, with axes that are open, and a call of it.

    lengths: of each row, this call's tokens included. past: how many places the kept keys have, None for none.
    given: which of places, bias, sinks are inputs. turned: how much of a head is turned, 0 for nothing.
    """

    def __init__(
        self, length: int, lengths: list[int], past: int | None, *, packed: bool = False, turned: int = 0,
        given: str = "", **attrs: Any,
    ) -> None:  # fmt: skip
        self.inputs: dict[str, np.ndarray] = {}
        self.infos: list[onnx.ValueInfoProto] = []
        self.random = np.random.default_rng(length)
        batch, longest = len(lengths), max(lengths)
        mask = np.array([[1] * own + [0] * (longest - own) for own in lengths])
        own, rows = ("b", batch), ("s", length)
        if packed:
            names = [self._normal("q", own, rows, (HEADS + 2 * KEPT) * WIDTH), "", ""]
        else:
            heads = {"q": HEADS, "k": KEPT, "v": KEPT}
            names = [self._normal(name, own, rows, count * WIDTH) for name, count in heads.items()]
        for name in ("past_k", "past_v"):
            names.append(self._normal(name, own, KEPT, ("p", past), WIDTH) if past is not None else "")
        self._input("mask", mask, [own, ("t", longest)])
        angles = np.outer(np.arange(LONGEST), 1e4 ** -(np.arange(turned // 2) / max(turned // 2, 1)))
        tables = {"cosines": np.cos(angles), "sines": np.sin(angles)} if turned else {}
        names += ["lasts", "total", *(tables or ["", ""])]
        places = np.tile(np.arange(length) + 3, (batch, 1))
        names.append(self._input("places", places, [own, rows]) if "places" in given else "")
        names.append(self._normal("bias", own, HEADS, rows, ("t", longest)) if "bias" in given else "")
        names.append(self._normal("sinks", HEADS) if "sinks" in given else "")
        nodes = [
            helper.make_node("ReduceSum", ["mask", "one"], ["counts"], keepdims=0),
            helper.make_node("Sub", ["counts", "one"], ["long lasts"]),
            helper.make_node("Cast", ["long lasts"], ["lasts"], to=TensorProto.INT32),
            helper.make_node("Shape", ["mask"], ["sizes"]),
            helper.make_node("Gather", ["sizes", "one"], ["long total"]),
            helper.make_node("Cast", ["long total"], ["total"], to=TensorProto.INT32),
            helper.make_node(
                "GroupQueryAttention", names, ["y", "kept_k", "kept_v"], domain="com.microsoft", num_heads=HEADS,
                kv_num_heads=KEPT, **({"do_rotary": 1} if turned else {}), **attrs,
            ),
        ]  # fmt: skip
        weights = {"one": np.array([1]), **{name: table.astype(np.float32) for name, table in tables.items()}}
        results = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("y", "kept_k", "kept_v")
        ]
        initializers = [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()]
        graph = helper.make_graph(nodes, "g", self.infos, results, initializers)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        self.model = helper.make_model(graph, opset_imports=opsets, ir_version=8)

    def _input(self, name: str, array: np.ndarray, dims: list[Any]) -> str:
        declared = [dim[0] if isinstance(dim, tuple) else dim for dim in dims]
        self.inputs[name] = array
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        self.infos.append(helper.make_tensor_value_info(name, kind, declared))
        return name

    def _normal(self, name: str, *dims: Any) -> str:
        shape = tuple(dim[1] if isinstance(dim, tuple) else dim for dim in dims)
        return self._input(name, self.random.standard_normal(shape, np.float32), list(dims))

    def graph(self) -> Graph:
        """With a past that may be empty."""
        return verify(import_onnx(self.model, dims={"p": (0, LONGEST)} if "past_k" in self.inputs else {}))

    def expected(self) -> list[np.ndarray]:
        onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")
        return onnxruntime.InferenceSession(self.model.SerializeToString()).run(None, self.inputs)


CASES: Mapping[str, Call] = {
    "prompt": Call(5, [5, 5], 0),
    "prompt without a past": Call(5, [5, 5], None),
    "step": Call(1, [7, 7], 6),
    "step of rows of several lengths": Call(1, [7, 4], 6, turned=16),
    "several tokens after others": Call(3, [9], 6, turned=16),
    "prompt, kept in a longer place": Call(5, [5, 5], 16, turned=16),
    "step in a longer place": Call(1, [7, 5], 16, turned=16),
    "several tokens in a longer place": Call(3, [9], 16),
    "side by side": Call(5, [5, 5], 0, packed=True, turned=16),
    "turned by pairs": Call(5, [5, 5], 0, turned=16, rotary_interleaved=1),
    "places": Call(1, [7, 7], 6, turned=16, given="places"),
    "window": Call(5, [5], 0, local_window_size=2),
    "step in a window": Call(1, [7, 7], 6, local_window_size=3),
    "cap": Call(5, [5, 5], 0, softcap=2.0),
    "smooth": Call(5, [5, 5], 0, smooth_softmax=1),
    "sinks": Call(1, [7, 7], 6, given="sinks"),
    "bias and cap": Call(3, [9], 6, given="bias", softcap=1.5),
    "scale": Call(3, [9], 6, scale=0.2),
}


@pytest.mark.parametrize("case", CASES)
def test_it_computes_what_onnx_runtime_does(case: str):
    call = CASES[case]
    graph = call.graph()
    for found, wanted in zip(evaluate(graph, call.inputs).values(), call.expected(), strict=True):
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=3e-6)


@pytest.mark.parametrize("engine", ["library", "cpp"])
def test_engines_take_keys_as_many_as_the_greater_of_two_sizes(engine: str, caplog: pytest.LogCaptureFixture):
    """The mask that the library's attention is handed depends on both sizes, which no operand of it has."""
    with caplog.at_level(logging.WARNING):
        for case in ("step of rows of several lengths", "step in a longer place"):
            call = CASES[case]
            run = compile_model(call.model, "cpu", engines=(engine,), wait=True)
            found = run.arrays(call.inputs)
            for name, wanted in zip(found, call.expected(), strict=True):
                np.testing.assert_allclose(found[name], wanted, rtol=1e-4, atol=1e-5)
            assert run.plan.engines == (engine,)
    assert not caplog.records


def test_of_a_shorter_prompt_what_is_there_is_right():
    call = Call(5, [5, 3], 0, turned=16)
    found, expected = evaluate(call.graph(), call.inputs), call.expected()
    for row, length in enumerate((5, 3)):
        np.testing.assert_allclose(found["y"][row, :length], expected[0][row, :length], rtol=2e-5, atol=3e-6)
    np.testing.assert_allclose(found["kept_k"], expected[1], rtol=2e-5, atol=3e-6)


def test_what_is_not_taken_is_refused():
    with pytest.raises(OnnxImportError, match="qk_output 1 is not taken"):
        import_onnx(Call(1, [7], 6, qk_output=1).model)
