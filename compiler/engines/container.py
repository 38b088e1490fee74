"""Container format of plan files: a JSON header and sections of bytes, each with its SHA-256. No pickle.

    magic (8) | format (u32) | header's length (u32) | SHA-256 of the header (32) | header | sections, in order

Every byte is under a digest or has one value that it may have: what was cut short or changed does not load. The
digests tell damage, not who wrote the file: every field of a header is parsed as what it has to be.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Annotated, TypeVar

from msgspec import Meta

from kernels_hub.compiler.errors import PlanError
from kernels_hub.escaping import json_text
from kernels_hub.parsing import Sha256, Struct, Text, parse_json

MAGIC = b"KHPLAN\r\n"
FORMAT = 1
MOST_HEADER = 16 << 20
"""Bytes of a header that are read."""
AGAIN = "compile the graph again"
_START = struct.Struct("<8sII32s")

Count = Annotated[int, Meta(ge=0, lt=1 << 31)]
Bytes = Annotated[int, Meta(ge=0, lt=1 << 62)]


class SectionRow(Struct, frozen=True):
    """A section in the order of the file."""

    name: Text
    size: Bytes
    sha256: Sha256


class Header(Struct, frozen=True, kw_only=True):
    """What every header states; kinds of files add their fields."""

    kind: Text = ""
    sections: tuple[SectionRow, ...]


H = TypeVar("H", bound=Header)


@dataclass(frozen=True)
class Container:
    """What stood in a file. text: the header as JSON."""

    text: bytes
    sections: Mapping[str, memoryview]
    what: str

    def header(self, kind: type[H]) -> H:
        """The header as one of a kind. Raises PlanError with the field that is none."""
        return parse_json(
            self.text,
            kind,
            where=f"{self.what}: the header makes no sense",
            error=PlanError,
            most_bytes=MOST_HEADER,
            advice=AGAIN,
            unique_keys=True,
        )

    def section(self, name: str) -> memoryview:
        """A section by name. Raises PlanError where there is none."""
        if name not in self.sections:
            raise PlanError(f"{self.what} has no section {name[:100]!r}; {AGAIN}")
        return self.sections[name]


def write_container(header: Mapping[str, object], sections: Mapping[str, bytes]) -> bytes:
    """The bytes of a file. header: of what JSON has."""
    start = _start(header, {name: (data,) for name, data in sections.items()})
    return b"".join((start, *sections.values()))


def write_container_to(
    file: IO[bytes], header: Mapping[str, object], sections: Mapping[str, Sequence[bytes | memoryview]]
) -> None:
    """Write to a file what `write_container` gives, without a copy in memory. sections: each in parts."""
    file.write(_start(header, sections))
    for parts in sections.values():
        for part in parts:
            file.write(part)


def read_container(data: bytes | memoryview, what: str) -> Container:
    """Raises PlanError for what is no such file, of another format, cut short, or changed."""
    view = memoryview(data).cast("B")
    offset = 0

    def taken(size: int, _name: str = "") -> memoryview:
        nonlocal offset
        offset += size
        return view[offset - size : offset]

    return _read(taken, len(view), what)


def read_container_from(
    file: IO[bytes], what: str, memory: Callable[[str, int], memoryview] | None = None
) -> Container:
    """As `read_container`, of an open file, each section in memory of its own.

    memory: gives the memory for a section, by its name and bytes. Raises OSError, too.
    """
    length = os.fstat(file.fileno()).st_size

    def read(size: int, name: str = "") -> memoryview:
        if size > length:
            return memoryview(b"")
        view = memoryview(bytearray(size)) if memory is None or not name else memory(name, size)
        return view[: file.readinto(view)]  # type: ignore[attr-defined]

    return _read(read, length, what)


def read_header_from(file: IO[bytes], what: str) -> Container:
    """As `read_container_from`, of the header alone; sections are not looked at."""
    return Container(_header(lambda size: memoryview(file.read(min(size, MOST_HEADER))), what), {}, what)


def _start(header: Mapping[str, object], sections: Mapping[str, Sequence[bytes | memoryview]]) -> bytes:
    table = []
    for name, parts in sections.items():
        digest = hashlib.sha256()
        for part in parts:
            digest.update(part)
        size = sum(map(len, parts))
        table.append({"name": name, "size": size, "sha256": digest.hexdigest()})
    text = json_text({**header, "sections": table}).encode()
    return _START.pack(MAGIC, FORMAT, len(text), hashlib.sha256(text).digest()) + text


def _header(take: Callable[[int], memoryview], what: str) -> bytes:
    """The text of a header. take: the next bytes, fewer where there are no more."""
    again = f"{AGAIN}, or copy the file again"
    start = bytes(take(_START.size))
    if len(start) < _START.size or start[:8] != MAGIC:
        raise PlanError(f"{what} is no plan: it does not begin with {MAGIC!r}; {again}")
    _, version, length, digest = _START.unpack(start)
    if version != FORMAT:
        raise PlanError(f"{what} has format {version}, this kernels_hub reads {FORMAT}; {AGAIN}")
    if length > MOST_HEADER:
        raise PlanError(f"{what}: the header has {length:,} bytes; at most {MOST_HEADER:,} are read; {again}")
    text = bytes(take(length))
    if len(text) < length or hashlib.sha256(text).digest() != digest:
        raise PlanError(f"{what}: the header is damaged; {again}")
    return text


def _read(take: Callable[..., memoryview], size: int, what: str) -> Container:
    """take(bytes) and, of a section, take(bytes, name): as of `_header`."""
    again = f"{AGAIN}, or copy the file again"
    text = _header(take, what)
    sections: dict[str, memoryview] = {}
    offset = _START.size + len(text)
    for row in Container(text, {}, what).header(Header).sections:
        part = take(row.size, row.name)
        if row.name in sections:
            raise PlanError(f"{what} has two sections {row.name[:100]!r}; {again}")
        if len(part) < row.size:
            missing = row.size - len(part)
            raise PlanError(f"{what} is cut short: section {row.name[:100]!r} lacks {missing} bytes; {again}")
        if hashlib.sha256(part).hexdigest() != row.sha256:
            raise PlanError(f"{what}: section {row.name[:100]!r} is damaged (SHA-256 differs); {again}")
        sections[row.name] = part
        offset += row.size
    if offset != size:
        raise PlanError(f"{what} has {size - offset} bytes after its last section; {again}")
    return Container(text, sections, what)
