"""Where tests write: the memory's file system, if there is one with room.

A Hub flushes what it writes at every change, and a test of it spent nine tenths of its time waiting for the disk.
"""

from __future__ import annotations

import os
from pathlib import Path

SHARED = Path("/dev/shm")
ROOM = 4 << 30
"""Bytes that have to be free. A session writes some hundred megabytes; containers often have 64 MB there in all."""


def memory_folder(folder: Path = SHARED, room: int = ROOM) -> Path | None:
    """The folder, if it can be written to, has room, and libraries may be loaded from it; else None."""
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        return None
    status = os.statvfs(folder)
    if status.f_flag & os.ST_NOEXEC or status.f_bavail * status.f_frsize < room:
        return None
    return folder
