"""Git data in an object store and the database: servers share these, and no folder.

    <prefix>/git/<repository id>/<name>   packs, each with its index; see `pack_bucket`
    git_versions, git_refs, git_packs     refs, and which packs a repository has; see `rows`
    <root>/cache                          copies of packs to read from, which may be removed

Locks are PostgreSQL's advisory locks, held by the connection that also makes the changes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kernels_hub.errors import KernelsHubError
from kernels_hub.server.durable import locked, try_lock
from kernels_hub.server.git.folder import prepare_bare
from kernels_hub.server.git.open_repositories import OpenRepositories
from kernels_hub.server.git.pack_bucket import PackBucket, began
from kernels_hub.server.git.pack_cache import PackCache
from kernels_hub.server.git.pack_files import records_of
from kernels_hub.server.git.packed_refs import PackedRefs
from kernels_hub.server.git.rows import GitRows, moved
from kernels_hub.server.git.seam import LOCK_SECONDS, Content, GitStore
from kernels_hub.server.git.stored_content import Places, State, StoredPacks, StoredRefs, store_pack
from kernels_hub.server.layout import RootPaths
from kernels_hub.server.packs import AnyObject, ByteCache
from kernels_hub.server.refs import Ref
from kernels_hub.server.refusal import Refusal
from kernels_hub.server.repositories import Repository

if TYPE_CHECKING:
    from kernels_hub.server.database.postgresql import PostgresqlDatabase
    from kernels_hub.server.objects.s3 import S3Objects

_CACHE_BYTES = 16 << 20


@dataclass(frozen=True)
class _Opened:
    state: State
    packs: StoredPacks
    content: Content


class _NameTakenError(Exception):
    """Undoes the transaction of a repository whose row could not be added."""


class StoredGit(GitStore):
    """Implements `GitStore` with an object store and a PostgreSQL database."""

    has_several_roots = True

    def __init__(
        self, layout: RootPaths, database: PostgresqlDatabase, store: S3Objects, cache_bytes: int
    ) -> None:
        """cache_bytes: how much the local copies of packs may take."""
        self.description = f"packs in {store.address}, refs in {database.name}"
        self._layout = layout
        self._database = database
        self.rows = GitRows(database)
        self.bucket = PackBucket(store)
        self.places = Places(
            self.rows,
            self.bucket,
            PackCache(layout.cache, cache_bytes, layout.temporary),
            ByteCache(_CACHE_BYTES),
            layout.temporary,
        )
        # Whoever holds a repository's lock goes on with what it began with.
        self._open = OpenRepositories(
            self._begin, lambda opened: opened.packs.close(), lambda opened: not opened.state.is_busy
        )

    # -- locks

    @contextmanager
    def locked(self, repository: str, timeout: float = LOCK_SECONDS) -> Iterator[None]:
        """Hold a repository; 503 when it stays taken."""
        # Threads of this root wait at a file: one of them at a time takes a connection.
        with (
            locked(self._layout.lock(repository), timeout),
            self._database.held(f"repository {repository}", timeout) as held,
        ):
            if not held:
                raise Refusal(503, "The repository is busy; try again", headers={"Retry-After": "5"})
            with self._working(repository):
                yield

    @contextmanager
    def try_locked(self, repository: str) -> Iterator[bool]:
        """Hold a repository if nobody does: whether it is held."""
        descriptor = try_lock(self._layout.lock(repository))
        if descriptor is None:
            yield False
            return
        try:
            with self._database.held(f"repository {repository}") as held, self._working(repository):
                yield held
        finally:
            os.close(descriptor)

    @contextmanager
    def _working(self, repository: str) -> Iterator[None]:
        opened = self._open.get(repository)
        with opened.state.working() as work:
            self._open.keep(repository, opened)  # in case that it was closed just before
            try:
                yield
            finally:
                opened.packs.settle(work)

    def drop_lock(self, repository: str) -> None:
        """Remove the file at which threads of this root wait."""
        self._layout.lock(repository).unlink(missing_ok=True)

    @contextmanager
    def alone(self, work: str, timeout: float = 0.0) -> Iterator[bool]:
        """Hold a lock of the database for some work; a restart of the database ends it."""
        with self._database.held_apart(f"work {work}", timeout) as held:
            yield held

    # -- repositories

    def create(
        self,
        repository: str,
        objects: Iterable[AnyObject],
        refs: Mapping[str, Ref],
        insert: Callable[[], Repository | None],
    ) -> Repository | None:
        """Write a pack, then every row in one transaction."""
        unique = {item.oid: item for item in objects}
        packs = []
        if unique:
            packs.append(store_pack(self.places, repository, records_of(unique.values()), len(unique)))
        try:
            with self._database.transaction():
                if (made := insert()) is None:
                    raise _NameTakenError
                self._check_here()
                self.rows.insert(repository, refs, packs)
        except _NameTakenError:
            with suppress(Refusal):
                self.bucket.remove_all(repository)
            self.places.cache.remove(repository)
            return None
        return made

    def _check_here(self) -> None:
        place = self.rows.place()
        if place is None or place.state != "store":
            raise moved()

    def open(self, repository: str) -> Content:
        """The git side of a repository; nothing is asked before something of it is."""
        return self._open.get(repository).content

    def _begin(self, repository: str) -> _Opened:
        state = State(self.rows, repository)
        packs = StoredPacks(self.places, state)
        return _Opened(state, packs, Content(packs, StoredRefs(state)))

    def exists(self, repository: str) -> bool:
        """Whether the rows are there."""
        return self.rows.version(repository) is not None

    def remove(self, repository: str) -> None:
        """Remove packs; the rows went with that of the repository."""
        self._open.close(repository)
        self.places.cache.remove(repository)
        self.bucket.remove_all(repository)

    def copy(self, repository: str, target: Path) -> None:
        """Write a bare repository with the packs and refs of one moment."""
        opened = self._open.get(repository)
        try:
            refs = opened.state.now().refs
        except Refusal as refusal:
            raise FileNotFoundError(refusal.message) from refusal
        prepare_bare(target, repository)
        try:
            opened.packs.copy(target / "objects" / "pack")
        except FileNotFoundError as error:
            if not self.exists(repository):
                raise
            raise KernelsHubError(
                f"a pack of repository {repository} is missing in the object store; run `kernels-hub hub fsck`"
            ) from error
        PackedRefs(target, self._layout.temporary).replace(refs)

    # -- upkeep

    def sweep(self, has_row: Callable[[str], bool], recover: Callable[[str], None]) -> list[str]:  # noqa: ARG002
        """Nothing: what a crash left is in the store, and `collect` removes it when it is old."""
        return []

    def strays(self, has_row: Callable[[str], bool]) -> list[str]:
        """Packs that no row names: left by crashes and deletions, or just being written."""
        found = []
        for repository in sorted(self.bucket.repositories()):
            if not has_row(repository):
                found.append(f"packs of a repository that has no row: {repository}")
                continue
            stored = [entry.oid for entry in self.bucket.entries(repository)]
            rows = self.rows.pack_names(repository) | set(self.rows.dropped(repository))
            found += [
                f"repository {repository}: pack {name} has no row" for name in stored if name not in rows
            ]
        return found

    def collect(self, has_row: Callable[[str], bool], before: float, *, prune: bool) -> list[str]:
        """Remove packs that no row names, and were written, or joined with others, before a moment."""
        found = []
        for repository in sorted(self.bucket.repositories()):
            # The rows last: a name that was listed before may have got its row since.
            stored = [entry.oid for entry in self.bucket.entries(repository)]
            known = has_row(repository)
            if not known and not prune:
                continue
            rows, dropped = self.rows.pack_names(repository), self.rows.dropped(repository)
            for name in stored:
                if name not in rows and dropped.get(name, began(name)) < before:
                    self.bucket.remove(repository, name)
                    self.rows.forget_dropped(repository, name)
                    found.append(f"a pack that no row names: {repository}/{name}")
        return found

    def close(self) -> None:
        """Close every file."""
        self._open.close_all()
