"""Native code that comes along, and programs of several dtypes: what serves a call, and what is said where none does."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels_hub import get_local_kernel
from kernels_hub.compiler.errors import CompilerError
from kernels_hub.compiler.export.emit_layer import Emitted, emit_layer
from kernels_hub.compiler.export.native_binaries import variant_name
from kernels_hub.compiler.runtime.toolchain import machine_isas
from kernels_hub.repository.build import build_repository
from tests.compiler.export.emitted_layers import GatedMLP, gated_mlp
from tests.tolerances import assert_close


@pytest.fixture(scope="module")
def built(mlp_dtypes: Emitted, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the variant with native code, and checked as `kernels-hub build` checks it."""
    out = tmp_path_factory.mktemp("built")
    names = [one.name for one in build_repository(mlp_dtypes.path, out, check=True)]
    assert names == ["torch-cpu", variant_name(), "torch-cuda", "torch-rocm"]
    return out / "build"


@pytest.fixture
def copied(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A variant of this test's own, whose digests nobody checks; no compiler, and an empty cache."""
    folder = tmp_path / variant_name()
    shutil.copytree(built / variant_name(), folder)
    document = json.loads((folder / "metadata.json").read_text())
    del document["digest"]
    (folder / "metadata.json").write_text(json.dumps(document))
    monkeypatch.setenv("KERNELS_HUB_CXX", "none")
    monkeypatch.setenv("KERNELS_HUB_PREBUILT", "ignore")
    monkeypatch.setenv("KERNELS_HUB_CACHE", str(tmp_path / "compiled"))
    yield folder
    assert not (tmp_path / "compiled").exists()


def call(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """One call of the layer, compared; gives its LAYER."""
    kernel = get_local_kernel(folder, backend="cpu")
    module, x = gated_mlp().module.to(dtype), torch.randn(2, 3, 64).to(dtype)
    with torch.no_grad():
        actual, expected = kernel.layers.GatedMLP.forward(module, x), module(x)
    assert_close(actual, expected, dtype=dtype, factor=4)
    return kernel.program.LAYER


def test_the_best_is_taken_and_nothing_is_built(copied: Path):
    for dtype in (torch.float32, torch.bfloat16):
        program = call(copied, dtype)
        assert not program.fallbacks
    best = machine_isas()[0].name
    names = [one._builder.path.name for one in program.layers]
    assert names == [f"program_float32-{best}.so", f"program_bfloat16-{best}.so"]


def without_the_best(rows: list[dict[str, str]], native: Path) -> None:
    rows[:] = [row for row in rows if row["isa"] == "baseline"]


def test_a_lesser_one_where_there_is_no_better(copied: Path):
    change_index(copied, without_the_best)
    program = call(copied)
    assert not program.fallbacks and program.layers[0]._builder.path.name == "program_float32-baseline.so"


def of_another_machine(rows: list[dict[str, str]], native: Path) -> None:
    for row in rows:
        row["machine"] = "riscv64-linux"


def damaged(rows: list[dict[str, str]], native: Path) -> None:
    for row in rows:
        with (native / row["file"]).open("r+b") as file:
            file.seek(-1, 2)
            file.write(b"!")


def that_does_not_load(rows: list[dict[str, str]], native: Path) -> None:
    for row in rows:
        (native / row["file"]).write_bytes(b"\x7fELF of a C library that is newer")
        row["sha256"] = hashlib.sha256((native / row["file"]).read_bytes()).hexdigest()


def that_is_gone(rows: list[dict[str, str]], native: Path) -> None:
    for row in rows:
        (native / row["file"]).unlink()


def nothing(rows: list[dict[str, str]], native: Path) -> None:
    del rows[:], native


def change_index(folder: Path, change: Any) -> None:
    index = folder / "native" / "prebuilt.json"
    document = json.loads(index.read_text())
    for rows in document["programs"].values():
        change(rows, folder / "native")
    index.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (of_another_machine, "has none for "),
        (nothing, "has none for "),
        (damaged, "is not what was published: its sha256 is "),
        (that_does_not_load, "does not load"),
        (that_is_gone, "does not say what it should: FileNotFoundError"),
    ],
)
def test_what_cannot_be_used(
    copied: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, change: Any, reason: str
):
    """Without a compiler the original runs, for both reasons; with one the program is built, and that is said."""
    change_index(copied, change)
    text = next(iter(call(copied).fallbacks.values()))
    assert reason in text and "no C++ compiler found" in text

    monkeypatch.delenv("KERNELS_HUB_CXX")
    monkeypatch.delenv("KERNELS_HUB_CACHE")
    folder = copied.with_name("with a compiler") / variant_name()
    shutil.copytree(copied, folder)
    errors = folder / "compiler" / "runtime" / "errors.py"
    errors.write_text(errors.read_text() + "\n# another package\n")
    caplog.clear()
    with caplog.at_level(logging.WARNING, "kernels_hub"):
        program = call(folder)
        call(folder)
    assert not program.fallbacks
    (record,) = caplog.records
    assert reason in record.getMessage() and "it was built here" in record.getMessage()


