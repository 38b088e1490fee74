"""Presigned addresses of an S3 store: clients send parts to it and load objects from it, and this server does not.

Every upload, of one part as well, is a multipart upload of the store to a key of its own. Until this server joins the
parts there is no object, and from then on none of the addresses that the client holds changes anything: what is read
back and compared is what is copied to the final key. The size of each part is signed along with its address.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote

from kernels_hub.server.objects.address import S3Address
from kernels_hub.server.objects.answers import GONE, answering, error_code, unavailable
from kernels_hub.server.objects.connection import connect
from kernels_hub.server.objects.store import Begun, Sent, Staged
from kernels_hub.server.refusal import Refusal, bad_request

if TYPE_CHECKING:
    from botocore.client import BaseClient

SMALLEST_PART = 5 << 20
"""S3 takes no smaller part but the last."""
_DOWNLOAD_SECONDS = 300
_AT_A_TIME = 8


class Bucket(Protocol):
    """What a store that clients exchange content with can do besides."""

    address: S3Address

    @property
    def client(self) -> BaseClient:
        """The connection."""

    def key(self, repository: str, oid: str) -> str:
        """The final key of an object."""

    def incoming(self, repository: str, upload: str) -> str:
        """The key of an upload."""

    def confirm_once(self) -> None:
        """Refuse where the store is another root's."""

    def received(self, repository: str, oid: str, key: str, size: int) -> Staged:
        """Check what is under a key, and copy it to its final key."""

    def discard(self, key: str) -> None:
        """Remove what is under a key."""


class S3Transfers:
    """Implements `Transfers` for `S3Objects`."""

    def __init__(self, store: Bucket) -> None:
        self._store = store
        self._signing: BaseClient | None = None

    def _signer(self) -> BaseClient:
        """The client that signs: with the endpoint as clients name it, which is part of what is signed."""
        address = self._store.address
        if address.public is None:
            return self._store.client
        if self._signing is None:
            self._signing = connect(address, address.public)
        return self._signing

    def _address(self, operation: str, seconds: int, **parameters: object) -> str:
        with answering(f"signing {operation}"):
            text = self._signer().generate_presigned_url(
                operation,
                Params={"Bucket": self._store.address.bucket, **parameters},
                ExpiresIn=max(1, seconds),
            )
        return str(text)

    def download(self, repository: str, oid: str, *, name: str, private: bool) -> str:
        """An address to load an object from for five minutes."""
        return self._address(
            "get_object",
            _DOWNLOAD_SECONDS,
            Key=self._store.key(repository, oid),
            ResponseContentDisposition=f"attachment; filename*=UTF-8''{quote(name, safe='')}",
            ResponseContentType="application/octet-stream",
            **({"ResponseCacheControl": "private"} if private else {}),
        )

    def begin(self, repository: str, uploads: list[tuple[str, tuple[int, ...]]], seconds: int) -> list[Begun]:
        """Begin multipart uploads of the store."""
        self._store.confirm_once()
        with ThreadPoolExecutor(min(_AT_A_TIME, len(uploads) or 1)) as threads:
            return list(
                threads.map(lambda upload: self._begin(repository, upload[0], upload[1], seconds), uploads)
            )

    def _begin(self, repository: str, upload: str, sizes: tuple[int, ...], seconds: int) -> Begun:
        key = self._store.incoming(repository, upload)
        with answering("beginning an upload"):
            begun = self._store.client.create_multipart_upload(Bucket=self._store.address.bucket, Key=key)
        if "UploadId" not in begun:
            raise unavailable("beginning an upload: the answer was cut off")
        remote = str(begun["UploadId"])
        parts = (
            self._address(
                "upload_part", seconds, Key=key, UploadId=remote, PartNumber=number, ContentLength=size
            )
            for number, size in enumerate(sizes, 1)
        )
        return Begun(remote, tuple(parts))

    @contextmanager
    def finish(self, sent: Sent) -> Iterator[Staged]:
        """Join the parts, once; then check the whole."""
        store, key = self._store, self._store.incoming(sent.repository, sent.upload)
        store.confirm_once()
        self._join(sent, key)
        try:
            staged = store.received(sent.repository, sent.oid, key, sum(sent.sizes))
        except FileNotFoundError:
            raise Refusal(
                409, "This upload was completed or removed meanwhile; start the upload again"
            ) from None
        except Refusal as refusal:
            # Whoever asks again after a failure of the store finds the object where it is.
            if refusal.status < 500:
                store.discard(key)
            raise
        yield staged
        store.discard(key)

    def _join(self, sent: Sent, key: str) -> None:
        """Make an object of the parts; nothing to do where an earlier request, whose answer was lost, did it."""
        from botocore.exceptions import ClientError

        named = {"Bucket": self._store.address.bucket, "Key": key, "UploadId": sent.remote}
        client = self._store.client
        with answering("joining an upload"):
            try:
                received: dict[int, tuple[str, int]] = {}
                for page in client.get_paginator("list_parts").paginate(**named):
                    if "Bucket" not in page:  # which every listing says: its parts may be there all the same
                        raise unavailable("listing the parts of an upload: the answer was cut off")
                    for part in page.get("Parts", ()):
                        received[part["PartNumber"]] = part["ETag"], part["Size"]
                parts = _checked_parts(sent, received)
                client.complete_multipart_upload(**named, MultipartUpload={"Parts": parts})
            except ClientError as error:
                if error_code(error) not in GONE:
                    raise


def _checked_parts(sent: Sent, received: dict[int, tuple[str, int]]) -> list[dict[str, object]]:
    parts: list[dict[str, object]] = []
    count = len(sent.sizes)
    for number, size in enumerate(sent.sizes, 1):
        etag, found = received.get(number, ("", -1))
        if found != size:
            raise bad_request(f"Part {number} of {count} was not uploaded, or not to its end")
        if sent.etags is not None and sent.etags[number - 1].strip('"') != etag.strip('"'):
            raise bad_request(f"Part {number} of {count} is not the one that the completion names")
        parts.append({"PartNumber": number, "ETag": etag})
    return parts
