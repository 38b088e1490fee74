"""Large files: kept beside git by their SHA-256, one set a repository.

A repository has a large file when it has its row. The row is written last, after the content was
checked, flushed and put in its place; a commit may name only large files of its own repository, so
knowing another's hash opens nothing.
"""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

from kernels_hub.files import move_into_place
from kernels_hub.server.database import Database, RowConflictError
from kernels_hub.server.durable import locked, make_folders
from kernels_hub.server.layout import RootPaths
from kernels_hub.server.refusal import bad_request, repository_not_found
from kernels_hub.server.repositories import Repository

_CHUNK = 1 << 20


class LargeFiles:
    """The large files of every repository of a root."""

    def __init__(self, layout: RootPaths, database: Database) -> None:
        self._layout = layout
        self._database = database

    def path(self, repository: Repository, oid: str) -> Path:
        """Where a large file lies."""
        return self._layout.repository(repository.id) / "lfs" / oid[:2] / oid[2:4] / oid

    def size(self, repository: Repository, oid: str) -> int | None:
        """The size of a large file that a repository has; None where it has none of that hash."""
        row = self._database.row(
            "SELECT size FROM objects WHERE repository = ? AND oid = ?", repository.id, oid
        )
        return None if row is None else int(row["size"])

    def touch(self, repository: Repository, oid: str, size: int) -> bool:
        """Whether a repository has a large file; if so, garbage collection lets it be for another while."""
        return (
            self._database.change(
                "UPDATE objects SET touched = ? WHERE repository = ? AND oid = ? AND size = ?",
                *(time.time(), repository.id, oid, size),
            )
            > 0
        )

    def total(self, repository: Repository) -> int:
        """The bytes of a repository's large files."""
        row = self._database.row(
            "SELECT COALESCE(SUM(size), 0) AS n FROM objects WHERE repository = ?", repository.id
        )
        assert row is not None
        return int(row["n"])

    def adopt(
        self, repository: Repository, temporary: Path, oid: str, size: int, *, sha256: str | None = None
    ) -> None:
        """Make a complete file a repository's large file; `temporary` is gone afterwards in any case.

        temporary: a file from `Layout.temporary` or on the same disk.
        sha256: of the content, where it was computed while the file was written; None computes it here.
        Refuses (400) content of another size or hash, and a repository that was deleted meanwhile.
        """
        try:
            if (found := temporary.stat().st_size) != size:
                raise bad_request(
                    f"The upload of {oid} has {found} bytes, not the {size} that were announced"
                )
            if (sha256 or sha256_of(temporary)) != oid:
                raise bad_request(f"The upload of {oid} has other content: its SHA-256 differs")
            descriptor = os.open(temporary, os.O_RDWR)
            try:
                os.fchmod(descriptor, 0o444)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            # Under the lock, so that garbage collection sees the file and its row, or neither.
            with locked(self._layout.lock(repository.id)):
                self._place(repository, temporary, oid, size)
        finally:
            temporary.unlink(missing_ok=True)

    def _place(self, repository: Repository, temporary: Path, oid: str, size: int) -> None:
        home = self._layout.repository(repository.id)
        if not home.is_dir():
            raise repository_not_found(anonymous=False)
        target = self.path(repository, oid)
        make_folders(target.parent, home)
        move_into_place(temporary, target, durable=True)
        try:
            self._database.change(
                "INSERT INTO objects VALUES (?, ?, ?, ?) ON CONFLICT (repository, oid) "
                "DO UPDATE SET touched = excluded.touched",
                *(repository.id, oid, size, time.time()),
            )
        except RowConflictError:
            raise repository_not_found(anonymous=False) from None


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