def test_weights_of_a_dtype_that_there_is_no_program_for(copied: Path, caplog: pytest.LogCaptureFixture):
    kernel = get_local_kernel(copied, backend="cpu")
    program = kernel.program.LAYER
    with caplog.at_level(logging.WARNING, "kernels_hub"), torch.no_grad():
        for dtype in (torch.float64, torch.float16):
            module, x = gated_mlp().module.to(dtype), torch.randn(2, 3, 64).to(dtype)
            assert torch.equal(kernel.layers.GatedMLP.forward(module, x), GatedMLP.forward(module, x))
        module = gated_mlp().module
        actual = kernel.layers.GatedMLP.forward(module.bfloat16(), torch.randn(2, 3, 64).bfloat16())
        with pytest.raises(RuntimeError, match="dtype"):  # the original's
            kernel.layers.GatedMLP.forward(module, torch.randn(2, 3, 64))
    assert actual.dtype is torch.bfloat16
    assert list(program.fallbacks.values()) == [
        "its gate_proj.weight is float64, it was compiled for float32 and bfloat16",
        "its gate_proj.weight is float16, it was compiled for float32 and bfloat16",
        "x is float32, it was compiled for bfloat16",
    ]


def test_a_module_of_several_dtypes_has_one_state(copied: Path):
    """Prepared, known and forgotten under the dtype that its weights have."""
    kernel = get_local_kernel(copied, backend="cpu")
    program, module = kernel.program.LAYER, gated_mlp().module
    kernel.weights.prepare(module)
    assert kernel.weights.packed_nbytes(module) == program.known(module).nbytes > 0
    kernel.weights.release(module)
    assert program.known(module) is None and kernel.weights.packed_nbytes(module) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtypes": ("float8",)}, "cannot be compiled for dtype 'float8'; it can be for float32, float16"),
        ({"dtypes": ()}, "dtypes is empty"),
        ({"aot": ("sm_75",)}, "GPU binaries cannot be made for 'sm_75'; they can be for sm_80, sm_90"),
        (
            {"aot": ("sm_90",), "triton": False},
            "no Triton kernels to compile for sm_90: it was not asked for",
        ),
    ],
)
def test_options_that_cannot_be(tmp_path: Path, options: dict[str, Any], message: str):
    case = gated_mlp()
    with pytest.raises(CompilerError, match=message):
        emit_layer((case.module, case.args), layer_name="GatedMLP", out=tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_an_onnx_file_has_its_own_dtypes(onnx_layer: Emitted, tmp_path: Path):
    with pytest.raises(CompilerError, match="is an ONNX file, which has dtypes of its own"):
        emit_layer(
            onnx_layer.path.with_name("encoder.onnx"),
            layer_name="Encoder",
            out=tmp_path,
            dtypes=("float16",),
        )
