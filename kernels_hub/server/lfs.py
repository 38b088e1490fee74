"""Large files: kept beside git by their SHA-256, one set a repository, in a store of `objects/`.

A repository has a large file when it has its row. The row is written last, after the content was
checked and is durable in its place; a commit may name only large files of its own repository, so
knowing another's hash opens nothing.
"""

from __future__ import annotations

import hashlib
import time
from contextlib import closing
from pathlib import Path

from kernels_hub.server.database import Database, RowConflictError
from kernels_hub.server.git.seam import GitStore
from kernels_hub.server.layout import RootPaths
from kernels_hub.server.objects.store import Content, ObjectStore, Staged, Transfers
from kernels_hub.server.refusal import bad_request, repository_not_found
from kernels_hub.server.repositories import Repository

_CHUNK = 1 << 20


class LargeFiles:
    """The large files of every repository of a root."""

    def __init__(self, layout: RootPaths, database: Database, objects: ObjectStore, git: GitStore) -> None:
        self._git = git
        self._layout = layout
        self._database = database
        self.objects = objects

    @property
    def transfers(self) -> Transfers | None:
        """How clients exchange content with the store themselves; None where everything passes through here."""
        return self.objects.transfers

    def open(self, repository: Repository, oid: str, start: int = 0, end: int | None = None) -> Content:
        """The content of a large file, from `start` to before `end`. Raises FileNotFoundError where it is lost."""
        try:
            return self.objects.open(repository.id, oid, start, end)
        except FileNotFoundError:
            self._refuse_if_moved()
            raise

    def read(self, repository: Repository, oid: str) -> bytes | None:
        """A whole large file, for those of a few MiB; None where it is lost."""
        try:
            with closing(self.open(repository, oid)) as content:
                pieces = iter(lambda: content.read(_CHUNK), b"")
                return b"".join(pieces)
        except FileNotFoundError:
            return None

    def address(self, repository: Repository, oid: str, name: str) -> str | None:
        """Where a client loads a large file from the store itself; None where it does so from here."""
        if self.transfers is None:
            return None
        if self._layout.store_place() != self.objects.place and self.objects.size(repository.id, oid) is None:
            self._refuse_if_moved()
        closed = repository.private or bool(repository.gated)
        return self.transfers.download(repository.id, oid, name=name, private=closed)

    def _refuse_if_moved(self) -> None:
        with self._layout.store_stays(self.objects.place):
            pass

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
            with self.objects.stage(repository.id, oid, temporary, size) as staged:
                self.enter(repository, staged, oid, size)
        finally:
            temporary.unlink(missing_ok=True)

    def enter(self, repository: Repository, staged: Staged, oid: str, size: int) -> None:
        """Make an object that was checked a repository's large file. Refuses a repository that is gone by now."""
        # Under the lock, so that garbage collection sees the object and its row, or neither.
        with self._layout.store_stays(self.objects.place), self._git.locked(repository.id):
            if not self._git.exists(repository.id):
                raise repository_not_found(anonymous=False)
            staged.place()
            try:
                self._database.change(
                    "INSERT INTO objects VALUES (?, ?, ?, ?) ON CONFLICT (repository, oid) "
                    "DO UPDATE SET touched = excluded.touched",
                    *(repository.id, oid, size, time.time()),
                )
            except RowConflictError:
                raise repository_not_found(anonymous=False) from None

    def rows(self, repository: Repository) -> dict[str, int]:
        """The large files that a repository has: SHA-256 -> size."""
        rows = self._database.rows("SELECT oid, size FROM objects WHERE repository = ?", repository.id)
        return {row["oid"]: int(row["size"]) for row in rows}

    def sha256(self, repository: Repository, oid: str) -> str:
        """The SHA-256 of what is stored. Raises FileNotFoundError where nothing is."""
        digest = hashlib.sha256()
        with closing(self.open(repository, oid)) as content:
            while data := content.read(_CHUNK):
                digest.update(data)
        return digest.hexdigest()


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
