"""Moves the git data of a root into its object store and database, so that servers need no folder, and back.

Servers serve and clients write meanwhile. Repositories are copied in rounds, each pack compared by SHA-256 where it
arrived and refs by their values, until few have changed since. Then servers let the root go (`row_moves.py`), for as
long as it takes to look at every repository and bring those few, and one file, FORMAT, says where the data is from then
on. Where that takes too long, since clients write fast, they go on and wait again, until all is brought. Before FORMAT
says so the data is where it was; what was there is left for `gc` (`left_behind.py`). Servers with other roots, which do
not go along, refuse changes (503) from the moment on at which the data is moved back to this one's folder.

A migration that died is run again: what is there already, and the same, is not sent again. `git/opening.py` has what
servers make of one that died.
"""

from __future__ import annotations

import hashlib
import math
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Literal

from kernels_hub.errors import IntegrityError, KernelsHubError
from kernels_hub.files import flush_folder, move_into_place, write_atomically
from kernels_hub.server import migration
from kernels_hub.server.audit import Audit
from kernels_hub.server.database import Database, DatabaseError, RowConflictError
from kernels_hub.server.git.folder import FolderGit, prepare_bare
from kernels_hub.server.git.opening import settle_begun
from kernels_hub.server.git.pack_bucket import sha256_in
from kernels_hub.server.git.pack_files import PackFiles
from kernels_hub.server.git.packed_refs import PackedRefs
from kernels_hub.server.git.rows import PackRow, Place, State
from kernels_hub.server.git.stored import StoredGit
from kernels_hub.server.git.stored_content import upload_pack
from kernels_hub.server.layout import RootPaths
from kernels_hub.server.limits import Limits
from kernels_hub.server.objects.address import S3Address
from kernels_hub.server.objects.s3 import S3Objects
from kernels_hub.server.packs import ByteCache
from kernels_hub.server.refs import Ref
from kernels_hub.server.refusal import Refusal
from kernels_hub.server.repositories import Repositories, Repository
from kernels_hub.server.row_moves import taken_over

_CHUNK = 1 << 20
_FEW = 8
"""So many repositories may be left to be brought while requests wait."""
_ROUNDS = 5
_AT_A_TIME = 4
_AT_ONCE = 16
_TELL_SECONDS = 5.0
_WAIT_SECONDS = 3.0
"""So long may the last of it take; after that clients go on, for `_BETWEEN_SECONDS`, and it is tried again."""
_BETWEEN_SECONDS = 0.5
Goal = Literal["store", "folder"]


@dataclass(frozen=True)
class GitMigrated:
    """What a migration did.

    repositories: that there are. known: those that an earlier run had moved. packs, bytes: that were copied.
    changed: repositories that changed meanwhile and were brought once more. in_the_last: those while requests waited.
    waited: for how many seconds they did, at most at once.
    """

    source: str
    target: str
    repositories: int
    known: int
    packs: int
    bytes: int
    changed: int
    in_the_last: int
    waited: float


def migrate(
    root: Path,
    to: Goal,
    *,
    database: str | None = None,
    objects: str | None = None,
    seconds: float | None = None,
    announce: Callable[[str], None] = lambda _: None,
) -> GitMigrated:
    """Move the git data of a root into its object store and database ("store"), or below the root ("folder").

    database, objects: how these are reached, where it is not as the root remembers; the same ones, not others.
    seconds: how long to wait, at the end, for servers and commands to let the root go; `migration.SECONDS` by default.
    announce: is told how far it is.
    Raises KernelsHubError where somebody keeps the root open, where rows or large files are not in a database and an
    object store, and where a pack is damaged; Refusal where the store does not answer. The data is then where it was,
    and the next run goes on.
    """
    with _begun(root, database, objects, announce) as (work, let_go):
        try:
            return work.run(to, let_go, migration.SECONDS if seconds is None else seconds)
        except DatabaseError as error:
            raise KernelsHubError(f"the git data could not be moved: {error}; run the same again") from error


def give_up(root: Path, *, database: str | None = None, objects: str | None = None) -> None:
    """Forget a move of git data that was begun and is not to be ended.

    What it copied, packs in the store or folders below the root, is read by nobody and stays until `gc` removes it.
    """
    with _begun(root, database, objects, lambda _: None) as (work, _):
        work.give_up()


