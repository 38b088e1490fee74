"""What is compiled, loaded and read of a kernel that was verified is what was verified, whatever lies there by then."""

from __future__ import annotations

import importlib
import inspect
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from kernels_hub.compiler.export.emit_layer import Emitted
from kernels_hub.compiler.export.native_binaries import variant_name
from kernels_hub.errors import IntegrityError
from kernels_hub.repository.build import build_repository
from kernels_hub.repository.bundled import bundled_folder
from kernels_hub.repository.digest import file_sha256
from kernels_hub.repository.load import KernelFiles, import_kernel
from kernels_hub.repository.local import read_variant
from tests.compiler.export.emitted_layers import gated_mlp
from tests.tolerances import assert_close

HOSTILE = """
#include <cstdio>
namespace {{ struct Runs {{ Runs() {{ if (auto* file = std::fopen("{marker}", "w")) std::fclose(file); }} }} runs; }}
"""


@pytest.fixture
def verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], KernelFiles]:
    """A variant of this test's own, laid out as a Hub's cache lays it out, and verified."""
    monkeypatch.setenv("KERNELS_HUB_CACHE", str(tmp_path / "built"))

    def make(built: Path) -> KernelFiles:
        folder = tmp_path / "snapshots" / built.name
        (tmp_path / "blobs").mkdir()
        shutil.copytree(built, folder)
        document = json.loads((folder / "metadata.json").read_text())
        del document["digest"]
        (folder / "metadata.json").write_text(json.dumps(document))
        (folder / "which_test.txt").write_text(str(tmp_path))
        for number, path in enumerate(sorted(path for path in folder.rglob("*") if path.is_file())):
            blob = tmp_path / "blobs" / str(number)
            path.rename(blob)
            path.symlink_to(blob)
        kernel = read_variant(folder)
        return kernel.seal({path: file_sha256(path) for path in kernel.files.values()})

    return make


def add(kernel: KernelFiles, inside: str, text: str) -> None:
    """Change a file after it was verified, in place, as one that writes to the cache can."""
    with kernel.files[inside].open("a", encoding="utf-8") as file:
        file.write(text)


