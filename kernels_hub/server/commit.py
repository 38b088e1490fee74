"""The body of a commit: NDJSON, one header and then one operation a line, read within limits.

The body goes to disk as it arrives, and so do the files that its lines carry: a commit takes a few MiB of memory
whatever its size. It is parsed in a thread, line by line; what is small never leaves memory.
Source: `huggingface_hub._commit_api._prepare_commit_payload`.
"""

from __future__ import annotations

import binascii
import hashlib
import re
import tempfile
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self, TypeVar, cast

import msgspec
from anyio import to_thread

from kernels_hub.errors import MetadataError
from kernels_hub.parsing import Struct, parse_json
from kernels_hub.server.card import read_card
from kernels_hub.server.limits import Limits
from kernels_hub.server.listing import looks_like_pointer
from kernels_hub.server.packs import AnyObject, StoredObject
from kernels_hub.server.paths import checked_path, is_sha256
from kernels_hub.server.refusal import Refusal, bad_request, too_large

_MAX_MESSAGE = 64 * 1024
_BLANK_LINES = 1000
_IN_MEMORY = 1 << 20
_PIECE = 1 << 20  # a multiple of 4, as base64 is cut at it
_BUFFER = 256 * 1024
_CARD_BYTES = 1 << 20
_BACKSLASH = re.compile(rb"\\")
# Lines of many MiB are decoded two at a time in a process.
_LARGE_LINES = threading.BoundedSemaphore(2)
_Value = TypeVar("_Value")


class _Line(Struct, frozen=True):
    key: str
    value: msgspec.Raw


class _Header(Struct, frozen=True, rename="camel"):
    summary: str
    description: str | None = None
    parent_commit: str | None = None


class _File(Struct, frozen=True):
    path: str
    content: msgspec.Raw
    encoding: str = "utf-8"


class _LargeFile(Struct, frozen=True):
    path: str
    oid: str
    algo: str = "sha256"
    size: int | None = None


class _Path(Struct, frozen=True):
    path: str


@dataclass(frozen=True)
class AddFile:
    """A file whose content is in the commit itself."""

    path: str
    blob: AnyObject


@dataclass(frozen=True)
class AddLarge:
    """A file whose content the repository has already, by SHA-256."""

    path: str
    sha256: str
    size: int | None


@dataclass(frozen=True)
class DeleteFile:
    """A file that goes away."""

    path: str


@dataclass(frozen=True)
class DeleteFolder:
    """A folder that goes away, with everything in it."""

    path: str


Operation = AddFile | AddLarge | DeleteFile | DeleteFolder


@dataclass(frozen=True)
class CommitRequest:
    """A commit as it was asked for. Its files' contents last until its reader is closed."""

    message: str
    parent: str | None
    operations: tuple[Operation, ...]


