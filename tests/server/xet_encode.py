"""Xorbs and shards as a client writes them, for the tests: an encoder apart from the decoder tested."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import lz4.frame
import numpy as np

from kernels_hub.server.xet.hashing import chunk_hash, xorb_hash

TAG = b"HFRepoMetaData\x00UigEj{\x81W\x83\xa5\xbd\xd9\\\xcd\xd1J\xa9"
END = b"\xff" * 32 + bytes(16)
VERIFIED, SHA256 = 1 << 31, 1 << 30


def xet_words(digest: bytes) -> bytes:
    """The byte order of hashes that are read from hexadecimal."""
    return np.frombuffer(digest, ">u8").astype("<u8").tobytes()


def chunk_header(compressed: int, scheme: int, length: int, version: int = 0) -> bytes:
    return (
        bytes([version]) + compressed.to_bytes(3, "little") + bytes([scheme]) + length.to_bytes(3, "little")
    )


def encode_chunk(data: bytes, scheme: int) -> bytes:
    body = data
    if scheme == 2:
        body = b"".join(data[phase::4] for phase in range(4))
    if scheme:
        body = lz4.frame.compress(body, block_linked=False)
    return chunk_header(len(body), scheme, len(data)) + body


@dataclass
class Xorb:
    """Chunks and how each is compressed."""

    chunks: Sequence[bytes]
    schemes: Sequence[int] = ()

    @property
    def hash(self) -> bytes:
        return xorb_hash([(chunk_hash(chunk), len(chunk)) for chunk in self.chunks])

    @property
    def body(self) -> bytes:
        schemes = self.schemes or [0] * len(self.chunks)
        return b"".join(
            encode_chunk(chunk, scheme) for chunk, scheme in zip(self.chunks, schemes, strict=True)
        )


@dataclass
class File:
    """A file of a shard; its segments are (xorb hash, first, last, length)."""

    content: bytes
    segments: Sequence[tuple[bytes, int, int, int]]
    flags: int = VERIFIED | SHA256
    sha256: bytes = b""

    @property
    def body(self) -> bytes:
        parts = [struct.pack("<32sIIQ", b"f" * 32, self.flags, len(self.segments), 0)]
        parts += [
            struct.pack("<32sIIII", xorb, 0, length, first, last)
            for xorb, first, last, length in self.segments
        ]
        if self.flags & VERIFIED:
            parts += [b"v" * 32 + bytes(16)] * len(self.segments)
        if self.flags & SHA256:
            parts.append(xet_words(self.sha256 or hashlib.sha256(self.content).digest()) + bytes(16))
        return b"".join(parts)


@dataclass
class Shard:
    files: Sequence[File]
    xorbs: Sequence[Xorb] = field(default_factory=list)

    @property
    def body(self) -> bytes:
        parts = [TAG + struct.pack("<QQ", 2, 0), *(file.body for file in self.files), END]
        for xorb in self.xorbs:
            size = sum(map(len, xorb.chunks))
            parts.append(struct.pack("<32sIIII", xorb.hash, 0, len(xorb.chunks), size, 0))
            parts += [
                struct.pack("<32sIIII", chunk_hash(chunk), 0, len(chunk), 0, 0) for chunk in xorb.chunks
            ]
        return b"".join([*parts, END])


def whole_file(xorb: Xorb) -> File:
    """The file that is all of a xorb."""
    content = b"".join(xorb.chunks)
    return File(content, [(xorb.hash, 0, len(xorb.chunks), len(content))])
