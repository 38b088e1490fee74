"""The file that plans are kept in: a header in JSON and sections of bytes, each with its SHA-256. No pickle.

    magic (8) | format (u32) | header's length (u32) | SHA-256 of the header (32) | header | sections, in order

Every byte is under a digest or has one value that it may have: what was cut short or changed does not load.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernels_hub.compiler.errors import PlanError

MAGIC = b"KHPLAN\r\n"
FORMAT = 1
_START = struct.Struct("<8sII32s")


@dataclass(frozen=True)
class Container:
    """What stood in a file."""

    header: Mapping[str, Any]
    sections: Mapping[str, memoryview]


def write_container(header: Mapping[str, Any], sections: Mapping[str, bytes]) -> bytes:
    """The bytes of a file. header: of what JSON has."""
    table = [
        {"name": name, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in sections.items()
    ]
    text = json.dumps({**header, "sections": table}, ensure_ascii=False, separators=(",", ":")).encode()
    start = _START.pack(MAGIC, FORMAT, len(text), hashlib.sha256(text).digest())
    return b"".join((start, text, *sections.values()))


def read_container(data: bytes | memoryview, what: str) -> Container:
    """Raises PlanError for what is no such file, of another format, cut short, or changed."""
    view = memoryview(data).cast("B")
    again = "compile the graph again, or copy the file again"
    if len(view) < _START.size or bytes(view[:8]) != MAGIC:
        raise PlanError(f"{what} is no plan: it does not begin with {MAGIC!r}; {again}")
    _, version, length, digest = _START.unpack_from(view)
    if version != FORMAT:
        raise PlanError(
            f"{what} has format {version}, this kernels_hub reads {FORMAT}; compile the graph again"
        )
    text = bytes(view[_START.size : _START.size + length])
    if len(text) < length or hashlib.sha256(text).digest() != digest:
        raise PlanError(f"{what}: the header is damaged; {again}")
    header = json.loads(text)
    sections: dict[str, memoryview] = {}
    offset = _START.size + length
    for row in header.pop("sections"):
        part = view[offset : offset + row["size"]]
        if len(part) < row["size"]:
            missing = row["size"] - len(part)
            raise PlanError(f"{what} is cut short: section {row['name']!r} lacks {missing} bytes; {again}")
        if hashlib.sha256(part).hexdigest() != row["sha256"]:
            raise PlanError(f"{what}: section {row['name']!r} is damaged (SHA-256 differs); {again}")
        sections[row["name"]] = part
        offset += row["size"]
    if offset != len(view):
        raise PlanError(f"{what} has {len(view) - offset} bytes after its last section; {again}")
    return Container(header, sections)