class CommitReader:
    """Takes the body of a commit as it arrives, and then its lines. A context manager: see `CommitRequest`."""

    def __init__(self, limits: Limits, take: Callable[[int], bool], folder: Path | None = None) -> None:
        """take: counts bytes that are kept; false where there are too many. folder: where they are kept."""
        self._limits = limits
        self._held = take
        self._folder = folder
        self._header: tuple[str, str | None] | None = None
        self._operations: list[Operation] = []
        self._line = self._folders = 0
        self._longest = limits.max_inline_bytes * 4 // 3 + 16 * 1024
        self._contents = self._file()
        self._end = 0

    def _file(self) -> IO[bytes]:
        """A file without a name, in memory while it is small: nothing of it is left behind, whatever happens."""
        folder = None if self._folder is None else str(self._folder)
        file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY, dir=folder)  # noqa: SIM115
        return cast("IO[bytes]", file)

    def close(self) -> None:
        """Drop the contents of the files that were read."""
        self._contents.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def read(self, body: AsyncIterator[bytes]) -> CommitRequest:
        """The whole request. Lines and total are bounded while they arrive; 503 while others fill the disk."""
        with self._file() as spool:
            pending, total, line, lines = bytearray(), 0, 0, 0
            async for chunk in body:
                total += len(chunk)
                if total > self._limits.max_commit_bytes:
                    raise too_large(
                        f"A commit may carry {self._limits.max_commit_bytes} bytes; upload large files through LFS"
                    )
                if not self._held(len(chunk)):
                    raise Refusal(
                        503, "Too many large commits at a time; try again", headers={"Retry-After": "5"}
                    )
                lines += chunk.count(b"\n")
                last = chunk.rfind(b"\n")
                line = line + len(chunk) if last < 0 else len(chunk) - last - 1
                if line > self._longest:
                    raise self._line_too_long(lines + 1)
                pending += chunk
                if len(pending) >= _BUFFER:
                    await to_thread.run_sync(spool.write, bytes(pending))
                    pending.clear()
            spool.write(pending)
            spool.seek(0)
            return await to_thread.run_sync(self._parse, spool)

    def _line_too_long(self, number: int) -> Refusal:
        return too_large(
            f"Line {number} of the commit is too long: a file inside a commit may have "
            f"{self._limits.max_inline_bytes} bytes; upload it through LFS"
        )

    def _parse(self, spool: IO[bytes]) -> CommitRequest:
        while line := spool.readline(self._longest + 2):
            self._line += 1
            if len(line.rstrip(b"\r\n")) > self._longest:
                raise self._line_too_long(self._line)
            if not line.strip():
                if self._line > self._limits.max_operations + _BLANK_LINES:
                    raise bad_request("A commit has one operation a line, and hardly any empty lines")
            else:
                with _LARGE_LINES if len(line) > _PIECE else nullcontext():
                    self._take(line)
            del line
        if self._header is None:
            raise bad_request("A commit begins with a header line; the body is empty")
        message, parent = self._header
        return CommitRequest(message, parent, tuple(self._operations))

    def _typed(self, data: bytes | msgspec.Raw, kind: type[_Value], what: str) -> _Value:
        """A line, or the value of one, as a type; 400 otherwise."""
        try:
            # A view of the line: the content of a file is not copied.
            return parse_json(
                data,
                kind,
                where=f"Line {self._line} of the commit",
                most_bytes=self._longest + 2,
            )
        except MetadataError as error:
            raise bad_request(f"{error}; {what}") from None

    def _take(self, line: bytes) -> None:
        row = self._typed(line, _Line, "each line is a JSON object with 'key' and 'value'")
        if row.key == "header":
            if self._header is not None:
                raise bad_request(f"Line {self._line} of the commit is a second header")
            self._header = self._read_header(row.value)
            return
        if self._header is None:
            raise bad_request("A commit begins with a header line")
        if len(self._operations) >= self._limits.max_operations:
            raise too_large(f"A commit may have {self._limits.max_operations} operations; send several")
        self._operations.append(self._operation(row.key, row.value))

    def _read_header(self, value: msgspec.Raw) -> tuple[str, str | None]:
        what = "a commit's message is text: a summary and, if you like, a description and a parentCommit"
        header = self._typed(value, _Header, what)
        summary, description = header.summary.strip(), (header.description or "").strip()
        if not summary:
            raise bad_request("A commit needs a summary, which is text")
        message = summary + (f"\n\n{description}" if description else "")
        if len(message) > _MAX_MESSAGE or "\0" in message:
            raise bad_request(f"A commit's message is text of at most {_MAX_MESSAGE} characters")
        return message, header.parent_commit

    def _operation(self, key: str, value: msgspec.Raw) -> Operation:
        match key:
            case "file":
                file = self._typed(value, _File, "a file needs path, content and encoding (base64 or utf-8)")
                path = checked_path(file.path)
                return AddFile(path, self._store(path, file))
            case "lfsFile":
                large = self._typed(value, _LargeFile, "a large file needs path, a SHA-256 as oid and a size")
                path = checked_path(large.path)
                if large.algo != "sha256" or not is_sha256(large.oid):
                    raise bad_request(f"The large file {path!r} needs a SHA-256 as its oid")
                if large.size is not None and not 0 <= large.size < 1 << 63:
                    raise bad_request(f"The large file {path!r} has no valid size")
                return AddLarge(path, large.oid, large.size)
            case "deletedFile":
                return DeleteFile(checked_path(self._typed(value, _Path, "a deletion needs a path").path))
            case "deletedFolder":
                self._folders += 1
                if self._folders > (most := self._limits.max_folder_deletions):
                    raise too_large(f"A commit may delete {most} folders; send several")
                folder = self._typed(value, _Path, "a deletion needs a path").path
                return DeleteFolder(checked_path(folder.removesuffix("/")))
        raise bad_request(
            f"Line {self._line} of the commit has the key {key[:50]!r}; expected file, lfsFile, "
            "deletedFile or deletedFolder"
        )

    def _store(self, path: str, file: _File) -> StoredObject:
        """Decode a file into the file of contents, a piece at a time."""
        wrong = bad_request(f"The content of {path!r} is not valid {file.encoding[:20]}")
        view = memoryview(file.content)
        if file.encoding not in ("base64", "utf-8") or bytes(view[:1]) != b'"':
            raise bad_request(f"The file {path!r} needs content in base64 or utf-8")
        if file.encoding == "utf-8" or _BACKSLASH.search(view):
            view = memoryview(self._typed(file.content, str, "content is text").encode())
        else:
            view = view[1:-1]
        if file.encoding == "base64":
            if len(view) % 4:
                raise wrong
            size = len(view) // 4 * 3 - bytes(view[-2:]).count(b"=")
        else:
            size = len(view)
        if size > self._limits.max_inline_bytes:
            raise self._line_too_long(self._line)
        digest, start, first = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False), self._end, b""
        self._contents.seek(start)
        try:
            for at in range(0, len(view), _PIECE):
                piece: bytes | memoryview = view[at : at + _PIECE]
                if file.encoding == "base64":
                    piece = binascii.a2b_base64(piece, strict_mode=True)
                    # Padding inside the text ends a piece early.
                    if at + _PIECE < len(view) and len(piece) != _PIECE // 4 * 3:
                        raise wrong
                first = first or bytes(piece[: _CARD_BYTES if path == "README.md" else 4096])
                digest.update(piece)
                self._end += self._contents.write(piece)
        except (ValueError, binascii.Error):
            raise wrong from None
        if self._end - start != size:
            raise wrong
        if size <= len(first):
            if looks_like_pointer(first):
                raise bad_request(
                    f"The file {path!r} is an LFS pointer sent as a regular file; upload the content instead"
                )
            if path == "README.md":
                read_card(first.decode("utf-8", "replace"))  # kept: whoever looks at it finds it read
        return StoredObject(digest.hexdigest(), size, self._contents, start)
