"""The program, built at first use and loaded: its functions over addresses."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from pathlib import Path

from .errors import Misfit
from .parts import Table
from .toolchain import build, load

_POINTERS = ctypes.POINTER(ctypes.c_void_p)
_SIZES = ctypes.POINTER(ctypes.c_int64)


class Native:
    """A loaded program. Calls release the GIL, keep no state, and may come from several threads."""

    def __init__(self, path: Path) -> None:
        library = load(path)
        for name in ("kh_prepare", "kh_run"):
            function = getattr(library, name)
            function.argtypes, function.restype = (_POINTERS, _SIZES), ctypes.c_int
        library.kh_packed_bytes.argtypes = (ctypes.c_int64,)
        library.kh_packed_bytes.restype = ctypes.c_int64
        self.run = library.kh_run
        """0, or the number of a message: an index that is out of range."""
        self._library = library

    def packed_bytes(self, count: int) -> list[int]:
        """The sizes of the packed operands, which depend on the instruction set."""
        return [self._library.kh_packed_bytes(place) for place in range(count)]

    def prepare(self, addresses: Sequence[int], sizes: int) -> None:
        """Fill what is made of weights alone."""
        if self._library.kh_prepare(pointers(addresses), numbers([1] * sizes)):
            raise Misfit("weights", "its weights hold an index that is out of range")


class Builder:
    """Builds a program once a process, and remembers why it could not."""

    def __init__(self, table: Table, source: Path) -> None:
        self.table, self.source = table, source
        self._lock = threading.Lock()
        self._native: Native | None = None
        self._failed: str | None = None

    def native(self) -> Native:
        """The program. Raises Misfit where it cannot be built here."""
        if self._native is None:
            with self._lock:
                if self._native is None and self._failed is None:
                    self._build()
        if self._native is None:
            raise Misfit("build", str(self._failed))
        return self._native

    def _build(self) -> None:
        try:
            source = self.source.read_text(encoding="utf-8")
            self._native = Native(build(source, self.table.layer, runtime=self.table.sources))
        except (OSError, RuntimeError) as error:
            self._failed = str(error).strip() or type(error).__name__


def pointers(addresses: Sequence[int]) -> ctypes.Array[ctypes.c_void_p]:
    """Addresses as the functions take them."""
    return (ctypes.c_void_p * max(1, len(addresses)))(*addresses)


def numbers(sizes: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
    """Sizes as the functions take them."""
    return (ctypes.c_int64 * max(1, len(sizes)))(*sizes)
