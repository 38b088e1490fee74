"""Kernels of emitted layers compile for GPUs that are not here; those that would spill get other knobs, or are left."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from kernels_hub.compiler.export import gpu_binaries as ahead
from kernels_hub.compiler.export.emit_layer import Emitted, emit_layer
from kernels_hub.compiler.export.gpu_binaries import Launched, compile_ahead, sizes_of
from kernels_hub.compiler.export.resources import SHARED_LIMIT, Resources
from kernels_hub.compiler.export.triton_program import knob_table
from tests.compiler.export.emitted_layers import gated_mlp

pytest.importorskip("triton", reason="needs Triton")


WARPS = {"onnx_layer": {"k4_attention_add_kernel": {"num_warps": 16}}}
"""Layer -> knobs without which a kernel would spill, by a few registers: on sm_80 with Triton 3.9, elsewhere with 3.7."""


@pytest.mark.exhaustive
@pytest.mark.parametrize("fixture", ["onnx_layer", "bert_layer"])
def test_every_kernel_of_a_layer(fixture: str, request: pytest.FixtureRequest):
    """For all architectures, without spills, in the shared memory that there is, with no other knobs than `WARPS`."""
    emitted: Emitted = request.getfixturevalue(fixture)
    parts = emitted.programs[0].triton
    assert parts is not None, emitted.programs[0].without_triton
    knobs = knob_table()
    sizes = sizes_of(emitted.graph, [])
    rows = compile_ahead(emitted.path, tuple(SHARED_LIMIT), {parts.program_file: sizes}, knobs)
    assert {one.arch for one in rows} == set(SHARED_LIMIT)
    faults = [one for one in rows if one.resources.spills or one.binary is None]
    assert not faults
    for arch, found in knobs.items():
        others = found.pop("kernels", {})
        assert others in ({}, WARPS.get(fixture, {}))
        assert found == {name: value for name, value in knob_table()[arch].items() if name != "kernels"}


class Compiler:
    """Stands for Triton's: kernels spill unless they have enough warps, or small enough tiles."""

    def __init__(self, limit: int) -> None:
        self.limit, self.seen = limit, 0

    def __call__(self, one: Launched, arch: str) -> tuple[Resources, Any]:
        self.seen += 1
        spills = max(0, one.constants["ROWS"] // one.constants["num_warps"] - self.limit)
        meta = SimpleNamespace(
            name=one.name, shared=64, num_warps=one.constants["num_warps"], global_scratch_size=0,
            profile_scratch_size=0, num_ctas=1,
        )  # fmt: skip
        return Resources(100, spills, 64, len(one.parameters) + 2), SimpleNamespace(
            asm={"cubin": b"binary"}, metadata=meta
        )


def rows_for(
    emitted: Emitted, limit: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[Any], dict[str, Any]]:
    knobs = knob_table()
    monkeypatch.setattr(ahead, "_compiled", Compiler(limit))
    parts = emitted.programs[0].triton
    assert parts is not None
    sizes = [{"batch": 64, "length": 128}, {"batch": 1, "length": 1}]
    return compile_ahead(emitted.path, ("sm_90",), {parts.program_file: sizes}, knobs), knobs


def test_kernels_that_spill_get_other_knobs(mlp: Emitted, monkeypatch: pytest.MonkeyPatch):
    rows, knobs = rows_for(mlp, 4, monkeypatch)
    assert not any(one.resources.spills for one in rows) and all(one.binary for one in rows)
    tuned = knobs["sm_90"]["kernels"]
    assert tuned.keys() == {"k0_matmul_kernel", "k1_matmul_mul_kernel", "k2_matmul_kernel"}
    assert all(one.constants.items() >= tuned[one.kernel].items() for one in rows)
    assert all(one.constants["ROWS"] <= 4 * one.constants["num_warps"] for one in rows)
    assert not knobs["sm_80"]["kernels"]


def test_kernels_that_always_spill_are_left_to_triton(mlp: Emitted, monkeypatch: pytest.MonkeyPatch):
    rows, knobs = rows_for(mlp, -100, monkeypatch)
    assert rows and all(one.binary is None and "it spills registers (" in one.reason for one in rows)
    assert not knobs["sm_90"]["kernels"]
    index = json.loads((mlp.path / "triton" / "binaries" / "binaries.json").read_text())
    assert index["programs"]["kernels.py"]["sm_90"] == []


def test_without_gpu_kernels_the_card_says_why(tmp_path: Path):
    """The repository is for the CPU alone then."""

    class Powers(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x**x

    given = torch.arange(12).reshape(3, 4)
    emitted = emit_layer((Powers(), (given,)), layer_name="Powers", out=tmp_path / "out", benchmark=False)
    without = emitted.programs[0].without_triton
    assert emitted.programs[0].triton is None and without == "pow: Triton has no expression for pow of int64"
    assert f"There are no GPU kernels: {without}." in (tmp_path / "out" / "README.md").read_text()
    assert "[backends.cuda]" not in (tmp_path / "out" / "kernel.toml").read_text()
    assert not (tmp_path / "out" / "triton").exists()


def test_the_card_shows_the_graph(mlp: Emitted):
    card = (mlp.path / "README.md").read_text()
    assert "![The graph](graph.svg)" in card and (mlp.path / "graph.svg").read_text().startswith("<svg ")
    assert f"torch {torch.__version__}" in card and "batch = 2, length = 5: 0" in card
    for one in (mlp.path / "triton").glob("*.py"):
        source = re.sub(r'getLogger\("kernels_hub\.\w+\.\w+"\)', "", one.read_text())
        assert "kernels_hub" not in source, one
    assert str(Path(__file__).parents[3]) not in (mlp.path / "triton" / "kernels.py").read_text()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("aot", [True, False], ids=["binaries", "jit"])
def test_on_a_gpu(tmp_path: Path, aot: bool):
    """Against the module in float64; with binaries, nothing is compiled where it runs."""
    from kernels_hub import get_local_kernel

    major, minor = torch.cuda.get_device_capability()
    arch = f"sm_{major}{minor}"
    if aot and arch not in SHARED_LIMIT:
        pytest.skip(f"no binaries for {arch}")
    case = gated_mlp()
    emitted = emit_layer(
        (case.module, case.args),
        layer_name="GatedMLP",
        out=tmp_path / "out",
        dynamic_shapes=case.dynamic_shapes,
        dtypes=("float32", "bfloat16"),
        aot=(arch,) if aot else (),
        benchmark=False,
    )
    kernel = get_local_kernel(emitted.path, backend="cuda")
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.bfloat16, 4e-2)):
        module = gated_mlp().module.to("cuda", dtype)
        for shape in ((2, 5, 64), (1, 1, 64), (8, 128, 64), (0, 3, 64)):
            x = torch.randn(shape, device="cuda", dtype=dtype)
            with torch.no_grad():
                actual = kernel.layers.GatedMLP.forward(module, x)
                expected = gated_mlp().module.to("cuda", torch.float64)(x.double())
            largest = expected.abs().max() if expected.numel() else 1
            assert (actual.double() - expected).abs().le(tolerance * largest).all()
        stream = torch.cuda.Stream()
        with torch.no_grad(), torch.cuda.stream(stream):
            x = torch.randn(2, 5, 64, device="cuda", dtype=dtype)
            on_stream = kernel.layers.GatedMLP.forward(module, x)
            torch.testing.assert_close(on_stream, module(x), atol=tolerance, rtol=tolerance)
    program = kernel.program.LAYER
    assert not program.fallbacks
    if aot:
        (launcher,) = program.layers[0]._launchers.values()
        assert launcher._binaries is not None and not launcher._binaries._said
