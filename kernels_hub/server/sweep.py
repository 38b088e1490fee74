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

from kernels_hub.server.durable import locked, try_lock
from kernels_hub.server.git.folder import changed_at, entries_in, folders_in
from kernels_hub.server.hub import Hub
from kernels_hub.server.refusal import Refusal
from kernels_hub.server.xet.spool import spool_of

_UPLOAD_SECONDS = 24 * 3600


def sweep(hub: Hub) -> list[str]:
    """Remove what crashes left; one line for each thing that was removed."""
    layout = hub.layout
    found: list[str] = []
    # Corners are made, with their lock, under this lock: a corner without a holder has no owner.
    with locked(layout.guard):
        for corner in folders_in(layout.incoming):
            try:
                descriptor = try_lock(corner / "lock")
            except OSError:
                continue  # Not made by this program, or not ours to open: what it is, an administrator knows.
            if descriptor is not None:
                shutil.rmtree(corner, ignore_errors=True)
                os.close(descriptor)
                found.append(f"files of a process that is gone: {corner.name}")
    for upload in folders_in(layout.multipart):
        if time.time() - max(changed_at(path) for path in (upload, *entries_in(upload))) > _UPLOAD_SECONDS:
            shutil.rmtree(upload, ignore_errors=True)
            found.append(f"an upload in parts that nobody finished: {upload.name}")
    with suppress(Refusal):  # What a store that does not answer holds is swept another time.
        if count := spool_of(hub).sweep():
            found.append(f"what {count} Xet uploads sent in hours that are over")
        found += hub.large_files.objects.sweep(time.time() - _UPLOAD_SECONDS)
    found += hub.git.sweep(
        lambda identifier: hub.repositories.by_id(identifier) is not None,
        lambda identifier: _recover(hub, identifier),
    )
    return found


def _recover(hub: Hub, identifier: str) -> None:
    """Complete a change of releases that a crash interrupted; the repository's lock is held."""
    repository = hub.repositories.by_id(identifier)
    if repository is not None and hub.releases.needs_recovery(repository):
        # Damaged: fsck says how, and the server answers for the others.
        with suppress(Refusal, KeyError):
            content = hub.store.content(repository)
            hub.releases.recover(repository, content.packs, content.refs)
