"""The interpreter of bytecode as a library, and programs that it has loaded.

It comes along with the wheel for a platform. In a checkout, which has none, it is built only where that is asked for:
whoever has a compiler has the engine "cpp".

Environment:
    KERNELS_HUB_BYTECODE   "build": build the interpreter where it did not come along (for development, and the tests)
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
import re
import weakref
from collections.abc import Sequence
from pathlib import Path

from kernels_hub.compiler.runtime.errors import BuildError
from kernels_hub.compiler.runtime.native import numbers, pointers
from kernels_hub.compiler.runtime.toolchain import RUNTIME, build, load
from kernels_hub.cxx_compiler import find_compiler
from kernels_hub.files import read_shipped

INTERPRETER = Path(__file__).parents[1] / "interpreter"
"""The folder of its C++."""
SOURCE = "bytecode.cpp"
OPERATIONS = "bytecode_operations.h"
"""A table, included again for each use of it."""
LINKED = (
    "linked_attention.cpp", "linked_attention_narrow.cpp", "linked_convolution.cpp", "linked_convolution_narrow.cpp",
    "linked_grouped.cpp", "linked_product.cpp", "linked_product_narrow.cpp",
)  # fmt: skip
"""What the interpreter calls for products, convolutions and attention."""
SOURCES = (INTERPRETER / SOURCE, *(RUNTIME / name for name in LINKED))


def no_interpreter() -> str | None:
    """Why there is none here; None where there is one. Builds nothing."""
    if _prebuilt() is not None or (_builds() and find_compiler() is not None):
        return None
    return "its interpreter did not come along: it is in the wheels for Linux on x86-64 and aarch64"


def _builds() -> bool:
    return os.environ.get("KERNELS_HUB_BYTECODE") == "build"


def interpreter() -> ctypes.CDLL:
    """The library. Raises BuildError where there is none, and none can be built."""
    found = _prebuilt()
    return found if found is not None else _built()


@functools.cache
def _prebuilt() -> ctypes.CDLL | None:
    """From the wheel, where it was built from just these sources."""
    find = importlib.import_module("kernels_hub.layers.native.prebuilt").find
    headers = {
        path.name: read_shipped(path) for folder in (INTERPRETER, RUNTIME) for path in folder.glob("*.h")
    }
    found = [find(path.name, read_shipped(path), headers) for path in SOURCES]
    return _declared(found[0]) if all(one is not None for one in found) else None


@functools.cache
def _built() -> ctypes.CDLL:
    return _declared(load(build(source(), "bytecode", runtime=LINKED)))


def source() -> str:
    """The interpreter's own C++ as one text, which includes headers of the runtime alone."""
    seen: set[str] = set()

    def written(name: str) -> str:
        lines = []
        for line in read_shipped(INTERPRETER / name).decode().splitlines():
            included = re.fullmatch(r'#include "(bytecode\w*\.h)"', line)
            if line == "#pragma once" or (included and included[1] in seen - {OPERATIONS}):
                continue
            if included:
                seen.add(included[1])
            lines.append(written(included[1]) if included else line)
        return "\n".join(lines) + "\n"

    return written(SOURCE)


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    place, number = ctypes.c_void_p, ctypes.c_int64
    for name, result, arguments in (
        ("load", place, (place, number)),
        ("free", None, (place,)),
        ("configure", None, (place, ctypes.c_int, ctypes.c_int)),
        ("packed_bytes", number, (place, number, place)),
        ("pack", ctypes.c_int, (place, number, place, place)),
        ("prepare", ctypes.c_int, (place, place, place)),
        ("run", ctypes.c_int, (place, place, place)),
        ("step", ctypes.c_int, (place, number, place, place)),
    ):
        function = getattr(library, f"kh_bytecode_{name}")
        function.restype, function.argtypes = result, arguments
    return library


class BytecodeProgram:
    """A loaded program, called as a `runtime.native.Native` is."""

    path = Path("bytecode")

    def __init__(self, library: ctypes.CDLL, words: Sequence[int]) -> None:
        given = (ctypes.c_int64 * len(words))(*words)
        handle = library.kh_bytecode_load(ctypes.addressof(given), len(words))
        self._library, self._handle = library, handle
        weakref.finalize(self, library.kh_bytecode_free, handle)
        self.run = functools.partial(library.kh_bytecode_run, handle)
        """All kernels of a call, of the addresses of arrays of addresses and of sizes."""
        self.step = functools.partial(library.kh_bytecode_step, handle)
        """The same of one kernel, by its number."""

    def configure(self, *, use_pool: bool, flush_denormals: bool) -> None:
        """See `Native.configure`; of this program alone."""
        self._library.kh_bytecode_configure(self._handle, use_pool, flush_denormals)

    def packed_bytes(self, count: int, sizes: int = 0) -> list[int]:
        """The sizes of the packed operands."""
        ones = numbers([1] * sizes)
        return [self._library.kh_bytecode_packed_bytes(self._handle, which, ones) for which in range(count)]

    def pack(self, which: int, addresses: Sequence[int], sizes: int) -> int:
        """Fill one packed operand."""
        return int(
            self._library.kh_bytecode_pack(self._handle, which, pointers(addresses), numbers([1] * sizes))
        )

    def prepare(self, addresses: Sequence[int], sizes: int) -> int:
        """Fill what is made of weights alone; packed operands where they have an address."""
        return int(self._library.kh_bytecode_prepare(self._handle, pointers(addresses), numbers([1] * sizes)))


__all__ = ["BuildError", "BytecodeProgram", "interpreter", "no_interpreter"]
