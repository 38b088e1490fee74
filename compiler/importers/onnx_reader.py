"""Reads a model file into the messages of `onnx_messages`, field by field as they lie in it, weights once.

Parsed by protobuf, the bytes of a weight exist three times for a while: in the file's text, in the message, and in what
the message hands out. Here a file is read in pieces of `_WINDOW` bytes. What does not fit into one is taken apart, and
the `raw_data` of a tensor that does not is read into an array of its own.

A file that writers do not make, and protobuf takes or refuses in its own words, is left to that: `OddError`. Such are
messages in two parts, fields of other wire types, names that are long or no text, and whatever is cut off.
"""

from __future__ import annotations

import os
import struct
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np

from kernels_hub.compiler.importers.onnx_messages import LONGEST_NAME, Message, ModelProto, short_name
from kernels_hub.compiler.ir.types import Array

_WINDOW = 1 << 16
MOST_FIELDS = 1 << 18
"""Fields that are read, at a microsecond each: a file may be nothing but fields."""
_DEEPEST = 50
"""Messages in messages; protobuf takes 100."""
_RUN = 1 << 12
"""Numbers of one field that are read at once."""
_FEW = 64
"""Bytes of numbers that are read one by one."""

_NAMES, _NAME, _MESSAGES, _MESSAGE = range(4)
_BYTES, _MANY_BYTES, _TEXT, _PACKED, _INT, _INT32, _INTS, _FLOAT, _FLOATS = range(4, 13)
_CODES = {
    ("name", True): _NAMES, ("name", False): _NAME, ("message", True): _MESSAGES, ("message", False): _MESSAGE,
    ("int", False): _INT, ("int32", False): _INT32, ("bytes", False): _BYTES, ("bytes", True): _MANY_BYTES,
    ("text", False): _TEXT, ("float", False): _FLOAT, ("int", True): _INTS, ("float", True): _FLOATS,
}  # fmt: skip
_WIRES = {_INT: 0, _INT32: 0, _INTS: 0, _FLOAT: 5, _FLOATS: 5}
"""Wire type of a code's values; 2, for what has a length, of all others."""
_FIXED: dict[str, np.dtype[Any]] = {"float": np.dtype("<f4"), "double": np.dtype("<f8")}
_NUMBER = struct.Struct("<f").unpack_from


_Held = dict[str, Any]
"""What is set of a message: field -> value."""
_Row = tuple[int, str, Any, Any]
"""(code, name of the field, class of its messages or kind of its numbers, that class's rows)"""


class _Rows(dict[int, _Row]):
    """How a message is read: tag -> row."""

    def __init__(self, of: type[Message]) -> None:
        self.numbers, self.only_one = frozenset(of.fields), of.only_one


class OddError(Exception):
    """What the reader does not understand, and leaves to protobuf."""


def read_file(path: Path) -> ModelProto:
    """The model in a file. Raises OddError, OSError."""
    with path.open("rb", buffering=0) as file:
        return _Reader(_File(file)).model()


def read_bytes(data: bytes) -> ModelProto:
    """The model in bytes. Raises OddError."""
    return _Reader(_InMemory(data)).model()


class _File:
    """Places in a file."""

    def __init__(self, file: FileIO) -> None:
        self._file, self.size = file, os.fstat(file.fileno()).st_size

    def bytes(self, start: int, stop: int) -> bytes:
        """What lies there, or less where the file ends before."""
        self._file.seek(start)
        return self._file.read(stop - start)

    def array(self, start: int, stop: int) -> Array:
        """As `bytes`, in aligned memory of its own. Raises OddError where the file ends before."""
        found = np.empty(stop - start, np.uint8)
        view, done = found.data, 0
        self._file.seek(start)
        while done < len(view):
            count = self._file.readinto(view[done:])
            if not count:
                raise OddError
            done += count
        found.flags.writeable = False
        return found


class _InMemory:
    """Places in bytes."""

    def __init__(self, data: bytes) -> None:
        self._data, self.size = data, len(data)

    def bytes(self, start: int, stop: int) -> bytes:
        """What lies there."""
        return self._data[start:stop]

    def array(self, start: int, stop: int) -> Array:
        """As `bytes`, in aligned memory of its own."""
        found = np.frombuffer(self._data, np.uint8, stop - start, start).copy()
        found.flags.writeable = False
        return found


