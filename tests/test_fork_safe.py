"""Locks in a forked process: those that another thread of its parent holds keep nobody waiting there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kernels_hub.compiler.engines import registry
from kernels_hub.compiler.engines.plugins.processes import PluginProcess
from kernels_hub.compiler.engines.plugins.sources import Source
from kernels_hub.fork_safe import renewed_lock
from kernels_hub.kernelization.forked import Child, run_forked


@contextmanager
def held_by_another_thread(lock: Any) -> Iterator[None]:
    is_held, is_over = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            is_held.set()
            is_over.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    is_held.wait()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


class Owner:
    def __init__(self) -> None:
        self.lock = renewed_lock(self, "lock", threading.Lock)


def test_a_lock_that_another_thread_holds_is_free_in_a_fork() -> None:
    owner = Owner()
    with held_by_another_thread(owner.lock):
        assert run_forked(lambda: owner.lock.acquire(timeout=1), seconds=20, background=False, child=Child())
        assert not owner.lock.acquire(timeout=0.01), "here it is the same lock, and held"


def test_an_owner_may_go() -> None:
    owner = Owner()
    del owner
    assert run_forked(lambda: "done", seconds=20, background=False, child=Child()) == "done"


def test_engines_are_found_while_another_thread_looks_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """It tries plugins in processes meanwhile, for seconds; what is compiled in the background needs engines, too."""
    names = [engine.name for engine in registry.engines()]
    monkeypatch.setattr(registry, "_found", None)
    with held_by_another_thread(registry._LOCK):
        found = run_forked(
            lambda: [engine.name for engine in registry.engines()], seconds=5, background=False, child=Child()
        )
    assert found == names


def test_a_plugin_is_asked_while_another_thread_waits_for_it() -> None:
    process = PluginProcess(Source("test", "file", "nowhere.py", ""))
    with held_by_another_thread(process._lock):
        assert run_forked(lambda: process.end() is None, seconds=5, background=False, child=Child())
