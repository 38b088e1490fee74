"""A store of compiled layers for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels_hub.compiler.jit import store as layer_store
from kernels_hub.kernelization import jit
from tests.warm_exporter import warm_exporter


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of the test's own; compiled C++ is shared with all tests."""
    warm_exporter()
    folder = tmp_path / "layers"
    monkeypatch.setattr(layer_store, "store_folder", lambda: folder)
    jit._forward_of.cache_clear()  # as in a fresh process
    return folder
