"""The HTTP side of Xet uploads: a token for a repository, then xorbs, then the shards that use them.

    GET  /api/<type>/<org>/<name>/xet-write-token/<revision>
    POST /xet/<repository>/<hour>/v1/xorbs/default/<hash>
    POST /xet/<repository>/<hour>/v1/shards

Clients also ask for what is optional (deduplication across repositories, grants to upload elsewhere,
`/v2/shards`): those answer 404, and clients go on without. No download mentions Xet.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from starlette.responses import Response

from kernels_hub.errors import MetadataError
from kernels_hub.server.call import HubRequest, Route, json_response
from kernels_hub.server.hub import Hub
from kernels_hub.server.refusal import Refusal, bad_request, forbidden, too_large, unauthorized
from kernels_hub.server.repositories import Repository
from kernels_hub.server.signing import UploadXet
from kernels_hub.server.upload_access import check_address
from kernels_hub.server.xet.hashing import hash_from_hex
from kernels_hub.server.xet.rebuild import rebuild
from kernels_hub.server.xet.shard import SHARD_LIMIT, ShardFile, read_shard
from kernels_hub.server.xet.spool import Area, spool_of
from kernels_hub.server.xet.xorb import XORB_LIMIT, XorbDecoder

_PIECE = 1024 * 1024
_SWEEP_SECONDS = 600


class _Sweeps:
    """When this process swept last."""

    last = 0.0


def write_token(call: HubRequest) -> Response:
    """Where to upload, with what token, until when; for whoever may write to the repository."""
    repository, token = call.writable(), call.caller.token
    assert token is not None, "an anonymous caller may write nothing"
    spool = spool_of(call.hub)
    if time.monotonic() - _Sweeps.last > _SWEEP_SECONDS:
        _Sweeps.last = time.monotonic()
        spool.sweep()
    address = f"{call.base}/xet/{repository.id}/{spool.hour()}"
    expires = call.hub.signer.expiry(token)
    signed = call.hub.signer.query(UploadXet(repository=repository.id, token=token.id, expires=expires))
    return json_response(
        {"casUrl": address, "accessToken": signed, "exp": expires},
        headers={
            "X-Xet-Cas-Url": address,
            "X-Xet-Access-Token": signed,
            "X-Xet-Token-Expiration": str(expires),
            "Cache-Control": "no-store",
        },
    )


async def upload_xorb(call: HubRequest) -> Response:
    """Take in a xorb: decoded and checked as it arrives, kept once it is whole."""
    repository, area = await call.run(_authorized, call)
    with _malformed_is_400():
        expected = hash_from_hex(call.params["xorb"])
        _check_length(call, XORB_LIMIT)
        if await call.run(area.holds, expected):
            async for _ in _pieces(call, XORB_LIMIT):
                pass
            return json_response({"was_inserted": False})
        await call.run(_check_room, call.hub, repository, area)
        decoder = XorbDecoder()
        with area.part() as part:
            async for piece in _pieces(call, XORB_LIMIT):
                await call.run(_decode, decoder, piece, part)
            lengths = await call.run(decoder.finish, expected)
            await call.run(area.keep, part, expected, lengths)
    return json_response({"was_inserted": True})


async def upload_shard(call: HubRequest) -> Response:
    """Make large files of the repository out of the xorbs that a shard names: all of its files or none."""
    repository, area = await call.run(_authorized, call)
    _check_length(call, SHARD_LIMIT)
    spooled = call.hub.layout.temporary()
    try:
        with spooled.open("xb") as file:
            async for piece in _pieces(call, SHARD_LIMIT):
                await call.run(file.write, piece)
        added = await call.run(_take_in, call.hub, repository, area, spooled)
    finally:
        spooled.unlink(missing_ok=True)
    return json_response({"result": int(added > 0)})


def drop_telemetry(_call: HubRequest) -> Response:
    """Clients report how fast they were; nothing here wants to know."""
    return Response(status_code=204)


def _take_in(hub: Hub, repository: Repository, area: Area, shard: Path) -> int:
    """Rebuild and adopt every file of a shard that the repository does not have; how many."""
    rebuilt: dict[str, tuple[Path, int]] = {}
    try:
        with _malformed_is_400():
            with shard.open("rb") as stream:
                _check_sizes(hub, repository, read_shard(stream))
            with shard.open("rb") as stream:
                for file in read_shard(stream):
                    if file.sha256 in rebuilt or hub.large_files.touch(repository, file.sha256, file.size):
                        continue
                    path = hub.layout.temporary()
                    rebuilt[file.sha256] = path, file.size
                    with path.open("xb") as output:
                        rebuild(file, area, output)
        for sha256, (path, size) in rebuilt.items():
            hub.large_files.adopt(repository, path, sha256, size, sha256=sha256)
    finally:
        for path, _ in rebuilt.values():
            path.unlink(missing_ok=True)
    return len(rebuilt)


def _check_sizes(hub: Hub, repository: Repository, files: Iterator[ShardFile]) -> None:
    """Refuse a shard before anything is rebuilt: a few bytes can name terabytes."""
    total, seen = 0, set()
    for file in files:
        if file.size > hub.limits.max_file_bytes:
            raise too_large(
                f"A file has {file.size} bytes; this server takes files of up to {hub.limits.max_file_bytes}"
            )
        if file.sha256 not in seen and hub.large_files.size(repository, file.sha256) is None:
            seen.add(file.sha256)
            total += file.size
    hub.check_space(repository, total)


def _check_room(hub: Hub, repository: Repository, area: Area) -> None:
    """Refuse a xorb where no file could be stored, or more came than the repository may ever hold."""
    hub.check_space(repository, 0)
    quota = hub.limits.max_repository_bytes
    if quota and area.size() > quota:
        raise forbidden(f"{repository.full_name} may hold {quota} bytes; more than that was sent this hour")


def _authorized(call: HubRequest) -> tuple[Repository, Area]:
    """The repository and area of the address; the token must be for it, and its user still allowed."""
    scheme, _, signed = call.request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not signed:
        raise unauthorized()
    path = {"repository": call.params["repository"]}
    _, repository = check_address(call, UploadXet, path, signed.strip())
    if len(call.params["hour"]) > 12:
        raise Refusal(404, "No such upload address")
    with _malformed_is_400():
        return repository, spool_of(call.hub).area(repository.id, int(call.params["hour"]))


def _decode(decoder: XorbDecoder, piece: bytes, part: BinaryIO) -> None:
    part.writelines(decoder.feed(piece))


def _check_length(call: HubRequest, limit: int) -> None:
    length = call.request.headers.get("content-length", "0")
    if length.isdecimal() and int(length) > limit:
        raise too_large(f"The body has {length} bytes, expected up to {limit}")


async def _pieces(call: HubRequest, limit: int) -> AsyncIterator[bytes]:
    """The body in pieces of about a MiB."""
    pending, total = bytearray(), 0
    async for received in call.request.stream():
        pending += received
        total += len(received)
        if total > limit:
            raise too_large(f"The body is larger than {limit} bytes")
        if len(pending) >= _PIECE:
            yield bytes(pending)
            pending.clear()
    if pending:
        yield bytes(pending)


@contextmanager
def _malformed_is_400() -> Iterator[None]:
    try:
        yield
    except MetadataError as error:
        raise bad_request(str(error)) from error


_AREA = "/xet/{repository:[0-9a-f]+}/{hour:[0-9]+}/v1"
_WRITE_TOKEN = "/api/{type:models|kernels}/{namespace}/{name}/xet-write-token/{revision}"  # noqa: S105
ROUTES = (
    Route("GET", _WRITE_TOKEN, write_token),
    Route("POST", f"{_AREA}/xorbs/default/{{xorb}}", upload_xorb),
    Route("POST", f"{_AREA}/shards", upload_shard),
    Route("POST", "/v1/telemetry", drop_telemetry, reads=True),
)
