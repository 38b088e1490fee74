"""Messages between processes over a pair of pipes: a line of JSON, and blocks of bytes. No pickle, and a deadline.

length of the JSON (u32) | number of blocks (u32) | their lengths (u64 each) | JSON | blocks
"""

from __future__ import annotations

import json
import os
import select
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kernels_hub.compiler.errors import PlanError
from kernels_hub.escaping import json_text

MOST_JSON = 64 << 20
MOST_BLOCKS = 1 << 16
_START = struct.Struct("<II")
_CHUNK = 1 << 20

Json = dict[str, Any]
"""An object of JSON; who receives one checks what it takes."""


class Closed(Exception):
    """The other side is gone."""


class TooLate(Exception):
    """The deadline has passed."""


@dataclass
class Pipes:
    """Descriptors to read from and to write to. Those of the host do not block."""

    read: int
    write: int

    def close(self) -> None:
        """Close both."""
        for one in (self.read, self.write):
            os.close(one)

    def send(
        self, message: Json, blocks: Sequence[bytes | memoryview] = (), deadline: float | None = None
    ) -> None:
        """Send a message. Raises Closed, TooLate."""
        text = json_text(message).encode()
        sizes = struct.pack(f"<{len(blocks)}Q", *(len(block) for block in blocks))
        self._write(b"".join((_START.pack(len(text), len(blocks)), sizes, text)), deadline)
        for one in blocks:
            self._write(one, deadline)

    def receive(self, deadline: float | None = None) -> tuple[Json, list[bytearray]]:
        """A message. Raises Closed, TooLate, and PlanError for what is none."""
        length, count = _START.unpack(self._read(_START.size, deadline))
        if length > MOST_JSON or count > MOST_BLOCKS:
            raise PlanError(f"a message of {length} bytes and {count} blocks")
        sizes = struct.unpack(f"<{count}Q", self._read(8 * count, deadline))
        text = bytes(self._read(length, deadline))
        try:
            message = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise PlanError(f"a message that is no JSON: {error}") from error
        if not isinstance(message, dict):
            raise PlanError("a message that is no object")
        return message, [self._read(size, deadline) for size in sizes]

    def _write(self, data: bytes | memoryview, deadline: float | None) -> None:
        view = memoryview(data).cast("B")
        while view:
            self._wait(self.write, select.POLLOUT, deadline)
            try:
                view = view[os.write(self.write, view[:_CHUNK]) :]
            except BlockingIOError:
                continue
            except OSError as error:
                raise Closed from error

    def _read(self, size: int, deadline: float | None) -> bytearray:
        """Memory grows with what arrives, not with what is announced."""
        found = bytearray()
        while len(found) < size:
            self._wait(self.read, select.POLLIN, deadline)
            try:
                part = os.read(self.read, min(_CHUNK, size - len(found)))
            except BlockingIOError:
                continue
            if not part:
                raise Closed
            found += part
        return found

    def _wait(self, descriptor: int, event: int, deadline: float | None) -> None:
        if deadline is None:
            return
        poll = select.poll()
        poll.register(descriptor, event)
        left = deadline - time.monotonic()
        if left <= 0 or not poll.poll(1000 * left):
            raise TooLate
