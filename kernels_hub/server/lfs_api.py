"""Uploads of large files: the LFS batch call, and the signed addresses that it hands out.

Bodies go to a temporary file while they are hashed; memory stays flat. A file of several parts is one
sparse file, each part written at its place, so that joining them costs nothing. Nothing is a large
file of a repository before its size and SHA-256 are what the address was signed for.
Source: https://github.com/git-lfs/git-lfs/blob/main/docs/api/batch.md
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from starlette.responses import Response

from kernels_hub.contained_paths import inside, open_inside
from kernels_hub.errors import IntegrityError, MetadataError
from kernels_hub.files import write_atomically
from kernels_hub.parsing import parse_json
from kernels_hub.server import lfs_direct
from kernels_hub.server.bodies import MOST_PARTS, BatchBody, CompletionBody, LargeObject
from kernels_hub.server.call import HubRequest, Route, json_response
from kernels_hub.server.refusal import Refusal, bad_request, too_large
from kernels_hub.server.repositories import Repository
from kernels_hub.server.signing import Address, CompleteUpload, Signer, UploadFile, UploadPart
from kernels_hub.server.upload_access import check_address

_LFS_TYPE = "application/vnd.git-lfs+json"
_BUFFER = 1 << 20
_Kind = TypeVar("_Kind", bound=Address)
_PART = re.compile(r"([1-9][0-9]{0,4})\.part")


def batch(call: HubRequest) -> Response:
    """For each object: nothing to do, or where and how to send it."""
    repository, document = call.writable(), call.parse(BatchBody)
    if document.operation != "upload":
        raise bad_request("Only uploads go through LFS here; files are downloaded from /resolve/")
    if document.hash_algo not in (None, "sha256"):
        raise bad_request("Large files are named by SHA-256")
    multipart = "multipart" in (document.transfers or ())
    most = call.hub.limits.max_file_bytes
    for item in document.objects:
        if item.size > most:
            raise too_large(f"A file may have {most} bytes on this server, not {item.size}")
    touch = call.hub.large_files.touch
    is_here = [touch(repository, item.oid, item.size) for item in document.objects]
    missing = [item for item, here in zip(document.objects, is_here, strict=True) if not here]
    transfers = call.hub.large_files.transfers
    # The parts of a file would come to the roots of several servers.
    multipart = multipart and not (transfers is None and call.hub.git.has_several_roots)
    if missing:
        size = sum(item.size for item in missing)
        call.hub.check_space(repository, size, elsewhere=transfers is not None)
    # One upload for each entry, also of a file that a batch names twice: clients send both at the same time.
    if transfers is None:
        actions = [_actions(call, repository, item, multipart) for item in missing]
        part_bytes = call.hub.limits.part_bytes
    else:
        actions = lfs_direct.actions(call, repository, missing, transfers, multipart=multipart)
        part_bytes = lfs_direct.part_bytes(call)
    following = iter(actions)
    answer = [
        {
            "oid": item.oid,
            "size": item.size,
            **({} if here else {"authenticated": True, "actions": next(following)}),
        }
        for item, here in zip(document.objects, is_here, strict=True)
    ]
    parts = any(multipart and item.size > part_bytes for item in missing)
    response = json_response(
        {"transfer": "multipart" if parts else "basic", "objects": answer, "hash_algo": "sha256"}
    )
    response.headers["Content-Type"] = _LFS_TYPE
    return response


def _actions(
    call: HubRequest, repository: Repository, item: LargeObject, multipart: bool
) -> dict[str, object]:
    limits, signer, token = call.hub.limits, call.hub.signer, call.caller.token
    assert token is not None, "an anonymous caller may write nothing"
    home = f"{call.base}/lfs/{repository.id}/{item.oid}"
    verify = {"href": f"{call.base}{repository.page}.git/info/lfs/verify"}
    common: dict[str, Any] = {
        "repository": repository.id,
        "token": token.id,
        "expires": signer.expiry(token),
        "oid": item.oid,
        "size": item.size,
    }
    size = limits.part_bytes
    count = -(-item.size // size)
    if not multipart or count <= 1:
        upload = {
            "href": f"{home}?{signer.query(UploadFile(**common))}",
            **_lasting(signer, common["expires"]),
        }
        return {"upload": upload, "verify": verify}
    if count > MOST_PARTS:
        raise too_large(f"A file may have {MOST_PARTS * size} bytes on this server, not {item.size}")
    common.update(upload=uuid.uuid4().hex, part_bytes=size)
    header = {
        str(number): f"{home}/part/{number}?{signer.query(UploadPart(**common, number=number))}"
        for number in range(1, count + 1)
    }
    header["chunk_size"] = str(size)
    complete = f"{home}/complete?{signer.query(CompleteUpload(**common))}"
    upload = {"href": complete, "header": header, **_lasting(signer, common["expires"])}
    return {"upload": upload, "verify": verify}


def _lasting(signer: Signer, expires: int) -> dict[str, int]:
    """How long an address lasts, relative to now: the client's clock may be another."""
    return {"expires_in": max(0, int(expires - signer.now()))}


