"""An S3-compatible store for tests (moto's server, in this process), and the option that puts every Hub's objects there.

`pytest --hub-objects s3` gives each new root of tests/server and tests/hub a prefix of its own in the store; clients
exchange content with it themselves. `--hub-objects s3-inside` passes everything through the Hub.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels_hub.errors import KernelsHubError
from kernels_hub.server.hub import Hub
from kernels_hub.server.layout import RootPaths
from kernels_hub.server.objects.address import S3Address
from kernels_hub.server.objects.files import FileObjects
from kernels_hub.server.repositories import Repository

BUCKET = "hub-tests"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "tests-access-key",
    "AWS_SECRET_ACCESS_KEY": "tests-secret-key-of-forty-characters-xxx",
    "AWS_EC2_METADATA_DISABLED": "true",
}
_guard = threading.Lock()
_started: list[Store] = []
OPTION = "KERNELS_HUB_TEST_OBJECTS"


@dataclass(frozen=True)
class Store:
    """A running store, or one that the environment names."""

    endpoint: str

    def address(self, prefix: str, *, bucket: str = BUCKET, **settings: str) -> str:
        more = "".join(f"&{key}={value}" for key, value in settings.items())
        return f"s3://{bucket}/{prefix}?endpoint={self.endpoint}&region=us-east-1{more}"

    def client(self) -> Any:
        from boto3.session import Session
        from botocore.config import Config

        return Session().client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            config=Config(s3={"addressing_style": "path"}, request_checksum_calculation="when_required"),
        )

    def empty(self) -> None:
        """Make the bucket, or remove what is in it."""
        client = self.client()
        client.create_bucket(Bucket=BUCKET)
        for key in self.keys():
            client.delete_object(Bucket=BUCKET, Key=key)
        for item in client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", ()):
            client.abort_multipart_upload(Bucket=BUCKET, Key=item["Key"], UploadId=item["UploadId"])

    def keys(self, prefix: str = "") -> list[str]:
        pages = self.client().get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return [item["Key"] for page in pages for item in page.get("Contents", ())]

    def uploads(self, prefix: str = "") -> list[str]:
        found = self.client().list_multipart_uploads(Bucket=BUCKET, Prefix=prefix)
        return [item["Key"] for item in found.get("Uploads", ())]


def store() -> Store:
    """The store of this process, started when it is first asked for; ends with the process.

    KERNELS_HUB_TEST_S3 names the endpoint of another one, whose bucket of the tests is emptied, with credentials in the
    environment. Processes must not share it.
    """
    with _guard:
        if not _started:
            if endpoint := os.environ.get("KERNELS_HUB_TEST_S3"):
                _started.append(Store(endpoint))
                _started[0].empty()
            else:
                os.environ.update(CREDENTIALS)
                _started.append(_start_moto())
                _started[0].empty()
        return _started[0]


def _start_moto() -> Store:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    moto, one = DomainDispatcherApplication(create_backend_app), threading.Lock()

    def app(environ: Any, start_response: Any) -> list[bytes]:
        # A store's operations are atomic; those of moto are no more than its dictionaries.
        with one:
            return list(moto(environ, start_response))

    server = make_server("127.0.0.1", 0, app, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return Store(f"http://127.0.0.1:{server.server_port}")


def objects_for(root: Path) -> str | None:
    """What --objects should say for a root: what it remembers, or with the option, a place of its own if it is new."""
    if (root / "FORMAT").is_file():
        return RootPaths.open(root).objects()
    if not (how := os.environ.get(OPTION)):
        return None
    prefix = hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:20]
    return store().address(prefix, **({"direct": "no"} if how == "s3-inside" else {}))


def directly() -> bool:
    """Whether clients exchange content with the store themselves."""
    return os.environ.get(OPTION) == "s3"


def use_store_for_new_roots() -> None:
    """Have `Hub(root)` mean the store that the root should be opened with."""
    real = Hub.__init__

    def init(self: Hub, root: Path, *, objects: str | None = None, **options: Any) -> None:
        if os.environ.get(OPTION):  # a test may take it out
            with contextlib.suppress(KernelsHubError, OSError):  # the root itself says what is wrong with it
                objects = objects or objects_for(root)
        real(self, root, objects=objects, **options)

    Hub.__init__ = init  # type: ignore[method-assign]


# -- what a store holds, for tests that damage it


def stored(hub: Hub, repository: Repository, oid: str) -> bytes | None:
    """The content of an object as it is stored."""
    return hub.large_files.read(repository, oid)


def put(hub: Hub, repository: Repository, oid: str, content: bytes) -> None:
    """Write content under a name, whether it is its SHA-256 or not, and without a row."""
    objects = hub.large_files.objects
    if isinstance(objects, FileObjects):
        path = objects.path(repository.id, oid)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_bytes(content)
        return
    address = S3Address.parse(str(hub.objects))
    Store(str(address.endpoint)).client().put_object(
        Bucket=address.bucket, Key=objects.key(repository.id, oid), Body=content
    )


def flip(hub: Hub, repository: Repository, oid: str) -> None:
    """Change one byte of an object."""
    content = stored(hub, repository, oid)
    assert content is not None
    data = bytearray(content)
    data[len(data) // 2] ^= 0x55
    put(hub, repository, oid, bytes(data))
