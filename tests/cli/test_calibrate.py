"""`kernels-hub calibrate` with places that cannot be written."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Run


def test_an_export_that_cannot_be_written(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run("calibrate", "--export", str(tmp_path / "file" / "gains.json"))
    said = " ".join(done.err.split())
    assert done.code == 2 and "Traceback" not in said
    assert "gains.json cannot be written: " in said and "; name a file in a folder of yours" in said