def verify(call: HubRequest) -> Response:
    """Whether the repository has a large file now."""
    repository, document = call.writable(), call.parse(LargeObject)
    size = call.hub.large_files.size(repository, document.oid)
    if size is None:
        raise Refusal(404, "The repository has no large file of this SHA-256")
    if size != document.size:
        raise bad_request(f"The large file has {size} bytes")
    return json_response({})


async def _checked(call: HubRequest, kind: type[_Kind]) -> tuple[_Kind, Repository]:
    """The signed address of a request, and its repository."""
    path = {name: call.params[name] for name in kind.in_path}
    query = call.request.scope["query_string"].decode("latin-1")
    found: tuple[_Kind, Repository] = await call.run(check_address, call, kind, path, query)
    return found


class _Sink:
    """Writes a body into a file from an offset on, and hashes it."""

    def __init__(self, descriptor: int, *, offset: int, size: int) -> None:
        self._descriptor = descriptor
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


async def _receive(call: HubRequest, sink: _Sink) -> None:
    buffer = bytearray()
    async for chunk in call.request.stream():
        buffer += chunk
        if len(buffer) >= _BUFFER:
            await call.run(sink.write, bytes(buffer))
            buffer.clear()
    if buffer:
        await call.run(sink.write, bytes(buffer))
    sink.finish()


def _check_length(call: HubRequest, size: int) -> None:
    announced = call.request.headers.get("content-length")
    if announced is not None and announced != str(size):
        raise bad_request(f"This address is for {size} bytes, not for {announced[:20]}")


async def _skip(call: HubRequest, size: int) -> str:
    """Read a body of `size` bytes that is here already, and keep nothing of it; its SHA-256."""
    digest, left = hashlib.sha256(), size
    async for chunk in call.request.stream():
        left -= len(chunk)
        if left < 0:
            raise bad_request("The upload is longer than was announced")
        digest.update(chunk)
    if left:
        raise bad_request(f"The upload is truncated: {left} bytes are missing")
    return digest.hexdigest()


async def put(call: HubRequest) -> Response:
    """A whole large file in one body. Sending it again changes nothing."""
    upload, repository = await _checked(call, UploadFile)
    _check_length(call, upload.size)
    etag = {"ETag": f'"{upload.oid}"'}
    if await call.run(call.hub.large_files.touch, repository, upload.oid, upload.size):
        await _skip(call, upload.size)
        return Response(headers=etag)
    temporary: Path = await call.run(call.hub.layout.temporary)
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        sink = _Sink(descriptor, offset=0, size=upload.size)
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
    return Response(headers=etag)


