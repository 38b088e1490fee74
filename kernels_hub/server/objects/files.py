"""Large objects on the disk of the root, in the folder of their repository: `lfs/ab/cd/<sha256>`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from kernels_hub.files import move_into_place
from kernels_hub.server.durable import make_folders
from kernels_hub.server.layout import RootPaths
from kernels_hub.server.objects.store import Staged, StoredObject, Transfers, checked
from kernels_hub.server.paths import is_sha256


@dataclass(frozen=True)
class _StagedFile:
    source: Path
    target: Path
    home: Path

    def place(self) -> None:
        """Move the file to its name."""
        make_folders(self.target.parent, self.home)
        move_into_place(self.source, self.target, durable=True)


class FileObjects:
    """Implements `ObjectStore` with the folders of a root's repositories."""

    transfers: Transfers | None = None
    place: str | None = None

    def __init__(self, layout: RootPaths) -> None:
        self._layout = layout

    @property
    def description(self) -> str:
        """The folder."""
        return f"files in {self._layout.repositories}"

    def path(self, repository: str, oid: str) -> Path:
        """Where an object lies."""
        checked(repository, oid)
        return self._layout.repository(repository) / "lfs" / oid[:2] / oid[2:4] / oid

    @contextmanager
    def stage(self, repository: str, oid: str, source: Path, size: int) -> Iterator[Staged]:  # noqa: ARG002
        """Flush a file, which is moved when it is placed."""
        descriptor = os.open(source, os.O_RDWR)
        try:
            os.fchmod(descriptor, 0o444)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        yield _StagedFile(source, self.path(repository, oid), self._layout.repository(repository))

    def send(self, repository: str, oid: str, source: Path, size: int) -> None:
        """Flush a file and move it to its name."""
        with self.stage(repository, oid, source, size) as staged:
            staged.place()

    def size(self, repository: str, oid: str) -> int | None:
        """The size of a file; None where there is none."""
        path = self.path(repository, oid)
        return path.stat().st_size if path.is_file() else None

    def open(self, repository: str, oid: str, start: int = 0, end: int | None = None) -> FileIO:  # noqa: ARG002
        """The file, at `start`; the caller stops reading at `end`."""
        file = FileIO(self.path(repository, oid))
        file.seek(start)
        return file

    def remove(self, repository: str, oid: str) -> None:
        """Remove a file."""
        self.path(repository, oid).unlink(missing_ok=True)

    def entries(self, repository: str) -> Iterator[StoredObject]:
        """The files of a repository."""
        checked(repository)
        for path in (self._layout.repository(repository) / "lfs").glob("*/*/*"):
            if is_sha256(path.name):
                yield StoredObject(path.name, path.stat().st_size)

    def repositories(self) -> set[str]:
        """Nothing is kept apart from the folders of repositories, which are looked after as such."""
        return set()

    def remove_all(self, repository: str) -> None:
        """Nothing to do: the files go with the folder of their repository."""

    def sweep(self, before: float) -> list[str]:  # noqa: ARG002
        """Nothing to do: files that are being written are in the root's own folders."""
        return []

    def confirm(self) -> None:
        """Nothing to do: a root without its folders does not open."""
