"""The wheel for ARM, built here: what its objects compute in an emulator, and what they ask of a system."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.tools import emulated
from tests.tools.test_wheels import REGIONS
from tools.wheels import __main__ as wheels
from tools.wheels import native

needs_zig = pytest.mark.skipif(
    importlib.util.find_spec("ziglang") is None, reason="needs ziglang (extra wheels)"
)
needs_emulator = pytest.mark.skipif(bool(emulated.missing()), reason=emulated.missing() or "it is here")

PROCESSORS = {"neon": "cortex-a57", "neon_bf16": "max"}
"""Level -> a processor of the emulator whose best level it is."""
TESTS = (
    "test_activation.py::test_forward_and_backward",
    "test_attention.py::test_forward_and_backward",
    "test_attention.py::test_special_values",
    "test_clamped_experts.py::test_forward",
    "test_convolution.py::test_minimal_filtering_keeps_what_is_not_finite_in_its_tiles",
    "test_convolution_planes.py::test_planes",
    "test_embedding.py::test_forward_and_backward",
    "test_few_rows.py::test_gated_mlp",
    "test_few_rows.py::test_linears",
    "test_few_rows.py::test_special_values",
    "test_loss.py::test_cross_entropy",
    "test_loss.py::test_random_rows",
    "test_moe.py::test_forward",
    "test_moe.py::test_router",
    "test_normalization.py::test_forward_and_backward",
    "test_normalization.py::test_special_values",
    "test_normalization.py::test_several_dims",
    "test_rotary.py::test_every_narrow_value",
    "test_rotary.py::test_special_values",
)
"""Of tests/layers: those that run a layer's C++ on small operands."""
FUNCTIONS = {
    "activation_forward", "activation_backward", "gated_activation_forward", "gated_activation_backward",
    "attention_forward", "attention_backward", "moe_clamped_experts", "minimal_run", "planes_run",
    "embedding_forward", "embedding_backward", "few_rows_gated", "few_rows_linears", "cross_entropy", "moe_experts", "moe_route",
    "norm_forward", "norm_backward", "gated_forward", "gated_backward", "rotary_rotate",
}  # fmt: skip


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors whose addresses are asked for travel along."""
    monkeypatch.setattr(torch.Tensor, "data_ptr", torch.Tensor.data_ptr)  # put back afterwards
    emulated.watch_storages()


@needs_zig
@needs_emulator
@pytest.mark.exhaustive
def test_a_slice_runs_its_regions_on_three_threads(tmp_path: Path, calls: None):
    source = tmp_path / "regions.cpp"
    source.write_text(REGIONS)
    native.build([native.Unit(source, (tmp_path,))], native.AARCH64, tmp_path / "out")
    server = emulated.build_server(tmp_path)
    for level, processor in PROCESSORS.items():
        library = emulated.EmulatedLibrary(tmp_path / "out" / f"kernels-{level}.so", server, processor)
        try:
            assert library.kh_runs_here() == 1 and library.kh_has_threads() == 1
            for length in (0, 1, 2, 7, 1000):
                for inside in (0, 1):
                    out = torch.full((max(length, 1),), -1, dtype=torch.int64)
                    team = library.regions(length, out.data_ptr(), inside)
                    assert team == (emulated.THREADS if inside else 1)
                    assert torch.equal(out[:length], 111 * torch.arange(length))
            with pytest.raises(emulated.EmulationError, match="has no function missing"):
                library.missing()
        finally:
            library.close()
    library = emulated.EmulatedLibrary(tmp_path / "out" / "kernels-neon_bf16.so", server, PROCESSORS["neon"])
    try:
        assert library.kh_runs_here() == 0, "this processor has no bfloat16"
    finally:
        library.close()


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The native code of the wheel."""
    folder = tmp_path_factory.mktemp("aarch64") / "native"
    native.build(native.units_of(native.ROOT), native.AARCH64, folder)
    return folder


@needs_zig
@pytest.mark.exhaustive
def test_the_wheel_is_for_its_platform(objects: Path, tmp_path: Path):
    """auditwheel reads the machine of the objects, and the versions of the symbols that they ask for."""
    (tmp_path / "pure").mkdir()
    pure = wheels.build_pure(native.ROOT, tmp_path / "pure")
    wheel = wheels.finish(pure, objects, native.AARCH64, tmp_path)[-1]
    assert list(wheels.problems_of(wheel, native.AARCH64)) == []
    (problem,) = wheels.problems_of(wheel, native.X86_64)
    assert "is not for manylinux_2_28_x86_64" in problem


@needs_zig
@needs_emulator
@pytest.mark.exhaustive
@pytest.mark.parametrize("level", PROCESSORS)
def test_the_tests_of_the_layers_pass_on_its_objects(objects: Path, level: str):
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.tools.emulated", "-p", "no:cacheprovider",
         *(f"tests/layers/{name}" for name in TESTS)],
        cwd=native.ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, emulated.SETTING: str(objects), emulated.PROCESSOR: PROCESSORS[level]},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
    called = json.loads((objects / emulated.CALLS).read_text())
    assert called.keys() >= FUNCTIONS, "what the tests call is the emulator's"