class _Reader:
    """Reads messages from a source, front to back."""

    def __init__(self, source: _File | _InMemory) -> None:
        self._source = source
        self._left = MOST_FIELDS

    def model(self) -> ModelProto:
        """The model that it is. Raises OddError."""
        try:
            model = self._message(ModelProto, 0, self._source.size, 0)
        except UnicodeDecodeError as error:
            raise OddError from error
        assert isinstance(model, ModelProto)
        return model

    def _message(self, of: type[Message], start: int, stop: int, depth: int) -> Message:
        """A message that may be larger than a window."""
        made, rows, at = object.__new__(of), _rows(of), start
        if depth > _DEEPEST:
            raise OddError
        while at < stop:
            data = self._source.bytes(at, min(at + _WINDOW, stop))
            done = self._fill(made.__dict__, rows, data, 0, len(data), depth)
            at += done or self._large(made.__dict__, rows, data, at, stop, depth)
        return made

    def _large(self, held: _Held, rows: _Rows, data: bytes, at: int, stop: int, depth: int) -> int:
        """Read a field that does not fit into a window; the bytes that it takes."""
        try:
            tag, head = _varint(data, 0)
            size, head = _varint(data, head)
        except IndexError:
            raise OddError from None
        end = at + head + size
        row = rows.get(tag)
        if tag & 7 != 2 or end > stop:
            raise OddError
        if row is None:
            _check_unknown(rows, tag)
        elif row[0] in {_MESSAGES, _MESSAGE}:
            _enter(held, row[0], row[1], self._message(row[2], at + head, end, depth + 1))
            if rows.only_one and len(held) > 1:
                raise OddError
        elif row[0] == _BYTES:
            held[row[1]] = self._source.array(at + head, end)
        else:
            whole = self._source.bytes(at, end)
            if self._fill(held, rows, whole, 0, len(whole), depth) != head + size:
                raise OddError
        return head + size

    def _fill(self, held: _Held, rows: _Rows, data: bytes, at: int, end: int, depth: int) -> int:
        """Read the fields that lie there into what a message holds; where the first begins that is cut off."""
        start, count = at, 0
        try:
            while at < end:
                start, count = at, count + 1
                tag = data[at]
                at += 1
                if tag > 127:
                    tag, at = _varint(data, start)
                row = rows.get(tag)
                if row is None or row[0] > _MESSAGE:
                    at = _plain(held, rows, row, tag, data, at, end)
                    if at < 0:
                        return start
                    continue
                code, name, of, its_rows = row
                size = data[at]
                at += 1
                if size > 127:
                    size, at = _varint(data, at - 1)
                stop = at + size
                if stop > end:
                    return start
                if code <= _NAME:
                    made = data[at:stop].decode()
                    if len(made) > LONGEST_NAME:
                        made = short_name(made)
                else:
                    made = object.__new__(of)
                    if (
                        depth > _DEEPEST
                        or self._fill(made.__dict__, its_rows, data, at, stop, depth + 1) != stop
                    ):
                        raise OddError
                at = stop
                if code == _NAME:
                    held[name] = made
                else:
                    _enter(held, code, name, made)
        except IndexError:
            return start
        finally:
            self._left -= count
        if self._left < 0 or (rows.only_one and len(held) > 1):
            raise OddError
        return at


def _rows(of: type[Message]) -> _Rows:
    rows = _ROWS.get(of)
    if rows is None:
        rows = _ROWS[of] = _Rows(of)
        for number, field in of.fields.items():
            code = _CODES.get((field.kind, field.many), _PACKED)
            its_rows = None if field.of is None else _rows(field.of)
            rows[number << 3 | _WIRES.get(code, 2)] = (code, field.name, field.of or field.kind, its_rows)
            if code in {_INTS, _FLOATS}:
                rows[number << 3 | 2] = (_PACKED, field.name, field.kind, None)
    return rows


_ROWS: dict[type[Message], _Rows] = {}


def _enter(held: _Held, code: int, name: str, made: object) -> None:
    """Raises OddError for a message in two parts."""
    if code == _MESSAGE:
        if name in held:
            raise OddError
        held[name] = made
    elif name in held:
        held[name].append(made)
    else:
        held[name] = [made]


