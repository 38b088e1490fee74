"""The protocol of a store for large objects, one set of objects a repository, each named by its SHA-256."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

_REPOSITORY = re.compile(r"[0-9a-f]{32}")
_OID = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class StoredObject:
    """An object as a store lists it."""

    oid: str
    size: int


class Content(Protocol):
    """The bytes of an object from some place on."""

    def read(self, most: int, /) -> bytes:
        """The next bytes, up to `most`; none at the end."""

    def close(self) -> None:
        """Let go of the file or connection."""


class Staged(Protocol):
    """An object whose content was checked, about to become one of a repository."""

    def place(self) -> None:
        """Make sure that the object is under its final name, durably; under the repository's lock."""


class Transfers(Protocol):
    """Addresses by which clients exchange content with the store themselves, without this server between."""

    def download(self, repository: str, oid: str, *, name: str, private: bool) -> str:
        """An address to load an object from for a few minutes, as an attachment of this file name."""

    def begin(self, repository: str, uploads: list[tuple[str, tuple[int, ...]]], seconds: int) -> list[Begun]:
        """Begin uploads, each an id of its own and the sizes of its parts; the addresses last `seconds`."""

    def finish(self, sent: Sent) -> AbstractContextManager[Staged]:
        """Join the parts of an upload and check its content; what was sent is gone at the end of the block.

        Refuses (400) missing parts and content of another size or SHA-256, and (409) an upload that is over.
        """


@dataclass(frozen=True)
class Begun:
    """An upload that a store waits for: its name in the store, and an address for each part."""

    remote: str
    parts: tuple[str, ...]


@dataclass(frozen=True)
class Sent:
    """An upload that a client says is complete.

    upload, remote: as it was begun.
    sizes: of the parts.
    etags: of the parts, as the store answered them; None where the client does not tell.
    """

    repository: str
    oid: str
    upload: str
    remote: str
    sizes: tuple[int, ...]
    etags: tuple[str, ...] | None


class ObjectStore(Protocol):
    """Objects by repository and SHA-256.

    A store that cannot be reached is a `Refusal` with Retry-After, and changes nothing.
    """

    @property
    def place(self) -> str | None:
        """What tells this store from others; None for the root's own folders."""

    @property
    def description(self) -> str:
        """Where the objects lie, in words for an administrator."""

    @property
    def transfers(self) -> Transfers | None:
        """How clients reach the store themselves; None where everything passes through this server."""

    def stage(self, repository: str, oid: str, source: Path, size: int) -> AbstractContextManager[Staged]:
        """Take in a local file of this size and SHA-256, both checked by the caller."""

    def send(self, repository: str, oid: str, source: Path, size: int) -> None:
        """Write a local file of this size and SHA-256, both checked by the caller; durable and compared on return.

        For a store that is not the root's yet: no lock is held. The file may be gone afterwards.
        """

    def size(self, repository: str, oid: str) -> int | None:
        """The size of an object; None where there is none."""

    def open(self, repository: str, oid: str, start: int = 0, end: int | None = None) -> Content:
        """The content from `start` to before `end`. Raises FileNotFoundError where there is no such object."""

    def remove(self, repository: str, oid: str) -> None:
        """Remove an object, if it is there."""

    def entries(self, repository: str) -> Iterator[StoredObject]:
        """Every object of a repository."""

    def repositories(self) -> set[str]:
        """The ids of the repositories that have objects here."""

    def remove_all(self, repository: str) -> None:
        """Remove the objects of a repository that is deleted."""

    def sweep(self, before: float) -> list[str]:
        """Remove what uploads left that began before a moment and did not end; a line for each."""

    def confirm(self) -> None:
        """Raise KernelsHubError where the store is not the one of this root, Refusal where it does not answer."""


def new_upload() -> str:
    """An id for an upload: 32 hexadecimal digits, the first eight of which say when it began by this server's clock."""
    return f"{int(time.time()):08x}{secrets.token_hex(12)}"


def upload_began(upload: str) -> float:
    """When an upload of this id began, in seconds since the epoch."""
    return float(int(upload[:8], 16))


def checked(repository: str, oid: str | None = None) -> None:
    """Raise ValueError for what cannot name a repository or an object: no other text becomes part of a path or key."""
    if not _REPOSITORY.fullmatch(repository) or not (oid is None or _OID.fullmatch(oid)):
        raise ValueError(f"{repository!r}, {oid!r} do not name an object")
