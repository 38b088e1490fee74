"""Packs as objects of an S3-compatible store: `<prefix>/git/<repository id>/<name>`.

An object is a pack and after it the pack's index, as git has them. Its name is new each time, and ends in the SHA-256
of the object: a name is never used again, so that what was found to be garbage cannot become anything else meanwhile.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from kernels_hub.server.objects.answers import answering, unavailable
from kernels_hub.server.objects.s3 import AT_ONCE_BYTES, S3Objects
from kernels_hub.server.objects.store import Content, StoredObject, checked, new_upload, upload_began

_NAME = re.compile(r"[0-9a-f]{96}")
_UPLOAD = 32
_CHUNK = 1 << 20
_AT_A_TIME = 8


def new_name(sha256: str) -> str:
    """The name of a new object with this SHA-256."""
    return new_upload() + sha256


def sha256_in(name: str) -> str:
    """The SHA-256 that a name says."""
    return name[_UPLOAD:]


def began(name: str) -> float:
    """When an object was about to be written, in seconds since the epoch."""
    return upload_began(name[:_UPLOAD])


class PackBucket:
    """The packs of every repository of a Hub, in the store that has its large files."""

    def __init__(self, store: S3Objects) -> None:
        self.store = store

    def key(self, repository: str, name: str) -> str:
        """The key of a pack."""
        checked(repository)
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} does not name a pack")
        return f"{self.store.prefix}git/{repository}/{name}"

    def put(self, repository: str, name: str, path: Path, size: int, md5: bytes) -> None:
        """Write an object from a file; durable and compared on return."""
        self.store.write(self.key(repository, name), path, size, md5)
        if size >= AT_ONCE_BYTES and self.sha256(repository, name) != sha256_in(name):
            raise unavailable("a pack that was written has other content")

    def open(self, repository: str, name: str) -> Content:
        """The content of an object. Raises FileNotFoundError where it is gone."""
        return self.store.load(self.key(repository, name))

    def sha256(self, repository: str, name: str) -> str:
        """The SHA-256 of what is stored. Raises FileNotFoundError where nothing is."""
        digest = hashlib.sha256()
        with closing(self.open(repository, name)) as content:
            while data := content.read(_CHUNK):
                digest.update(data)
        return digest.hexdigest()

    def entries(self, repository: str) -> Iterator[StoredObject]:
        """Every pack that is stored for a repository."""
        checked(repository)
        place = f"{self.store.prefix}git/{repository}/"
        for item in self.store.listed("list_objects_v2", "Contents", Prefix=place):
            if _NAME.fullmatch(name := item["Key"].removeprefix(place)):
                yield StoredObject(name, int(item["Size"]))

    def repositories(self) -> set[str]:
        """The ids of the repositories that packs are stored for."""
        return self.store.ids_below("git")

    def remove(self, repository: str, name: str) -> None:
        """Remove an object, if it is there."""
        self.store.confirm_once()
        with answering("removing a pack"):
            self.store.client.delete_object(Bucket=self.store.address.bucket, Key=self.key(repository, name))

    def remove_all(self, repository: str) -> None:
        """Remove every object of a repository."""
        names = [entry.oid for entry in self.entries(repository)]
        with ThreadPoolExecutor(_AT_A_TIME) as threads:
            list(threads.map(lambda name: self.remove(repository, name), names))
