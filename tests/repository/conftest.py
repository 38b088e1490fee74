"""Small kernels on disk."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from kernels_hub.repository.load import get_loaded_kernels
from kernels_hub.repository.system import System

WriteFiles = Callable[[Path, Mapping[str, str]], Path]


@pytest.fixture
def write_files() -> WriteFiles:
    """Write {path inside: text} into a folder, and return the folder."""

    def write(folder: Path, files: Mapping[str, str]) -> Path:
        for inside, text in files.items():
            path = folder / inside
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return folder

    return write


@pytest.fixture
def linux_cpu() -> System:
    return System(
        backend="cpu",
        backend_version=None,
        cpu="x86_64",
        os="linux",
        torch_version=(2, 13),
        cxx11_abi=True,
        tvm_ffi_version=None,
        free_threaded=False,
    )


@pytest.fixture(autouse=True)
def _no_module_of_a_failed_kernel_is_left() -> Iterator[None]:
    before = set(sys.modules)
    yield
    loaded = {kernel.module.__name__ for kernel in get_loaded_kernels()}
    for name in set(sys.modules) - before:
        module_file = str(getattr(sys.modules[name], "__file__", None) or "")
        assert "pytest-of-" not in module_file or name.partition(".")[0] in loaded, f"{name} was left behind"
