"""Files: `/{repository}/resolve/{revision}/{path}`, whole or a range.

Whatever a file is, a browser must not run it with this server's name: it is an attachment, of no
guessed type, in a sandbox.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from urllib.parse import quote

from starlette.responses import Response, StreamingResponse

from kernels_hub.server.call import HubRequest, Route
from kernels_hub.server.listing import Entry
from kernels_hub.server.objects.store import Content
from kernels_hub.server.refusal import Refusal, entry_not_found
from kernels_hub.server.repositories import Repository

_CHUNK = 1 << 20
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


class _Download:
    """A file that may be sent: its headers, and where its content is."""

    def __init__(self, call: HubRequest) -> None:
        self.repository: Repository = call.viewable()
        store = call.hub.store
        self.commit = store.resolve(self.repository, call.params["revision"])
        path = call.params["path"]
        self.paths = store.listing(self.repository, self.commit).entries
        entry = self.paths.get(path)
        call.hub.access.check_download(call.viewer, self.repository)
        if entry is None or entry.is_folder:
            raise entry_not_found(path, self.commit)
        self.entry: Entry = entry
        self.content: bytes | None = None
        if entry.large:
            self.etag = entry.large.sha256
        else:
            self.etag = entry.oid
            self.content = b"" if call.request.method == "HEAD" else store.blob(self.repository, entry.oid)

    def headers(self) -> dict[str, str]:
        """What every answer with this file says."""
        name = quote(self.entry.path.rsplit("/", 1)[-1], safe="")
        return {
            "X-Repo-Commit": self.commit,
            "ETag": f'"{self.etag}"',
            "Accept-Ranges": "bytes",
            "Content-Disposition": f"attachment; filename*=UTF-8''{name}",
            "Content-Security-Policy": "default-src 'none'; sandbox",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Content-Type": "application/octet-stream",
            **({"Cache-Control": "private"} if self.repository.private or self.repository.gated else {}),
            **self._linked(),
        }

    def _linked(self) -> dict[str, str]:
        """What clients read where the content comes from somewhere else, with headers of its own."""
        if self.entry.large is None:
            return {}
        return {"X-Linked-Size": str(self.entry.size), "X-Linked-Etag": f'"{self.etag}"'}


def _span(call: HubRequest, size: int, etag: str) -> tuple[int, int] | None:
    """The first and one past the last byte that are asked for; None for all. 416 beyond the end."""
    text = call.request.headers.get("range", "")
    match = _RANGE.fullmatch(text.replace(" ", ""))
    condition = call.request.headers.get("if-range")
    if match is None or not (match[1] or match[2]) or (condition and condition.strip('"') != etag):
        return None
    if not match[1]:
        start, end = max(0, size - int(match[2])), size
    else:
        start = int(match[1])
        end = min(size, int(match[2]) + 1) if match[2] else size
        if match[2] and int(match[2]) < start:
            return None
    if start >= size or start >= end:
        raise Refusal(
            416,
            f"The file has {size} bytes",
            headers={"Content-Range": f"bytes */{size}", "Accept-Ranges": "bytes"},
        )
    return start, end


async def download(call: HubRequest) -> Response:
    """HEAD or GET of a file."""
    found: _Download = await call.run(_Download, call)
    headers, size = found.headers(), found.entry.size
    if f'"{found.etag}"' in call.request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    if call.request.method == "HEAD":
        return Response(headers={**headers, "Content-Length": str(size)})
    span = _span(call, size, found.etag)
    start, end = span or (0, size)
    headers["Content-Length"] = str(end - start)
    if span:
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
    status = 206 if span else 200
    if start == 0:
        call.hub.downloads.add(found.repository.id, found.entry.path, found.paths)
    if found.content is not None:
        return Response(found.content[start:end], status, headers)
    large_files, name = call.hub.large_files, found.entry.path.rsplit("/", 1)[-1]
    address = await call.run(large_files.address, found.repository, found.etag, name)
    if address is not None:
        for name in ("Content-Range", "Content-Length"):
            headers.pop(name, None)
        # The address is for this caller, and for minutes. The client asks it for the same range.
        return Response(None, 302, {**headers, "Location": address, "Cache-Control": "no-store"})
    try:
        content: Content = await call.run(large_files.open, found.repository, found.etag, start, end)
    except FileNotFoundError:
        raise Refusal(
            500, f"The content of {found.entry.path} is lost; `kernels-hub hub fsck` says more"
        ) from None
    return StreamingResponse(_pieces(call, content, end - start), status, headers)


async def _pieces(call: HubRequest, content: Content, left: int) -> AsyncIterator[bytes]:
    try:
        while left > 0:
            data: bytes = await call.run(content.read, min(_CHUNK, left))
            if not data:
                raise OSError("a large file ends before its size")
            left -= len(data)
            yield data
    finally:
        content.close()


ROUTES = [
    Route("GET HEAD", prefix + "{namespace}/{name}/resolve/{revision}/{path:rest}", download, type=kind)
    for prefix, kind in (("/kernels/", "kernels"), ("/", "models"))
]
