"""Reads a model file with its weights apart, so that they are in memory once.

Parsed as one message, the bytes of a weight exist three times for a while: in the file's text, in the message, and in
what the message hands out. `read_apart` walks the fields of the model and of its graph as they lie in the file, gives
protobuf all but the `raw_data` of large initializers, and reads these into arrays of their own.

    field 7 of ModelProto: the graph; field 5 of GraphProto: an initializer; field 9 of TensorProto: its raw_data
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kernels_hub.compiler.ir.types import Array

LEAST = 4096
"""Bytes of the smallest weights that are read apart."""
_GRAPH, _INITIALIZER, _RAW = 7, 5, 9
_WINDOW = 1 << 13
_LONGEST = 20
"""Bytes of a tag and a length at most."""
MOST_FIELDS = 1 << 18
"""Fields that are walked over, at a microsecond each: a file may be nothing but fields."""
_BYTES = 2
"""The wire type of strings, bytes and messages."""
_FIXED = {1: 8, 5: 4}
"""Wire type -> bytes of a value."""


@dataclass(frozen=True)
class ModelBytes:
    """A serialized model without the data of some weights. weights: place among the initializers -> its raw_data."""

    text: bytes
    weights: dict[int, Array]


def read_apart(path: Path) -> ModelBytes:
    """The model in a file. One that is laid out in another way than writers do is read whole. Raises OSError."""
    with path.open("rb", buffering=0) as file:
        reader = _Reader(file.fileno())
        try:
            return _split(reader)
        except _OddError:
            return ModelBytes(path.read_bytes(), {})


class _OddError(Exception):
    """What the walk does not understand, and leaves to protobuf."""


class _Field(NamedTuple):
    """Where a field lies: its tag begins at `start`, its value (of length-delimited ones, the bytes) at `value`."""

    number: int
    kind: int
    start: int
    value: int
    stop: int


class _Reader:
    """Reads a file from front to back through a window, and places in it apart."""

    def __init__(self, file: int) -> None:
        self._file, self.size = file, os.fstat(file).st_size
        self._begin, self._data = 0, b""
        self._left = MOST_FIELDS

    def bytes(self, start: int, stop: int) -> bytes:
        """Raises _OddError where the file ends before."""
        first = start - self._begin
        if first < 0 or stop - self._begin > len(self._data):
            self._begin, self._data = start, os.pread(self._file, max(stop - start, _WINDOW), start)
            first = 0
        found = self._data[first : first + stop - start]
        if len(found) < stop - start:
            raise _OddError
        return found

    def array(self, start: int, stop: int) -> Array:
        """As `bytes`, in aligned memory of its own."""
        found = np.empty(stop - start, np.uint8)
        view, done = found.data, 0
        while done < len(view):
            count = os.preadv(self._file, [view[done:]], start + done)
            if not count:
                raise _OddError
            done += count
        found.flags.writeable = False
        return found

    def fields(self, at: int, stop: int) -> Iterator[_Field]:
        """The fields of a message that lies there. Raises _OddError for what is none, and for too many."""
        while at < stop:
            self._left -= 1
            if self._left < 0:
                raise _OddError
            head = self.bytes(at, min(at + _LONGEST, stop))
            tag, used = _varint(head, 0)
            kind, value = tag & 7, at + used
            if kind == _BYTES:
                length, used = _varint(head, used)
                value = at + used
                end = value + length
            elif kind == 0:
                end = at + _varint(head, used)[1]
            elif kind in _FIXED:
                end = value + _FIXED[kind]
            else:
                raise _OddError
            if end > stop:
                raise _OddError
            yield _Field(tag >> 3, kind, at, value, end)
            at = end


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of 7 bits a byte, and where it ends."""
    value = shift = 0
    for byte in data[at:]:
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise _OddError


def _split(reader: _Reader) -> ModelBytes:
    graphs = [field for field in reader.fields(0, reader.size) if field.number == _GRAPH]
    if len(graphs) != 1 or graphs[0].kind != _BYTES:
        raise _OddError
    (graph,) = graphs
    parts: list[bytes] = []
    weights: dict[int, Array] = {}
    copied, place = graph.value, 0
    for field in reader.fields(graph.value, graph.stop):
        if field.number != _INITIALIZER:
            continue
        if field.kind != _BYTES:
            raise _OddError
        raw = _raw(reader, field) if field.stop - field.value >= LEAST else None
        if raw is not None:
            parts.append(reader.bytes(copied, field.start))
            rest = reader.bytes(field.value, raw.start) + reader.bytes(raw.stop, field.stop)
            parts += (_tag(_INITIALIZER, len(rest)), rest)
            weights[place] = reader.array(raw.value, raw.stop)
            copied = field.stop
        place += 1
    parts.append(reader.bytes(copied, graph.stop))
    inside = sum(map(len, parts))
    text = (
        reader.bytes(0, graph.start), _tag(_GRAPH, inside), *parts, reader.bytes(graph.stop, reader.size),
    )  # fmt: skip
    return ModelBytes(b"".join(text), weights)


def _raw(reader: _Reader, tensor: _Field) -> _Field | None:
    """Where the data of an initializer lie, if it has large ones as raw bytes, once."""
    found = [field for field in reader.fields(tensor.value, tensor.stop) if field.number == _RAW]
    if len(found) == 1 and found[0].kind == _BYTES and found[0].stop - found[0].value >= LEAST:
        return found[0]
    return None


def _tag(number: int, length: int) -> bytes:
    made = bytearray([number << 3 | _BYTES])
    while length > 127:
        made.append(length & 127 | 128)
        length >>= 7
    made.append(length)
    return bytes(made)
