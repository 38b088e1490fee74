"""Removes what a crash may have left, when a server starts; other servers may be running on the root.

Everything here is invisible already: files of dead processes, uploads that nobody finishes, packs
without an index. A release that is in the log and not yet a tag is completed. A repository without a
row is most likely one that was being made or deleted, but a hub.sqlite that was put back from an old
copy leaves the same: those are set aside, never deleted here.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

from kernels_hub.server.durable import locked, try_lock
from kernels_hub.server.hub import Hub
from kernels_hub.server.refusal import Refusal
from kernels_hub.server.xet.spool import spool_of

_UPLOAD_SECONDS = 24 * 3600
_LOCK_SECONDS = 3600


def sweep(hub: Hub) -> list[str]:
    """Remove what crashes left; one line for each thing that was removed."""
    layout = hub.layout
    found: list[str] = []
    # Corners are made, with their lock, under this lock: a corner without a holder has no owner.
    with locked(layout.guard):
        for corner in _folders(layout.incoming):
            try:
                descriptor = try_lock(corner / "lock")
            except OSError:
                continue  # Not made by this program, or not ours to open: what it is, an administrator knows.
            if descriptor is not None:
                shutil.rmtree(corner, ignore_errors=True)
                os.close(descriptor)
                found.append(f"files of a process that is gone: {corner.name}")
    for upload in _folders(layout.multipart):
        if time.time() - max(_changed(path) for path in (upload, *_entries(upload))) > _UPLOAD_SECONDS:
            shutil.rmtree(upload, ignore_errors=True)
            found.append(f"an upload in parts that nobody finished: {upload.name}")
    if count := spool_of(layout).sweep():
        found.append(f"what {count} Xet uploads sent in hours that are over")
    with suppress(Refusal):  # What a store that does not answer holds is swept another time.
        found += hub.large_files.objects.sweep(time.time() - _UPLOAD_SECONDS)
    for home in _folders(layout.repositories):
        found += _sweep_repository(hub, home)
    _sweep_locks(hub)
    return found


def _sweep_repository(hub: Hub, home: Path) -> list[str]:
    try:
        descriptor = try_lock(hub.layout.lock(home.name))
    except OSError:
        return []  # A folder in the place of its lock: `fsck` says what is wrong with a repository.
    if descriptor is None:
        return []  # Somebody is at work in it: it is no leftover.
    try:
        if hub.repositories.by_id(home.name) is None:
            hub.store.set_aside(home.name)
            return [f"to orphans/, a repository without a row (being made or deleted?): {home.name}"]
        _recover(hub, home.name)
        found = []
        folder = home / "git" / "objects" / "pack"
        for path in _entries(folder):
            other = {".pack": ".idx", ".idx": ".pack"}.get(path.suffix)
            if other and not path.with_suffix(other).exists():
                path.unlink()
                found.append(f"half of a pack: {home.name}/{path.name}")
        return found
    finally:
        os.close(descriptor)


def _recover(hub: Hub, identifier: str) -> None:
    """Complete a change of releases that a crash interrupted; the repository's lock is held."""
    repository = hub.repositories.by_id(identifier)
    if repository is not None and hub.releases.needs_recovery(repository):
        # Damaged: fsck says how, and the server answers for the others.
        with suppress(Refusal, KeyError):
            content = hub.store.content(repository)
            hub.releases.recover(repository, content.packs, content.refs)


def _sweep_locks(hub: Hub) -> None:
    for path in _entries(hub.layout.locks):
        if path.is_dir():
            continue
        gone = not hub.layout.repository(path.name).exists() and hub.repositories.by_id(path.name) is None
        if gone and time.time() - _changed(path) > _LOCK_SECONDS:
            path.unlink(missing_ok=True)


def _folders(folder: Path) -> list[Path]:
    """The folders in a folder; links to folders are not among them."""
    return [path for path in _entries(folder) if path.is_dir() and not path.is_symlink()]


def _entries(folder: Path) -> list[Path]:
    """What is in a folder: nothing where it is missing, is none or cannot be read."""
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _changed(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return time.time()