@pytest.fixture(scope="module")
def built(mlp_dtypes: Emitted, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("built")
    build_repository(mlp_dtypes.path, out)
    return out / "build"


def call(module: ModuleType) -> Any:
    layer, x = gated_mlp().module, torch.randn(2, 3, 64)
    with torch.no_grad():
        assert_close(module.layers.GatedMLP.forward(layer, x), layer(x), dtype=torch.float32, factor=4)
    return module.program.LAYER


def test_what_was_not_changed_runs(built: Path, verified: Callable[[Path], KernelFiles]) -> None:
    for name in ("torch-cpu",):
        program = call(import_kernel(verified(built / name)))
        assert not program.fallbacks


@pytest.mark.parametrize("when", ["before the import", "after it"])
@pytest.mark.parametrize(
    "inside", ["program_float32.cpp", "header", "source of the runtime", "another header"]
)
def test_no_changed_source_is_compiled(
    built: Path, verified: Callable[[Path], KernelFiles], tmp_path: Path, inside: str, when: str
) -> None:
    kernel = verified(built / "torch-cpu")
    if inside == "another header":
        folder = next(path.parent for name, path in kernel.files.items() if name.endswith(".h"))
        (folder / "zzz.h").write_text("")
    elif not inside.endswith(".cpp"):
        end = ".h" if inside == "header" else ".cpp"
        inside = next(name for name in kernel.files if "compiler/native/" in name and name.endswith(end))
    module = import_kernel(kernel) if when == "after it" else None
    if inside in kernel.files:
        add(kernel, inside, HOSTILE.format(marker=tmp_path / "ran"))
    with pytest.raises(IntegrityError, match="changed after it was verified|never verified"):
        call(module or import_kernel(kernel))
    assert not (tmp_path / "ran").exists() and not list(tmp_path.glob("built/**/*.so"))


def test_what_came_compiled_is_loaded_from_what_was_verified(
    built: Path, verified: Callable[[Path], KernelFiles], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELS_HUB_CXX", "none")
    kernel = verified(built / variant_name())
    program = call(import_kernel(kernel))
    assert not program.fallbacks
    mapped = Path("/proc/self/maps").read_text()
    assert "kernels_hub" not in mapped or str(kernel.folders[0]) not in mapped
    assert not any(str(path.resolve()) in mapped for path in kernel.files.values())


@pytest.mark.parametrize("inside", [".so", "native/prebuilt.json"])
def test_no_changed_library_is_loaded(
    built: Path, verified: Callable[[Path], KernelFiles], monkeypatch: pytest.MonkeyPatch, inside: str
) -> None:
    """The original runs, and it is said why."""
    monkeypatch.setenv("KERNELS_HUB_CXX", "none")
    kernel = verified(built / variant_name())
    module = import_kernel(kernel)
    for name in kernel.files:
        if name.endswith(inside):
            add(kernel, name, " ")
    (reason, *_) = call(module).fallbacks.values()
    assert "changed after it was verified" in reason


def test_weights_and_tables_are_read_as_they_were_verified(
    onnx_layer: Emitted, verified: Callable[[Path], KernelFiles], tmp_path: Path
) -> None:
    (built, *_) = build_repository(onnx_layer.path, tmp_path / "out")
    kernel = verified(tmp_path / "out" / "build" / "torch-cpu" if not built.is_dir() else built)
    module = import_kernel(kernel)
    add(kernel, "weights.safetensors", "x")
    with pytest.raises(IntegrityError, match=r"weights\.safetensors was changed after"):
        module.load()


def test_triton_compiles_the_source_that_was_verified(
    built: Path, verified: Callable[[Path], KernelFiles]
) -> None:
    """It asks `inspect`, which reads the file anew."""
    kernel = verified(built / "torch-cpu")
    module = import_kernel(kernel)
    before = inspect.getsource(module.layers.GatedMLP.forward)
    add(kernel, "layers.py", "\n")
    path = kernel.files["layers.py"]
    path.write_text(path.read_text().replace("LAYER.call", "HOSTILE.call"))
    assert inspect.getsource(module.layers.GatedMLP.forward) == before
    assert "HOSTILE" not in inspect.getsource(module.layers)


# -- bundled layers, published ----------------------------------------------------------------------


def test_native_code_of_layers(verified: Callable[[Path], KernelFiles], tmp_path: Path) -> None:
    (built,) = build_repository(bundled_folder() / "activation", tmp_path / "out", ["cpu"])
    kernel = verified(built)
    module = import_kernel(kernel)
    add(kernel, "activation.cpp", HOSTILE.format(marker=tmp_path / "ran"))
    with pytest.raises(IntegrityError, match="changed after it was verified"):
        importlib.import_module(f"{module.__name__}.kernels")._library()
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("changed", [False, True])
def test_packages_inside_of_layers(
    verified: Callable[[Path], KernelFiles], tmp_path: Path, changed: bool
) -> None:
    """`packed` is imported once for its content, by a finder of its own."""
    (built,) = build_repository(bundled_folder() / "linear", tmp_path / "out", ["cpu"])
    for name in ("cache.py", "held.py"):
        with (built / "packed" / name).open("a") as file:
            file.write(f"\n# {tmp_path}\n")  # a content of this test's own
    kernel = verified(built)
    if changed:
        add(kernel, "packed/cache.py", f"\nimport pathlib\npathlib.Path({str(tmp_path / 'ran')!r}).touch()\n")
        with pytest.raises(IntegrityError, match=r"cache\.py was changed after"):
            import_kernel(kernel)
        assert not (tmp_path / "ran").exists()
        return
    module = import_kernel(kernel)
    layer, x = nn.Linear(64, 64), torch.randn(4, 64)
    with torch.no_grad():
        assert_close(module.layers.Linear.forward(layer, x), layer(x), dtype=torch.float32, factor=4)
    assert not list(tmp_path.rglob("__pycache__"))