def _plain(
    held: _Held, rows: _Rows, row: _Row | None, tag: int, data: bytes, at: int, end: int
) -> int:  # fmt: skip
    """Enter what is neither a name nor a message, or pass over it; where it ends, or -1 for what is cut off."""
    if row is None:
        stop = _pass_over(rows, tag, data, at)
        return stop if stop <= end else -1
    code, name, of, _ = row
    if code >= _FLOAT:
        if at + 4 > end:
            return -1
        (number,) = _NUMBER(data, at)
        return _number(held, name, number, code == _FLOATS, tag, data, at + 4, end)
    number, at = _varint(data, at)
    if code >= _INT:
        if at > end:
            return -1
        if code == _INT32 and number >= 1 << 31:
            raise OddError
        return _number(held, name, number - (number >> 63 << 64), code == _INTS, tag, data, at, end)
    stop = at + number
    if stop > end:
        return -1
    made = data[at:stop]
    if code == _MANY_BYTES:
        _enter(held, code, name, made)
    elif code == _PACKED:
        if name in held:
            raise OddError
        held[name] = _packed(made, of)
    else:
        held[name] = made if code == _BYTES else made.decode()
    return stop


def _number(
    held: _Held, name: str, number: float, many: bool, tag: int, data: bytes, at: int, end: int
) -> int:  # fmt: skip
    """Enter a number, and those that follow it in the same field; where they end."""
    if not many:
        held[name] = number
        return at
    known = held.setdefault(name, [])
    if not isinstance(known, list):  # others were packed
        raise OddError
    known.append(number)
    if end - at >= _FEW and data[at] == tag < 128:
        more, at = (_run if tag & 7 == 0 else _float_run)(data, at, end, tag)
        known += more
    return at


def _pass_over(rows: _Rows, tag: int, data: bytes, at: int) -> int:
    """Where a field ends that is not read."""
    _check_unknown(rows, tag)
    wire = tag & 7
    if wire == 0:
        return _varint(data, at)[1]
    if wire == 2:
        size, at = _varint(data, at)
        return at + size
    return at + (8 if wire == 1 else 4)


def _check_unknown(rows: _Rows, tag: int) -> None:
    """Raise OddError for a field that may not be passed over: a known one of another wire type, or a group."""
    if tag >> 3 in rows.numbers or tag & 7 in {3, 4, 6, 7} or not tag >> 3:
        raise OddError


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of 7 bits a byte, and where it ends. Raises IndexError where it is cut off."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & (1 << 64) - 1, at
        shift += 7
        if shift > 63:
            raise OddError


def _float_run(data: bytes, at: int, end: int, tag: int) -> tuple[list[float], int]:
    """Numbers that follow each other, each behind a tag of one byte, and where they end."""
    found = np.frombuffer(data, np.uint8, min(_RUN, (end - at) // 5) * 5, at).reshape(-1, 5)
    own = found[:, 0] == tag
    count = len(own) if own.all() else int(own.argmin())
    numbers: list[float] = found[:count, 1:].copy().view("<f4")[:, 0].tolist()
    return numbers, at + 5 * count


def _run(data: bytes, at: int, end: int, tag: int) -> tuple[list[int], int]:
    """As `_float_run`, of whole numbers."""
    found = np.frombuffer(data, np.uint8, min(4 * _RUN, end - at), at)
    ends = np.flatnonzero(found < 128)
    ends = ends[: len(ends) // 2 * 2]
    tags, stops = ends[::2], ends[1::2]
    own = found[tags] == tag
    own[1:] &= tags[1:] == stops[:-1] + 1
    count = len(own) if own.all() else int(own.argmin())
    if not count:
        return [], at
    numbers: list[int] = _numbers(found, tags[:count] + 1, stops[:count] + 1).view(np.int64).tolist()
    return numbers, at + int(stops[count - 1]) + 1


def _packed(data: bytes, kind: str) -> Array:
    """Numbers without tags, one after the other. Raises OddError."""
    if kind in _FIXED:
        if len(data) % _FIXED[kind].itemsize:
            raise OddError
        return np.frombuffer(data, _FIXED[kind])
    found = np.frombuffer(data, np.uint8)
    stops = np.flatnonzero(found < 128) + 1
    if len(found) and (not len(stops) or stops[-1] != len(found)):
        raise OddError
    numbers = (
        _numbers(found, np.concatenate(([0], stops[:-1])), stops) if len(found) else np.zeros(0, np.uint64)
    )
    if kind == "uint":
        return numbers
    signed = numbers.view(np.int64)
    if kind == "int32" and (signed != signed.astype(np.int32)).any():
        raise OddError
    return signed


def _numbers(data: Array, starts: Array, stops: Array) -> Array:
    lengths = stops - starts
    longest = int(lengths.max())
    if longest > 10:
        raise OddError
    total = np.zeros(len(starts), np.uint64)
    for place in range(longest):
        inside = lengths > place
        part = (data[starts[inside] + place] & 127).astype(np.uint64)
        total[inside] |= part << np.uint64(7 * place)
    return total
