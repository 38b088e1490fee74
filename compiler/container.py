"""The file that plans are kept in: a header in JSON and sections of bytes, each with its SHA-256. No pickle.

    magic (8) | format (u32) | header's length (u32) | SHA-256 of the header (32) | header | sections, in order

Every byte is under a digest or has one value that it may have: what was cut short or changed does not load. The
digests tell damage, not who wrote the file: every field of a header is parsed as what it has to be.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

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


def write_container(header: Mapping[str, Any], sections: Mapping[str, bytes]) -> bytes:
    """The bytes of a file. header: of what JSON has."""
    table = [
        {"name": name, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in sections.items()
    ]
    text = json_text({**header, "sections": table}).encode()
    start = _START.pack(MAGIC, FORMAT, len(text), hashlib.sha256(text).digest())
    return b"".join((start, text, *sections.values()))


def read_container(data: bytes | memoryview, what: str) -> Container:
    """Raises PlanError for what is no such file, of another format, cut short, or changed."""
    view = memoryview(data).cast("B")
    again = f"{AGAIN}, or copy the file again"
    if len(view) < _START.size or bytes(view[:8]) != MAGIC:
        raise PlanError(f"{what} is no plan: it does not begin with {MAGIC!r}; {again}")
    _, version, length, digest = _START.unpack_from(view)
    if version != FORMAT:
        raise PlanError(f"{what} has format {version}, this kernels_hub reads {FORMAT}; {AGAIN}")
    if length > MOST_HEADER:
        raise PlanError(f"{what}: the header has {length:,} bytes; at most {MOST_HEADER:,} are read; {again}")
    text = bytes(view[_START.size : _START.size + length])
    if len(text) < length or hashlib.sha256(text).digest() != digest:
        raise PlanError(f"{what}: the header is damaged; {again}")
    sections: dict[str, memoryview] = {}
    offset = _START.size + length
    for row in Container(text, {}, what).header(Header).sections:
        part = view[offset : offset + row.size]
        if row.name in sections:
            raise PlanError(f"{what} has two sections {row.name[:100]!r}; {again}")
        if len(part) < row.size:
            missing = row.size - len(part)
            raise PlanError(f"{what} is cut short: section {row.name[:100]!r} lacks {missing} bytes; {again}")
        if hashlib.sha256(part).hexdigest() != row.sha256:
            raise PlanError(f"{what}: section {row.name[:100]!r} is damaged (SHA-256 differs); {again}")
        sections[row.name] = part
        offset += row.size
    if offset != len(view):
        raise PlanError(f"{what} has {len(view) - offset} bytes after its last section; {again}")
    return Container(text, sections, what)
