"""What a move of git data left in the former place: nothing reads it, and `gc` removes it a day after the move.

It stays for a day as packs that were joined do, for a database that is restored to an earlier moment.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from kernels_hub.server.database import Database
from kernels_hub.server.git.folder import changed_at, folders_in
from kernels_hub.server.git.pack_bucket import PackBucket, began
from kernels_hub.server.git.rows import GitRows
from kernels_hub.server.layout import RootPaths
from kernels_hub.server.objects.s3 import S3Objects
from kernels_hub.server.objects.store import ObjectStore


class LeftBehind:
    """The former place of a root's git data: folders below the root, or packs in the store of its large files.

    Both are looked at only where FORMAT and the rows agree that the data is in the other one: not while a move is under
    way, and not in the store of a Hub that a root was copied from, since rows of a backup do not say that they were
    ever there.
    """

    def __init__(self, layout: RootPaths, database: Database, store: ObjectStore) -> None:
        self._layout, self._rows, self._store = layout, GitRows(database), store

    def found(self) -> list[str]:
        """What is there; a line for each repository."""
        folders = [
            f"repository {home.name}: git data from before a move, in its folder" for home in self._folders()
        ]
        packs = [
            f"repository {repository}: packs from before a move, in the object store"
            for _, repository in self._buckets()
        ]
        return folders + packs

    def collect(self, has_row: Callable[[str], bool], before: float, *, prune: bool) -> list[str]:
        """Remove what the last move left, if that was before a moment; a line for each repository.

        prune: also that of repositories without a row, which may be those of a database that was restored.
        """
        if changed_at(self._layout.marker) >= before:  # a move ends with writing it
            return []
        removed = []
        for home in self._folders():
            if prune or has_row(home.name):
                self._remove(home)
                removed.append(f"git data from before a move, in its folder: {home.name}")
        for bucket, repository in self._buckets():
            # A move that was given up wrote some later than FORMAT.
            packs = [entry.oid for entry in bucket.entries(repository) if began(entry.oid) < before]
            if packs and (prune or has_row(repository)):
                for pack in packs:
                    bucket.remove(repository, pack)
                removed.append(f"{len(packs)} packs from before a move, in the object store: {repository}")
        return removed

    def _is_in(self, state: str) -> bool:
        """Whether all agree that the data is in the "store" or the "folder", of this root."""
        place = self._rows.place()
        return (
            place is not None
            and place.state == state
            and self._layout.read().git == (state == "store")
            and place.identity == self._layout.identity()
            and not self._layout.git_begun.is_file()
        )

    def _folders(self) -> Iterator[Path]:
        if self._is_in("store"):
            for home in sorted(folders_in(self._layout.repositories)):
                if (home / "git").is_dir():
                    yield home

    def _remove(self, home: Path) -> None:
        trash = self._layout.temporary()
        (home / "git").rename(trash)
        shutil.rmtree(trash, ignore_errors=True)
        with suppress(OSError):  # large files that were moved away may lie there yet
            (home / "lfs").rmdir()
            home.rmdir()

    def _buckets(self) -> Iterator[tuple[PackBucket, str]]:
        """The store and a repository that it has packs of, for each, where they were left there."""
        if isinstance(self._store, S3Objects) and self._is_in("folder"):
            place, bucket = self._rows.place(), PackBucket(self._store)
            if place is not None and place.objects == self._store.place:
                yield from ((bucket, repository) for repository in sorted(bucket.repositories()))
