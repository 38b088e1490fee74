"""The body of a commit: NDJSON, one header and then one operation a line, read within limits.

Source: `huggingface_hub._commit_api._prepare_commit_payload`.
"""

from __future__ import annotations

import binascii
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from anyio import to_thread

from kernels_hub.server.limits import Limits
from kernels_hub.server.listing import looks_like_pointer
from kernels_hub.server.packs import BLOB, GitObject, git_object
from kernels_hub.server.paths import checked_path, is_sha256
from kernels_hub.server.refusal import Refusal, bad_request, too_large

_MAX_MESSAGE = 64 * 1024
_SHORT_LINE = 128 * 1024
_BLANK_LINES = 1000


@dataclass(frozen=True)
class AddFile:
    """A file whose content is in the commit itself."""

    path: str
    blob: GitObject


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
    """A commit as it was asked for."""

    message: str
    parent: str | None
    operations: tuple[Operation, ...]


class CommitReader:
    """Takes the lines of a commit as they arrive; refuses as soon as something is wrong."""

    def __init__(self, limits: Limits, take: Callable[[int], bool]) -> None:
        """take: counts bytes that are held in memory; false where there are too many."""
        self._limits = limits
        self._held = take
        self._header: tuple[str, str | None] | None = None
        self._operations: list[Operation] = []
        self._line = self._folders = 0

    async def read(self, body: AsyncIterator[bytes]) -> CommitRequest:
        """The whole request. Lines and total are bounded while they are read; 503 while others fill memory."""
        rest, total = bytearray(), 0
        longest = self._limits.max_inline_bytes * 4 // 3 + 16 * 1024
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
            start = 0
            while (end := chunk.find(b"\n", start)) >= 0:
                rest += chunk[start:end]
                await self._take_line(rest, longest)
                rest.clear()
                start = end + 1
            rest += chunk[start:]
            if len(rest) > longest:
                raise self._line_too_long()
        await self._take_line(rest, longest)
        if self._header is None:
            raise bad_request("A commit begins with a header line; the body is empty")
        message, parent = self._header
        return CommitRequest(message, parent, tuple(self._operations))

    async def _take_line(self, line: bytearray, longest: int) -> None:
        if len(line) < _SHORT_LINE:
            self._take(line, longest)
        else:
            await to_thread.run_sync(self._take, line, longest)

    def _line_too_long(self) -> Exception:
        return too_large(
            f"Line {self._line + 1} of the commit is too long: a file inside a commit may have "
            f"{self._limits.max_inline_bytes} bytes; upload it through LFS"
        )

    def _take(self, line: bytearray, longest: int) -> None:
        self._line += 1
        if not line.strip():
            if self._line > self._limits.max_operations + _BLANK_LINES:
                raise bad_request("A commit has one operation a line, and hardly any empty lines")
            return
        if len(line) > longest:
            self._line -= 1
            raise self._line_too_long()
        try:
            document = json.loads(line)
            key, value = document["key"], document["value"]
            if not isinstance(value, dict):
                raise TypeError
        except (ValueError, KeyError, TypeError, RecursionError):
            raise bad_request(
                f"Line {self._line} of the commit is not a JSON object with 'key' and 'value'"
            ) from None
        if key == "header":
            if self._header is not None:
                raise bad_request(f"Line {self._line} of the commit is a second header")
            self._header = self._read_header(value)
            return
        if self._header is None:
            raise bad_request("A commit begins with a header line")
        if len(self._operations) >= self._limits.max_operations:
            raise too_large(f"A commit may have {self._limits.max_operations} operations; send several")
        self._operations.append(self._operation(key, value))

    def _read_header(self, value: Mapping[str, Any]) -> tuple[str, str | None]:
        summary, description = value.get("summary"), value.get("description") or ""
        parent = value.get("parentCommit")
        if not isinstance(summary, str) or not summary.strip() or not isinstance(description, str):
            raise bad_request("A commit needs a summary, which is text")
        if parent is not None and not isinstance(parent, str):
            raise bad_request("parentCommit must be the id of a commit")
        message = summary.strip() + (f"\n\n{description.strip()}" if description.strip() else "")
        if len(message) > _MAX_MESSAGE or "\0" in message or not _is_text(message):
            raise bad_request(f"A commit's message is text of at most {_MAX_MESSAGE} characters")
        return message, parent

    def _operation(self, key: object, value: Mapping[str, Any]) -> Operation:
        path = value.get("path")
        if key == "deletedFolder" and isinstance(path, str):
            self._folders += 1
            if self._folders > (most := self._limits.max_folder_deletions):
                raise too_large(f"A commit may delete {most} folders; send several")
            return DeleteFolder(checked_path(path.removesuffix("/")))
        path = checked_path(path)
        match key:
            case "file":
                return self._file(path, value)
            case "lfsFile":
                size = value.get("size")
                if value.get("algo", "sha256") != "sha256" or not is_sha256(value.get("oid")):
                    raise bad_request(f"The large file {path!r} needs a SHA-256 as its oid")
                if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 0):
                    raise bad_request(f"The large file {path!r} has no valid size")
                return AddLarge(path, str(value["oid"]), size)
            case "deletedFile":
                return DeleteFile(path)
        raise bad_request(
            f"Line {self._line} of the commit has the key {str(key)[:50]!r}; expected file, lfsFile, "
            "deletedFile or deletedFolder"
        )

    def _file(self, path: str, value: Mapping[str, Any]) -> AddFile:
        content, encoding = value.get("content"), value.get("encoding", "utf-8")
        if not isinstance(content, str) or encoding not in ("base64", "utf-8"):
            raise bad_request(f"The file {path!r} needs content in base64 or utf-8")
        try:
            if encoding == "base64":
                data = binascii.a2b_base64(content.encode("ascii"), strict_mode=True)
            else:
                data = content.encode()
        except (ValueError, binascii.Error):
            raise bad_request(f"The content of {path!r} is not valid {encoding}") from None
        if len(data) > self._limits.max_inline_bytes:
            raise self._line_too_long()
        if looks_like_pointer(data):
            raise bad_request(
                f"The file {path!r} is an LFS pointer sent as a regular file; upload the content instead"
            )
        return AddFile(path, git_object(BLOB, data))


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
