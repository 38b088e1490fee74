"""The hashes of the Xet protocol: keyed BLAKE3 over chunks, and a merkle tree over those.

Source: https://huggingface.co/docs/xet/hashing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from blake3 import blake3

from kernels_hub.errors import MetadataError

HASH_SIZE = 32

_CHUNK_KEY = bytes.fromhex("6697f5775b9550de3135cbaca597181c9de421109beb2b58b4d0b04b93adf229")
_NODE_KEY = bytes.fromhex("017ec5c7a5472996fd946666b48a02e65ddd536f37c76dd2f86352e64a53713f")
_BRANCHING = 4
_SMALLEST_GROUP = 2
_LARGEST_GROUP = 2 * _BRANCHING + 1
_HEX = re.compile(r"[0-9a-f]{64}")


def chunk_hash(data: bytes) -> bytes:
    """The 32 bytes that name a chunk."""
    return blake3(data, key=_CHUNK_KEY).digest()


def xorb_hash(chunks: Sequence[tuple[bytes, int]]) -> bytes:
    """The 32 bytes that name a xorb of these (chunk hash, uncompressed length), in order.

    Neighbours are merged in groups until one is left. A group ends after its third to ninth node,
    at the first whose hash is a multiple of 4, so that an insertion moves few groups.
    """
    if not chunks:
        return bytes(HASH_SIZE)
    nodes = list(chunks)
    while len(nodes) > 1:
        merged, start = [], 0
        while start < len(nodes):
            end = _end_of_group(nodes, start)
            merged.append(_merge(nodes[start:end]))
            start = end
        nodes = merged
    return nodes[0][0]


def hash_to_hex(digest: bytes) -> str:
    """How the protocol writes a hash: as four little-endian 64-bit numbers."""
    return b"".join(digest[i : i + 8][::-1] for i in range(0, HASH_SIZE, 8)).hex()


def hash_from_hex(text: str) -> bytes:
    """The inverse of `hash_to_hex`. Raises MetadataError."""
    if not _HEX.fullmatch(text):
        raise MetadataError(f"'{text[:80]}' is not a Xet hash: expected 64 lower-case hexadecimal digits")
    swapped = bytes.fromhex(text)
    return b"".join(swapped[i : i + 8][::-1] for i in range(0, HASH_SIZE, 8))


def _end_of_group(nodes: Sequence[tuple[bytes, int]], start: int) -> int:
    end = min(start + _LARGEST_GROUP, len(nodes))
    for index in range(start + _SMALLEST_GROUP, end):
        if nodes[index][0][24] % _BRANCHING == 0:  # the lowest byte of the fourth number
            return index + 1
    return end


def _merge(group: Sequence[tuple[bytes, int]]) -> tuple[bytes, int]:
    text = "".join(f"{hash_to_hex(digest)} : {length}\n" for digest, length in group)
    return blake3(text.encode(), key=_NODE_KEY).digest(), sum(length for _, length in group)
