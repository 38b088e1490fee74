"""Loads native programs: shipped for this machine, or built here at their first use."""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from ...files import read_shipped
from .errors import BuildError, Misfit
from .knobs import knobs_for
from .parts import Table
from .prebuilt import prebuilt
from .toolchain import Isa, build, load, machine_isas

_LOGGER = logging.getLogger("kernels_hub.runtime.native")
_POINTERS = ctypes.POINTER(ctypes.c_void_p)
_SIZES = ctypes.POINTER(ctypes.c_int64)


class Loaded(Protocol):
    """A program that is loaded: native code, or bytecode with its interpreter. Its members are those of `Native`."""

    @property
    def path(self) -> Path:  # noqa: D102
        ...

    @property
    def run(self) -> Callable[[int, int], int]:  # noqa: D102
        ...

    @property
    def step(self) -> Callable[[int, int, int], int]:  # noqa: D102
        ...

    def configure(self, *, use_pool: bool, flush_denormals: bool) -> None:  # noqa: D102
        ...

    def packed_bytes(self, count: int, sizes: int = 0) -> list[int]:  # noqa: D102
        ...

    def pack(self, which: int, addresses: Sequence[int], sizes: int) -> int:  # noqa: D102
        ...

    def prepare(self, addresses: Sequence[int], sizes: int) -> int:  # noqa: D102
        ...


class Native:
    """A loaded program. Calls release the GIL, keep no state, and may come from several threads.

    The caller owns all memory. Buffers are given as addresses, one for each buffer and then for each packed operand,
    64-byte aligned; an empty buffer has an address too (of at least one element). What calls return is 0, or the number
    of a message, counted from 1: an index that is out of range.
    """

    def __init__(self, path: Path, data: bytes | None = None) -> None:
        library = load(path, data)
        library.kh_prepare.argtypes, library.kh_prepare.restype = (_POINTERS, _SIZES), ctypes.c_int
        library.kh_packed_bytes.argtypes = (ctypes.c_int64,)
        library.kh_packed_bytes.restype = ctypes.c_int64
        library.kh_pack.argtypes, library.kh_pack.restype = (ctypes.c_int64, _POINTERS, _SIZES), ctypes.c_int
        library.kh_configure.argtypes, library.kh_configure.restype = (ctypes.c_int, ctypes.c_int), None
        self.run = library["kh_run"]
        """All kernels of a call, of the addresses of arrays of addresses and of sizes: ctypes converts numbers in half
        the time."""
        self.run.argtypes, self.run.restype = (ctypes.c_void_p, ctypes.c_void_p), ctypes.c_int
        self.step = library["kh_step"]
        """The same of one kernel, by its number."""
        self.step.argtypes, self.step.restype = (ctypes.c_int64, *self.run.argtypes), ctypes.c_int
        self.path, self.library = path, library

    def configure(self, *, use_pool: bool, flush_denormals: bool) -> None:
        """Whose threads run it (`native/parallel.h`), and whether denormal floats count as 0 during a call.

        For all who call this library in this process.
        """
        self.library.kh_configure(use_pool, flush_denormals)

    def packed_bytes(self, count: int, sizes: int = 0) -> list[int]:  # noqa: ARG002  (of programs of bytecode)
        """The sizes of the packed operands, which depend on the instruction set."""
        return [self.library.kh_packed_bytes(index) for index in range(count)]

    def pack(self, which: int, addresses: Sequence[int], sizes: int) -> int:
        """Fill one packed operand. sizes: how many symbols the program has."""
        return int(self.library.kh_pack(which, pointers(addresses), numbers([1] * sizes)))

    def prepare(self, addresses: Sequence[int], sizes: int) -> int:
        """Fill what is made of weights alone; packed operands where they have an address."""
        return int(self.library.kh_prepare(pointers(addresses), numbers([1] * sizes)))


class Builder:
    """Loads a program once a process, and remembers why it could not."""

    def __init__(self, table: Table, folder: Path) -> None:
        self.table, self.folder = table, folder
        self._lock = threading.Lock()
        self._native: Native | None = None
        self._failed: str | None = None

    @property
    def path(self) -> Path | None:
        """The library that is used."""
        return None if self._native is None else self._native.path

    def native(self) -> Native:
        """The program. Raises Misfit where there is none for this machine and none can be built."""
        if self._native is None:
            with self._lock:
                if self._native is None and self._failed is None:
                    self._load()
        if self._native is None:
            raise Misfit("build", str(self._failed))
        return self._native

    def _load(self) -> None:
        unusable = ""
        try:
            if (library := prebuilt(self.folder, self.table.source)) is not None:
                self._native = Native(*library)
                return
        except BuildError as error:
            unusable = f"the native code that came along cannot be used: {error}"
        try:
            source = read_shipped(self.folder / self.table.source).decode()
            path = build(source, self.table.layer, _level(), runtime=self.table.sources)
            self._native = Native(path)
        except (OSError, RuntimeError) as error:
            self._failed = (
                "; ".join(reason for reason in (unusable, str(error).strip()) if reason)
                or type(error).__name__
            )
            return
        if unusable:
            _LOGGER.warning("%s: %s; it was built here", self.table.layer, unusable)


def _level() -> Isa:
    """The best instruction set level of this machine, with the flags that the table of knobs gives it."""
    level = machine_isas()[0]
    flags = knobs_for(level.name).get("flags", level.flags)
    return replace(level, flags=tuple(map(str, flags)))


def pointers(addresses: Sequence[int]) -> ctypes.Array[ctypes.c_void_p]:
    """Addresses as the functions take them."""
    return (ctypes.c_void_p * max(1, len(addresses)))(*addresses)


def numbers(sizes: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
    """Sizes as the functions take them."""
    return (ctypes.c_int64 * max(1, len(sizes)))(*sizes)
