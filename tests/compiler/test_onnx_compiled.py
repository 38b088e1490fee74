"""ONNX's own runner over compiled models: what the oracle passes, compiled code passes on the CPU.

A plain run takes a sample, the same every time: some of the single ops, more of the models that were converted, three
of the large ones. All 1966 cases, and all nine, some 20 minutes on two cores:

    KERNELS_HUB_ONNX_CASES=all python -m pytest tests/compiler/test_onnx_compiled.py

Nothing is excused but what the oracle does not pass, which stands in importers/onnx_backend_failures.toml.
"""

from __future__ import annotations

import functools
import os
import threading
import tomllib
import unittest
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.backend.test
import pytest

from kernels_hub.compiler.onnx_backend import KernelsHubBackend, PreparedModel
from kernels_hub.compiler.runtime.toolchain import find_compiler
from tests.runtime_objects import share_runtime_objects

LISTED = tomllib.loads((Path(__file__).parent / "importers" / "onnx_backend_failures.toml").read_text())
FAILING = {case for group in LISTED["failures"] for case in group["cases"]}
ALL = os.environ.get("KERNELS_HUB_ONNX_CASES") == "all"
GROUPS = {"Node": 80, "Simple": 5, "PyTorchConverted": 5, "PyTorchOperator": 5}
"""Group -> every which case is in the sample."""
LARGE = ("test_resnet50", "test_shufflenet", "test_squeezenet")
REST = (
    "test_bvlc_alexnet",
    "test_densenet121",
    "test_inception_v1",
    "test_inception_v2",
    "test_vgg19",
    "test_zfnet512",
)

pytestmark = [
    pytest.mark.skipif(
        onnx.__version__ != LISTED["onnx"], reason=f"the list is of the cases of onnx {LISTED['onnx']}"
    ),
    pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler"),
]


@dataclass(frozen=True)
class Outcome:
    """What became of a case: why it failed, or None; and the engine of each segment of what ran."""

    failure: str | None
    engines: tuple[str, ...]


class Compiled(KernelsHubBackend):
    """Remembers what each thread prepared last."""

    prepared = threading.local()

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> PreparedModel:
        cls.prepared.last = made = super().prepare(model, device, **kwargs)
        return made


class Wrong(Compiled):
    """Results are off by a percent."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> PreparedModel:
        made = super().prepare(model, device, **kwargs)
        run = made.run
        made.run = lambda inputs, **_: tuple(one * 1.01 for one in run(inputs))
        return made


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of these tests for what is compiled, and for the large models."""
    folder = tmp_path_factory.mktemp("onnx")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNELS_HUB_CACHE", str(share_runtime_objects(folder / "cache")))
        patch.setenv("ONNX_HOME", str(folder))
        yield folder


@functools.cache
def _cases(backend: type[Compiled]) -> dict[str, type[unittest.TestCase]]:
    return onnx.backend.test.BackendTest(backend, __name__).test_cases


def outcome(group: str, name: str, backend: type[Compiled] = Compiled) -> Outcome:
    Compiled.prepared.last = None
    failure = None
    case = f"{name}_cpu"
    try:
        getattr(_cases(backend)[f"OnnxBackend{group}ModelTest"](case), case)()
    except unittest.SkipTest as skipped:
        failure = f"skipped: {skipped}"
    except Exception as error:  # noqa: BLE001  (whatever a case fails with)
        failure = f"{type(error).__name__}: {error}"
    last: PreparedModel | None = Compiled.prepared.last
    return Outcome(failure, () if last is None else last.engines)


def sample(group: str) -> list[str]:
    kind = _cases(Compiled)[f"OnnxBackend{group}ModelTest"]
    names = sorted(
        one.removesuffix("_cpu") for one in dir(kind) if one.startswith("test_") and one.endswith("_cpu")
    )
    return [one for one in names if one not in FAILING][:: 1 if ALL else GROUPS[group]]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the generators of expected values divide by zero and overflow
def test_what_the_oracle_passes_compiled_code_passes():
    cases = [(group, name) for group in GROUPS for name in sample(group)]
    assert len(cases) == (1966 if ALL else 50)
    with ThreadPoolExecutor(2) as pool:
        found = dict(zip(cases, pool.map(lambda case: outcome(*case), cases), strict=True))
    assert {name: one.failure for (_, name), one in found.items() if one.failure is not None} == {}
    by_oracle = [name for (_, name), one in found.items() if "reference" in one.engines]
    generated = [name for (_, name), one in found.items() if set(one.engines) == {"cpp"}]
    print(f"{len(found)} cases: {len(generated)} all C++, {len(by_oracle)} with a segment of the oracle's")
    assert len(by_oracle) <= 0.05 * len(found), by_oracle
    assert len(generated) >= 0.8 * len(found)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LARGE + REST if ALL else LARGE)
def test_large_models(name: str):
    assert outcome("Real", name) == Outcome(None, ("cpp",))


@pytest.mark.filterwarnings("ignore")
def test_wrong_numbers_are_found():
    found = outcome("PyTorchOperator", "test_operator_addconstant", Wrong)
    assert found.failure is not None
    assert "Mismatched elements" in found.failure


# -- the interface


def test_a_prepared_model_tells_what_ran_it():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> g (float[n] a, float[n] b) => (float[n] c) { c = Add(a, b) }'
    )
    for device, engines in (("CPU", ("cpp",)), ("REFERENCE", ("reference",))):
        prepared = KernelsHubBackend.prepare(model, device)
        assert prepared.engines == ()
        for count in (3, 5):
            (sums,) = prepared.run([np.ones(count, np.float32)] * 2)
            assert isinstance(sums, np.ndarray)
            np.testing.assert_array_equal(sums, [2] * count)
        assert prepared.engines == engines


def test_results_of_sequences_and_of_optionals_that_are_empty():
    """What the graph has as several tensors, or none, is the model's again."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> '
        "g (float[6] x) => (seq(float[k]) parts) { parts = SplitToSequence <axis = 0> (x) }"
    )
    ((*parts,),) = KernelsHubBackend.prepare(model, "CPU").run([np.arange(6, dtype=np.float32)])
    np.testing.assert_array_equal(np.ravel(parts), np.arange(6))
