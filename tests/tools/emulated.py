"""Shared objects of another machine, called as `ctypes.CDLL` calls those of this one: QEMU runs them, in a process.

What a function is given travels there and back: records (bytes) and arrays, with the storages of the tensors that they
point into. Which those are is known from `Tensor.data_ptr`, which is watched. So the tests of the layers run on objects
for ARM:

    KERNELS_HUB_TEST_EMULATED=FOLDER pytest -p tests.tools.emulated tests/layers/test_activation.py

FOLDER holds what tools.wheels built, and gets an index.json under which the objects serve on this machine; calls of each
function are counted in FOLDER/calls.json. KERNELS_HUB_TEST_EMULATED_CPU names a processor, such as cortex-a57, which has
nothing but ARMv8.0; by default the emulator has all that it knows. The weight guard, which reads Python's own objects, stays this machine's.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import platform
import shutil
import struct
import subprocess
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tools.wheels import native

SETTING = "KERNELS_HUB_TEST_EMULATED"
PROCESSOR = "KERNELS_HUB_TEST_EMULATED_CPU"
SOURCE = Path(__file__).with_name("emulated_server.cpp")
SYSROOT = Path("/usr/aarch64-linux-gnu")
RUNTIME = "libgomp.so.1"
THREADS = 3
CALLS = "calls.json"
_KEPT = 512
"""Storages that are remembered: more than one call has."""


class EmulationError(RuntimeError):
    """The emulated process ended, or has no such function."""


def missing() -> str:
    """What emulation needs that is not here; "" where all of it is."""
    if shutil.which("qemu-aarch64") is None:
        return "needs qemu-aarch64 (Debian's qemu-user)"
    if not (SYSROOT / "lib" / RUNTIME).exists():
        return "needs a C library and libgomp for ARM (libc6-arm64-cross, libgomp1-arm64-cross)"
    return ""


def build_server(folder: Path) -> Path:
    """The program that runs in the emulator."""
    target = folder / "emulated_server"
    command = [*native.zig(), "c++", "-target", native.AARCH64.target, "-std=c++20", "-O1", str(SOURCE)]
    subprocess.run([*command, "-o", str(target)], check=True, capture_output=True)
    return target


class EmulatedLibrary:
    """Functions of an object for ARM, by their names."""

    def __init__(
        self, path: Path, server: Path, processor: str = "max", calls: Counter[str] | None = None
    ) -> None:
        self._path, self._lock = path, threading.Lock()
        self.calls: Counter[str] = Counter() if calls is None else calls
        environment = {**os.environ, "OMP_NUM_THREADS": str(THREADS), "OMP_WAIT_POLICY": "passive"}
        self._process = subprocess.Popen(
            ["qemu-aarch64", "-cpu", processor, "-L", str(SYSROOT), str(server), str(path), RUNTIME],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment,
        )  # fmt: skip
        atexit.register(self.close)

    def __getattr__(self, name: str) -> EmulatedFunction:
        if name.startswith("_"):
            raise AttributeError(name)
        function = EmulatedFunction(self, name)
        setattr(self, name, function)
        return function

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def call(self, name: str, arguments: tuple[Any, ...]) -> int:
        """What a function returns; its buffers are written back."""
        request = _Request(name, arguments)
        with self._lock:
            assert self._process.stdin is not None
            try:
                self._process.stdin.write(request.packed())
                self._process.stdin.flush()
                if not self._number():
                    raise EmulationError(f"{self._path} has no function {name}")
                result = self._number()
                request.write_back(self._read)
            except BrokenPipeError:
                raise self._ended(name) from None
            self.calls[name] += 1
        return result

    def _number(self) -> int:
        return int.from_bytes(self._read(8), "little", signed=True)

    def _read(self, size: int) -> bytes:
        assert self._process.stdout is not None
        data = self._process.stdout.read(size)
        if len(data) < size:
            raise self._ended("a call")
        return data

    def _ended(self, what: str) -> EmulationError:
        return EmulationError(f"{what}: the emulated process ended with {self._process.wait()}")


class EmulatedFunction:
    """One function; argtypes and restype as ctypes has them."""

    def __init__(self, library: EmulatedLibrary, name: str) -> None:
        self._library, self._name = library, name
        self.argtypes: tuple[Any, ...] = ()
        self.restype: Any = ctypes.c_int

    def __call__(self, *arguments: Any) -> int | None:
        result = self._library.call(self._name, arguments)
        if self.restype is None:
            return None
        return int(self.restype(result).value)


class _Request:
    """A call as the server reads it: addresses are places in buffers."""

    def __init__(self, name: str, arguments: tuple[Any, ...]) -> None:
        self._name = name.encode()
        self._buffers: list[tuple[int | None, bytes]] = []  # the address of a storage, None of a record
        self._numbers: dict[int, int] = {}
        self._pointers: list[int] = []
        self._arguments = [self._argument(one) for one in arguments]

    def packed(self) -> bytes:
        parts = [_words(len(self._name)), self._name, _words(len(self._buffers))]
        for _, data in self._buffers:
            parts += [_words(len(data)), data]
        parts.append(_words(len(self._pointers) // 4, *self._pointers, len(self._arguments)))
        parts += [_words(*argument) for argument in self._arguments]
        return b"".join(parts)

    def write_back(self, read: Callable[[int], bytes]) -> None:
        for address, before in self._buffers:
            after = read(len(before))
            if address is not None and after != before:
                ctypes.memmove(address, after, len(after))

    def _argument(self, given: Any) -> tuple[int, int, int]:
        if isinstance(given, bytes):
            number = self._add(None, given)
            for at in range(0, len(given) - 7, 8):
                if (place := self._place(int.from_bytes(given[at : at + 8], "little"))) is not None:
                    self._pointers += [number, at, *place]
            return 1, number, 0
        if isinstance(given, ctypes.Array):
            return 1, self._add(None, bytes(given)), 0
        value = 0 if given is None else int(given)
        place = self._place(value)
        return (0, 0, value) if place is None else (1, *place)

    def _place(self, address: int) -> tuple[int, int] | None:
        """The buffer of a storage, and how far behind its beginning an address is."""
        for start, size in _STORAGES:
            if start <= address < start + size:
                if start not in self._numbers:
                    self._numbers[start] = self._add(start, ctypes.string_at(start, size))
                return self._numbers[start], address - start
        return None

    def _add(self, address: int | None, data: bytes) -> int:
        self._buffers.append((address, data))
        return len(self._buffers) - 1


def _words(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}q", *numbers)


_STORAGES: deque[tuple[int, int]] = deque(maxlen=_KEPT)
"""Addresses and sizes, the last first: a later one takes the place of those that are gone."""
_DATA_PTR = torch.Tensor.data_ptr


def _watched(tensor: torch.Tensor) -> int:
    address = _DATA_PTR(tensor)
    storage = tensor.untyped_storage()
    _STORAGES.appendleft((storage.data_ptr(), storage.nbytes()))
    return address


def watch_storages() -> None:
    """Note the storage of each tensor whose address is asked for, from now on."""
    torch.Tensor.data_ptr = _watched  # type: ignore[method-assign,assignment]


def pytest_configure() -> None:
    """Have the objects of the folder serve, by the emulator."""
    folder = Path(os.environ[SETTING]).resolve()
    index = json.loads((folder / native.INDEX).read_text())
    serving = folder / "serving"
    serving.mkdir(exist_ok=True)
    for level in index["levels"]:
        shutil.copy(folder / level["file"], serving)
    index["machine"] = f"{platform.machine()}-{sys.platform}"
    del index["units"]["weight_guard.cpp"]
    (serving / native.INDEX).write_text(json.dumps(index))
    os.environ["KERNELS_HUB_PREBUILT"] = str(serving)
    watch_storages()
    processor = os.environ.get(PROCESSOR, "max")
    server, libraries = build_server(folder), dict[str, EmulatedLibrary]()

    class Loaded(ctypes.CDLL):
        """As ctypes.CDLL; for what serves, the emulator's."""

        def __new__(cls, name: str, *_: Any, **__: Any) -> Any:
            if not str(name).startswith(str(serving)):
                return super().__new__(cls)
            if name not in libraries:
                libraries[name] = EmulatedLibrary(Path(name), server, processor, _CALLS)
            return libraries[name]

    ctypes.CDLL = Loaded  # type: ignore[misc]


_CALLS: Counter[str] = Counter()


def pytest_unconfigure() -> None:
    """Write what was called."""
    Path(os.environ[SETTING], CALLS).write_text(json.dumps(_CALLS))
