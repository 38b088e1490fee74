"""Moves every large object of a root to another store: `kernels-hub hub migrate`, while servers run.

Objects are copied while servers serve and clients write; what came meanwhile is copied in further rounds, and the last
of it while nothing can be added, which takes as long as a look at the rows and the few objects that are left. Then the
root belongs to the new store, in one step. The old store is only read, before and after.

A migration that was interrupted goes on where it was: `<root>/migration` names the objects that were compared by
SHA-256 in the new store.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from kernels_hub.errors import IntegrityError, KernelsHubError
from kernels_hub.server.hub import Hub
from kernels_hub.server.maintenance import maintaining
from kernels_hub.server.migration import check_git_stays
from kernels_hub.server.objects.address import S3Address
from kernels_hub.server.objects.files import FileObjects
from kernels_hub.server.objects.opening import FILES
from kernels_hub.server.objects.s3 import S3Objects
from kernels_hub.server.objects.store import ObjectStore
from kernels_hub.server.repositories import Repository

_CHUNK = 1 << 20
_AT_A_TIME = 8
_AT_ONCE = 1000
_TELL_SECONDS = 5.0
_ROUNDS = 10
_FEW = 16
"""So many objects may be left to be copied while uploads wait."""


@dataclass(frozen=True)
class Migrated:
    """What a migration did. `known`: objects that an earlier, interrupted run had copied."""

    source: str
    target: str
    copied: int
    known: int
    bytes: int
    rounds: int
    in_the_last: int


class _Journal:
    """The objects that are in the new store, compared by SHA-256; kept in a file, for one target."""

    def __init__(self, path: Path, target: str) -> None:
        self._path = path
        head = f"kernels-hub migration 1 {target}"
        lines = path.read_text().splitlines() if path.is_file() else []
        kept = lines[1:] if lines[:1] == [head] else []
        # The last line of a run that was killed may be half of one.
        pairs = [line.split(" ") for line in kept if len(line) == 97]
        self.known = {(pair[0], pair[1]) for pair in pairs if len(pair) == 2}
        if not self.known:
            path.write_text(head + "\n")
        self._file = path.open("a")

    def add(self, repository: str, oid: str) -> None:
        self._file.write(f"{repository} {oid}\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)


@dataclass(frozen=True)
class _Item:
    """An object that a repository has."""

    repository: Repository
    oid: str
    size: int


class _Migration:
    def __init__(
        self, hub: Hub, target: ObjectStore, journal: _Journal, announce: Callable[[str], None]
    ) -> None:
        self.hub, self.target, self.journal, self.announce = hub, target, journal, announce
        self.done: dict[str, set[str]] = {}
        self.copied = self.known = self.bytes = 0

    def round(self) -> int:
        """Copy what is not in the new store; how many objects."""
        before, told = self.copied, time.monotonic()
        with ThreadPoolExecutor(_AT_A_TIME) as threads:
            # Threads that are done with one repository go on with the next.
            left = self._left()
            while some := list(islice(left, _AT_ONCE)):
                for item, new in zip(some, threads.map(self._take, some), strict=True):
                    self._count(item, new)
                    if time.monotonic() - told > _TELL_SECONDS:
                        self.announce(f"{self.copied} objects copied, {self.known} were there")
                        told = time.monotonic()
        return self.copied - before

    def _left(self) -> Iterator[_Item]:
        for repository in self.hub.repositories.all():
            done = self.done.setdefault(repository.id, set())
            for oid, size in self.hub.large_files.rows(repository).items():
                if oid not in done:
                    yield _Item(repository, oid, size)

    def _count(self, item: _Item, new: bool | None) -> None:
        if new is None:
            return
        self.done[item.repository.id].add(item.oid)
        if new:
            self.journal.add(item.repository.id, item.oid)
            self.copied, self.bytes = self.copied + 1, self.bytes + item.size
        else:
            self.known += 1

    def _take(self, item: _Item) -> bool | None:
        """Whether an object was copied; False where it was there before, None where it is gone by now."""
        repository, oid, size = item.repository, item.oid, item.size
        if (repository.id, oid) in self.journal.known and self.target.size(repository.id, oid) == size:
            return False
        try:
            with self._local(repository, oid, size) as path:
                self.target.send(repository.id, oid, path, size)
        except FileNotFoundError:
            if oid in self.hub.large_files.rows(repository):
                raise KernelsHubError(
                    f"large file {oid} of {repository.full_name} is missing in the old store; nothing was changed, "
                    "run `kernels-hub hub fsck`"
                ) from None
            return None
        return True

    @contextmanager
    def _local(self, repository: Repository, oid: str, size: int) -> Iterator[Path]:
        """An object as a local file, its size and SHA-256 compared."""
        path = self.hub.layout.temporary()
        digest, found = hashlib.sha256(), 0
        try:
            with closing(self.hub.large_files.open(repository, oid)) as content, path.open("xb") as file:
                while data := content.read(_CHUNK):
                    digest.update(data)
                    found += file.write(data)
            if found != size or digest.hexdigest() != oid:
                raise IntegrityError(
                    f"large file {oid} of {repository.full_name} has other content in the old store; nothing was "
                    "changed, run `kernels-hub hub fsck` and put it back from a backup"
                )
            yield path
        finally:
            path.unlink(missing_ok=True)

    def drop_deleted(self) -> None:
        """Remove from the new store what was deleted after it was copied."""
        for identifier, oids in self.done.items():
            repository = self.hub.repositories.by_id(identifier)
            rows = {} if repository is None else self.hub.large_files.rows(repository)
            for oid in sorted(oids - set(rows)):
                self.target.remove(identifier, oid)


def migrate(hub: Hub, target: str, *, announce: Callable[[str], None] = lambda _: None) -> Migrated:
    """Copy every large object to another store, and make it the root's.

    target: the address of an object store, or "files" for the root's own folders.
    announce: is told what is done.
    Raises KernelsHubError for a target that is the source, an object that is damaged or missing, and while other upkeep
    is at work; Refusal where a store does not answer. The root then belongs to the old store as before; the next run
    goes on.
    """
    if hub.git.has_several_roots:
        raise KernelsHubError(
            "the git data of this Hub is in its object store, with the large files; nothing was changed. Move it to "
            "this root first, with `kernels-hub hub migrate --git folder`"
        )
    check_git_stays(hub.layout)
    with maintaining(hub, timeout=10):
        store = _target(hub, target)
        source = hub.large_files.objects
        source.confirm()
        if isinstance(store, S3Objects):
            store.claim()
        journal = _Journal(hub.layout.root / "migration", store.place or FILES)
        try:
            work = _Migration(hub, store, journal, announce)
            rounds, count = 0, _FEW + 1
            while count > _FEW and rounds < _ROUNDS:
                count, rounds = work.round(), rounds + 1
                announce(f"round {rounds}: {count} copied, {work.known} were there")
            with hub.layout.store_moves():
                last = work.round()
                work.drop_deleted()
                hub.layout.keep_objects(None if target == FILES else str(S3Address.parse(target)))
            journal.remove()
        finally:
            journal.close()
    return Migrated(
        source.description, store.description, work.copied, work.known, work.bytes, rounds + 1, last
    )


def _target(hub: Hub, target: str) -> ObjectStore:
    store: ObjectStore
    store = (
        FileObjects(hub.layout)
        if target == FILES
        else S3Objects(S3Address.parse(target), hub.layout.identity())
    )
    if store.place == hub.large_files.objects.place:
        raise KernelsHubError(f"the large files of {hub.layout.root} are there already: {store.description}")
    return store
