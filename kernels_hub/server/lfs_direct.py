"""Uploads of large files to the object store itself: the addresses of a batch, and the call that ends one.

A file of one part is one PUT to the store and a call that LFS clients know as `verify`; one of several parts ends with
the completion that clients of multipart uploads send. Both calls are to this server, at an address that it signed. A
client that is denied this call, since its token was revoked or its user may no longer write, has sent to nowhere.
"""

from __future__ import annotations

from starlette.responses import Response

from kernels_hub.server.bodies import MOST_PARTS, LargeObject, StoredBody
from kernels_hub.server.call import HubRequest, json_response
from kernels_hub.server.objects.store import Begun, Sent, Transfers, new_upload
from kernels_hub.server.objects.transfers import SMALLEST_PART
from kernels_hub.server.refusal import Refusal, bad_request, too_large
from kernels_hub.server.repositories import Repository
from kernels_hub.server.signing import CompleteStored
from kernels_hub.server.upload_access import check_address


def part_bytes(call: HubRequest) -> int:
    """The size of a part, which is at least what stores take."""
    return max(call.hub.limits.part_bytes, SMALLEST_PART)


def _sizes(size: int, part: int) -> tuple[int, ...]:
    """The sizes of the parts of a file; an empty file has one."""
    count = max(1, -(-size // part))
    return (*(part for _ in range(count - 1)), size - part * (count - 1))


def actions(
    call: HubRequest,
    repository: Repository,
    items: list[LargeObject],
    transfers: Transfers,
    *,
    multipart: bool,
) -> list[dict[str, object]]:
    """The LFS actions of each entry of a batch: where to send it, and what to call then."""
    signer, token, part = call.hub.signer, call.caller.token, part_bytes(call)
    assert token is not None, "an anonymous caller may write nothing"
    expires = signer.expiry(token)
    lasts = max(0, int(expires - signer.now()))
    uploads: list[tuple[str, tuple[int, ...]]] = []
    for item in items:
        sizes = _sizes(item.size, part) if multipart else (item.size,)
        if len(sizes) > MOST_PARTS:
            raise too_large(f"A file may have {MOST_PARTS * part} bytes on this server, not {item.size}")
        if not multipart and item.size > call.hub.limits.max_single_bytes:
            raise too_large(
                f'A file of {item.size} bytes comes in parts; use a client with the LFS transfer "multipart"'
            )
        uploads.append((new_upload(), sizes))
    found = []
    begun = transfers.begin(repository.id, uploads, lasts)
    for item, (upload, sizes), sent in zip(items, uploads, begun, strict=True):
        address = CompleteStored(
            repository=repository.id,
            token=token.id,
            expires=expires,
            oid=item.oid,
            size=item.size,
            upload=upload,
            part_bytes=part if len(sizes) > 1 else max(1, item.size),
            remote=sent.remote,
        )
        end = f"{call.base}/lfs/{repository.id}/{item.oid}/stored?{signer.query(address)}"
        found.append(_actions(call, repository, sent, end, part=part, lasts=lasts))
    return found


def _actions(
    call: HubRequest, repository: Repository, sent: Begun, end: str, *, part: int, lasts: int
) -> dict[str, object]:
    if len(sent.parts) == 1:
        return {"upload": {"href": sent.parts[0], "expires_in": lasts}, "verify": {"href": end}}
    header = {str(number): address for number, address in enumerate(sent.parts, 1)}
    header["chunk_size"] = str(part)
    return {
        "upload": {"href": end, "header": header, "expires_in": lasts},
        "verify": {"href": f"{call.base}{repository.page}.git/info/lfs/verify"},
    }


def complete(call: HubRequest) -> Response:
    """Everything was sent to the store: it becomes the large file. Asking again is answered as the first time."""
    path = {name: call.params[name] for name in CompleteStored.in_path}
    query = call.request.scope["query_string"].decode("latin-1")
    address, repository = check_address(call, CompleteStored, path, query)
    document = call.parse(StoredBody)
    if document.oid != address.oid:
        raise bad_request("This address completes another file")
    large_files = call.hub.large_files
    if large_files.touch(repository, address.oid, address.size):
        return json_response({"success": True})
    if large_files.transfers is None:
        raise Refusal(409, "Uploads go through this server by now; start the upload again")
    sizes = _sizes(address.size, address.part_bytes)
    etags = None
    if document.parts is not None:
        etags = tuple(part.etag for part in sorted(document.parts, key=lambda part: part.part_number))
        if [part.part_number for part in document.parts] != list(range(1, len(sizes) + 1)):
            raise bad_request(f"The completion names other parts than 1 to {len(sizes)}")
    sent = Sent(repository.id, address.oid, address.upload, address.remote, sizes, etags)
    with large_files.transfers.finish(sent) as staged:
        large_files.enter(repository, staged, address.oid, address.size)
    return json_response({"success": True})
