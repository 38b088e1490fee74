"""What `make newest` says: the tests that break, and the releases that changed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tools import newest

CONSTRAINTS = "# Tested.\ntriton>=3.6,<3.10\nJinja2==3.1.5\ntorch==2.13.0\nmpmath==1.3.0\n"
FREEZE = "jinja2==3.1.6\ntorch==2.15.0\ntriton==3.9.0\nnvidia-nccl-cu13==2.30\n-e git+x\nnew.thing==1.0\n"
ALONE = ("-n", "0", "-p", "no:cacheprovider")


def test_pins_are_renewed_and_comments_ranges_and_spellings_stay():
    renewed = newest.renew(CONSTRAINTS, newest.read_pins(FREEZE))
    assert renewed == (
        "# Tested.\ntriton>=3.6,<3.10\nJinja2==3.1.6\ntorch==2.15.0\nmpmath==1.3.0\nnew-thing==1.0\n"
    )
    assert newest.changes(CONSTRAINTS, renewed) == [
        "jinja2 3.1.5 -> 3.1.6", "torch 2.13.0 -> 2.15.0", "new-thing (none) -> 1.0",
    ]  # fmt: skip
    assert newest.changes(renewed, renewed) == []


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose environment is this one, so that nothing is installed."""
    (tmp_path / "constraints.txt").write_text("pytest==0.0.1\n")
    (tmp_path / "test_it.py").write_text(
        "import pytest\n\ndef test_right(): pass\n\ndef test_wrong(): assert 1 == 2, 'one is two'\n\n"
        "@pytest.fixture\ndef broken(): raise OSError('no room')\n\ndef test_setup(broken): pass\n"
    )
    monkeypatch.setattr(newest, "ROOT", tmp_path)
    monkeypatch.setattr(newest, "BUILT", tmp_path / "build")
    monkeypatch.setattr(newest, "install", lambda environment: Path(sys.executable))
    return tmp_path


def test_what_breaks_is_listed(project: Path, capsys: pytest.CaptureFixture[str]):
    assert newest.main(["test_it.py", *ALONE]) == 1
    said = capsys.readouterr().out
    assert f"pytest 0.0.1 -> {pytest.__version__}" in said
    assert "test_it::test_wrong: AssertionError: one is two" in said
    assert "test_it::test_setup: " in said and "no room" in said
    assert "test_right" not in said
    assert f"pytest=={pytest.__version__}\n" in (project / "build" / "constraints-newest.txt").read_text()


def test_nothing_breaks(project: Path, capsys: pytest.CaptureFixture[str]):
    assert newest.main(["test_it.py", "-k", "right", *ALONE]) == 0
    assert capsys.readouterr().out.rstrip().endswith("nothing")


def test_a_session_that_did_not_run_is_no_success(project: Path, capsys: pytest.CaptureFixture[str]):
    assert newest.main(["no_such_file.py", *ALONE]) == 1