async def put_part(call: HubRequest) -> Response:
    """One part of a large file; sending it again replaces it, or changes nothing once the file is whole."""
    upload, repository = await _checked(call, UploadPart)
    start = (upload.number - 1) * upload.part_bytes
    size = min(upload.part_bytes, upload.size - start)
    if size <= 0:
        raise bad_request(f"The file has no part {upload.number}")
    _check_length(call, size)
    if await call.run(call.hub.large_files.touch, repository, upload.oid, upload.size):
        return Response(headers={"ETag": f'"{await _skip(call, size)}"'})
    descriptor: int = await call.run(_open_part, call.hub.layout.multipart, upload)
    sink = _Sink(descriptor, offset=start, size=size)
    try:
        await _receive(call, sink)
    finally:
        sink.close()
    etag = sink.digest.hexdigest()
    await call.run(_finish_part, call.hub.layout.multipart, upload, etag)
    return Response(headers={"ETag": f'"{etag}"'})


def _open_part(multipart: Path, upload: UploadPart) -> int:
    """The file of an upload, open to be written; the part counts as missing until it is whole again."""
    try:
        multipart.mkdir(exist_ok=True)
        inside(multipart, f"{upload.upload}/{upload.number}.part").unlink(missing_ok=True)
        return open_inside(multipart, f"{upload.upload}/data", os.O_WRONLY | os.O_CREAT, 0o600)
    except (IntegrityError, NotADirectoryError, IsADirectoryError):
        raise _in_the_way() from None


def _finish_part(multipart: Path, upload: UploadPart, etag: str) -> None:
    try:
        folder = inside(multipart, upload.upload)
        if not folder.is_dir():  # completed or swept meanwhile
            raise _in_the_way()
        write_atomically(inside(folder, f"{upload.number}.part"), etag, mode=0o600)
    except (IntegrityError, NotADirectoryError, IsADirectoryError):
        raise _in_the_way() from None


def _in_the_way() -> Refusal:
    return Refusal(409, "This upload was completed or removed meanwhile; start the upload again")


async def complete(call: HubRequest) -> Response:
    """All parts are there: they become the large file. Asking again is answered as the first time."""
    upload, repository = await _checked(call, CompleteUpload)
    body = await call.read_body(call.hub.limits.max_json_bytes)
    await call.run(_complete, call, upload, repository, body)
    return json_response({"success": True})


def _complete(call: HubRequest, upload: CompleteUpload, repository: Repository, body: bytes) -> None:
    try:
        document = parse_json(body, CompletionBody, where="the completion")
        folder = inside(call.hub.layout.multipart, upload.upload)
    except (MetadataError, IntegrityError) as error:
        raise bad_request(str(error)) from None
    if document.oid != upload.oid:
        raise bad_request("This address completes another file")
    if call.hub.large_files.touch(repository, upload.oid, upload.size):
        discard(folder)
        return
    sent = {part.part_number: part.etag.strip('"') for part in document.parts}
    count = -(-upload.size // upload.part_bytes)
    received = _received(folder)
    for number in range(1, count + 1):
        if received.get(number) is None:
            raise bad_request(f"Part {number} of {count} was not uploaded, or not to its end")
        if sent.get(number) != received[number]:
            raise bad_request(f"Part {number} of {count} is not the one that the completion names")
    temporary = call.hub.layout.temporary()
    # Taken out of the folder first: a part that still arrives cannot change what is checked.
    try:
        inside(folder, "data").rename(temporary)
    except (FileNotFoundError, IntegrityError):
        if call.hub.large_files.touch(repository, upload.oid, upload.size):
            return  # by the same request, sent twice
        raise _in_the_way() from None
    discard(folder)
    call.hub.large_files.adopt(repository, temporary, upload.oid, upload.size)


def _received(folder: Path) -> Mapping[int, str]:
    """The parts that arrived whole: their numbers and digests. Whatever else lies there does not count."""
    found = {}
    if folder.is_dir():
        for path in folder.iterdir():
            if (match := _PART.fullmatch(path.name)) and path.is_file() and not path.is_symlink():
                found[int(match[1])] = path.read_text("ascii", "replace")[:100]
    return found


def discard(path: Path) -> None:
    """Remove a temporary file or folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
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
    Route("POST", _OBJECT + "/stored", lfs_direct.complete),
]
