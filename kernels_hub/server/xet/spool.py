"""Xorbs on disk between their upload and the shard that says which files they make up.

A client remembers for weeks, per CAS address, which xorbs it has sent, and never sends them again.
So an address must not outlive its xorbs: the address that a repository's clients get changes
every hour, and its xorbs stay until no upload that was begun under it can still be at work.

    <folder>/<repository>/<hour>/<xorb>.xorb     uncompressed chunks, the ends of each, their number
    <folder>/<repository>/<hour>/*.part          being written

A `.xorb` appears whole or not at all. Several processes may share the folder. Servers with roots of their own share
what is sent to any of them through the object store, below `xet/`.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
import uuid
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO, Protocol

from kernels_hub.errors import MetadataError
from kernels_hub.server.hub import Hub
from kernels_hub.server.objects.s3 import S3Objects
from kernels_hub.server.objects.store import Content
from kernels_hub.server.xet.hashing import hash_to_hex

HOUR = 3600
_PIECE = 1 << 20
_LONGEST_UPLOAD_HOURS = 72
_KEPT_HOURS = 3
_IDLE_SECONDS = 2 * HOUR
_COUNT_SIZE = 4


@dataclass(frozen=True, slots=True)
class SpooledXorb:
    """A verified xorb, open for reading: `ends[i]` is where chunk i ends in `file`."""

    file: BinaryIO
    ends: Sequence[int]

    def span(self, first: int, last: int) -> tuple[int, int]:
        """Where chunks `first` to `last` (exclusive) begin and end."""
        return (self.ends[first - 1] if first else 0), self.ends[last - 1]


class SharedXorbs(Protocol):
    """Files that servers with roots of their own share, by names of three parts."""

    def put_shared(self, name: str, path: Path) -> None:
        """Keep a file under a name."""

    def open_shared(self, name: str) -> Content:
        """What is under a name. Raises FileNotFoundError where nothing is."""

    def areas_shared(self) -> dict[str, float]:
        """The first two parts of all names, and when the newest of each was kept."""

    def drop_shared(self, area: str) -> None:
        """Remove everything under names that begin so."""


@dataclass(frozen=True, slots=True)
class Area:
    """The xorbs that were sent to one address: of one repository and one hour."""

    folder: Path
    shared: SharedXorbs | None = None

    def holds(self, xorb: bytes) -> bool:
        """Whether the xorb is here, whole."""
        try:
            with self.open(xorb):
                return True
        except MetadataError:
            return False

    def size(self) -> int:
        """Bytes on disk, those being written included."""
        total = 0
        with suppress(FileNotFoundError), os.scandir(self.folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    total += entry.stat().st_size
        return total

    @contextmanager
    def part(self) -> Iterator[BinaryIO]:
        """A file to write that is gone afterwards unless it was moved away."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{uuid.uuid4().hex}.part"
        try:
            with path.open("xb") as file:
                yield file
        finally:
            path.unlink(missing_ok=True)

    def keep(self, part: BinaryIO, xorb: bytes, lengths: Sequence[int]) -> None:
        """Make a written part, the chunks of `xorb` with these lengths, visible under its hash."""
        part.write(_numbers(accumulate(lengths)) + _numbers([len(lengths)]))
        part.flush()
        Path(part.name).replace(self._path(xorb))
        if self.shared is not None:
            self.shared.put_shared(self._name(xorb), self._path(xorb))

    @contextmanager
    def open(self, xorb: bytes) -> Iterator[SpooledXorb]:
        """A xorb that was kept. Raises MetadataError for one that was not."""
        try:
            file = self._opened(xorb)
        except FileNotFoundError:
            raise MetadataError(
                f"the shard uses xorb {hash_to_hex(xorb)}, which was not uploaded for this repository "
                f"in this session; start the upload again"
            ) from None
        with file:
            if (ends := _read_ends(file)) is None:
                # A loss of power: nothing here is flushed, since it is gone in hours anyway.
                raise MetadataError(f"xorb {hash_to_hex(xorb)} is damaged; start the upload again")
            yield SpooledXorb(file, ends)

    def _opened(self, xorb: bytes) -> BinaryIO:
        try:
            return self._path(xorb).open("rb")
        except FileNotFoundError:
            if self.shared is None:
                raise
        with closing(self.shared.open_shared(self._name(xorb))) as content, self.part() as part:
            while data := content.read(_PIECE):
                part.write(data)
            part.flush()
            Path(part.name).replace(self._path(xorb))
        return self._path(xorb).open("rb")

    def _name(self, xorb: bytes) -> str:
        return f"{self.folder.parent.name}/{self.folder.name}/{hash_to_hex(xorb)}.xorb"

    def _path(self, xorb: bytes) -> Path:
        return self.folder / f"{hash_to_hex(xorb)}.xorb"


@dataclass(frozen=True, slots=True)
class Spool:
    """Every repository's areas. `clock` gives seconds since the epoch."""

    folder: Path
    clock: Callable[[], float] = time.time
    shared: SharedXorbs | None = None

    def hour(self) -> int:
        """The hour whose areas new uploads get."""
        return int(self.clock() // HOUR)

    def area(self, repository: str, hour: int) -> Area:
        """Raises MetadataError for an hour that is to come, or too long ago for any upload."""
        if not 0 <= self.hour() - hour <= _LONGEST_UPLOAD_HOURS:
            raise MetadataError("this upload session is over; start the upload again")
        return Area(self.folder / repository / str(hour), self.shared)

    def sweep(self) -> int:
        """Remove the areas that are past their time and idle; how many went."""
        removed, now = 0, self.clock()
        for area in self.folder.glob("*/*"):
            old = area.name.isdecimal() and self.hour() - int(area.name) > _KEPT_HOURS
            with suppress(FileNotFoundError):
                if old and now - area.stat().st_mtime > _IDLE_SECONDS:
                    shutil.rmtree(area, ignore_errors=True)
                    removed += 1
        for repository in self.folder.glob("*"):
            with suppress(OSError):  # not empty
                repository.rmdir()
        return removed + (0 if self.shared is None else self._sweep_shared(self.shared))

    def _sweep_shared(self, shared: SharedXorbs) -> int:
        removed = 0
        for name, newest in shared.areas_shared().items():
            hour = name.rpartition("/")[2]
            if not hour.isdecimal() or self.hour() - int(hour) <= _KEPT_HOURS:
                continue
            if self.clock() - newest > _IDLE_SECONDS:
                shared.drop_shared(name)
                removed += 1
        return removed


def spool_of(hub: Hub) -> Spool:
    """The spool of a Hub."""
    objects = hub.large_files.objects
    shared = objects if hub.git.has_several_roots and isinstance(objects, S3Objects) else None
    return Spool(hub.layout.root / "xet", hub.database.now, shared=shared)


def _read_ends(file: BinaryIO) -> Sequence[int] | None:
    """The ends at the end of a file, or None where they do not fit its size."""
    size = file.seek(0, os.SEEK_END)
    if size < _COUNT_SIZE:
        return None
    file.seek(size - _COUNT_SIZE)
    (count,) = _read_numbers(file, 1)
    if (start := size - (count + 1) * _COUNT_SIZE) < 0:
        return None
    file.seek(start)
    ends = _read_numbers(file, count)
    return ends if count and ends[-1] == start else None


def _numbers(values: Iterator[int] | list[int]) -> bytes:
    numbers = array("I", values)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def _read_numbers(file: BinaryIO, count: int) -> Sequence[int]:
    numbers = array("I")
    numbers.frombytes(file.read(count * _COUNT_SIZE))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
