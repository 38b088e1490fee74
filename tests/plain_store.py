"""A plain S3-compatible store, in a process of its own: `with PlainStore() as store: Hub(root, objects=store.address("p"))`.

Objects are in its memory, and credentials are not looked at. It costs a tenth of moto's server, so that what a
benchmark measures is the Hub. Content that is other than its Content-MD5 is refused, as stores do.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import itertools
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from tests.object_store import BUCKET, CREDENTIALS, Store

_DATE = "Sat, 01 Jan 2028 00:00:00 GMT"
_TIME = "2028-01-01T00:00:00.000Z"
_AT_MOST = 1000


class PlainStore(Store):
    """The process, from `with` on."""

    def __init__(self) -> None:
        os.environ.update(CREDENTIALS)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.plain_store"],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[1],
        )
        assert self.process.stdout is not None
        super().__init__(f"http://127.0.0.1:{int(self.process.stdout.readline())}")

    def __enter__(self) -> Self:
        self.client().create_bucket(Bucket=BUCKET)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@dataclass(frozen=True)
class _Request:
    method: str
    bucket: str
    key: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class _Answer:
    status: int = 200
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


def _xml(name: str, inside: str) -> _Answer:
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<{name}>{inside}</{name}>'
    return _Answer(200, text.encode(), (("Content-Type", "application/xml"),))


def _error(status: int, code: str) -> _Answer:
    return _Answer(status, _xml("Error", f"<Code>{code}</Code><Message>{code}</Message>").body)


def _etag(content: bytes) -> str:
    return f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'


def _tagged(content: bytes) -> _Answer:
    return _Answer(200, b"", (("ETag", _etag(content)),))


@dataclass
class _Objects:
    """What a store holds. Names are bucket, "/" and key."""

    content: dict[str, bytes] = field(default_factory=dict)
    uploads: dict[str, tuple[str, dict[int, bytes]]] = field(default_factory=dict)
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def answer(self, request: _Request) -> _Answer:
        name, query = f"{request.bucket}/{request.key}", request.query
        if not request.key:
            return self._of_bucket(request)
        if "uploads" in query or "uploadId" in query:
            return self._of_upload(request, name)
        match request.method:
            case "PUT":
                return self._put(request, name)
            case "DELETE":
                self.content.pop(name, None)
                return _Answer(204)
        if (content := self.content.get(name)) is None:
            return _error(404, "NoSuchKey")
        return _read(request, content)

    def _put(self, request: _Request, name: str) -> _Answer:
        if source := request.headers.get("x-amz-copy-source"):
            if (content := self.content.get(unquote(source).lstrip("/"))) is None:
                return _error(404, "NoSuchKey")
            self.content[name] = content
            return _xml(
                "CopyObjectResult",
                f"<ETag>{escape(_etag(content))}</ETag><LastModified>{_TIME}</LastModified>",
            )
        if _is_other(request):
            return _error(400, "BadDigest")
        self.content[name] = request.body
        return _tagged(request.body)

    def _of_bucket(self, request: _Request) -> _Answer:
        if request.method != "GET":
            return _Answer(200)
        prefix = request.query.get("prefix", "")
        if "uploads" in request.query:
            found = (
                f"<Upload><Key>{escape(name.partition('/')[2])}</Key><UploadId>{upload}</UploadId></Upload>"
                for upload, (name, _) in self.uploads.items()
                if name.startswith(f"{request.bucket}/{prefix}")
            )
            return _xml("ListMultipartUploadsResult", f"<Bucket>{request.bucket}</Bucket>{''.join(found)}")
        return self._listing(request, prefix)

    def _listing(self, request: _Request, prefix: str) -> _Answer:
        start, delimiter = f"{request.bucket}/{prefix}", request.query.get("delimiter")
        after = request.query.get("continuation-token", "")
        lines, last, cut = dict[str, str](), "", False
        for name in sorted(name for name in self.content if name.startswith(start) and name > after):
            key = name.partition("/")[2]
            if delimiter and delimiter in (rest := key.removeprefix(prefix)):
                group = prefix + rest.partition(delimiter)[0] + delimiter
                line = group, f"<CommonPrefixes><Prefix>{escape(group)}</Prefix></CommonPrefixes>"
            else:
                content = self.content[name]
                fields = f"<Key>{escape(key)}</Key><Size>{len(content)}</Size>"
                fields += f"<ETag>{escape(_etag(content))}</ETag><LastModified>{_TIME}</LastModified>"
                line = key, f"<Contents>{fields}</Contents>"
            if line[0] not in lines and len(lines) == _AT_MOST:
                cut = True
                break
            lines[line[0]], last = line[1], name
        more = f"<NextContinuationToken>{escape(last)}</NextContinuationToken>" if cut else ""
        inside = f"<Name>{request.bucket}</Name><IsTruncated>{str(cut).lower()}</IsTruncated>{more}"
        return _xml("ListBucketResult", inside + "".join(lines.values()))

    def _of_upload(self, request: _Request, name: str) -> _Answer:
        if request.method == "POST" and "uploads" in request.query:
            upload = f"upload{next(self.numbers)}"
            self.uploads[upload] = name, {}
            named = f"<Bucket>{request.bucket}</Bucket><Key>{escape(request.key)}</Key>"
            return _xml("InitiateMultipartUploadResult", f"{named}<UploadId>{upload}</UploadId>")
        if (begun := self.uploads.get(upload := request.query["uploadId"])) is None or begun[0] != name:
            return _error(404, "NoSuchUpload")
        parts = begun[1]
        match request.method:
            case "PUT":
                parts[int(request.query["partNumber"])] = request.body
                return _tagged(request.body)
            case "GET":
                listed = (
                    f"<Part><PartNumber>{number}</PartNumber><ETag>{escape(_etag(part))}</ETag>"
                    f"<Size>{len(part)}</Size></Part>"
                    for number, part in sorted(parts.items())
                )
                return _xml("ListPartsResult", f"<IsTruncated>false</IsTruncated><Bucket/>{''.join(listed)}")
            case "POST":
                named = ElementTree.fromstring(request.body)
                order = [int(item.text or 0) for item in named.iter() if item.tag.endswith("PartNumber")]
                if any(number not in parts for number in order):
                    return _error(400, "InvalidPart")
                self.content[name] = b"".join(parts[number] for number in order)
                del self.uploads[upload]
                return _xml(
                    "CompleteMultipartUploadResult", f"<ETag>{escape(_etag(self.content[name]))}</ETag>"
                )
        del self.uploads[upload]
        return _Answer(204)


def _is_other(request: _Request) -> bool:
    """Whether a body is not what its digest says."""
    said = request.headers.get("content-md5")
    return (
        said is not None
        and base64.b64decode(said) != hashlib.md5(request.body, usedforsecurity=False).digest()
    )


def _read(request: _Request, content: bytes) -> _Answer:
    headers = (("ETag", _etag(content)), ("Last-Modified", _DATE), ("Accept-Ranges", "bytes"))
    status = 200
    if span := request.headers.get("range"):
        first, _, last = span.removeprefix("bytes=").partition("-")
        start = int(first) if first else max(0, len(content) - int(last))
        end = min(int(last) + 1 if first and last else len(content), len(content))
        if start >= end:
            return _error(416, "InvalidRange")
        headers = (*headers, ("Content-Range", f"bytes {start}-{end - 1}/{len(content)}"))
        content, status = content[start:end], 206
    return _Answer(status, content, headers)


async def _serve(objects: _Objects, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            method, target, _ = head[0].split(" ", 2)
            pairs = (line.partition(":") for line in head[1:] if line)
            headers = {name.lower(): value.strip() for name, _, value in pairs}
            if headers.get("expect"):
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            parts = urlsplit(target)
            bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
            query = {
                name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()
            }
            answer = objects.answer(_Request(method, bucket, key, query, headers, body))
            lines = [f"HTTP/1.1 {answer.status} -", f"Content-Length: {len(answer.body)}"]
            lines += [f"{name}: {value}" for name, value in answer.headers]
            writer.write("\r\n".join((*lines, "", "")).encode("latin-1"))
            if method != "HEAD":
                writer.write(answer.body)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def _main() -> None:
    objects = _Objects()
    server = await asyncio.start_server(lambda *ends: _serve(objects, *ends), "127.0.0.1", 0, limit=1 << 20)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main())
