"""Exported layers with complex arguments, weights and results, built by a compiler and as bytecode."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from kernels_hub import get_local_kernel
from kernels_hub.compiler.export.emit_layer import Emitted, emit_layer
from kernels_hub.compiler.runtime.bytecode import load_bytecode, no_interpreter
from kernels_hub.compiler.runtime.errors import BuildError
from tests.compiler.export.emitted_layers import BATCH
from tests.wheel_interpreter import wheel_interpreter, write_wheel


class Turned(nn.Module):
    """Complex arguments, weights and results, and real ones."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("turn", torch.polar(torch.ones(8), torch.linspace(0, 3, 8)))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.fft.fft(x * self.turn), (x + y).abs(), y.conj() * 2, x.conj()


def arguments(count: int = 3, dtype: torch.dtype = torch.complex64) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(count)
    x, y = torch.randn(2, count, 8, dtype=dtype, generator=generator)
    return x, y


@pytest.fixture(scope="module")
def emitted(tmp_path_factory: pytest.TempPathFactory) -> Emitted:
    return emit_layer(
        (Turned().eval(), arguments()),
        layer_name="Turned",
        dynamic_shapes={"x": {0: BATCH}, "y": {0: BATCH}},
        out=tmp_path_factory.mktemp("layer") / "turned",
        benchmark=False,
        training=False,
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheel_interpreter(tmp_path_factory.mktemp("wheel"))


@pytest.mark.parametrize("engine", ["cpp", "bytecode"])
def test_complex_arguments_and_results(
    emitted: Emitted, engine: str, wheel: Path, monkeypatch: pytest.MonkeyPatch
):
    if engine == "bytecode":
        monkeypatch.setenv("KERNELS_HUB_CXX", "none")
        monkeypatch.setenv("KERNELS_HUB_PREBUILT", str(wheel))
    loaded = get_local_kernel(emitted.path, backend="cpu").program.LAYER
    layer = type(loaded)(loaded.table, loaded.folder, loaded.shipped)
    module, (x, y) = Turned().eval(), arguments()
    calls = (
        (x, y),
        (x.conj(), torch._neg_view(y)),
        (x.flip(0)[:2], torch._neg_view(y.conj())[:2]),
        (x[:, :1].expand(3, 8), y.T.contiguous().T),
        arguments(70),
        (x[:0], y[:0]),
    )
    with torch.no_grad():
        for call in calls:
            for found, expected in zip(layer.call(module, *call), module(*call), strict=True):
                torch.testing.assert_close(found, expected)
        module.turn.mul_(1j)
        torch.testing.assert_close(layer.call(module, x, y)[0], module(x, y)[0])
        assert layer.engine == engine and not layer.fallbacks


def test_bytecode_with_transforms_asks_for_an_interpreter_that_knows_them(
    emitted: Emitted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (file,) = emitted.bytecode
    assert file.content is not None and file.content.startswith(b"kernels_hub bytecode 2 ")
    names = ("load", "free", "configure", "packed_bytes", "pack", "prepare", "run", "step")
    functions = "".join(f"void kh_bytecode_{name}() {{}}\n" for name in names)
    functions += "int kh_bytecode_runs(long form) { return form == 1; }\nint kh_runs_here() { return 1; }\n"
    before = write_wheel(tmp_path / "wheel", f'extern "C" {{\n{functions}}}')
    monkeypatch.setenv("KERNELS_HUB_PREBUILT", str(before))
    assert no_interpreter() is None
    with pytest.raises(BuildError, match="runs another format of bytecode than 2"):
        load_bytecode(emitted.path / "cpu" / file.name)
