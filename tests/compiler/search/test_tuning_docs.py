"""docs/tuning.md does what it says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kernels_hub.compiler.runtime.toolchain import find_compiler
from tests.compiler.test_docs import DOCS, run_page


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler")
def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("egglog", reason="needs egglog: pip install 'kernels-hub[search]'")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setitem(sys.modules, "graphs", None)
    del sys.modules["graphs"]
    monkeypatch.setenv("KERNELS_HUB_CACHE", str(tmp_path / "cache"))
    name = "tuning.md"
    assert run_page(name, (DOCS / name).read_text(encoding="utf-8")) == 5
