"""A program of bytecode, and the interpreter that runs it where there is no C++ compiler.

A file holds the very kernels that the C++ beside it has, as numbers (words). The interpreter comes along built in the
wheels of kernels_hub, which is looked for and not imported: under other clients, too, a layer finds it where it is
installed.

    kernels_hub bytecode <format> <sha256 of the words>     a line
    the words, 64 bits each, little-endian, compressed by zlib

Environment:
    KERNELS_HUB_PREBUILT   a folder that takes the place of that in the library; "ignore": none is used
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import json
import os
import platform
import sys
import weakref
import zlib
from array import array
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...files import read_shipped
from .errors import BuildError
from .indexed_paths import beside
from .native import numbers, pointers

FORMAT = 1
"""As kFormat in interpreter/bytecode.h."""
TRANSFORMS = 2
"""As kTransforms there: that of words with Fourier transforms, in which all others mean the same."""
SUFFIX = ".bytecode"
"""Of a program's file, where its source has ".cpp"."""
_MARK = "kernels_hub bytecode"
_INDEX = "index.json"


class BytecodeProgram:
    """A loaded program, called as a `native.Native` is. path: the file that it was read from."""

    def __init__(self, library: ctypes.CDLL, words: Sequence[int], path: Path = Path("bytecode")) -> None:
        given = (ctypes.c_int64 * len(words))(*words)
        handle = library.kh_bytecode_load(ctypes.addressof(given), len(words))
        self.path, self.guards = path, library
        self._handle = handle
        weakref.finalize(self, library.kh_bytecode_free, handle)
        self.run = functools.partial(library.kh_bytecode_run, handle)
        """All kernels of a call, of the addresses of arrays of addresses and of sizes."""
        self.step = functools.partial(library.kh_bytecode_step, handle)
        """The same of one kernel, by its number."""

    def configure(self, *, use_pool: bool, flush_denormals: bool) -> None:
        """See `Native.configure`; of this program alone."""
        self.guards.kh_bytecode_configure(self._handle, use_pool, flush_denormals)

    def packed_bytes(self, count: int, sizes: int = 0) -> list[int]:
        """The sizes of the packed operands."""
        ones = numbers([1] * sizes)
        return [self.guards.kh_bytecode_packed_bytes(self._handle, which, ones) for which in range(count)]

    def pack(self, which: int, addresses: Sequence[int], sizes: int) -> int:
        """Fill one packed operand."""
        return int(
            self.guards.kh_bytecode_pack(self._handle, which, pointers(addresses), numbers([1] * sizes))
        )

    def prepare(self, addresses: Sequence[int], sizes: int) -> int:
        """Fill what is made of weights alone; packed operands where they have an address."""
        return int(self.guards.kh_bytecode_prepare(self._handle, pointers(addresses), numbers([1] * sizes)))


def declared(library: ctypes.CDLL) -> ctypes.CDLL:
    """The interpreter's library, with the types of its functions. Raises AttributeError for one without them."""
    place, number = ctypes.c_void_p, ctypes.c_int64
    for name, result, arguments in (
        ("runs", ctypes.c_int, (number,)),
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


def load_bytecode(path: Path) -> BytecodeProgram:
    """The program of a file. Raises OSError without it, BuildError where it is damaged, or no interpreter runs it."""
    data = read_shipped(path)
    words = read_words(data, path)
    return BytecodeProgram(interpreter(int(_head(data)[1])), words, path)


def write_words(words: Sequence[int], form: int = FORMAT) -> bytes:
    """The content of a file. form: of the words."""
    given = _little(array("q", words)).tobytes()
    return f"{_MARK} {form} {hashlib.sha256(given).hexdigest()}\n".encode() + zlib.compress(given, 9)


def read_words(data: bytes, path: Path) -> Sequence[int]:
    """What a file holds. Raises BuildError for another format, and where it is not what was written."""
    mark, form, digest = _head(data)
    if mark != _MARK:
        raise BuildError(f"{path} is no bytecode")
    if form not in {str(FORMAT), str(TRANSFORMS)}:
        raise BuildError(
            f"{path} is bytecode of format {form[:8]}, this layer's runtime loads formats {FORMAT} to {TRANSFORMS}"
        )
    with suppress(zlib.error):
        words = zlib.decompress(data.partition(b"\n")[2])
        if hashlib.sha256(words).hexdigest() == digest:
            return _little(array("q", words))
    raise BuildError(f"{path} is damaged: its words are not what was published")


def _head(data: bytes) -> Sequence[str]:
    """The mark, the format and the digest of a file; nothing of what is no bytecode."""
    head = data.partition(b"\n")[0]
    return head.decode("ascii", "replace").rsplit(" ", 2) if head.count(b" ") > 1 else ("", "", "")


def _little(words: array[int]) -> array[int]:
    if sys.byteorder == "big":
        words.byteswap()
    return words


def no_interpreter() -> str | None:
    """Why there is none here; None where there is one."""
    try:
        interpreter()
    except BuildError as error:
        return str(error)
    return None


def interpreter(form: int = FORMAT) -> ctypes.CDLL:
    """The interpreter of the installed kernels_hub. Raises BuildError, which says why, without one for a format."""
    folder = _folder()
    if folder is None:
        raise BuildError(
            "bytecode needs the interpreter in the wheels of kernels-hub for Linux, and none is installed"
        )
    return _interpreter(folder, form)


def _folder() -> Path | None:
    folders: list[Path] = []
    if setting := os.environ.get("KERNELS_HUB_PREBUILT"):
        folders += [] if setting == "ignore" else [Path(setting)]
    else:
        with suppress(ValueError):  # a module that was made by hand
            found = importlib.util.find_spec("kernels_hub")
            places = None if found is None else found.submodule_search_locations
            folders += (Path(one) / "prebuilt" for one in places or ())
    return next((one for one in folders if (one / _INDEX).is_file()), None)


@functools.cache
def _interpreter(folder: Path, form: int) -> ctypes.CDLL:
    reasons = []
    try:
        index: dict[str, Any] = json.loads((folder / _INDEX).read_bytes())
        if index["machine"] != (here := f"{platform.machine()}-{sys.platform}"):
            raise BuildError(
                f"the interpreter of bytecode in {folder} is for {index['machine']}, this is {here}"
            )
        for level in index["levels"]:
            path = beside(folder, level["file"])
            if hashlib.sha256(path.read_bytes()).hexdigest() != level["sha256"]:
                reasons.append(f"{path} is damaged")
                continue
            library = ctypes.CDLL(str(path))
            if not library.kh_runs_here():
                reasons.append(f"this processor lacks an instruction set of {path.name}")
            elif not declared(library).kh_bytecode_runs(form):
                reasons.append(f"{path} runs another format of bytecode than {form}")
            else:
                return library
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reasons.append(f"{folder} holds none of this layer's: {type(error).__name__} {error}")
    raise BuildError(f"no interpreter of kernels_hub runs its bytecode: {'; '.join(reasons)}")
