"""Uploads of large files: the LFS batch call, and the signed addresses that it hands out.

Bodies go to a temporary file while they are hashed; memory stays flat. A file of several parts is one
sparse file, each part written at its place, so that joining them costs nothing. Nothing is a large
file of a repository before its size and SHA-256 are what the address was signed for.
Source: https://github.com/git-lfs/git-lfs/blob/main/docs/api/batch.md
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from starlette.responses import Response

from kernels_hub.server.call import Call, Route, json_response
from kernels_hub.server.paths import is_sha256
from kernels_hub.server.refusal import Refusal, bad_request, repository_not_found, too_large
from kernels_hub.server.repositories import Repository

_LFS_TYPE = "application/vnd.git-lfs+json"
_BUFFER = 1 << 20
_MAX_PARTS = 10_000
_MAX_OBJECTS = 1000


def batch(call: Call) -> Response:
    """For each object: nothing to do, or where and how to send it."""
    document, repository = call.json(), call.writable()
    if document.get("operation") != "upload":
        raise bad_request("Only uploads go through LFS here; files are downloaded from /resolve/")
    if document.get("hash_algo", "sha256") != "sha256":
        raise bad_request("Large files are named by SHA-256")
    objects = document.get("objects")
    if not isinstance(objects, list) or len(objects) > _MAX_OBJECTS:
        raise bad_request(f"objects must be a list of at most {_MAX_OBJECTS}")
    transfers = document.get("transfers") or ["basic"]
    multipart = isinstance(transfers, list) and "multipart" in transfers
    rows = [_checked(item, call) for item in objects]
    missing = [row for row in rows if not call.hub.large_files.touch(repository, *row)]
    if missing:
        call.hub.check_space(repository, sum(size for _, size in missing))
    wanted = set(missing)
    answer = [
        {"oid": oid, "size": size, "authenticated": True, **_actions(call, repository, oid, size, multipart)}
        if (oid, size) in wanted
        else {"oid": oid, "size": size}
        for oid, size in rows
    ]
    parts = any(multipart and size > call.hub.limits.part_bytes for _, size in missing)
    response = json_response(
        {"transfer": "multipart" if parts else "basic", "objects": answer, "hash_algo": "sha256"}
    )
    response.headers["Content-Type"] = _LFS_TYPE
    return response


def _checked(item: Any, call: Call) -> tuple[str, int]:
    oid, size = (item.get("oid"), item.get("size")) if isinstance(item, dict) else (None, None)
    if not is_sha256(oid) or not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise bad_request("Each object needs a SHA-256 as oid and a size")
    if size > call.hub.limits.max_file_bytes:
        raise too_large(f"A file may have {call.hub.limits.max_file_bytes} bytes on this server, not {size}")
    return str(oid), size


def _actions(call: Call, repository: Repository, oid: str, size: int, multipart: bool) -> dict[str, Any]:
    limits, signer = call.hub.limits, call.hub.signer
    home = f"/lfs/{repository.id}/{oid}"
    prefix = "" if repository.type == "model" else f"/{repository.type}s"
    verify = {"href": f"{call.base}{prefix}/{repository.full_name}.git/info/lfs/verify"}

    def address(path: str, **fields: str) -> str:
        signed = {"repository": repository.id, "oid": oid, "at": path}
        query = signer.query(signed, {"size": str(size), **fields}, limits.upload_seconds)
        return f"{call.base}{home}{path}?{query}"

    count = -(-size // limits.part_bytes)
    if not multipart or count <= 1:
        return {"actions": {"upload": {"href": address("")}, "verify": verify}}
    if count > _MAX_PARTS:
        raise too_large(f"A file may have {_MAX_PARTS * limits.part_bytes} bytes on this server, not {size}")
    fields = {"upload": uuid.uuid4().hex, "part_bytes": str(limits.part_bytes)}
    header = {str(number): address(f"/part/{number}", **fields) for number in range(1, count + 1)}
    header["chunk_size"] = str(limits.part_bytes)
    return {
        "actions": {"upload": {"href": address("/complete", **fields), "header": header}, "verify": verify}
    }


def verify(call: Call) -> Response:
    """Whether the repository has a large file now."""
    document, repository = call.json(), call.writable()
    size = call.hub.large_files.size(repository, str(document.get("oid")))
    if size is None:
        raise Refusal(404, "The repository has no large file of this SHA-256")
    if size != document.get("size"):
        raise bad_request(f"The large file has {size} bytes")
    return json_response({})


class _Upload:
    """A signed address, checked: what it is for."""

    def __init__(self, call: Call, at: str) -> None:
        self.oid = call.params["oid"]
        signed = {"repository": call.params["repository"], "oid": self.oid, "at": at}
        fields = call.hub.signer.check(signed, dict(call.request.query_params))
        self.size = int(fields["size"])
        self.part_bytes = int(fields.get("part_bytes", "0"))
        self.folder = call.hub.layout.multipart / fields.get("upload", "")
        self._id = call.params["repository"]

    def repository(self, call: Call) -> Repository:
        """The repository, unless it was deleted meanwhile. Blocks."""
        repository = call.hub.repositories.by_id(self._id)
        if repository is None:
            raise repository_not_found(anonymous=False)
        return repository


class _Sink:
    """Writes a body into a file from an offset on, and hashes it."""

    def __init__(self, path: Path, *, offset: int, size: int) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._offset = offset
        self._left = size
        self.digest = hashlib.sha256()

    def write(self, data: bytes) -> None:
        """Take the next bytes; refuses more than were announced."""
        self._left -= len(data)
        if self._left < 0:
            raise bad_request("The upload is longer than was announced")
        self.digest.update(data)
        view = memoryview(data)
        while view:
            written = os.pwrite(self._descriptor, view, self._offset)
            self._offset += written
            view = view[written:]

    def finish(self) -> None:
        """Refuse fewer bytes than were announced."""
        if self._left:
            raise bad_request(f"The upload is truncated: {self._left} bytes are missing")

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


async def _receive(call: Call, sink: _Sink) -> None:
    buffer = bytearray()
    async for chunk in call.request.stream():
        buffer += chunk
        if len(buffer) >= _BUFFER:
            await call.run(sink.write, bytes(buffer))
            buffer.clear()
    if buffer:
        await call.run(sink.write, bytes(buffer))
    sink.finish()


def _check_length(call: Call, size: int) -> None:
    announced = call.request.headers.get("content-length")
    if announced is not None and announced != str(size):
        raise bad_request(f"This address is for {size} bytes, not for {announced[:20]}")


async def put(call: Call) -> Response:
    """A whole large file in one body."""
    upload = _Upload(call, "")
    _check_length(call, upload.size)
    repository: Repository = await call.run(upload.repository, call)
    temporary: Path = await call.run(call.hub.layout.temporary)
    try:
        sink = _Sink(temporary, offset=0, size=upload.size)
        try:
            await _receive(call, sink)
        finally:
            sink.close()
        digest = sink.digest.hexdigest()
        await call.run(
            lambda: call.hub.large_files.adopt(repository, temporary, upload.oid, upload.size, sha256=digest)
        )
    finally:
        await call.run(discard, temporary)
    return Response(headers={"ETag": f'"{upload.oid}"'})


async def put_part(call: Call) -> Response:
    """One part of a large file; sending it again replaces it."""
    number = int(call.params["number"])
    upload = _Upload(call, f"/part/{number}")
    start = (number - 1) * upload.part_bytes
    size = min(upload.part_bytes, upload.size - start)
    _check_length(call, size)
    await call.run(upload.repository, call)
    done = upload.folder / f"{number}.part"
    await call.run(_open_part, upload.folder, done)
    sink = _Sink(upload.folder / "data", offset=start, size=size)
    try:
        await _receive(call, sink)
    finally:
        sink.close()
    etag = sink.digest.hexdigest()
    await call.run(done.write_text, etag)
    return Response(headers={"ETag": f'"{etag}"'})


def _open_part(folder: Path, done: Path) -> None:
    folder.mkdir(exist_ok=True)
    done.unlink(missing_ok=True)


async def complete(call: Call) -> Response:
    """All parts are there: they become the large file. Asking again is answered as the first time."""
    upload = _Upload(call, "/complete")
    body = await call.read_body(call.hub.limits.max_json_bytes)
    repository: Repository = await call.run(upload.repository, call)
    await call.run(_complete, call, upload, repository, body)
    return json_response({"success": True})


def _complete(call: Call, upload: _Upload, repository: Repository, body: bytes) -> None:
    if call.hub.large_files.touch(repository, upload.oid, upload.size):
        discard(upload.folder)
        return
    try:
        document = json.loads(body)
        sent = {int(part["partNumber"]): str(part["etag"]).strip('"') for part in document["parts"]}
        if document["oid"] != upload.oid:
            raise bad_request("This address completes another file")
    except (ValueError, KeyError, TypeError, RecursionError):
        raise bad_request("The completion needs oid and parts, each with partNumber and etag") from None
    count = -(-upload.size // upload.part_bytes)
    received = _received(upload.folder)
    for number in range(1, count + 1):
        if received.get(number) is None:
            raise bad_request(f"Part {number} of {count} was not uploaded, or not to its end")
        if sent.get(number) != received[number]:
            raise bad_request(f"Part {number} of {count} is not the one that the completion names")
    temporary = call.hub.layout.temporary()
    # Taken out of the folder first: a part that still arrives cannot change what is checked.
    (upload.folder / "data").rename(temporary)
    discard(upload.folder)
    call.hub.large_files.adopt(repository, temporary, upload.oid, upload.size)


def _received(folder: Path) -> Mapping[int, str]:
    if not folder.is_dir():
        return {}
    return {int(path.stem): path.read_text() for path in folder.glob("*.part")}


def discard(path: Path) -> None:
    """Remove a temporary file or folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


_OBJECT = "/lfs/{repository:[0-9a-f]+}/{oid:[0-9a-f]+}"
_GIT = "{namespace}/{name}.git/info/lfs"
ROUTES = [
    *(
        Route("POST", prefix + _GIT + path, handler, type=kind)
        for path, handler in (("/objects/batch", batch), ("/verify", verify))
        for prefix, kind in (("/kernels/", "kernels"), ("/", "models"))
    ),
    Route("PUT", _OBJECT, put),
    Route("PUT", _OBJECT + "/part/{number:[0-9]+}", put_part),
    Route("POST", _OBJECT + "/complete", complete),
]
