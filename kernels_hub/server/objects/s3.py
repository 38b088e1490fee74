"""Large objects in a bucket of an S3-compatible store.

    <prefix>/kernels-hub-root                   the id of the root that the objects belong to
    <prefix>/large/<repository id>/<sha256>     objects of repositories
    <prefix>/git/<repository id>/<pack>         packs of git data, where that is here too (`git/pack_bucket.py`)
    <prefix>/xet/<repository id>/<hour>/…       then also what clients sent as Xet, for hours
    <prefix>/incoming/<repository id>/<upload>  what is being uploaded, and was not checked yet

What clients send is under its final key only after this server read it back and compared size and SHA-256, and they
never get an address that writes to a final key: content goes to a key of its own below `incoming/`, is read back from
there, and is copied by the store. Final keys are only ever written with the content that their name says, so that
doing it twice changes nothing.
"""

from __future__ import annotations

import base64
import hashlib
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernels_hub.errors import KernelsHubError
from kernels_hub.server.objects.address import S3Address
from kernels_hub.server.objects.answers import answering, misconfigured, unavailable
from kernels_hub.server.objects.connection import connect
from kernels_hub.server.objects.store import Content, Staged, StoredObject, checked, new_upload, upload_began
from kernels_hub.server.objects.transfers import S3Transfers
from kernels_hub.server.refusal import Refusal, bad_request

if TYPE_CHECKING:
    from boto3.s3.transfer import TransferConfig
    from botocore.client import BaseClient

_CHUNK = 1 << 20
AT_ONCE_BYTES = 256 << 20
"""From this size on, an object is sent and copied in parts: one request for it would outlast the timeout."""
_REMOVE_AT_A_TIME = 8
_MARKER = "kernels-hub-root"


@dataclass(frozen=True)
class _StagedObject:
    """An object whose content was checked under a key below `incoming/`, and copied to its final key."""

    store: S3Objects
    repository: str
    oid: str
    incoming: str
    size: int

    def place(self) -> None:
        """Copy again where garbage collection removed the copy, which had no row yet."""
        for _ in range(2):
            if self.store.size(self.repository, self.oid) == self.size:
                return
            self.store.copy(self.incoming, self.store.key(self.repository, self.oid), self.size)
        if self.store.size(self.repository, self.oid) != self.size:
            raise unavailable("an object that was copied is not there")


class _Body:
    """The body of an answer; what breaks while it is read is a Refusal."""

    def __init__(self, stream: Content) -> None:
        self._stream = stream

    def read(self, most: int, /) -> bytes:
        with answering("reading an object"):
            data = self._stream.read(most)
        assert isinstance(data, bytes)
        return data

    def close(self) -> None:
        self._stream.close()


