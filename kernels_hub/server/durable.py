"""Durable files, which are there whole after a crash or not at all, and locks that die with their process.

A file that is replaced is one of `kernels_hub.files.write_atomically(…, durable=True)`. Locks are `flock`s: the
kernel drops them with the process, so a killed server leaves none behind.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kernels_hub.errors import KernelsHubError
from kernels_hub.files import flush_folder
from kernels_hub.server.refusal import Refusal

_LOCK_TIMEOUT = 60.0


def make_folders(folder: Path, top: Path) -> None:
    """Create a folder and those between it and `top`, so that they survive a loss of power."""
    missing = []
    while folder != top and not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for new in reversed(missing):
        new.mkdir(exist_ok=True)
        flush_folder(new.parent)


def write_flushed(path: Path, content: bytes) -> None:
    """Write a new file and flush its content (not yet its name)."""
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def try_lock(path: Path, *, shared: bool = False, make: bool = True) -> int | None:
    """Take a lock file if nobody holds it: its descriptor (close it to let go), or None.

    shared: beside others who share it, if nobody holds it alone.
    make: a file that is missing; else that is a FileNotFoundError.
    """
    import fcntl  # not on every system, and only a running server needs it

    descriptor = os.open(path, os.O_RDWR | (os.O_CREAT if make else 0) | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def share(path: Path) -> int:
    """Hold a lock file together with others: its descriptor (close it to let go).

    Raises KernelsHubError while somebody has it alone.
    """
    import fcntl

    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BaseException as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise KernelsHubError(
                f"the rows of {path.parent} are being moved to another database; try again when that is done"
            ) from error
        raise
    return descriptor


@contextmanager
def locked(path: Path, timeout: float = _LOCK_TIMEOUT, *, shared: bool = False) -> Iterator[None]:
    """Hold a lock file, against threads and processes alike; 503 when it stays taken."""
    deadline = time.monotonic() + timeout
    pause = 0.0005
    while (descriptor := try_lock(path, shared=shared)) is None:
        if time.monotonic() > deadline:
            raise Refusal(503, "The repository is busy; try again", headers={"Retry-After": "5"})
        time.sleep(pause)
        pause = min(pause * 1.5, 0.02)
    try:
        yield
    finally:
        os.close(descriptor)