@contextmanager
def _begun(
    root: Path, database: str | None, objects: str | None, announce: Callable[[str], None]
) -> Iterator[tuple[_Migration, Callable[[], None]]]:
    """A migration, and what lets go of the lock that says that the root is open here."""
    layout = RootPaths.open(root)
    marker = layout.read()
    if not marker.rows or marker.objects is None:
        raise KernelsHubError(
            f"the git data of {root} is in its folder. Elsewhere it lies with rows and large files, which must be in "
            "PostgreSQL and an object store: move them there with `kernels-hub hub migrate --to postgresql://…` and "
            "`--to s3://…` first"
        )
    kept = S3Address.parse(marker.objects).place
    if objects is not None and (given := S3Address.parse(objects).place) != kept:
        raise KernelsHubError(
            f"{root} keeps its large files in {kept}, and its git data goes there, not to {given}; nothing was "
            "changed, leave --from away or correct it"
        )
    with migration.only_migration(layout, database) as (rows, let_go):
        work = _Migration(layout, rows, objects or marker.objects, announce)
        # What servers with other roots respect.
        with closing(work), work.stored.alone("maintenance", 10) as alone:
            if not alone:
                raise KernelsHubError(
                    "gc, fsck, backup or migrate is at work on this Hub; wait until it is done"
                )
            yield work, let_go


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
        self.repositories = Repositories(database, Audit(database))
        self.known = self.packs = self.bytes = 0
        self._guard = threading.Lock()
        self._seen: dict[str, object] = {}
        """What each repository was when it was brought last."""
        self._left_of: set[str] | None = None
        """The repositories that the store has packs of from before."""
        self._versions: Mapping[str, str] = {}
        self._digests: dict[tuple[str, str], str] = {}
        """SHA-256 of packs in the folder by repository and name: no pack is ever written over."""

    def close(self) -> None:
        """Close files; the database is its owner's."""
        self.folder.close()
        self.stored.close()
        self.layout.close()

    def run(self, to: Goal, let_go: Callable[[], None], seconds: float) -> GitMigrated:
        begun = self.layout.git_begun.is_file()
        place = settle_begun(self.layout, self.rows)
        source, target = self.folder.description, self.stored.description
        if begun and not self.layout.git_begun.is_file() and self.layout.read().git == (to == "store"):
            count = len(self.repositories.all())  # all but the last step was done before
            return GitMigrated(source, target, count, count, 0, 0, 0, 0, 0.0)
        if to == "store":
            self._check_to_store(place)
            self._note(to)
            self._settle("moving")
            state, move = self._in_folder, self._send
        else:
            source, target = target, source
            self._check_to_folder(place)
            self._note(to)
            state, move = self._in_store, self._bring
        self._round(state, move)
        first, changed = len(self._seen), 0
        for _ in range(_ROUNDS):
            changed += (count := self._round(state, move))
            if count <= _FEW:
                break
        let_go()
        waited, last = 0.0, None
        while last is None:
            began = time.monotonic()
            with taken_over(self.layout, seconds, f"git {to}"):
                last = self._end(to, state, move)
            waited = max(waited, round(time.monotonic() - began, 3))
            if last is None:
                self.announce("clients wrote more than can be brought while they wait: once more")
                time.sleep(_BETWEEN_SECONDS)
        count = max(first, len(self._seen))
        return GitMigrated(
            source, target, count, self.known, self.packs, self.bytes, changed + last, last, waited
        )

    def _end(self, to: Goal, state: _State, move: _Move) -> int | None:
        """Bring what is left, while nobody has the root open, and change over; how many repositories that were.

        None where it was too much for clients to wait: then some of it was brought, and the data is where it was.
        """
        marker = self.layout.read()
        if to == "store":
            for repository in self._interrupted():
                self.folder.open(repository).refs.recover()
        else:
            self._settle("moving")  # servers with other roots change nothing from here on
        try:
            end = time.monotonic() + _WAIT_SECONDS
            last = self._round(state, move, end)
            if time.monotonic() > end:
                if to == "folder":
                    self._settle("store")
                return None
            self._check_all(state)
            self._drop_deleted(to)
            self.layout.mark(replace(marker, git=to == "store"))
        except Exception:
            if to == "folder":
                self._settle("store")
            raise
        self._settle(to)
        self.layout.git_begun.unlink(missing_ok=True)
        return last

    def give_up(self) -> None:
        if not self.layout.git_begun.is_file():
            raise KernelsHubError(f"no move of the git data of {self.layout.root} was begun")
        settle_begun(self.layout, self.rows)
        if not self.layout.read().git:
            self._settle("folder")
        self.layout.git_begun.unlink(missing_ok=True)

    def _note(self, to: Goal) -> None:
        """Say that a move begins. One the other way that was begun is given up with that."""
        write_atomically(self.layout.git_begun, f"{to}\n", durable=True)

    def _settle(self, state: State) -> None:
        """Say where the data is; whatever was being committed is there before that."""
        place = Place(state, self.store.place, self.layout.identity(), self.layout.secret())
        with self.database.transaction():
            self.rows.settle(place)
            if state == "folder":
                self.rows.drop_all()  # servers with other roots find nothing any more, and say so

    def _round(self, state: _State, move: _Move, end: float = math.inf) -> int:
        """Bring every repository that is other than it was when it was brought last, until a moment; how many."""
        told, count = time.monotonic(), 0
        every, self._versions = self.repositories.all(), self.rows.versions()
        pairs = ((repository, state(repository)) for repository in every)
        left = (pair for pair in pairs if pair[1] is not None and self._seen.get(pair[0].id) != pair[1])
        with ThreadPoolExecutor(_AT_A_TIME) as threads:
            while time.monotonic() < end and (some := list(islice(left, _AT_ONCE))):
                results = threads.map(lambda pair: self._take(state, move, *pair), some)
                for (repository, now), copied in zip(some, results, strict=True):
                    if copied is not None:
                        self.known += not copied and repository.id not in self._seen
                        self._seen[repository.id] = now
                count += len(some)
                if time.monotonic() - told > _TELL_SECONDS:
                    self.announce(f"{len(self._seen)} of {len(every)} repositories, {self.known} were there")
                    told = time.monotonic()
        return count

    def _take(self, state: _State, move: _Move, repository: Repository, now: object) -> bool | None:
        """Whether a repository was copied; False where it was there, None where it has changed under this."""
        try:
            return move(repository)
        except (Refusal, FileNotFoundError, RowConflictError):
            # Deleted meanwhile, or its packs were joined: the next round finds it as it is then.
            self._versions = self.rows.versions()
            if self.repositories.by_id(repository.id) is not None and state(repository) == now:
                raise
            return None

    def _check_all(self, state: _State) -> None:
        """Raise IntegrityError unless every repository was brought as it is now."""
        for repository in self.repositories.all():
            now = state(repository)
            if now is None or self._seen.get(repository.id) != now:
                raise IntegrityError(
                    f"{repository.full_name} has no git data, or other than was copied; the git data is where it was, "
                    "run `kernels-hub hub fsck`, then the same again"
                )

    def _drop_deleted(self, to: Goal) -> None:
        """Remove what was copied of repositories that were deleted afterwards."""
        for identifier in self._seen.keys() - {repository.id for repository in self.repositories.all()}:
            if to == "store":
                self.stored.bucket.remove_all(identifier)
            else:
                shutil.rmtree(self.layout.repository(identifier), ignore_errors=True)

    # -- into the store

    def _check_to_store(self, place: Place | None) -> None:
        if place is not None and place.state == "store":
            raise KernelsHubError(
                f"the git data of {self.layout.root} is there already: {self.stored.description}"
            )
        if self.layout.read().git:
            raise KernelsHubError(
                "the git data of this Hub is in the folder of another root: move it from there"
            )

    def _interrupted(self) -> list[str]:
        rows = self.database.rows("SELECT repository FROM pending_refs")
        return [str(row["repository"]) for row in rows]

    def _in_folder(self, repository: Repository) -> object | None:
        """What a repository is, in its folder: its refs, then the names of its packs. None where it is gone."""
        git = self.layout.repository(repository.id) / "git"
        try:
            refs = (git / "packed-refs").read_bytes()
        except FileNotFoundError:
            # Gone, or damaged: which of both, `_send` says.
            return () if git.is_dir() else None
        return refs, tuple(path.name for path in _packs_in(git))

    def _send(self, repository: Repository) -> bool:
        git = self.layout.repository(repository.id) / "git"
        # The refs first: packs are there before refs lead to them.
        refs = self.folder.open(repository.id).refs.all()
        paths = {self._sha256_of(repository, path): path for path in _packs_in(git)}
        there = self._sent(repository)
        copied = there is None or there.refs != refs or there.packs.keys() != paths.keys()
        if not copied:
            return False
        known = self._left(repository, paths) if there is None else there.packs
        rows = [known.get(sha256) or self._upload(repository, path, sha256) for sha256, path in paths.items()]
        with self.database.transaction():
            self.rows.drop(repository.id)
            self.rows.insert(repository.id, refs, rows)
        if self.rows.snapshot(repository.id).refs != refs:
            raise IntegrityError(
                f"the refs of {repository.full_name} are others in the database; run the same again"
            )
        return True

    def _upload(self, repository: Repository, path: Path, sha256: str) -> PackRow:
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
        self._count(row)
        return row

    def _count(self, row: PackRow) -> None:
        with self._guard:
            self.packs, self.bytes = self.packs + 1, self.bytes + row.size

    def _left(self, repository: Repository, paths: Mapping[str, Path]) -> dict[str, PackRow]:
        """Packs by SHA-256 that the store has from an earlier move, whole, whose rows went when the data came back."""
        if self._left_of is None:
            self._left_of = self.stored.bucket.repositories()
        left: dict[str, PackRow] = {}
        for entry in self.stored.bucket.entries(repository.id) if repository.id in self._left_of else ():
            path = paths.get(sha256 := sha256_in(entry.oid))
            if path is None or sha256 in left:
                continue
            row = PackRow(entry.oid, path.stat().st_size, path.with_suffix(".idx").stat().st_size)
            if row.size == entry.size and self.stored.bucket.sha256(repository.id, entry.oid) == sha256:
                left[sha256] = row
        return left

    def _sent(self, repository: Repository) -> _Sent | None:
        """What is in the store and the database of a repository, whole."""
        if self.rows.version(repository.id) is None:
            return None
        there = self.rows.snapshot(repository.id)
        stored = {entry.oid: entry.size for entry in self.stored.bucket.entries(repository.id)}
        whole = {sha256_in(pack.name): pack for pack in there.packs if stored.get(pack.name) == pack.size}
        return _Sent(there.refs, whole)

    def _sha256_of(self, repository: Repository, path: Path) -> str:
        key = repository.id, path.name
        if key not in self._digests:
            self._digests[key] = _sha256(path, path.with_suffix(".idx"))
        return self._digests[key]

    # -- into the folder

    def _check_to_folder(self, place: Place | None) -> None:
        marker = self.layout.read()
        if place is None or place.state == "folder" or (place.state == "moving" and not marker.git):
            where = "below another root" if marker.git else f"there already: {self.folder.description}"
            raise KernelsHubError(f"the git data of this Hub is {where}")
        if not marker.git:
            raise KernelsHubError(
                f"{self.layout.root} is an older copy of a root; move the git data to one that serves the Hub"
            )

    def _in_store(self, repository: Repository) -> object | None:
        """What a repository is, in the store, as of the beginning of a round."""
        return self._versions.get(repository.id)

    def _bring(self, repository: Repository) -> bool:
        there = self.rows.snapshot(repository.id)
        home = self.layout.repository(repository.id)
        here = {self._sha256_of(repository, path): path for path in _packs_in(home / "git")}
        wanted = {sha256_in(pack.name) for pack in there.packs}
        if here.keys() == wanted and self._refs_are(home / "git", there.refs):
            return False
        git = self.layout.temporary()
        prepare_bare(git, repository.id)
        for row in there.packs:
            path = git / "objects" / "pack" / f"pack-{sha256_in(row.name)[:40]}.pack"
            if (known := here.get(sha256_in(row.name))) is not None:
                for suffix in (".pack", ".idx"):
                    os.link(known.with_suffix(suffix), path.with_suffix(suffix))
            else:
                self._load(repository, row, path)
                self._count(row)
            self._digests[repository.id, path.name] = sha256_in(row.name)
        flush_folder(git / "objects" / "pack")
        PackedRefs(git, self.layout.temporary).replace(there.refs)
        (home / "lfs").mkdir(parents=True, exist_ok=True)
        if (home / "git").exists():  # from before; nobody reads it
            old = self.layout.temporary()
            (home / "git").rename(old)
            shutil.rmtree(old)
        move_into_place(git, home / "git", durable=True, overwrite=False)
        if not self._refs_are(home / "git", there.refs):
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

    def _refs_are(self, git: Path, refs: Mapping[str, Ref]) -> bool:
        try:
            return PackedRefs(git, self.layout.temporary).all() == refs
        except Refusal:
            return False


@dataclass(frozen=True)
class _Sent:
    """The git side of a repository in the store: its refs, and its packs by SHA-256."""

    refs: Mapping[str, Ref]
    packs: Mapping[str, PackRow]


_State = Callable[[Repository], object | None]
_Move = Callable[[Repository], bool]


def _packs_in(git: Path) -> list[Path]:
    """The packs of a bare repository that are complete; none where it is not there."""
    with closing(PackFiles(git, ByteCache(0), lambda: git)) as files:
        return files.names()


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
