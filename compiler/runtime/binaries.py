"""Shipped GPU binaries: chooses the one that serves a launch, and starts it through the driver.

binaries/binaries.json lists for each program and architecture the kernels that were compiled: their constants, what
each parameter is ("*fp32" an address that is a multiple of 16, "i32", "i64", a "/16" behind it a multiple of 16),
shared memory, warps, and the file with its digest. What none serves, Triton compiles where it runs; that is said once.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ...files import read_shipped
from .driver import CUDA, HIP, Driver, DriverError
from .indexed_paths import beside
from .parts import Table

_LOGGER = logging.getLogger("kernels_hub.runtime.binaries")

FOLDER = "binaries"
INDEX = "binaries.json"
_POINTERS = {
    torch.float64: "*fp64", torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16",
    torch.int64: "*i64", torch.int32: "*i32", torch.int16: "*i16", torch.int8: "*i8", torch.uint8: "*u8",
    torch.bool: "*i1", torch.uint16: "*u16", torch.uint32: "*u32", torch.uint64: "*u64",
}  # fmt: skip
_FREE = frozenset({"BLOCK", "ROWS", "DEPTH", "num_warps", "num_stages"})
"""Constants that no result depends on, whatever the kernel."""


@dataclass(frozen=True)
class Binary:
    """A kernel that was compiled. trailing: how many addresses of scratch memory its parameters end with, all null."""

    kernel: str
    symbol: str
    file: str
    sha256: str
    constants: Mapping[str, Any]
    parameters: tuple[str, ...]
    shared: int
    warps: int
    trailing: int

    def serves(self, constants: Mapping[str, Any], arguments: Sequence[Any]) -> bool:
        """Whether a launch with these is what it was compiled for."""
        return (
            len(arguments) == len(self.parameters)
            and {name: _plain(constant) for name, constant in constants.items()} == self.constants
            and all(map(_fits, self.parameters, arguments))
        )

    def values(self, arguments: Sequence[Any]) -> list[Any]:
        """The parameters as ctypes objects."""
        arguments_of_kernel: list[Any] = []
        for kind, argument in zip(self.parameters, arguments, strict=True):
            if kind.startswith("*"):
                arguments_of_kernel.append(ctypes.c_uint64(argument.data_ptr()))
            else:
                arguments_of_kernel.append(
                    ctypes.c_int64(argument) if kind.startswith("i64") else ctypes.c_int32(argument)
                )
        return arguments_of_kernel + [ctypes.c_uint64(0) for _ in range(self.trailing)]


class Binaries:
    """Those of one architecture. stream: of the current device, the one that kernels go to."""

    def __init__(
        self,
        folder: Path,
        rows: Sequence[Binary],
        driver: Driver,
        stream: Callable[[], tuple[int, int]],
        layer: str,
    ) -> None:
        self.folder, self.driver, self.layer = folder, driver, layer
        self._stream = stream
        self._rows: dict[str, list[Binary]] = {}
        for row in rows:
            self._rows.setdefault(row.kernel, []).append(row)
        for of_kernel in self._rows.values():
            of_kernel.sort(key=lambda binary: -sum("/" in kind for kind in binary.parameters))
        self._functions: dict[tuple[int, str], ctypes.c_void_p] = {}
        self._said: set[str] = set()

    def tile(self, kernel: str, wanted: Mapping[str, int]) -> dict[str, int]:
        """The constants that a kernel was compiled with which are nearest to those that are wanted."""
        tiles = [_tile(binary) for binary in self._rows.get(kernel, ())]
        usable = [tile for tile in tiles if _replaces(tile, wanted)]
        if not usable or wanted in usable:
            return dict(wanted)
        return min(
            usable,
            key=lambda usable_tile: sum(abs(usable_tile[name] - wanted.get(name, 0)) for name in usable_tile),
        )

    def launch(
        self, kernel: str, grid: Sequence[int], arguments: Sequence[Any], constants: Mapping[str, Any]
    ) -> bool:
        """Start it; False where none of these serves."""
        binary = next(
            (candidate for candidate in self._rows.get(kernel, ()) if candidate.serves(constants, arguments)),
            None,
        )
        if binary is None:
            self._say(kernel, f"no binary of {kernel} serves sizes and dtypes of this call")
            return False
        try:
            device, stream = self._stream()
            function = self._function(binary, device)
            values = binary.values(arguments)
            self.driver.launch(function, grid, binary.warps, binary.shared, stream, values)
        except (OSError, ValueError, DriverError) as error:
            del self._rows[kernel]
            self._say(kernel, f"the binary {binary.file} cannot be used: {error}")
            return False
        return True

    def _function(self, binary: Binary, device: int) -> ctypes.c_void_p:
        key = (device, binary.file)
        if key not in self._functions:
            data = read_shipped(beside(self.folder / FOLDER, binary.file))
            if hashlib.sha256(data).hexdigest() != binary.sha256:
                raise DriverError("it is not what was published, its digest differs")
            self._functions[key] = self.driver.load(data, binary.symbol, binary.shared)
        return self._functions[key]

    def _say(self, kernel: str, reason: str) -> None:
        if kernel not in self._said:
            self._said.add(kernel)
            _LOGGER.warning("%s: %s; Triton compiles it here", self.layer, reason)


def find_binaries(folder: Path, table: Table, arch: str) -> Binaries | None:
    """Those of a program for an architecture; None where none came along for it, which is said."""
    index = folder / FOLDER / INDEX
    if not index.is_file():
        return None
    try:
        rows = read_index(index, table.source)
        if arch not in rows:
            raise ValueError(
                f"there are some for {', '.join(sorted(rows)) or 'no architecture'}, none for {arch}"
            )
        driver = Driver(HIP if torch.version.hip is not None else CUDA)
    except (OSError, ValueError, KeyError, TypeError, DriverError) as error:
        _LOGGER.warning(
            "%s: GPU binaries are not used: %s; Triton compiles the kernels here", table.layer, error
        )
        return None
    return Binaries(folder, rows[arch], driver, _current_stream, table.layer)


def read_index(index: Path, program: str) -> dict[str, tuple[Binary, ...]]:
    """Architecture -> the binaries of a program."""
    document: Any = json.loads(read_shipped(index))
    fields = [*Binary.__dataclass_fields__]
    return {
        arch: tuple(
            Binary(**{**{name: row[name] for name in fields}, "parameters": tuple(row["parameters"])})
            for row in rows
        )
        for arch, rows in document["programs"][program].items()
    }


def parameter(one: Any) -> str:
    """What an argument of a launch is, as a binary is compiled for it at its most special."""
    if isinstance(one, torch.Tensor):
        return _POINTERS[one.dtype]
    return ("i32" if -(1 << 31) <= one < 1 << 31 else "i64") + ("/16" if one % 16 == 0 else "")


def _plain(constant: Any) -> Any:
    """A constant as JSON has it: an element type of Triton's by its name."""
    return constant if isinstance(constant, (int, float, bool, str)) else str(constant)


def _fits(kind: str, one: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return kind == _POINTERS.get(one.dtype) and one.data_ptr() % 16 == 0
    bits = 31 if kind.startswith("i32") else 63
    return (
        kind.startswith("i")
        and -(1 << bits) <= one < 1 << bits
        and (not kind.endswith("/16") or one % 16 == 0)
    )


def _tile(binary: Binary) -> dict[str, int]:
    return {name: value for name, value in binary.constants.items() if name != "INDEX"}


def _replaces(tile: Mapping[str, int], wanted: Mapping[str, int]) -> bool:
    """Whether a tile gives the same result as another: rows of a reduction must fit, widths must be equal."""
    if tile.keys() != wanted.keys():
        return False
    for name in tile.keys() - _FREE:
        if name == "COLUMNS" and ("DEPTH" in tile or "WIDTH" in tile):
            continue
        if tile[name] < wanted[name] if name == "COLUMNS" else tile[name] != wanted[name]:
            return False
    return True


def _current_stream() -> tuple[int, int]:
    device = torch.cuda.current_device()
    return device, torch.cuda.current_stream(device).cuda_stream
