"""Run the tests of generated Triton under Triton's interpreter, in a session of its own: no GPU is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interpreted_session import run_interpreted

pytest.importorskip("triton", reason="needs Triton")

FILES = sorted((Path(__file__).resolve().parent / "interpreted").glob("test_*.py"))


@pytest.mark.slow
def test_interpreted(tmp_path: Path):
    run_interpreted(FILES, tmp_path)
