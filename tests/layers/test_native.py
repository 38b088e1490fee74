"""C++ of bundled layers, built at first use: where the headers of a source file may lie."""

from __future__ import annotations

import importlib
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from kernels_hub import BundledLayerRepository

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@pytest.fixture
def native(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module that builds, with an empty cache; what it knows to be lacking is as before afterwards."""
    monkeypatch.setenv("KERNELS_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("KERNELS_HUB_JIT", "wait")
    monkeypatch.setenv("KERNELS_HUB_PREBUILT", "ignore")
    layer = BundledLayerRepository("activation", layer_name="SiLU").load("cpu")
    module = importlib.import_module(f"{layer.__module__.partition('.')[0]}.native")
    lacking = dict(module._OFF)
    yield module
    module._OFF.clear()
    module._OFF.update(lacking)


def test_headers_beside_the_source_and_in_another_folder(tmp_path: Path, native: ModuleType) -> None:
    """As those of attention: its own lie beside it, the runtime's elsewhere, until a variant is built."""
    layer, runtime = tmp_path / "layer", tmp_path / "runtime"
    layer.mkdir()
    runtime.mkdir()
    (layer / "own.h").write_text("#define OWN 40\n")
    (runtime / "shared.h").write_text("#define SHARED 2\n")
    (layer / "sum.cpp").write_text(
        '#include "own.h"\n#include "shared.h"\nextern "C" int sum() { return OWN + SHARED; }\n'
    )
    library = native.load(layer / "sum.cpp", runtime)
    assert library is not None and library.sum() == 42
    (layer / "own.h").write_text("#define OWN 50\n")
    library = native.load(layer / "sum.cpp", runtime)
    assert library is not None and library.sum() == 52, "a header is part of the source"


def test_a_missing_header_is_told(
    tmp_path: Path, native: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "lost.cpp").write_text('#include "nowhere.h"\n')
    with caplog.at_level(logging.WARNING, "kernels_hub"):
        assert native.load(tmp_path / "lost.cpp") is None
    assert "nowhere.h" in caplog.text


def test_a_damaged_library_is_built_again(tmp_path: Path, native: ModuleType) -> None:
    (tmp_path / "answer.cpp").write_text('extern "C" int answer() { return 42; }\n')
    source = tmp_path / "answer.cpp"
    assert native.load(source) is not None
    (library,) = (tmp_path / "cache" / "native").glob("answer-*.so")
    whole = library.read_bytes()
    library.unlink()  # this process has it mapped
    library.write_bytes(whole[: len(whole) // 2])
    again = native.load(source)
    assert again is not None and again.answer() == 42
    assert (
        library.read_bytes()[: len(whole) // 2] == whole[: len(whole) // 2] and library.stat().st_size > 1000
    )
