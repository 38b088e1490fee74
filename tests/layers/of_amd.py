"""Has kernels run as on a processor of AMD, or of another vendor, whatever this one is."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from kernels_hub.repository.bundled import bundled_folder, source_variant
from kernels_hub.repository.load import import_kernel

REPOSITORIES = ("linear", "mlp", "attention")


def many_rows_of(repository: str) -> ModuleType:
    """The module `many_rows` of a bundled repository."""
    package = import_kernel(source_variant(bundled_folder() / repository, "cpu"))
    return sys.modules[f"{package.__name__}.many_rows"]


def be_of_amd(monkeypatch: pytest.MonkeyPatch, is_amd: bool) -> None:
    """Until the end of the test."""
    for repository in REPOSITORIES:
        monkeypatch.setattr(many_rows_of(repository), "is_amd", lambda: is_amd)
