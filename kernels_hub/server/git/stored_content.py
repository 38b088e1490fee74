"""The git side of one repository whose packs are in an object store and whose refs are rows.

A pack is in the store before the transaction begins that makes it the repository's, with the refs that need it: a crash
in between leaves an object that no row names. Packs are read from local copies, which are fetched when an object is
asked for that is in none of those here.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from dulwich.object_format import SHA1
from dulwich.pack import Pack, UnpackedObject

from kernels_hub.server.database import DatabaseError
from kernels_hub.server.git.pack_bucket import PackBucket, began, new_name, sha256_in
from kernels_hub.server.git.pack_cache import PackCache
from kernels_hub.server.git.pack_files import PackFiles, build_pack, records_of
from kernels_hub.server.git.rows import GitRows, PackRow, Snapshot
from kernels_hub.server.packs import AnyObject, ByteCache, KeptPack, Packs, smallest
from kernels_hub.server.refs import Ref, RefChanges, Refs
from kernels_hub.server.refusal import Refusal

_CHUNK = 1 << 20
_TRIES = 5
_MOST_SECONDS = 3600.0
"""How long after its upload a pack may become a repository's: far less than garbage is kept."""
_DROPPED_SECONDS = 24 * 3600.0
"""How long packs stay that were joined: for readers, and for a database that is restored to an earlier moment."""
_Result = TypeVar("_Result")
log = logging.getLogger("kernels_hub.server.git")


@dataclass(frozen=True)
class Places:
    """Where the parts of every repository are."""

    rows: GitRows
    bucket: PackBucket
    cache: PackCache
    objects: ByteCache
    temporary: Callable[[], Path]


@dataclass
class Work:
    """What a thread that holds the repository's lock has seen and not yet committed."""

    seen: Snapshot | None = None
    written: tuple[PackRow, ...] = ()
    oids: tuple[str, ...] = ()
    is_fresh: bool = True
    """Whether nothing was changed under the lock: what was changed in a transaction may be undone yet."""


class State:
    """What the rows say of a repository, read again when they changed. Safe from several threads."""

    def __init__(self, rows: GitRows, repository: str) -> None:
        self.rows = rows
        self.repository = repository
        self._seen: Snapshot | None = None
        self._local = threading.local()
        self._guard = threading.Lock()
        self._workers = 0

    @contextmanager
    def working(self) -> Iterator[Work]:
        """Around the work of a thread that holds the lock: it sees one version, and changes that or nothing."""
        self._local.work = work = Work()
        with self._guard:
            self._workers += 1
        try:
            yield work
        finally:
            self._local.work = None
            with self._guard:
                self._workers -= 1

    @property
    def is_busy(self) -> bool:
        """Whether a thread is at work under the lock."""
        return self._workers > 0

    @property
    def work(self) -> Work | None:
        """The work of this thread, if it holds the lock."""
        return getattr(self._local, "work", None)

    @property
    def version(self) -> str | None:
        """The version that was seen last, by this thread's work or anybody; nothing is asked for it."""
        work = self.work
        seen = work.seen if work is not None and work.seen is not None else self._seen
        return None if seen is None else seen.version

    def now(self) -> Snapshot:
        """Refs and packs as they are now, or as this thread's work has seen them first."""
        work = self.work
        if work is not None and work.seen is not None:
            return work.seen
        if work is not None and not work.is_fresh:
            work.seen = self.rows.snapshot(self.repository)
            return work.seen
        seen = self._seen
        if seen is None or self.rows.version(self.repository) != seen.version:
            self._seen = seen = self.rows.snapshot(self.repository)
        if work is not None:
            work.seen = seen
        return seen

    def change(
        self,
        refs: RefChanges | None = None,
        dropped: Iterable[PackRow] = (),
        record: Callable[[], None] | None = None,
    ) -> None:
        """Change refs and packs in one transaction, with what was written before. Needs `working`."""
        work = self.work
        assert work is not None, "the repository's lock is held"
        seen = self.now()
        if any(time.time() - began(pack.name) > _MOST_SECONDS for pack in work.written):
            raise Refusal(503, "The change took too long; nothing was changed, send it again")
        with self.rows.database.transaction():
            if record is not None:
                record()
            self.rows.replace(self.repository, seen.version, refs=refs, added=work.written, dropped=dropped)
        work.seen, work.written, work.oids, work.is_fresh = None, (), (), False


class StoredRefs(Refs):
    """Implements `Refs` with rows."""

    def __init__(self, state: State) -> None:
        self._state = state

    def all(self) -> Mapping[str, Ref]:
        """Every ref by its full name."""
        return self._state.now().refs

    def change(self, changes: RefChanges, record: Callable[[], None] | None = None) -> None:
        """Set or delete refs, with the packs that were written for them and what `record` adds: one transaction."""
        self._state.change(changes, record=record)

    def replace(self, refs: Mapping[str, Ref]) -> None:
        """Have these refs and no others."""
        gone: RefChanges = dict.fromkeys(self.all())
        self._state.change({**gone, **refs})

    def interrupted(self) -> bool:
        """Never: refs are changed with the rows that belong to them."""
        return False

    def recover(self) -> None:
        """Nothing is ever to complete."""


