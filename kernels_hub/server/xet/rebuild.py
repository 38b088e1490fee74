"""A file again, from the chunk ranges that a shard lists, checked by its sha256."""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from contextlib import ExitStack
from typing import BinaryIO, Self

from kernels_hub.errors import IntegrityError, MetadataError
from kernels_hub.server.xet.hashing import hash_to_hex
from kernels_hub.server.xet.shard import Segment, ShardFile
from kernels_hub.server.xet.spool import Area, SpooledXorb

_PIECE = 1024 * 1024
_OPEN_XORBS = 16


def rebuild(file: ShardFile, area: Area, output: BinaryIO) -> None:
    """Write the file to `output`; memory stays at a few MiB whatever its size.

    Raises MetadataError for a segment whose xorb is not in `area` or is another size, before
    anything is written, and IntegrityError where the sum is not the file's sha256.
    """
    digest = hashlib.sha256()
    with _Xorbs(area) as xorbs:
        for segment in file.segments:
            _check(segment, xorbs[segment.xorb])
        for segment in file.segments:
            xorb = xorbs[segment.xorb]
            start, end = xorb.span(segment.first, segment.last)
            for at in range(start, end, _PIECE):
                piece = os.pread(xorb.file.fileno(), min(_PIECE, end - at), at)
                digest.update(piece)
                output.write(piece)
    if digest.hexdigest() != file.sha256:
        raise IntegrityError(
            f"the chunks make a file with sha256 {digest.hexdigest()}, expected {file.sha256}"
        )


def _check(segment: Segment, xorb: SpooledXorb) -> None:
    if segment.last > len(xorb.ends):
        raise MetadataError(
            f"a segment ends with chunk {segment.last} of xorb {hash_to_hex(segment.xorb)}, "
            f"which has {len(xorb.ends)}"
        )
    start, end = xorb.span(segment.first, segment.last)
    if end - start != segment.length:
        raise MetadataError(
            f"chunks {segment.first} to {segment.last} of xorb {hash_to_hex(segment.xorb)} have "
            f"{end - start} bytes, the shard says {segment.length}"
        )


class _Xorbs:
    """The xorbs of an area by hash, the last few of them open."""

    def __init__(self, area: Area) -> None:
        self._area = area
        self._open: OrderedDict[bytes, tuple[ExitStack, SpooledXorb]] = OrderedDict()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for stack, _ in self._open.values():
            stack.close()

    def __getitem__(self, name: bytes) -> SpooledXorb:
        if name not in self._open:
            stack = ExitStack()
            self._open[name] = stack, stack.enter_context(self._area.open(name))
            if len(self._open) > _OPEN_XORBS:
                self._open.popitem(last=False)[1][0].close()
        self._open.move_to_end(name)
        return self._open[name][1]
