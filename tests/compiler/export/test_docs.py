"""docs/compile_and_publish.md does what it says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kernels_hub.compiler.runtime.toolchain import find_compiler
from tests.compiler.test_docs import DOCS, run_page


@pytest.mark.exhaustive
@pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler")
def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setitem(sys.modules, "block", None)
    del sys.modules["block"]
    name = "compile_and_publish.md"
    assert run_page(name, (DOCS / name).read_text(encoding="utf-8")) == 12
