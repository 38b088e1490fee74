"""Moves the git data of a root into its object store and database, so that servers need no folder, and back.

Nobody else has the root open meanwhile; servers with other roots may go on reading where it is moved back, and refuse
changes (503) from the first step on. Every pack is compared by SHA-256 where it arrived, and refs by their values; then
one file, FORMAT, says where the data is. What was there is left as it was. A migration that died is run again: what is
there already, and the same, is not sent again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from kernels_hub.errors import IntegrityError, KernelsHubError
from kernels_hub.files import move_into_place
from kernels_hub.server.audit import Audit
from kernels_hub.server.database import Database, DatabaseError
from kernels_hub.server.database.opening import open_database
from kernels_hub.server.git.folder import FolderGit, prepare_bare
from kernels_hub.server.git.pack_bucket import sha256_in
from kernels_hub.server.git.pack_files import PackFiles
from kernels_hub.server.git.packed_refs import PackedRefs
from kernels_hub.server.git.rows import PackRow, Place, State
from kernels_hub.server.git.stored import StoredGit
from kernels_hub.server.git.stored_content import upload_pack
from kernels_hub.server.hub import SCHEMAS
from kernels_hub.server.layout import RootPaths
from kernels_hub.server.limits import Limits
from kernels_hub.server.migration import alone
from kernels_hub.server.objects.address import S3Address
from kernels_hub.server.objects.s3 import S3Objects
from kernels_hub.server.packs import ByteCache
from kernels_hub.server.refs import Ref
from kernels_hub.server.refusal import Refusal
from kernels_hub.server.repositories import Repositories, Repository

_CHUNK = 1 << 20
_TELL_EVERY = 100
Goal = Literal["store", "folder"]


@dataclass(frozen=True)
class GitMigrated:
    """What a migration did. `known`: repositories that an earlier, interrupted run had moved."""

    source: str
    target: str
    repositories: int
    known: int
    packs: int
    bytes: int


def migrate(
    root: Path,
    to: Goal,
    *,
    database: str | None = None,
    objects: str | None = None,
    announce: Callable[[str], None] = lambda _: None,
) -> GitMigrated:
    """Move the git data of a root into its object store and database ("store"), or below the root ("folder").

    database, objects: how these are reached, where it is not as the root remembers.
    announce: is told how far it is.
    Raises KernelsHubError while servers or commands have the root open, where rows or large files are not in a database
    and an object store, and where a pack is damaged; Refusal where the store does not answer. The data is then where it
    was.
    """
    layout = RootPaths.open(root)
    marker = layout.read()
    if not marker.rows or marker.objects is None:
        raise KernelsHubError(
            f"the git data of {root} goes where its rows and large files are, which must be in PostgreSQL and an "
            "object store: move them there with `kernels-hub hub migrate --to postgresql://…` and `--to s3://…` first"
        )
    with alone(layout), closing(open_database(layout, database)) as rows:
        for schema in SCHEMAS:
            rows.add(schema)
        try:
            return _Migration(layout, rows, objects or marker.objects, announce).run(to)
        except DatabaseError as error:
            raise KernelsHubError(f"the git data could not be moved: {error}; run the same again") from error


class _Migration:
    def __init__(
        self, layout: RootPaths, database: Database, objects: str, announce: Callable[[str], None]
    ) -> None:
        from kernels_hub.server.database.postgresql import PostgresqlDatabase

        assert isinstance(database, PostgresqlDatabase)
        self.store = S3Objects(S3Address.parse(objects), layout.identity())
        self.store.confirm()
        self.layout, self.database, self.announce = layout, database, announce
        self.folder = FolderGit(layout, database)
        self.stored = StoredGit(layout, database, self.store, Limits().git_cache_bytes)
        self.rows = self.stored.rows
        self.known = self.packs = self.bytes = 0

    def run(self, to: Goal) -> GitMigrated:
        source, target = self.folder.description, self.stored.description
        count = self._to_store() if to == "store" else self._to_folder()
        if to == "folder":
            source, target = target, source
        return GitMigrated(source, target, count, self.known, self.packs, self.bytes)

    def _settle(self, state: State) -> None:
        """Say where the data is; whatever was being committed is there before that."""
        with self.database.transaction():
            self.rows.settle(Place(state, self.store.place, self.layout.identity(), self.layout.secret()))

    def _each(self, move: Callable[[Repository], bool]) -> int:
        """Move repository by repository, which says whether there was anything to do; how many there are."""
        every = Repositories(self.database, Audit(self.database)).all()
        for number, repository in enumerate(every, 1):
            if not move(repository):
                self.known += 1
            if number % _TELL_EVERY == 0:
                self.announce(f"{number} of {len(every)} repositories, {self.known} were there")
        return len(every)

    # -- into the store

    def _to_store(self) -> int:
        marker, place = self.layout.read(), self.rows.place()
        if place is not None and place.state == "store":
            raise KernelsHubError(
                f"the git data of {self.layout.root} is there already: {self.stored.description}"
            )
        if marker.git and (place is None or place.state == "folder"):
            raise KernelsHubError(
                "the git data of this Hub is in the folder of another root: move it from there"
            )
        if not marker.git:
            self._settle("moving")
            count = self._each(self._send)
            self.layout.mark(replace(marker, git=True))
        else:  # all was copied, and the last step is missing; or it was to go back, and has not begun to count
            count = self._each(lambda _: False)
        self._settle("store")
        return count

    def _send(self, repository: Repository) -> bool:
        content = self.folder.open(repository.id)
        if content.refs.interrupted():
            content.refs.recover()
        packs, refs = content.packs, content.refs.all()
        assert isinstance(packs, PackFiles)
        files = {_sha256(path, path.with_suffix(".idx")): path for path in packs.names()}
        if self._has_sent(repository, set(files), refs):
            return False
        rows = []
        for sha256, path in files.items():
            whole = self.layout.temporary()
            try:
                row = upload_pack(self.stored.places, repository.id, path, path.with_suffix(".idx"), whole)
            finally:
                whole.unlink(missing_ok=True)
            if sha256_in(row.name) != sha256 or self.stored.bucket.sha256(repository.id, row.name) != sha256:
                raise IntegrityError(
                    f"{path} of {repository.full_name} has other content in the object store; the git data is where it "
                    "was, run the same again"
                )
            rows.append(row)
            self.packs, self.bytes = self.packs + 1, self.bytes + row.size
        with self.database.transaction():
            self.rows.drop(repository.id)
            self.rows.insert(repository.id, refs, rows)
        if self.rows.snapshot(repository.id).refs != refs:
            raise IntegrityError(
                f"the refs of {repository.full_name} are others in the database; run the same again"
            )
        return True

    def _has_sent(self, repository: Repository, packs: set[str], refs: Mapping[str, Ref]) -> bool:
        if self.rows.version(repository.id) is None:
            return False
        there = self.rows.snapshot(repository.id)
        if there.refs != refs or {sha256_in(pack.name) for pack in there.packs} != packs:
            return False
        stored = {entry.oid: entry.size for entry in self.stored.bucket.entries(repository.id)}
        return all(stored.get(pack.name) == pack.size for pack in there.packs)

    # -- into the folder

    def _to_folder(self) -> int:
        marker, place = self.layout.read(), self.rows.place()
        if place is None or place.state == "folder":
            where = "below another root" if marker.git else f"there already: {self.folder.description}"
            raise KernelsHubError(f"the git data of this Hub is {where}")
        if not marker.git:
            if place.state == "store":
                raise KernelsHubError(
                    f"{self.layout.root} is an older copy of a root; move the git data to one that serves the Hub"
                )
            count = self._each(lambda _: False)  # a migration to the store, given up, or the last step back
        else:
            self._settle("moving")
            count = self._each(self._bring)
            self.layout.mark(replace(marker, git=False))
        with self.database.transaction():
            self._settle("folder")
            self.rows.drop_all()  # servers with other roots find nothing any more, and say so
        return count

    def _bring(self, repository: Repository) -> bool:
        there = self.rows.snapshot(repository.id)
        home = self.layout.repository(repository.id)
        if self._has_brought(home / "git", there.packs, there.refs):
            return False
        git = self.layout.temporary()
        prepare_bare(git, repository.id)
        for row in there.packs:
            path = git / "objects" / "pack" / f"pack-{sha256_in(row.name)[:40]}.pack"
            self._load(repository, row, path)
            self.packs, self.bytes = self.packs + 1, self.bytes + row.size
        PackedRefs(git, self.layout.temporary).replace(there.refs)
        (home / "lfs").mkdir(parents=True, exist_ok=True)
        if (home / "git").exists():  # from before it was moved to the store
            old = self.layout.temporary()
            (home / "git").rename(old)
            shutil.rmtree(old)
        move_into_place(git, home / "git", durable=True, overwrite=False)
        if not self._has_brought(home / "git", there.packs, there.refs):
            raise IntegrityError(f"{repository.full_name} is other in its folder; run the same again")
        return True

    def _load(self, repository: Repository, row: PackRow, path: Path) -> None:
        """Write a pack and its index, flushed. Raises IntegrityError for what is damaged or lost."""
        try:
            with closing(self.stored.bucket.open(repository.id, row.name)) as content:
                _split(content.read, row, path)
        except FileNotFoundError:
            raise IntegrityError(
                f"the pack {row.name} of {repository.full_name} is missing in the object store; the git data is where "
                "it was, run `kernels-hub hub fsck` and restore it from a backup"
            ) from None
        if _sha256(path, path.with_suffix(".idx")) != sha256_in(row.name):
            raise IntegrityError(
                f"the pack {row.name} of {repository.full_name} has other content in the object store; the git data is "
                "where it was, run `kernels-hub hub fsck` and restore it from a backup"
            )

    def _has_brought(self, git: Path, packs: tuple[PackRow, ...], refs: Mapping[str, Ref]) -> bool:
        with _opened(git, self.layout) as files:
            if files is None:
                return False
            here = {_sha256(path, path.with_suffix(".idx")) for path in files.names()}
        try:
            same = PackedRefs(git, self.layout.temporary).all() == refs
        except Refusal:
            return False
        return same and here == {sha256_in(pack.name) for pack in packs}


@contextmanager
def _opened(git: Path, layout: RootPaths) -> Iterator[PackFiles | None]:
    if not git.is_dir():
        yield None
        return
    with closing(PackFiles(git, ByteCache(0), layout.temporary)) as files:
        yield files


def _split(read: Callable[[int], bytes], row: PackRow, pack: Path) -> None:
    left = row.pack_bytes
    with pack.open("xb") as first, pack.with_suffix(".idx").open("xb") as second:
        while data := read(_CHUNK):
            first.write(data[:left])
            second.write(data[left:])
            left = max(0, left - len(data))
        for file in (first, second):
            file.flush()
            os.fsync(file.fileno())
    for path in (pack, pack.with_suffix(".idx")):
        path.chmod(0o444)


def _sha256(*paths: Path) -> str:
    """The SHA-256 of files, one after the other."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while data := file.read(_CHUNK):
                digest.update(data)
    return digest.hexdigest()
