"""Weights beside a model: maps of its files, which stay inside the model's folder.

A location is a relative path below the folder of the model. An absolute one, one with "..", and one that a link
leads outside, are refused: a model that came from elsewhere must not read this machine's other files. Files are
mapped once each and never copied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from kernels_hub.compiler.errors import ImportFailure
from kernels_hub.compiler.ir.types import Array, DType


class ExternalData:
    """The data files of one model."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._files: dict[str, Array] = {}

    def array(self, name: str, entries: Mapping[str, str], row: DType, shape: tuple[int, ...]) -> Array:
        """A tensor's array, a view into the mapped file. Raises ImportFailure, naming tensor and file."""
        data = self.bytes(name, entries, _packed_size(row, shape))
        if row.bits < 8:
            return unpacked(data, row, shape)
        found: Array = data.view(row.numpy.newbyteorder("<")).reshape(shape)
        return found

    def bytes(self, name: str, entries: Mapping[str, str], size: int) -> Any:
        """The bytes of a tensor, as uint8."""
        location = entries.get("location", "")
        file = self._file(name, location)
        try:
            offset = int(entries.get("offset", "0"))
            length = int(entries.get("length", str(size)))
        except ValueError as error:
            raise ImportFailure(
                f"tensor {name!r}: offset and length of its external data are no numbers"
            ) from error
        if length != size:
            raise ImportFailure(
                f"tensor {name!r} takes {size} bytes by its shape, but its external data are {length} long"
            )
        if offset < 0 or offset + size > file.size:
            raise ImportFailure(
                f"tensor {name!r} lies at {offset}..{offset + size} of {location!r}, which has {file.size} bytes"
            )
        return file[offset : offset + size]

    def _file(self, name: str, location: str) -> Array:
        known = self._files.get(location)
        if known is not None:
            return known
        path = self._path(name, location)
        try:
            data: Any = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.zeros(0, np.uint8)
        except OSError as error:
            raise ImportFailure(
                f"tensor {name!r}: its external data {location!r} cannot be read: {error}"
            ) from error
        self._files[location] = data
        return data  # type: ignore[no-any-return]

    def _path(self, name: str, location: str) -> Path:
        if self.folder is None:
            raise ImportFailure(
                f"tensor {name!r} has external data in {location!r}, and the model is not a file: give its path"
            )
        relative = PurePosixPath(location.replace("\\", "/"))
        outside = relative.is_absolute() or ".." in relative.parts or ":" in location or "\0" in location
        root = self.folder.resolve()
        path = root.joinpath(*relative.parts) if not outside and relative.parts else root
        if outside or not relative.parts or not path.resolve().is_relative_to(root):
            raise ImportFailure(
                f"tensor {name!r}: its external data {location!r} lie outside of the model's folder; "
                "a relative path below that is expected"
            )
        if not path.is_file():
            raise ImportFailure(
                f"tensor {name!r}: its external data {location!r} are missing: no file {path}"
            )
        return path


def _packed_size(row: DType, shape: tuple[int, ...]) -> int:
    count = 1
    for dim in shape:
        count *= dim
    return (count * row.bits + 7) // 8


@dataclass(frozen=True)
class FewBitElements:
    """Elements of 4 or 2 bits as they lie in a file: an array of one a byte, made when it is needed."""

    data: Array
    row: DType
    shape: tuple[int, ...]

    def __call__(self) -> Array:
        """The array."""
        return unpacked(self.data, self.row, self.shape)


def unpacked(data: object, row: DType, shape: tuple[int, ...]) -> Array:
    """Elements of 4 or 2 bits, the first in the lowest bits of each byte, one a byte."""
    each = 8 // row.bits
    count = int(np.prod(shape, dtype=np.int64))
    shifts = np.arange(each, dtype=np.uint8) * np.uint8(row.bits)
    parts = (np.asarray(data)[:, None] >> shifts) & np.uint8((1 << row.bits) - 1)
    raw = parts.reshape(-1)[:count]
    if row.kind == "int":
        sign = 1 << (row.bits - 1)
        raw = ((raw.astype(np.int8) ^ sign) - sign).view(np.uint8)
    found: Array = raw.view(row.numpy).reshape(shape)
    return found
