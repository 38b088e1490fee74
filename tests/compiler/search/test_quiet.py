"""The machine lock holds against threads and processes, and a fork takes none of it along."""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

from kernels_hub.compiler.search import quiet
from kernels_hub.compiler.search.quiet import BusyError, building, measuring

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.fixture(autouse=True)
def impatient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quiet.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(quiet, "PATIENCE_S", 0.1)


def is_busy(lock: AbstractContextManager[None]) -> bool:
    try:
        with lock:
            return False
    except BusyError:
        return True


def is_busy_in_thread(lock: AbstractContextManager[None]) -> bool:
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(is_busy(lock)))
    thread.start()
    thread.join()
    return results == [True]


def is_busy_in_fork(lock: AbstractContextManager[None]) -> bool:
    if not (child := os.fork()):
        try:
            os._exit(is_busy(lock))
        finally:
            os._exit(2)
    return (False, True)[os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])]


@pytest.mark.parametrize("elsewhere", [is_busy, is_busy_in_thread, is_busy_in_fork])
def test_one_measures_or_many_build(elsewhere):
    with building():
        assert not elsewhere(building())
        assert elsewhere(measuring())
    with measuring():
        assert elsewhere(building())
        assert elsewhere(measuring())
    assert not elsewhere(measuring())


def test_a_fork_takes_no_lock_along():
    ready, end = os.pipe(), os.pipe()
    with ExitStack() as held:
        held.enter_context(measuring())
        if not (child := os.fork()):
            try:
                os.write(ready[1], b".")
                os.read(end[0], 1)
                held.close()  # nothing of its own
                os._exit(0)
            finally:
                os._exit(1)
        os.read(ready[0], 1)
        assert is_busy(building())
    try:
        assert not is_busy(measuring())
    finally:
        os.write(end[1], b".")
        status = os.waitpid(child, 0)[1]
        for descriptor in (*ready, *end):
            os.close(descriptor)
    assert os.waitstatus_to_exitcode(status) == 0