class S3Objects:
    """Implements `ObjectStore` with a bucket. Safe from several threads; connects when it is first used."""

    def __init__(self, address: S3Address, root: str) -> None:
        """root: the id of the root that the objects belong to."""
        self.address = address
        self._root = root
        self._client: BaseClient | None = None
        self._confirmed = False
        self._guard = threading.Lock()
        self.transfers: S3Transfers | None = S3Transfers(self) if address.direct else None

    @property
    def place(self) -> str:
        """The bucket and prefix."""
        return self.address.place

    @property
    def description(self) -> str:
        """The bucket, its prefix and endpoint."""
        return f"objects in {self.address}"

    @property
    def client(self) -> BaseClient:
        """The connection to the configured endpoint, and to no other address."""
        with self._guard:
            if self._client is None:
                self._client = connect(self.address, self.address.endpoint)
            return self._client

    @property
    def prefix(self) -> str:
        """What every key begins with."""
        return f"{self.address.prefix}/" if self.address.prefix else ""

    def key(self, repository: str, oid: str) -> str:
        """The final key of an object."""
        checked(repository, oid)
        return f"{self.prefix}large/{repository}/{oid}"

    def incoming(self, repository: str, upload: str) -> str:
        """The key of an upload."""
        checked(repository)
        checked(upload)  # ids of uploads are of the same form
        return f"{self.prefix}incoming/{repository}/{upload}"

    # -- whose store it is

    def confirm(self) -> None:
        """Raise KernelsHubError where the bucket is another root's or nobody's, Refusal where it does not answer."""
        if (owner := self._owner()) != self._root:
            whose = "holds no large files of a Hub" if owner is None else "belongs to another Hub"
            raise KernelsHubError(
                f"{self.address.place} {whose}, not to this root; nothing was changed. Check --objects; "
                "`kernels-hub hub migrate --to` moves large files to a new store"
            )
        self._confirmed = True

    def claim(self) -> None:
        """Make the prefix this root's. Raises KernelsHubError where it is another's."""
        if self._owner() is None:
            with answering("writing the marker"):
                self.client.put_object(
                    Bucket=self.address.bucket, Key=self.prefix + _MARKER, Body=f"{self._root}\n".encode()
                )
        self.confirm()

    def _owner(self) -> str | None:
        try:
            with answering("reading the marker"):
                answer = self.client.get_object(Bucket=self.address.bucket, Key=self.prefix + _MARKER)
                return str(answer["Body"].read(100).decode("ascii", "replace").strip())
        except FileNotFoundError:
            return None

    def confirm_once(self) -> None:
        """Confirm before the first write of this process, in case that nobody answered when it started."""
        if not self._confirmed:
            try:
                self.confirm()
            except KernelsHubError as error:
                raise misconfigured(str(error)) from error

    # -- taking in

    @contextmanager
    def stage(self, repository: str, oid: str, source: Path, size: int) -> Iterator[Staged]:
        """Send a local file to a key of its own, and go on as with an upload."""
        self.confirm_once()
        key = self.incoming(repository, new_upload())
        try:
            with source.open("rb") as file, answering("sending an object"):
                self.client.upload_fileobj(file, self.address.bucket, key, Config=_in_parts())
            yield self.received(repository, oid, key, size, wrong=unavailable)
        finally:
            self.discard(key)

    def send(self, repository: str, oid: str, source: Path, size: int) -> None:
        """Send a local file to its final key, and read it back: two requests, where `stage` takes five.

        The store refuses content that arrives other than it was, so that nothing else is ever under that key.
        """
        key = self.key(repository, oid)
        self.write(key, source, size)
        if self._digest(key) != (size, oid):
            self.discard(key)
            raise unavailable("an object that was written has other content")

    def write(self, key: str, source: Path, size: int, md5: bytes | None = None) -> None:
        """Write a local file under a key. The store compares its MD5, where it is sent in one request.

        md5: of the file, where it was computed already.
        Raises Refusal (503) where the store does not say afterwards that it has this content, and does not give it
        back either.
        """
        self.confirm_once()
        bucket = self.address.bucket
        with source.open("rb") as file:
            if size >= AT_ONCE_BYTES:
                with answering("writing an object"):
                    self.client.upload_fileobj(file, bucket, key, Config=_in_parts())
                return
            if md5 is None:
                md5 = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).digest()
                file.seek(0)
            with answering("writing an object"):
                answer = self.client.put_object(
                    Bucket=bucket,
                    Key=key,
                    Body=file,
                    ContentLength=size,
                    ContentMD5=base64.b64encode(md5).decode(),
                )
        # A store says what it has by this; whatever answers in its place does not.
        if "ETag" not in answer:
            raise unavailable("writing an object: the answer says nothing of it")
        # Another one is that of other content, or of a store that encrypts what it has.
        if answer["ETag"].strip('"') != md5.hex():
            with source.open("rb") as file:
                wanted = size, hashlib.file_digest(file, "sha256").hexdigest()
            try:
                written = self._digest(key)
            except FileNotFoundError:
                raise unavailable("an object that was written is not there") from None
            if written != wanted:
                raise unavailable("an object that was written has other content")

    def received(
        self,
        repository: str,
        oid: str,
        key: str,
        size: int,
        *,
        wrong: Callable[[str], Refusal] = bad_request,
    ) -> Staged:
        """Check what is under a key below `incoming/`, and copy it to its final key.

        wrong: makes the Refusal for content that is not what its name says.
        """
        found, digest = self._digest(key)
        if found != size:
            raise wrong(f"The upload of {oid} has {found} bytes, not the {size} that were announced")
        if digest != oid:
            raise wrong(f"The upload of {oid} has other content: its SHA-256 differs")
        self.copy(key, self.key(repository, oid), size)
        return _StagedObject(self, repository, oid, key, size)

    def _digest(self, key: str) -> tuple[int, str]:
        digest, size = hashlib.sha256(), 0
        with answering("reading an upload back"):
            body = self.client.get_object(Bucket=self.address.bucket, Key=key)["Body"]
            try:
                while data := body.read(_CHUNK):
                    digest.update(data)
                    size += len(data)
            finally:
                body.close()
        return size, digest.hexdigest()

    def copy(self, source: str, target: str, size: int) -> None:
        """Have the store copy an object."""
        bucket = self.address.bucket
        named = {"Bucket": bucket, "Key": source}
        with answering("copying an object"):
            if size < AT_ONCE_BYTES:
                self.client.copy_object(CopySource=named, Bucket=bucket, Key=target)
            else:
                self.client.copy(named, bucket, target, Config=_in_parts())

    def discard(self, key: str) -> None:
        """Remove what is under a key below `incoming/`; the sweep removes what stays."""
        with suppress(Refusal, FileNotFoundError), answering("removing an upload"):
            self.client.delete_object(Bucket=self.address.bucket, Key=key)

    # -- reading

    def size(self, repository: str, oid: str) -> int | None:
        """The size of an object; None where there is none."""
        try:
            with answering("asking for an object"):
                answer = self.client.head_object(Bucket=self.address.bucket, Key=self.key(repository, oid))
                return int(answer["ContentLength"])
        except FileNotFoundError:
            return None

    def open(self, repository: str, oid: str, start: int = 0, end: int | None = None) -> Content:
        """The content from `start` to before `end`."""
        span = (
            {"Range": f"bytes={start}-{'' if end is None else end - 1}"} if start or end is not None else {}
        )
        return self.load(self.key(repository, oid), **span)

    def load(self, key: str, **span: str) -> Content:
        """The content under a key. Raises FileNotFoundError where there is none."""
        with answering("loading an object"):
            answer = self.client.get_object(Bucket=self.address.bucket, Key=key, **span)
        return _Body(answer["Body"])

    def entries(self, repository: str) -> Iterator[StoredObject]:
        """The objects of a repository."""
        checked(repository)
        place = f"{self.prefix}large/{repository}/"
        for item in self.listed("list_objects_v2", "Contents", Prefix=place):
            if len(oid := item["Key"].removeprefix(place)) == 64:
                yield StoredObject(oid, int(item["Size"]))

    def repositories(self) -> set[str]:
        """The ids below `large/`."""
        return self.ids_below("large")

    def ids_below(self, kind: str) -> set[str]:
        """The ids of repositories that have keys below a name."""
        place = f"{self.prefix}{kind}/"
        found = self.listed("list_objects_v2", "CommonPrefixes", Prefix=place, Delimiter="/")
        names = {item["Prefix"].removeprefix(place).rstrip("/") for item in found}
        return {name for name in names if len(name) == 32}

    def listed(self, operation: str, field: str, **options: str) -> Iterator[dict[str, Any]]:
        """What a listing of the store has under a field, page by page."""
        with answering(operation):
            pages = iter(self.client.get_paginator(operation).paginate(Bucket=self.address.bucket, **options))
        while True:
            with answering(operation):
                page = next(pages, None)
            if page is None:
                return
            if "Name" not in page and "Bucket" not in page:  # one of which every listing says
                raise unavailable(f"{operation}: the answer was cut off")
            yield from page.get(field, ())

    # -- what servers with roots of their own share for hours

    def put_shared(self, name: str, path: Path) -> None:
        """Keep a file below `xet/`."""
        self.confirm_once()
        with path.open("rb") as file, answering("sharing a file"):
            self.client.upload_fileobj(
                file, self.address.bucket, f"{self.prefix}xet/{name}", Config=_in_parts()
            )

    def open_shared(self, name: str) -> Content:
        """A file below `xet/`. Raises FileNotFoundError where there is none."""
        return self.load(f"{self.prefix}xet/{name}")

    def areas_shared(self) -> dict[str, float]:
        """The folders below `xet/`, and when the newest file of each was kept, by the store's clock."""
        newest: dict[str, float] = {}
        place = f"{self.prefix}xet/"
        for item in self.listed("list_objects_v2", "Contents", Prefix=place):
            area = item["Key"].removeprefix(place).rpartition("/")[0]
            newest[area] = max(newest.get(area, 0.0), item["LastModified"].timestamp())
        return newest

    def drop_shared(self, area: str) -> None:
        """Remove the files of a folder below `xet/`."""
        for item in list(self.listed("list_objects_v2", "Contents", Prefix=f"{self.prefix}xet/{area}/")):
            self.discard(item["Key"])

    # -- removing

    def remove(self, repository: str, oid: str) -> None:
        """Remove an object."""
        self.confirm_once()
        with answering("removing an object"):
            self.client.delete_object(Bucket=self.address.bucket, Key=self.key(repository, oid))

    def remove_all(self, repository: str) -> None:
        """Remove every object of a repository."""
        oids = [entry.oid for entry in self.entries(repository)]
        with ThreadPoolExecutor(_REMOVE_AT_A_TIME) as threads:
            # One by one: stores differ in what they want of a request that names several.
            list(threads.map(lambda oid: self.remove(repository, oid), oids))

    def sweep(self, before: float) -> list[str]:
        """Abort uploads, and remove what was uploaded and never completed, from before a moment."""
        self.confirm_once()
        place, bucket, found = f"{self.prefix}incoming/", self.address.bucket, []
        for item in self.listed("list_multipart_uploads", "Uploads", Prefix=place):
            if _began_before(item["Key"], before):
                with suppress(FileNotFoundError), answering("aborting an upload"):
                    self.client.abort_multipart_upload(
                        Bucket=bucket, Key=item["Key"], UploadId=item["UploadId"]
                    )
                found.append(f"an upload to the object store that nobody finished: {item['Key']}")
        for item in self.listed("list_objects_v2", "Contents", Prefix=place):
            if _began_before(item["Key"], before):
                self.discard(item["Key"])
                found.append(f"an upload to the object store that nobody checked: {item['Key']}")
        return found


def _began_before(key: str, before: float) -> bool:
    """Whether the upload of a key began before a moment. Its name says when: the store's clock may be another."""
    upload = key.rsplit("/", 1)[-1]
    return re.fullmatch(r"[0-9a-f]{32}", upload) is not None and upload_began(upload) < before


def _in_parts() -> TransferConfig:
    from boto3.s3.transfer import TransferConfig

    return TransferConfig(
        multipart_threshold=AT_ONCE_BYTES, multipart_chunksize=AT_ONCE_BYTES, max_concurrency=4
    )
