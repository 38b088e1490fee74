"""Run the tests of the Triton kernels under Triton's interpreter, in a session of their own.

No GPU is needed, and `triton.jit` stays real in this process, for the tests that compile.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.interpreted_session import ROOT, run_interpreted

pytest.importorskip("triton", reason="needs Triton")

FILES = sorted((ROOT / "tests" / "triton").glob("test_*.py"))


def test_every_repository_with_triton_kernels_has_a_file_here():
    manifests = {
        path.parent.name: tomllib.loads(path.read_text(encoding="utf-8"))
        for path in (ROOT / "layers").glob("*/kernel.toml")
    }
    with_kernels = {name for name, manifest in manifests.items() if "cuda" in manifest["backends"]}
    assert with_kernels == {file.stem.removeprefix("test_") for file in FILES}


@pytest.mark.slow
def test_interpreted(tmp_path: Path):
    run_interpreted(FILES, tmp_path)


def test_a_session_in_which_nothing_runs_is_a_failure(tmp_path: Path):
    empty = tmp_path / "test_nothing.py"
    empty.write_text("import pytest\n\n@pytest.mark.skip(reason='of no use')\ndef test_it(): pass\n")
    with pytest.raises(AssertionError, match="no test ran of test_nothing.py"):
        run_interpreted([empty], tmp_path)
