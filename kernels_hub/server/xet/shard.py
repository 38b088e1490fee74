"""Shards: which chunk ranges of which xorbs make up which file, and the file's sha256.

    header (48): tag | version u64 | footer size u64
    files:  header (hash, flags u32, entries u32, -) | ranges | verification hashes | metadata
    end mark: 32 bytes 0xff and 16 bytes
    xorbs:  header (hash, flags u32, entries u32, bytes u32, bytes on disk u32) | chunks
    end mark, and for some clients lookup tables and a footer, which repeat the above

Every record is 48 bytes, every number little-endian. Read from a stream, one file at a time.
Source: https://huggingface.co/docs/xet/shard.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from kernels_hub.errors import MetadataError
from kernels_hub.server.xet.hashing import hash_to_hex
from kernels_hub.server.xet.xorb import CHUNKS_LIMIT, RAW_LIMIT

SHARD_LIMIT = 64 * 1024 * 1024 + 1024 * 1024
"""The bytes of a shard: clients aim at 64 MiB."""

_TAG = b"HFRepoMetaData\0" + bytes.fromhex("556967456a7b815783a5bdd95ccdd14aa9")
_VERSION = 2
_RECORD = 48
_END = b"\xff" * 32
_HAS_VERIFICATION = 1 << 31
_HAS_METADATA = 1 << 30
_SEGMENTS_LIMIT = SHARD_LIMIT // _RECORD


@dataclass(frozen=True, slots=True)
class Segment:
    """Chunks `first` to `last` (exclusive) of a xorb, `length` bytes uncompressed."""

    xorb: bytes
    first: int
    last: int
    length: int


@dataclass(frozen=True, slots=True)
class ShardFile:
    """A file: its segments in order and the sha256 (hexadecimal) that they must add up to."""

    sha256: str
    segments: tuple[Segment, ...]

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return sum(segment.length for segment in self.segments)


def read_shard(stream: BinaryIO) -> Iterator[ShardFile]:
    """The files of a shard, in order. Raises MetadataError wherever it is malformed, also after them."""
    tag, version, _ = struct.unpack("<32sQQ", _read(stream, "header"))
    if tag != _TAG:
        raise MetadataError("the shard does not begin with the tag of a Xet shard")
    if version != _VERSION:
        raise MetadataError(f"the shard has version {version}, expected {_VERSION}")
    while (header := _read(stream, "list of files"))[:32] != _END:
        yield _read_file(stream, header)
    while (header := _read(stream, "list of xorbs"))[:32] != _END:
        _skip_xorb(stream, header)


def _read_file(stream: BinaryIO, header: bytes) -> ShardFile:
    name, flags, entries, _ = struct.unpack("<32sIIQ", header)
    if entries > _SEGMENTS_LIMIT:
        raise MetadataError(f"file {hash_to_hex(name)} claims {entries} segments, more than a shard can hold")
    segments = tuple(_read_segment(stream, name) for _ in range(entries))
    if flags & _HAS_VERIFICATION:
        for _ in range(entries):
            _read(stream, "list of files")
    if not flags & _HAS_METADATA:
        raise MetadataError(
            f"file {hash_to_hex(name)} comes without its sha256; a Hub stores files under it, "
            f"so upload with sha256 computed"
        )
    # Written as a Xet hash is, so in four numbers.
    return ShardFile(hash_to_hex(_read(stream, "list of files")[:32]), segments)


def _read_segment(stream: BinaryIO, name: bytes) -> Segment:
    xorb, _, length, first, last = struct.unpack("<32sIIII", _read(stream, "list of files"))
    if not first < last <= CHUNKS_LIMIT or not 0 < length <= RAW_LIMIT:
        raise MetadataError(
            f"file {hash_to_hex(name)} has a segment of chunks {first} to {last} and {length} bytes; "
            f"expected up to {CHUNKS_LIMIT} chunks and {RAW_LIMIT} bytes, and at least one of each"
        )
    return Segment(xorb, first, last, length)


def _skip_xorb(stream: BinaryIO, header: bytes) -> None:
    name, _, entries, _, _ = struct.unpack("<32sIIII", header)
    if entries > CHUNKS_LIMIT:
        raise MetadataError(
            f"xorb {hash_to_hex(name)} claims {entries} chunks, expected up to {CHUNKS_LIMIT}"
        )
    for _ in range(entries):
        _read(stream, "list of xorbs")


def _read(stream: BinaryIO, what: str) -> bytes:
    record = stream.read(_RECORD)
    if len(record) != _RECORD:
        raise MetadataError(f"the shard ends inside its {what}")
    return record
