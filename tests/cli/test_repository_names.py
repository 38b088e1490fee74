"""Texts that name no repository: one line that says so, and the Hub is not asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run


@pytest.fixture(autouse=True)
def _nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "some.json").write_text("{")


@pytest.mark.parametrize(
    "name", ["nowhere", "some.json", "../up/there", "org/na&me", "org/", "/no", "o/r\x1b[2J", "ö/r"]
)
@pytest.mark.parametrize("command", ["benchmark", "bundle", "download", "versions"])
def test_what_names_no_repository(run: Run, command: str, name: str) -> None:
    done = run(command, name)
    assert done.code == 1
    (line,) = done.err.splitlines()
    assert "names no repository: expected org/name" in line and "\x1b" not in line


@pytest.mark.parametrize("command", ["bundle", "download"])
def test_a_folder_in_the_place_of_the_lock_is_not_called_missing(run: Run, command: str) -> None:
    Path("kernels.lock").mkdir()
    done = run(command)
    assert done.code == 1 and "kernels.lock cannot be read" in done.err
