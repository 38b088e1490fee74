"""ONNX's own runner over the oracle: every case of node, simple, pytorch-converted, pytorch-operator and light.

What does not pass stands in onnx_backend_failures.toml with its reason, exactly: no case more, no case less.
"""

from __future__ import annotations

import functools
import tomllib
import unittest
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.backend.test
import pytest

from kernels_hub.compiler.errors import CompilerError, EvaluateError
from kernels_hub.compiler.onnx_backend import KernelsHubBackend, PreparedModel
from tests.combinations import all_but

LISTED = tomllib.loads((Path(__file__).parent / "onnx_backend_failures.toml").read_text())
EXPECTED = {case for group in LISTED["failures"] for case in group["cases"]}

pytestmark = pytest.mark.skipif(
    onnx.__version__ != LISTED["onnx"], reason=f"the list is of the cases of onnx {LISTED['onnx']}"
)


class Oracle(KernelsHubBackend):
    """The runner knows the devices CPU and CUDA; these cases are to be the oracle's."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> PreparedModel:
        return super().prepare(model, "REFERENCE", **kwargs)


@functools.cache
def cases(backend: type[Any] = Oracle) -> dict[str, type[unittest.TestCase]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the generators of expected values divide by zero and overflow
        return onnx.backend.test.BackendTest(backend, __name__).test_cases


LIGHT = (
    "bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet", "vgg19",
    "zfnet512",
)  # fmt: skip


def outcome(group: str, backend: type[Any] = Oracle, only: str = "") -> dict[str, str | None]:
    """Case -> why it failed, or None."""
    kind = cases(backend)[f"OnnxBackend{group}ModelTest"]
    found: dict[str, str | None] = {}
    for name in dir(kind):
        if name.startswith("test_") and name.endswith("_cpu") and only in name:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    getattr(kind(name), name)()
                except unittest.SkipTest as skipped:
                    found[name.removesuffix("_cpu")] = f"skipped: {skipped}"
                except Exception as error:  # noqa: BLE001  (whatever a case fails with)
                    found[name.removesuffix("_cpu")] = f"{type(error).__name__}: {error}"
                else:
                    found[name.removesuffix("_cpu")] = None
    return found


@pytest.mark.parametrize(
    ("group", "count"), [("Node", 1884), ("Simple", 23), ("PyTorchConverted", 82), ("PyTorchOperator", 35)]
)
def test_official_cases(group: str, count: int):
    found = outcome(group)
    assert len(found) == count
    failed = {name: reason for name, reason in found.items() if reason is not None}
    assert {name: reason for name, reason in failed.items() if name not in EXPECTED} == {}
    assert sorted(EXPECTED & found.keys() - failed.keys()) == [], "these pass: take them off the list"


@pytest.mark.parametrize(
    "name",
    all_but(LIGHT, "bvlc_alexnet", "densenet121", "inception_v1", "vgg19", "zfnet512"),
)
def test_light_models(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ONNX_HOME", str(tmp_path))
    assert outcome("Real", only=name) == {f"test_{name}": None}


@pytest.mark.exhaustive
def test_there_are_no_other_light_models():
    kind = cases(Oracle)["OnnxBackendRealModelTest"]
    assert {name for name in dir(kind) if name.endswith("_cpu")} == {f"test_{name}_cpu" for name in LIGHT}


def test_the_list_names_each_case_once_with_a_reason():
    listed = [case for group in LISTED["failures"] for case in group["cases"]]
    assert len(listed) == len(set(listed)) <= 2024 - 1966
    assert all(group["reason"] for group in LISTED["failures"])


def test_the_runner_rejects_wrong_numbers():
    class Wrong(Oracle):
        @classmethod
        def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> PreparedModel:
            prepared = super().prepare(model, device, **kwargs)
            run = prepared.run
            prepared.run = lambda inputs, **_: tuple(one * 1.01 for one in run(inputs))
            return prepared

    assert (
        outcome("PyTorchOperator", Wrong, only="test_operator_addconstant")["test_operator_addconstant"]
        is not None
    )


# -- the interface


def add_model() -> onnx.ModelProto:
    return onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> g (float[n] a, float[n] b) => (float[n] c) { c = Add(a, b) }'
    )


def test_prepare_and_run_by_order_and_by_name():
    prepared = KernelsHubBackend.prepare(add_model(), "REFERENCE")
    a, b = np.arange(3, dtype=np.float32), np.ones(3, np.float32)
    (by_order,) = prepared.run([a, b])
    (by_name,) = prepared.run({"b": b, "a": a})
    np.testing.assert_array_equal(by_order, [1, 2, 3])
    np.testing.assert_array_equal(by_name, by_order)
    (longer,) = KernelsHubBackend.run_model(add_model(), [np.ones(5, np.float32)] * 2, "REFERENCE")
    assert longer.shape == (5,)


def test_values_that_decide_shapes_are_fixed_call_by_call():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> '
        "g (float[6] x, int64[k] shape) => (float[a] y) { y = Reshape(x, shape) }"
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    prepared = KernelsHubBackend.prepare(model, "REFERENCE")
    x = np.arange(6, dtype=np.float32)
    for shape in ([2, 3], [3, 2], [6], [1, 6], [2, -1]):
        (y,) = prepared.run([x, np.array(shape, np.int64)])
        np.testing.assert_array_equal(y, x.reshape(shape))


def test_run_node():
    node = onnx.helper.make_node("Clip", ["x", "", "top"], ["y"])
    (y,) = KernelsHubBackend.run_node(
        node, [np.array([1.0, 5.0], np.float32), np.array(2.0, np.float32)], "REFERENCE"
    )
    np.testing.assert_array_equal(y, [1, 2])
    node = onnx.helper.make_node("Clip", ["x"], ["y"], max=3.0)
    (y,) = KernelsHubBackend.run_node(node, [np.array([1.0, 5.0], np.float32)], "REFERENCE", opset_version=6)
    np.testing.assert_array_equal(y, [1, 3])


def test_refusals():
    assert KernelsHubBackend.supports_device("CPU")
    assert KernelsHubBackend.supports_device("REFERENCE")
    assert not KernelsHubBackend.supports_device("TPU")
    with pytest.raises(CompilerError, match="no device 'TPU'; there are CPU.*, REFERENCE"):
        KernelsHubBackend.prepare(add_model(), "TPU")
    prepared = KernelsHubBackend.prepare(add_model())
    with pytest.raises(EvaluateError, match=r"missing are \['b'\]"):
        prepared.run({"a": np.ones(1, np.float32)})
    with pytest.raises(EvaluateError, match="takes 2 inputs, got 3"):
        prepared.run([np.ones(1, np.float32)] * 3)
    with pytest.raises(EvaluateError, match="'a' is a list; the model takes: tensor"):
        prepared.run([[np.ones(1)], np.ones(1, np.float32)])
