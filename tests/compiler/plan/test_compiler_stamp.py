"""What tells compilers apart: all of their own files, and what they have in common with the rest of the library."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from kernels_hub.compiler.plan import compiler_stamp

COMPILER = Path(compiler_stamp.__file__).parents[1]
ROOMS_THAT_DECIDE = ("autodiff", "codegen", "importers", "ir", "judging", "rewrite", "schedule")
DECIDES_NOTHING = {"errors", "files", "parsing", "tables"}
STAMPS = (compiler_stamp.compiler_stamp, compiler_stamp.compiler_digest)


@pytest.fixture
def fresh():
    """Stamps that are computed again, here and in the next test."""
    for stamp in STAMPS:
        stamp.cache_clear()
    yield
    for stamp in STAMPS:
        stamp.cache_clear()


def test_a_shared_file_that_changes_is_another_compiler(tmp_path, monkeypatch, fresh):
    copies = tuple(tmp_path / path.name for path in compiler_stamp._SHARED)
    for path, copy in zip(compiler_stamp._SHARED, copies, strict=True):
        copy.write_bytes(path.read_bytes())
    by_content = compiler_stamp.compiler_digest()
    monkeypatch.setattr(compiler_stamp, "_SHARED", copies)
    compiler_stamp.compiler_digest.cache_clear()
    assert compiler_stamp.compiler_digest() == by_content
    found = [stamp() for stamp in STAMPS]
    copies[-1].write_text(copies[-1].read_text(encoding="utf-8") + "\n", encoding="utf-8")
    for stamp in STAMPS:
        stamp.cache_clear()
    assert all(before != stamp() for before, stamp in zip(found, STAMPS, strict=True))


def test_what_rooms_that_decide_import_of_the_library_is_shared():
    imported = set()
    for room in ROOMS_THAT_DECIDE:
        for path in (COMPILER / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kernels_hub."):
                    imported.add(node.module.split(".")[1])
    shared = {path.stem for path in compiler_stamp._SHARED}
    assert imported - {"compiler"} - DECIDES_NOTHING <= shared
