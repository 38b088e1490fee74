"""What a forward asks of the environment, noted for the thread that asks."""

from __future__ import annotations

import os
import threading

import pytest

from kernels_hub.compiler.export.recorded_surroundings import asked


def test_each_thread_has_its_own_and_nothing_is_left_behind(monkeypatch: pytest.MonkeyPatch):
    """Also where the one that began first ends first."""
    monkeypatch.setenv("KH_FIRST", "1")
    monkeypatch.setenv("KH_SECOND", "2")
    read = type(os.environ).__getitem__
    begun, ended = threading.Event(), threading.Event()
    other: dict[str, object] = {}

    def second() -> None:
        with asked() as found:
            begun.set()
            assert ended.wait(30)
            assert os.environ["KH_SECOND"] == "2"
        other.update(found)

    thread = threading.Thread(target=second)
    with asked() as found:
        thread.start()
        assert begun.wait(30)
        assert os.environ["KH_FIRST"] == "1" and os.environ.get("KH_NOT_THERE") is None
    ended.set()
    thread.join(30)
    assert found == {"@environ.KH_FIRST": "1", "@environ.KH_NOT_THERE": None}
    assert other == {"@environ.KH_SECOND": "2"}
    assert type(os.environ).__getitem__ is read
