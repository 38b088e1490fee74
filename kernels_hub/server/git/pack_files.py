"""Packs in a folder: read through dulwich, written flushed.

A pack is written under a temporary name, flushed, and renamed before its index is; git and dulwich
take no notice of a pack without an index, so a crash in between shows nothing.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, nullcontext, suppress
from pathlib import Path

from dulwich.object_format import SHA1
from dulwich.object_store import DiskObjectStore
from dulwich.objects import ObjectID
from dulwich.pack import Pack, UnpackedObject, write_pack_data, write_pack_index

from kernels_hub.files import flush_folder, move_into_place
from kernels_hub.server.packs import AnyObject, ByteCache, GitObject, KeptPack, Packs, StoredObject, smallest

_LARGE_OBJECT = 1 << 20
_LARGE_OBJECTS = threading.BoundedSemaphore(2)
"""Objects of many MiB are in memory two at a time in a process."""


def records_of(objects: Iterable[AnyObject]) -> Iterator[UnpackedObject]:
    """What dulwich writes, one object in memory at a time."""
    for item in objects:
        large = isinstance(item, StoredObject) and item.size > _LARGE_OBJECT
        with _LARGE_OBJECTS if large else nullcontext():
            yield UnpackedObject(item.kind, decomp_chunks=[item.content], sha=bytes.fromhex(item.oid))


def build_pack(records: Iterator[UnpackedObject], count: int, pack: Path, index: Path) -> None:
    """Write `count` objects as a pack and its index, both flushed."""
    with pack.open("xb") as file:
        entries, checksum = write_pack_data(file.write, records, SHA1, num_records=count, compression_level=1)
        file.flush()
        os.fsync(file.fileno())
    rows = sorted((oid, offset, crc) for oid, (offset, crc) in entries.items())
    with index.open("xb") as file:
        write_pack_index(file, rows, checksum, version=2)
        file.flush()
        os.fsync(file.fileno())


def _is_whole(pack: Path) -> bool:
    """Whether every object of a pack can be read."""
    try:
        with closing(Pack(str(pack.with_suffix("")), object_format=SHA1)) as opened:
            opened.check()
    except Exception:  # noqa: BLE001  (dulwich raises all kinds where bytes are damaged)
        return False
    return True


class PackFiles(Packs):
    """Implements `Packs` with the folder of one bare repository."""

    def __init__(self, git: Path, cache: ByteCache, temporary: Callable[[], Path]) -> None:
        self._folder = git / "objects" / "pack"
        self._owner = git.parent.name
        self._cache = cache
        self._temporary = temporary
        self._guard = threading.Lock()
        self._store = DiskObjectStore(str(git / "objects"), object_format=SHA1)

    def read_kind(self, oid: str) -> tuple[int, bytes]:
        """What an object is, and its content. Raises KeyError where there is none of that id."""
        key = (self._owner, oid)
        if (item := self._cache.get(key)) is None:
            # dulwich's list of packs is not made for threads.
            with self._guard:
                found, content = self._store.get_raw(ObjectID(oid.encode()))
            item = (found, content)
            self._cache.put(key, item)
        return item

    def kind(self, oid: str) -> int | None:
        """What an object is; None where there is none of that id."""
        try:
            if (item := self._cache.get((self._owner, oid))) is not None:
                return item[0]
            with self._guard:
                return self._store.get_raw(ObjectID(oid.encode()))[0]
        except KeyError:
            return None

    def write(self, objects: Iterable[AnyObject]) -> int:
        """Write objects as one pack, flushed; how many bytes it takes. Call it under the repository's lock."""
        unique = {item.oid: item for item in objects}
        if not unique:
            return 0
        size = self._write(records_of(unique.values()), list(unique)).stat().st_size
        for item in unique.values():
            if isinstance(item, GitObject):
                self._cache.put((self._owner, item.oid), (item.kind, item.content))
        return size

    def add(self, objects: Iterable[AnyObject]) -> None:
        """Write objects as one pack; in a folder they are the repository's from then on."""
        self.write(objects)

    def _write(self, records: Iterator[UnpackedObject], oids: list[str]) -> Path:
        """A pack of these objects: a new one, or the one that is there already.

        A pack is never written over: its index lies in another file, and others may have read that already.
        """
        name = "".join(sorted(oids))
        while True:
            name = hashlib.sha1(name.encode(), usedforsecurity=False).hexdigest()
            target = self._folder / f"pack-{name}.pack"
            if not target.with_suffix(".idx").exists():
                break
            if _is_whole(target):
                return target
        pack, index = self._temporary(), self._temporary()
        try:
            build_pack(records, len(oids), pack, index)
            pack.chmod(0o444)
            index.chmod(0o444)
            move_into_place(pack, target)
            move_into_place(index, target.with_suffix(".idx"), durable=True)
        finally:
            pack.unlink(missing_ok=True)
            index.unlink(missing_ok=True)
        return target

    def merge(self, packs: Iterable[Path], keep: Callable[[str], bool] = lambda _: True) -> Path | None:
        """Write the objects of some packs as one, then drop those. Call it under the repository's lock.

        keep: which objects stay.
        """
        old = list(packs)
        oids: dict[str, None] = {}
        for path in old:
            with closing(Pack(str(path.with_suffix("")), object_format=SHA1)) as pack:
                oids.update((oid.decode(), None) for oid in pack)
        wanted = [oid for oid in oids if keep(oid)]
        new = self._write(map(self.record, wanted), wanted) if wanted else None
        if new is not None:
            with closing(Pack(str(new.with_suffix("")), object_format=SHA1)) as pack:
                pack.check()
        for path in old:
            if path != new:
                # The index first: without it the pack is not looked at.
                path.with_suffix(".idx").unlink(missing_ok=True)
                path.unlink(missing_ok=True)
        flush_folder(self._folder)
        return new

    def read_stored(self, oid: str) -> tuple[int, bytes]:
        """An object as it is on disk now, whatever memory holds."""
        with self._guard:
            return self._store.get_raw(ObjectID(oid.encode()))

    def record(self, oid: str) -> UnpackedObject:
        """An object as it is written into another pack."""
        kind, content = self.read_stored(oid)
        return UnpackedObject(kind, decomp_chunks=[content], sha=bytes.fromhex(oid))

    def join(self, keep: Callable[[str], bool] = lambda _: True) -> None:
        """Make one pack of all, of the objects to keep. Call it under the repository's lock."""
        self.merge(self.names(), keep)

    def merge_many(self) -> None:
        """Where many packs have gathered, join the small ones. Call it under the repository's lock."""
        if small := smallest(self.kept()):
            self.merge(self._folder / pack.name for pack in small)

    def oids(self) -> list[str]:
        """Every object that is there."""
        with self._guard:
            return sorted({oid.decode() for oid in self._store})

    def names(self) -> list[Path]:
        """The files of the packs that are there, complete ones only."""
        return sorted(path for path in self._folder.glob("*.pack") if path.with_suffix(".idx").exists())

    def kept(self) -> list[KeptPack]:
        """The packs that are there, complete ones only."""
        return [KeptPack(path.name, path.stat().st_size) for path in self.names()]

    def problems(self, *, content: bool) -> Iterator[str]:  # noqa: ARG002
        """None: what is wrong with a pack in a folder is wrong with its objects."""
        return iter(())

    def close(self) -> None:
        """Close the files."""
        # A map that somebody still reads from (a damaged pack, in a traceback) goes with its reader.
        with self._guard, suppress(BufferError):
            self._store.close()
