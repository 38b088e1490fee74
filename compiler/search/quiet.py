"""Machine-wide lock: many build at a time, or one measures alone.

    with building():    …       with measuring():   …

Whoever waits longer than `PATIENCE_S` gets a BusyError, so that a worker that waits is told from one that hangs.
Both hold for all processes of a user on this machine, workers of other drivers among them, and end with the process
that holds them, however that ends. They are `flock`s, which keep threads apart as well (POSIX locks do not); a fork
would share them with its parent, so it closes what it was given. Whoever wants to measure waits for those that build,
and nobody new begins then. A lock that cannot be had (no such folder, no such call on this system) is a warning, and
no lock.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeVar

from kernels_hub.compiler.errors import EngineError

T = TypeVar("T")
R = TypeVar("R")

Lock = Callable[[], AbstractContextManager[None]]

_LOGGER = logging.getLogger(__name__)

PATIENCE_S = 10.0
_TICK_S = 0.02


class BusyError(EngineError):
    """Others build or measure on this machine, and have for a while: try again."""


@contextmanager
def building() -> Iterator[None]:
    """While it is open, nothing is measured on this machine."""
    with contextlib.ExitStack() as held:
        with contextlib.ExitStack() as door:
            door.enter_context(_locked("door", shared=True))
            held.enter_context(_locked("room", shared=True))
        yield


@contextmanager
def measuring() -> Iterator[None]:
    """While it is open, nothing else is measured or built on this machine."""
    with _locked("door", shared=False), _locked("room", shared=False):
        yield


def under(lock: Lock, evaluate: Callable[[T], R], what: T) -> R:
    """`evaluate(what)` while a lock is held: to be sent to other processes, in a partial."""
    with lock():
        return evaluate(what)


def folder() -> Path:
    """Where the locks are: not in the cache, which several machines may share."""
    return Path(tempfile.gettempdir()) / f"kernels_hub-{_user()}"


def _user() -> str:
    return str(os.getuid()) if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")


@contextmanager
def _locked(name: str, *, shared: bool) -> Iterator[None]:
    try:
        import fcntl

        folder().mkdir(mode=0o700, exist_ok=True)
        descriptor = _opened(folder() / f"{name}.lock")
    except (ImportError, OSError) as error:
        _LOGGER.warning("what is measured may be disturbed: no lock in %s (%s)", folder(), error)
        yield
        return
    try:
        _wait(lambda: fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB))
        yield
    finally:
        _close(descriptor)


def _opened(path: Path) -> int:
    with _CHANGING:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        _OPEN.add(descriptor)
    return descriptor


def _close(descriptor: int) -> None:
    with _CHANGING:
        if descriptor in _OPEN:  # else a fork, which closed it when it began
            _OPEN.discard(descriptor)
            os.close(descriptor)


def _leave_to_parent() -> None:
    for descriptor in _OPEN:
        os.close(descriptor)
    _OPEN.clear()
    _CHANGING.release()


_OPEN: set[int] = set()
"""Descriptors of locks of this process."""
_CHANGING = threading.Lock()
"""Held while one is opened or closed, and while a fork begins."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_CHANGING.acquire, after_in_parent=_CHANGING.release, after_in_child=_leave_to_parent
    )


def _wait(take: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            take()
            return
        except BlockingIOError:
            if time.monotonic() >= end:
                raise BusyError(f"another process measures or builds on {platform.node()}") from None
            time.sleep(_TICK_S)
