"""The functions of the CUDA and HIP drivers that load and launch a binary's kernel, by ctypes.

Source: CUDA Driver API, "Module Management" and "Execution Control"; HIP's module functions take the same arguments.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_HANDLE = ctypes.c_void_p
_UINT = ctypes.c_uint
_MAX_DYNAMIC_SHARED = 8
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES."""
_SHARED_WITHOUT_ASKING = 48 << 10


class DriverError(RuntimeError):
    """A function of the driver that gave an error, or a driver that is not there."""


@dataclass(frozen=True)
class Spelling:
    """Names of the library and of its functions; attribute: "" where a function needs none for much shared memory."""

    library: str
    load: str
    function: str
    attribute: str
    launch: str
    warp: int


CUDA = Spelling(
    "libcuda.so.1", "cuModuleLoadData", "cuModuleGetFunction", "cuFuncSetAttribute", "cuLaunchKernel", 32
)
HIP = Spelling("libamdhip64.so", "hipModuleLoadData", "hipModuleGetFunction", "", "hipModuleLaunchKernel", 64)


class Driver:
    """A loaded driver. Its functions act on the context that is current on the calling thread, PyTorch's."""

    def __init__(self, spelling: Spelling) -> None:
        self.spelling = spelling
        try:
            library = ctypes.CDLL(spelling.library)
            self._load = self._function(library, spelling.load, (ctypes.POINTER(_HANDLE), ctypes.c_char_p))
            self._find = self._function(
                library, spelling.function, (ctypes.POINTER(_HANDLE), _HANDLE, ctypes.c_char_p)
            )
            self._launch = self._function(
                library, spelling.launch,
                (_HANDLE, *(_UINT,) * 7, _HANDLE, ctypes.POINTER(_HANDLE), ctypes.POINTER(_HANDLE)),
            )  # fmt: skip
            self._attribute = (
                self._function(library, spelling.attribute, (_HANDLE, ctypes.c_int, ctypes.c_int))
                if spelling.attribute
                else None
            )
        except (OSError, AttributeError) as error:
            raise DriverError(f"{spelling.library}: {error}") from error

    def load(self, binary: bytes, name: str, shared: int) -> ctypes.c_void_p:
        """A kernel of a binary, loaded into the current context. shared: bytes of dynamic shared memory it is given."""
        module, function = _HANDLE(), _HANDLE()
        self._check(self.spelling.load, self._load(ctypes.byref(module), binary))
        self._check(self.spelling.function, self._find(ctypes.byref(function), module, name.encode()))
        if self._attribute is not None and shared > _SHARED_WITHOUT_ASKING:
            code = self._attribute(function, _MAX_DYNAMIC_SHARED, shared)
            self._check(self.spelling.attribute, code)
        return function

    def launch(
        self,
        function: ctypes.c_void_p,
        grid: Sequence[int],
        warps: int,
        shared: int,
        stream: int,
        values: Sequence[Any],
    ) -> None:
        """Start a kernel. values: a ctypes object for each of its parameters, in order."""
        x, y, z = (*grid, 1, 1)[:3]
        pointers = (_HANDLE * max(1, len(values)))(*(ctypes.addressof(value) for value in values))
        threads = warps * self.spelling.warp
        code = self._launch(function, x, y, z, threads, 1, 1, shared, stream, pointers, None)
        self._check(self.spelling.launch, code)

    @staticmethod
    def _function(library: ctypes.CDLL, name: str, arguments: Sequence[Any]) -> Any:
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, ctypes.c_int
        return function

    @staticmethod
    def _check(name: str, code: int) -> None:
        if code:
            raise DriverError(f"{name} gave error {code}")
