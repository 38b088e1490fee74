"""The interpreter of bytecode as a library.

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
from pathlib import Path

from kernels_hub.compiler.runtime.bytecode import declared
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
    "linked_fourier.cpp", "linked_grouped.cpp", "linked_product.cpp", "linked_product_narrow.cpp",
)  # fmt: skip
"""What the interpreter calls for products, convolutions, transforms and attention."""
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
    return declared(found[0]) if all(one is not None for one in found) else None


@functools.cache
def _built() -> ctypes.CDLL:
    return declared(load(build(source(), "bytecode", runtime=LINKED)))


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
