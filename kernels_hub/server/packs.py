"""Git objects, and what every place that keeps them does: packs of objects, one a commit.

`git/` has the places: the root's folder, or an object store.
"""

from __future__ import annotations

import hashlib
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import IO

COMMIT, TREE, BLOB, TAG = 1, 2, 3, 4
KINDS = {COMMIT: b"commit", TREE: b"tree", BLOB: b"blob", TAG: b"tag"}
_CACHED_OBJECT = 64 * 1024


@dataclass(frozen=True)
class GitObject:
    """An object to be written; `oid` is its SHA-1 in hexadecimal."""

    kind: int
    content: bytes
    oid: str


def git_object(kind: int, content: bytes) -> GitObject:
    """An object with its id."""
    header = b"%s %d\0" % (KINDS[kind], len(content))
    return GitObject(kind, content, hashlib.sha1(header + content, usedforsecurity=False).hexdigest())


@dataclass(frozen=True)
class StoredObject:
    """A blob to be written whose content lies in a file, from `start` on. One thread uses that file at a time."""

    oid: str
    size: int
    file: IO[bytes]
    start: int
    kind: int = BLOB

    @property
    def content(self) -> bytes:
        """The bytes, read anew each time."""
        self.file.seek(self.start)
        return self.file.read(self.size)


AnyObject = GitObject | StoredObject


class ByteCache:
    """The objects used last, up to a number of bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._items: OrderedDict[tuple[str, str], tuple[int, bytes]] = OrderedDict()
        self._guard = threading.Lock()

    def get(self, key: tuple[str, str]) -> tuple[int, bytes] | None:
        """An object, if it is here."""
        with self._guard:
            if (item := self._items.get(key)) is not None:
                self._items.move_to_end(key)
            return item

    def put(self, key: tuple[str, str], item: tuple[int, bytes]) -> None:
        """Keep an object, and drop the oldest for it."""
        if len(item[1]) > _CACHED_OBJECT:
            return
        with self._guard:
            if key not in self._items:
                self._used += len(item[1])
            self._items[key] = item
            while self._used > self._limit:
                _, (_, dropped) = self._items.popitem(last=False)
                self._used -= len(dropped)

    def drop(self, keys: Iterable[tuple[str, str]]) -> None:
        """Forget some objects."""
        with self._guard:
            for key in keys:
                if (item := self._items.pop(key, None)) is not None:
                    self._used -= len(item[1])


@dataclass(frozen=True)
class KeptPack:
    """A pack as it is kept: what it is called there, and its bytes."""

    name: str
    size: int


class Packs(ABC):
    """The objects of one repository, wherever they are kept. Safe from several threads."""

    def read(self, oid: str, kind: int | None = None) -> bytes:
        """An object's content. Raises KeyError where there is none of that id (and kind)."""
        found, content = self.read_kind(oid)
        if kind is not None and found != kind:
            raise KeyError(oid)
        return content

    @abstractmethod
    def read_kind(self, oid: str) -> tuple[int, bytes]:
        """What an object is, and its content. Raises KeyError where there is none of that id."""

    @abstractmethod
    def kind(self, oid: str) -> int | None:
        """What an object is; None where there is none of that id."""

    @abstractmethod
    def read_stored(self, oid: str) -> tuple[int, bytes]:
        """An object as it is kept now, whatever memory holds."""

    @abstractmethod
    def oids(self) -> list[str]:
        """Every object that is there."""

    @abstractmethod
    def kept(self) -> list[KeptPack]:
        """The packs that are there, complete ones only."""

    @abstractmethod
    def problems(self, *, content: bool) -> Iterator[str]:
        """What is wrong with the packs as they are kept, besides the objects in them. content: read them all."""

    @abstractmethod
    def write(self, objects: Iterable[AnyObject]) -> int:
        """Write objects as one pack, durable on return; how many bytes it takes.

        They are the repository's when the refs have changed next. Call it under the repository's lock.
        """

    @abstractmethod
    def add(self, objects: Iterable[AnyObject]) -> None:
        """Write objects that are the repository's at once, though no ref leads to them yet. Under its lock."""

    @abstractmethod
    def join(self, keep: Callable[[str], bool] = lambda _: True) -> None:
        """Make one pack of all, of the objects to keep. Call it under the repository's lock."""

    @abstractmethod
    def merge_many(self) -> None:
        """Where many packs have gathered, join the small ones. Call it under the repository's lock."""

    @abstractmethod
    def close(self) -> None:
        """Close the files."""


MANY_PACKS = 24
"""So many packs may gather before the small ones are joined."""


def smallest(packs: Iterable[KeptPack]) -> list[KeptPack]:
    """The packs to join, of many; none of few.

    Each pack that stays has at least twice the size of all smaller ones together: there are few at any time, and an
    object is rewritten only as often as the repository doubles.
    """
    ordered = sorted(packs, key=lambda pack: (pack.size, pack.name))
    if len(ordered) <= MANY_PACKS:
        return []
    smaller, last = 0, 0
    for index, pack in enumerate(ordered):
        if pack.size < 2 * smaller:
            last = index
        smaller += pack.size
    return ordered[: last + 1]
