"""An exported layer carries files of compiler/runtime and compiler/native as they are, byte for byte."""

from __future__ import annotations

import ast
import sys
from pathlib import Path, PurePosixPath

import pytest

from kernels_hub.compiler.export.emit_layer import Emitted
from kernels_hub.compiler.export.package import COMPILER, COPIED, copied_files

BESIDE = ("files.py", "cxx_compiler.py", "triton_launches.py")
"""What lies beside the compiler's folders in a variant, as it does in this library."""
ALONE = frozenset({"__future__", "numpy", "torch", "triton"})


def shipped(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for backend in COPIED
        for path in (
            *(folder / backend / "compiler").rglob("*"),
            *(folder / backend / name for name in BESIDE),
        )
        if path.is_file()
    }


def test_every_file_is_the_compilers_own(mlp_dtypes: Emitted):
    expected = {place: path.read_bytes() for place, path in copied_files(gpu=True).items()}
    assert shipped(mlp_dtypes.path) == expected


def test_nothing_of_the_runtime_stays_behind():
    folders = (COMPILER / "runtime", COMPILER / "native")
    files = {path for folder in folders for path in folder.iterdir() if path.is_file()}
    assert files <= set(copied_files(gpu=True).values())


def test_no_file_is_shipped_by_two_folders_of_a_variant():
    for backend in ("cpu", "triton"):
        places = [
            place.partition("/")[2]
            for place in copied_files(gpu=True)
            if place.startswith(("call/", f"{backend}/"))
        ]
        assert len(places) == len(set(places))


@pytest.mark.parametrize("place", [place for place in copied_files(gpu=True) if place.endswith(".py")])
def test_they_import_torch_the_standard_library_and_each_other(place: str):
    known = {one.partition("/")[2] for one in copied_files(gpu=True)}
    inside = PurePosixPath(place.partition("/")[2])
    for node in ast.walk(ast.parse(copied_files(gpu=True)[place].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            assert {one.name.partition(".")[0] for one in node.names} <= ALONE | sys.stdlib_module_names
        elif isinstance(node, ast.ImportFrom) and not node.level:
            assert str(node.module).partition(".")[0] in ALONE | sys.stdlib_module_names
        elif isinstance(node, ast.ImportFrom):
            folder = inside.parents[node.level - 1]
            names = [node.module] if node.module else [one.name for one in node.names]
            assert {str(folder.joinpath(*name.split("."))) + ".py" for name in names} <= known
