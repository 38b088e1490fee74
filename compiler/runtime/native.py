"""A loaded program of C++, and what one is called with."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from .toolchain import load

_POINTERS = ctypes.POINTER(ctypes.c_void_p)
_SIZES = ctypes.POINTER(ctypes.c_int64)


class Loaded(Protocol):
    """A program that is loaded: native code, or bytecode with its interpreter. Its members are those of `Native`."""

    @property
    def path(self) -> Path:  # noqa: D102
        ...

    @property
    def guards(self) -> ctypes.CDLL:  # noqa: D102
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
        self.path, self.guards = path, library
        """The library, and where the functions of module_guard.h are, of programs that were generated with them."""

    def configure(self, *, use_pool: bool, flush_denormals: bool) -> None:
        """Whose threads run it (`native/parallel.h`), and whether denormal floats count as 0 during a call.

        For all who call this library in this process.
        """
        self.guards.kh_configure(use_pool, flush_denormals)

    def packed_bytes(self, count: int, sizes: int = 0) -> list[int]:  # noqa: ARG002  (of programs of bytecode)
        """The sizes of the packed operands, which depend on the instruction set."""
        return [self.guards.kh_packed_bytes(index) for index in range(count)]

    def pack(self, which: int, addresses: Sequence[int], sizes: int) -> int:
        """Fill one packed operand. sizes: how many symbols the program has."""
        return int(self.guards.kh_pack(which, pointers(addresses), numbers([1] * sizes)))

    def prepare(self, addresses: Sequence[int], sizes: int) -> int:
        """Fill what is made of weights alone; packed operands where they have an address."""
        return int(self.guards.kh_prepare(pointers(addresses), numbers([1] * sizes)))


def pointers(addresses: Sequence[int]) -> ctypes.Array[ctypes.c_void_p]:
    """Addresses as the functions take them."""
    return (ctypes.c_void_p * max(1, len(addresses)))(*addresses)


def numbers(sizes: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
    """Sizes as the functions take them."""
    return (ctypes.c_int64 * max(1, len(sizes)))(*sizes)
