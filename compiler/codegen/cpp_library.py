"""A program, compiled and loaded: its functions as methods over addresses.

The caller owns all memory. Buffers are given as addresses, one for each of `program.buffers` and then of
`program.packed`, 64-byte aligned; an empty buffer has an address too (of at least one element). Calls release the
GIL, keep no state, and may come from several threads with buffers of their own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernels_hub.compiler.codegen.cpp import Program
from kernels_hub.compiler.codegen.toolchain import Isa, build, load
from kernels_hub.compiler.errors import EvaluateError

_POINTERS = ctypes.POINTER(ctypes.c_void_p)
_SIZES = ctypes.POINTER(ctypes.c_int64)


@dataclass(frozen=True)
class Library:
    """A loaded program."""

    path: Path
    messages: tuple[str, ...]
    _loaded: ctypes.CDLL
    _run_at: Callable[[int, int], int]
    """kh_run, of addresses as numbers: ctypes converts these in half the time."""
    _step_at: Callable[[int, int, int], int]
    """kh_step, likewise."""

    @classmethod
    def built(cls, program: Program, name: str, level: Isa | None = None) -> Library:
        """Compiled now or before. Raises BuildError."""
        return cls.opened(build(program.source, name, level, runtime=program.runtime), program.messages)

    @classmethod
    def opened(cls, path: Path, messages: tuple[str, ...]) -> Library:
        """From a file that `toolchain.build` made."""
        loaded = load(path)
        for name in ("kh_prepare", "kh_run"):
            function = getattr(loaded, name)
            function.argtypes, function.restype = (_POINTERS, _SIZES), ctypes.c_int
        loaded.kh_pack.argtypes, loaded.kh_pack.restype = (ctypes.c_int64, _POINTERS, _SIZES), ctypes.c_int
        loaded.kh_packed_bytes.argtypes, loaded.kh_packed_bytes.restype = (ctypes.c_int64,), ctypes.c_int64
        run_at, step_at = loaded["kh_run"], loaded["kh_step"]
        run_at.argtypes, run_at.restype = (ctypes.c_void_p, ctypes.c_void_p), ctypes.c_int
        step_at.argtypes, step_at.restype = (ctypes.c_int64, *run_at.argtypes), ctypes.c_int
        return cls(path, messages, loaded, run_at, step_at)

    def packed_bytes(self, program: Program) -> tuple[int, ...]:
        """The bytes of each of `program.packed`: they depend on the instruction set."""
        return tuple(self._loaded.kh_packed_bytes(place) for place in range(len(program.packed)))

    def prepare(self, buffers: Sequence[int], sizes: Sequence[int] = ()) -> None:
        """Fill the buffers that are PREPARED, and the packed ones that have an address: once."""
        self._check(self._loaded.kh_prepare(pointers(buffers), numbers(sizes)))

    def pack(self, which: int, buffers: Sequence[int], sizes: Sequence[int] = ()) -> None:
        """Fill one of `program.packed`, of its source alone."""
        self._check(self._loaded.kh_pack(which, pointers(buffers), numbers(sizes)))

    def run(self, buffers: Sequence[int], sizes: Sequence[int]) -> None:
        """All kernels of a call. Raises EvaluateError with the message of a bound that data broke."""
        self._check(self._loaded.kh_run(pointers(buffers), numbers(sizes)))

    def call(self, buffers: int, sizes: int) -> None:
        """As `run`, of the addresses of arrays that `pointers` and `numbers` made."""
        if code := self._run_at(buffers, sizes):
            self._check(code)

    def step(self, number: int, buffers: int, sizes: int) -> None:
        """One kernel of a call, of `program.steps`; the addresses are those of `call`."""
        self._check(self._step_at(number, buffers, sizes))

    def _check(self, code: int) -> None:
        if code:
            raise EvaluateError(self.messages[code - 1])


def pointers(buffers: Sequence[int]) -> ctypes.Array[ctypes.c_void_p]:
    """Addresses as the functions take them."""
    return (ctypes.c_void_p * max(1, len(buffers)))(*buffers)


def numbers(sizes: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
    """Sizes as the functions take them."""
    return (ctypes.c_int64 * max(1, len(sizes)))(*sizes)
