"""The program as native code, loaded: what came along for this machine, or what is built here at its first use."""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from .errors import BuildError, Misfit
from .knobs import knobs_for
from .parts import Table
from .prebuilt import prebuilt
from .toolchain import Isa, build, load, machine_isas
from .verified import read
from .weight_guard import Native as GuardNative

_LOGGER = logging.getLogger("kernels_hub")
_POINTERS = ctypes.POINTER(ctypes.c_void_p)
_SIZES = ctypes.POINTER(ctypes.c_int64)
_OUT_OF_RANGE = "its weights hold an index that is out of range"


class Native:
    """A loaded program. Calls release the GIL, keep no state, and may come from several threads."""

    def __init__(self, path: Path, data: bytes | None = None) -> None:
        library = load(path, data)
        library.kh_prepare.argtypes, library.kh_prepare.restype = (_POINTERS, _SIZES), ctypes.c_int
        library.kh_packed_bytes.argtypes = (ctypes.c_int64,)
        library.kh_packed_bytes.restype = ctypes.c_int64
        library.kh_pack.argtypes, library.kh_pack.restype = (ctypes.c_int64, _POINTERS, _SIZES), ctypes.c_int
        self.run = library["kh_run"]
        """0, or the number of a message: an index that is out of range. Takes the addresses of what `pointers` and
        `numbers` make: ctypes converts numbers in half the time."""
        self.run.argtypes, self.run.restype = (ctypes.c_void_p, ctypes.c_void_p), ctypes.c_int
        self.step = library.kh_step
        """The same of one kernel, by its number."""
        self.step.argtypes, self.step.restype = (ctypes.c_int64, _POINTERS, _SIZES), ctypes.c_int
        self.unchanged: int = ctypes.cast(library.kh_unchanged, ctypes.c_void_p).value or 0
        """The address of what looks at a module before a call."""
        self.guard = GuardNative.of(library)
        """What compares what weights hold."""
        self._library = library

    def packed_bytes(self, count: int) -> list[int]:
        """The sizes of the packed operands, which depend on the instruction set."""
        return [self._library.kh_packed_bytes(place) for place in range(count)]

    def pack(self, which: int, addresses: Sequence[int], sizes: int) -> None:
        """Fill one packed operand."""
        if self._library.kh_pack(which, pointers(addresses), numbers([1] * sizes)):
            raise Misfit("weights", _OUT_OF_RANGE)

    def prepare(self, addresses: Sequence[int], sizes: int) -> None:
        """Fill what is made of weights alone; packed operands where they have an address."""
        if self._library.kh_prepare(pointers(addresses), numbers([1] * sizes)):
            raise Misfit("weights", _OUT_OF_RANGE)


class Builder:
    """Loads a program once a process, and remembers why it could not."""

    def __init__(self, table: Table, folder: Path) -> None:
        self.table, self.folder = table, folder
        self._lock = threading.Lock()
        self._native: Native | None = None
        self._failed: str | None = None
        self.path: Path | None = None
        """The library that is used."""

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
            if (found := prebuilt(self.folder, self.table.source)) is not None:
                self._native, self.path = Native(*found), found[0]
                return
        except BuildError as error:
            unusable = f"the native code that came along cannot be used: {error}"
        try:
            source = read(self.folder / self.table.source).decode()
            path = build(source, self.table.layer, _level(), runtime=self.table.sources)
            self._native, self.path = Native(path), path
        except (OSError, RuntimeError) as error:
            self._failed = (
                "; ".join(one for one in (unusable, str(error).strip()) if one) or type(error).__name__
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
