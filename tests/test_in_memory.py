"""Where tests write, and what is asked of a folder in memory before they do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.in_memory import ROOM, memory_folder


def test_a_folder_with_room_serves(tmp_path: Path) -> None:
    assert memory_folder(tmp_path, room=1) == tmp_path


def test_a_folder_without_room_or_that_is_not_there_does_not(tmp_path: Path) -> None:
    assert memory_folder(tmp_path, room=1 << 62) is None
    assert memory_folder(tmp_path / "none", room=1) is None


def test_a_folder_that_libraries_cannot_be_loaded_from_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = os.statvfs(tmp_path)
    fields = [*status]
    fields[8] |= os.ST_NOEXEC  # f_flag
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result(fields))
    assert os.statvfs(tmp_path).f_flag & os.ST_NOEXEC
    assert memory_folder(tmp_path, room=1) is None


def test_this_session_writes_there(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> None:
    """Unless there is no such folder, or another one was asked for."""
    if request.config.getoption("basetemp") or memory_folder(room=ROOM // 2) is None:
        pytest.skip("needs a file system in memory with room, and a session without --basetemp")
    assert str(tmp_path_factory.getbasetemp()).startswith(os.environ["PYTEST_DEBUG_TEMPROOT"])
