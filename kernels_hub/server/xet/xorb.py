"""Xorbs as they arrive: a row of chunks, each an 8-byte header and its compressed bytes.

    version u8 | compressed length u24 | scheme u8 | uncompressed length u24      (little-endian)

Older clients append a footer that repeats hashes and offsets; both are computed here, so it is
skipped. Source: https://huggingface.co/docs/xet/xorb.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum

from lz4.frame import LZ4FrameDecompressor  # type: ignore[import-untyped]  # has none

from kernels_hub.errors import IntegrityError, MetadataError
from kernels_hub.server.xet.hashing import chunk_hash, hash_to_hex, xorb_hash

CHUNK_LIMIT = 128 * 1024
CHUNKS_LIMIT = 8 * 1024
RAW_LIMIT = 64 * 1024 * 1024
"""The uncompressed bytes of a xorb."""

_HEADER = 8
_COMPRESSED_LIMIT = 2 * CHUNK_LIMIT
_FOOTER_TAG = b"XETBLOB"
_FOOTER_LIMIT = 1024 + CHUNKS_LIMIT * (32 + 4 + 4)
XORB_LIMIT = RAW_LIMIT + CHUNKS_LIMIT * _HEADER + _FOOTER_LIMIT
"""The bytes of a xorb as it is sent: a chunk that does not compress is sent as it is."""


class Compression(IntEnum):
    """How a chunk's bytes are stored."""

    NONE = 0
    LZ4 = 1
    GROUPED_LZ4 = 2
    """Every fourth byte together, as suits 4-byte numbers; then LZ4."""


class XorbDecoder:
    """Takes a xorb's bytes in pieces of any size and gives its chunks; holds one chunk at a time.

    for piece in body:
        for chunk in decoder.feed(piece):
            ...
    lengths = decoder.finish(expected)
    """

    def __init__(self) -> None:
        self._pending = bytearray()
        self._footer = 0
        self._raw = 0
        self._chunks: list[tuple[bytes, int]] = []

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """The chunks that `piece` completes. Raises MetadataError for bytes that are no xorb."""
        if self._footer:
            self._skip_footer(len(piece))
            return
        self._pending += piece
        while len(self._pending) >= _HEADER:
            if self._pending.startswith(_FOOTER_TAG):
                self._skip_footer(len(self._pending))
                self._pending.clear()
                return
            scheme, compressed, length = self._read_header()
            if len(self._pending) < _HEADER + compressed:
                return
            body = bytes(memoryview(self._pending)[_HEADER : _HEADER + compressed])
            del self._pending[: _HEADER + compressed]
            chunk = decompress_chunk(body, scheme, length)
            self._chunks.append((chunk_hash(chunk), length))
            self._raw += length
            yield chunk

    def finish(self, expected: bytes) -> list[int]:
        """The chunks' uncompressed lengths, once the xorb is whole.

        Raises MetadataError for one that ends inside a chunk or holds none, IntegrityError where its
        hash is not `expected`.
        """
        if self._pending:
            raise MetadataError(
                f"the xorb ends inside chunk {len(self._chunks)}, {len(self._pending)} bytes after its start"
            )
        if not self._chunks:
            raise MetadataError("the xorb holds no chunk")
        actual = xorb_hash(self._chunks)
        if actual != expected:
            raise IntegrityError(
                f"the chunks make xorb {hash_to_hex(actual)}, expected {hash_to_hex(expected)}"
            )
        return [length for _, length in self._chunks]

    def _read_header(self) -> tuple[Compression, int, int]:
        header, index = self._pending, len(self._chunks)
        version, scheme = header[0], header[4]
        compressed = int.from_bytes(header[1:4], "little")
        length = int.from_bytes(header[5:8], "little")
        if version != 0:
            raise MetadataError(f"chunk {index} has version {version}, expected 0")
        if scheme not in Compression.__members__.values():
            raise MetadataError(f"chunk {index} has compression scheme {scheme}, expected 0, 1 or 2")
        if not 0 < compressed <= _COMPRESSED_LIMIT:
            raise MetadataError(f"chunk {index} has {compressed} bytes, expected 1 to {_COMPRESSED_LIMIT}")
        if not 0 < length <= CHUNK_LIMIT:
            raise MetadataError(f"chunk {index} claims {length} bytes, expected 1 to {CHUNK_LIMIT}")
        if index == CHUNKS_LIMIT:
            raise MetadataError(f"the xorb has more than {CHUNKS_LIMIT} chunks")
        if self._raw + length > RAW_LIMIT:
            raise MetadataError(f"the xorb's chunks have more than {RAW_LIMIT} bytes uncompressed")
        return Compression(scheme), compressed, length

    def _skip_footer(self, size: int) -> None:
        self._footer += size
        if self._footer > _FOOTER_LIMIT:
            raise MetadataError(f"the xorb's footer has more than {_FOOTER_LIMIT} bytes")


def decompress_chunk(body: bytes, scheme: Compression, length: int) -> bytes:
    """The `length` bytes of a chunk; never makes more. Raises MetadataError where it holds others."""
    data = body if scheme is Compression.NONE else _decompress_frame(body, length)
    if len(data) != length:
        raise MetadataError(f"a chunk decompresses to {len(data)} bytes or more, its header says {length}")
    return _ungroup(data) if scheme is Compression.GROUPED_LZ4 else data


def _decompress_frame(body: bytes, length: int) -> bytes:
    frame = LZ4FrameDecompressor()
    try:
        # One byte beyond what is wanted tells a longer frame; a bomb is never unpacked further.
        data: bytes = frame.decompress(body, max_length=length + 1)
        if len(data) == length and not frame.eof:
            data += frame.decompress(b"", max_length=1)
    except (RuntimeError, EOFError) as error:
        raise MetadataError(f"a chunk is no LZ4 frame: {error}") from error
    if len(data) == length and not frame.eof:
        raise MetadataError("a chunk's LZ4 frame is truncated")
    if frame.unused_data:
        raise MetadataError("a chunk has bytes after its LZ4 frame")
    return data


def _ungroup(grouped: bytes) -> bytes:
    data, start = bytearray(len(grouped)), 0
    for phase in range(4):
        end = start + len(data[phase::4])
        data[phase::4] = grouped[start:end]
        start = end
    return bytes(data)