class StoredPacks(Packs):
    """Implements `Packs` with objects of a store, read from local copies."""

    def __init__(self, places: Places, state: State) -> None:
        self._places = places
        self._state = state
        self._repository = state.repository
        self._guard = threading.RLock()
        self._files: PackFiles | None = None
        self._known: set[str] = set()
        """Local copies that this process has written, fetched or compared."""
        self._pending: frozenset[str] = frozenset()
        """Those that were written and are not the repository's yet."""
        self._fetched = False
        self._synced: str | None = None
        """The version whose packs are here."""

    # -- reading

    def read_kind(self, oid: str) -> tuple[int, bytes]:
        """What an object is, and its content. Raises KeyError where there is none of that id."""
        if (item := self._places.objects.get((self._repository, oid))) is not None:
            return item
        return self._reading(lambda files: files.read_kind(oid))

    def kind(self, oid: str) -> int | None:
        """What an object is; None where there is none of that id."""
        try:
            return self.read_kind(oid)[0]
        except KeyError:
            return None

    def read_stored(self, oid: str) -> tuple[int, bytes]:
        """An object as it is in a pack that was compared with its digest."""
        return self._reading(lambda files: files.read_stored(oid))

    def oids(self) -> list[str]:
        """Every object that is there."""
        self._sync()
        return self._reading(lambda files: files.oids())

    def _reading(self, read: Callable[[PackFiles], _Result]) -> _Result:
        for _ in range(_TRIES):
            # Not before refs are known to be others: what was read once is not asked for again.
            if self._files is None or self._synced != self._state.version:
                self._sync()
            files = self._files
            assert files is not None
            try:
                return read(files)
            except (KeyError, OSError):
                # Packs are removed under readers: by other processes of this root, or after they were joined.
                if not self._sync():
                    raise
        raise Refusal(503, "The repository is busy; try again", headers={"Retry-After": "1"})

    def _sync(self) -> bool:
        """Have the packs of now here and no others; whether anything is other than before."""
        with self._guard:
            changed = self._files is None
            for _ in range(_TRIES):
                rows, version = self._rows(), self._state.version
                lost = [row for row in rows if self._fetch(row)]
                if not lost or self._rows() == rows:
                    break
            names = {row.name for row in rows}
            removed = self._places.cache.keep_only(self._repository, names | self._pending)
            changed |= removed or self._fetched or names != self._known
            self._known, self._fetched, self._synced = names, False, version
            if removed or self._files is None:  # what is new is found by whoever misses it
                self._reopen()
            return changed

    def _rows(self) -> tuple[PackRow, ...]:
        work = self._state.work
        return self._state.now().packs + (work.written if work is not None else ())

    def _fetch(self, row: PackRow) -> bool:
        """Have a pack here; whether it cannot be: it is lost, or other than its name says."""
        cache = self._places.cache
        if row.name in self._known and cache.has(self._repository, row.name):
            return False
        if cache.is_whole(self._repository, row):
            return False
        try:
            content = self._places.bucket.open(self._repository, row.name)
        except FileNotFoundError:
            self._lost(row, "is missing")
            return True
        if not cache.take_in(self._repository, row, content):
            self._lost(row, "has other content")
            return True
        self._fetched = True
        return False

    def _lost(self, row: PackRow, how: str) -> None:
        log.error("pack %s of repository %s %s in the object store", row.name, self._repository, how)

    def _reopen(self) -> None:
        before, cache = self._files, self._places.cache
        self._files = PackFiles(cache.git(self._repository), self._places.objects, self._places.temporary)
        if before is not None:
            before.close()

    def kept(self) -> list[KeptPack]:
        """The packs that the repository has."""
        return [KeptPack(row.name, row.size) for row in self._state.now().packs]

    def problems(self, *, content: bool) -> Iterator[str]:
        """Packs that the store has lost, or has with another size or content."""
        bucket, repository = self._places.bucket, self._repository
        rows = self._state.now().packs  # before what is stored: a pack gets there first
        stored = {entry.oid: entry.size for entry in bucket.entries(repository)}
        for row in rows:
            problem = None
            if row.name not in stored:
                problem = "is missing in the object store"
            elif stored[row.name] != row.size:
                problem = f"has {stored[row.name]} bytes in the object store, not {row.size}"
            elif content:
                try:
                    if bucket.sha256(repository, row.name) != sha256_in(row.name):
                        problem = "has other content in the object store"
                except FileNotFoundError:
                    problem = "is missing in the object store"
            # Asked again: packs are joined meanwhile.
            if problem is not None and row.name in self._state.rows.pack_names(repository):
                yield f"pack {row.name} {problem}"

    # -- writing

    def write(self, objects: Iterable[AnyObject]) -> int:
        """Write objects as one pack into the store; how many bytes it takes. It counts when the refs have changed."""
        unique = {item.oid: item for item in objects}
        if not unique:
            return 0
        return self._write(records_of(unique.values()), list(unique)).size

    def add(self, objects: Iterable[AnyObject]) -> None:
        """Write objects that are the repository's at once."""
        if self.write(objects):
            self._state.change()

    def _write(self, records: Iterator[UnpackedObject], oids: list[str]) -> PackRow:
        work = self._state.work
        assert work is not None, "the repository's lock is held"
        row = store_pack(self._places, self._repository, records, len(oids))
        with self._guard:
            work.written, work.oids = (*work.written, row), (*work.oids, *oids)
            self._pending |= {row.name}
        self._sync()
        return row

    def settle(self, work: Work) -> None:
        """After work under a lock: forget what was written and never became the repository's."""
        self._pending = frozenset()
        written, work.written = work.written, ()
        if written:
            self._places.objects.drop((self._repository, oid) for oid in work.oids)
            with suppress(Refusal, DatabaseError):
                self._sync()

    def join(self, keep: Callable[[str], bool] = lambda _: True) -> None:
        """Make one pack of all, of the objects to keep."""
        self._join(self._state.now().packs, keep)

    def merge_many(self) -> None:
        """Where many packs have gathered, join the small ones. A store that does not answer leaves them as they are."""
        try:
            small = {pack.name for pack in smallest(self.kept())}
            if small:
                self._join([row for row in self._state.now().packs if row.name in small])
        except (Refusal, DatabaseError, OSError) as error:
            log.warning("the packs of repository %s stay as they are: %s", self._repository, error)

    def _join(self, old: Iterable[PackRow], keep: Callable[[str], bool] = lambda _: True) -> None:
        old = list(old)
        self._sync()
        oids: dict[str, None] = {}
        for row in old:
            with closing(self._opened(row)) as pack:
                pack.check()
                oids.update((oid.decode(), None) for oid in pack)
        wanted = [oid for oid in oids if keep(oid)]
        files = self._files
        assert files is not None
        if wanted:
            with closing(self._opened(self._write(map(files.record, wanted), wanted))) as pack:
                pack.check()
        self._state.change(dropped=old)
        self._sync()
        self._remove_dropped(time.time() - _DROPPED_SECONDS)

    def _remove_dropped(self, before: float) -> None:
        rows, repository = self._state.rows, self._repository
        for name, since in rows.dropped(repository).items():
            if since < before:
                self._places.bucket.remove(repository, name)
                rows.forget_dropped(repository, name)

    def _opened(self, row: PackRow) -> Pack:
        """A local copy. Raises FileNotFoundError where it is lost."""
        path = self._places.cache.git(self._repository) / "objects" / "pack" / f"pack-{row.name}"
        return Pack(str(path), object_format=SHA1)

    def copy(self, target: Path) -> None:
        """Write the packs into the folder of a bare repository, as git names them."""
        self._sync()
        for row in self._state.now().packs:
            source = self._places.cache.git(self._repository) / "objects" / "pack" / f"pack-{row.name}.pack"
            for suffix in (".pack", ".idx"):
                path = target / f"pack-{sha256_in(row.name)[:40]}{suffix}"
                shutil.copyfile(source.with_suffix(suffix), path)
                path.chmod(0o444)

    def close(self) -> None:
        """Close the files."""
        with self._guard:
            if self._files is not None:
                self._files.close()


def store_pack(places: Places, repository: str, records: Iterator[UnpackedObject], count: int) -> PackRow:
    """Write objects as a pack into the store, and keep a copy of it here. It is no repository's yet."""
    pack, index, whole = (places.temporary() for _ in range(3))
    try:
        build_pack(records, count, pack, index)
        row = upload_pack(places, repository, pack, index, whole)
        places.cache.place(repository, row, pack, index)
    finally:
        for path in (pack, index, whole):
            path.unlink(missing_ok=True)
    return row


def upload_pack(places: Places, repository: str, pack: Path, index: Path, whole: Path) -> PackRow:
    """Write a pack and its index as one object into the store. whole: a path to write it at first."""
    sha256, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
    with whole.open("xb") as file:
        for part in (pack, index):
            with part.open("rb") as source:
                while data := source.read(_CHUNK):
                    sha256.update(data)
                    md5.update(data)
                    file.write(data)
    row = PackRow(new_name(sha256.hexdigest()), pack.stat().st_size, index.stat().st_size)
    places.bucket.put(repository, row.name, whole, row.size, md5.digest())
    return row
