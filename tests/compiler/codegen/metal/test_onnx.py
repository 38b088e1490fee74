"""Cases of ONNX's own suite on generated Metal, compiled by the host's compiler."""

from __future__ import annotations

import functools
import tomllib
import unittest
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnx.backend.test
import pytest

from kernels_hub.compiler.engines.metal import declines
from kernels_hub.compiler.importers.onnx import OnnxProgram
from kernels_hub.compiler.onnx_backend import KernelsHubBackend, PreparedModel
from kernels_hub.compiler.runtime.toolchain import find_compiler
from tests.compiler.codegen.metal.metal_runner import run_metal
from tests.fuzz.harness import EXHAUSTIVE

LISTED = tomllib.loads((Path(__file__).parents[2] / "importers" / "onnx_backend_failures.toml").read_text())
FAILING = {case for group in LISTED["failures"] for case in group["cases"]}

pytestmark = [
    pytest.mark.skipif(
        onnx.__version__ != LISTED["onnx"], reason=f"the list is of the cases of onnx {LISTED['onnx']}"
    ),
    pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler"),
]


@dataclass(frozen=True)
class OnMetal:
    """What `BackendProgram` wants of an executable."""

    imported: OnnxProgram
    engines: tuple[str, ...] = ("metal",)

    @property
    def plan(self) -> OnMetal:
        return self

    def arrays(self, inputs: Any) -> dict[str, Any]:
        return run_metal(self.imported.graph, [inputs[name] for name in self.imported.graph.inputs])


class Prepared(PreparedModel):
    """A model on Metal; skipped where Metal declines it, with the reason."""

    def _compiled(self, imported: OnnxProgram) -> Any:
        if (found := declines(imported.graph)) is not None:
            raise unittest.SkipTest(f"declined: {found.reason}")
        return OnMetal(imported)


class Metal(KernelsHubBackend):
    """The suite's interface."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **_: Any) -> PreparedModel:
        return Prepared(model, device)


@functools.cache
def _cases() -> type[unittest.TestCase]:
    return onnx.backend.test.BackendTest(Metal, __name__).test_cases["OnnxBackendNodeModelTest"]


def outcome(name: str) -> str | None:
    """Why a case failed, "declined: …", or None."""
    try:
        getattr(_cases()(name), name)()
    except unittest.SkipTest as skipped:
        return str(skipped)
    except Exception as error:  # noqa: BLE001  (whatever a case fails with)
        return f"{type(error).__name__}: {error}"
    return None


def names() -> list[str]:
    found = [one for one in dir(_cases()) if one.startswith("test_") and one.endswith("_cpu")]
    return sorted(one for one in found if one.removesuffix("_cpu") not in FAILING)


@pytest.mark.filterwarnings("ignore")  # the generators of expected values divide by zero and overflow
@pytest.mark.parametrize(
    "name", ["tan", "erf", "gemm_all_attributes", "matmul_3d", "reduce_mean_keepdims_random", "softmax_axis_1", "argmax_keepdims_example", "conv_with_strides_padding"]
)  # fmt: skip
def test_a_case(name: str):
    assert outcome(f"test_{name}_cpu") is None


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")
def test_a_sample_of_the_suite():
    found = {name: outcome(name) for name in names()[:: 8 if EXHAUSTIVE else 32]}
    declined = {name for name, why in found.items() if why is not None and why.startswith("declined: ")}
    failed = {name: why for name, why in found.items() if why is not None and name not in declined}
    assert failed == {}
    print(f"{len(found) - len(declined)} of {len(found)} cases ran")
    assert len(found) - len(declined) >= 0.5 * len(found)
