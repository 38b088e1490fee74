"""The system that variants are matched with: software and hardware of this process, or of another."""

from __future__ import annotations

import os
import platform
import sys
import sysconfig
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from kernels_hub.repository.backends import backend_named

if TYPE_CHECKING:
    from types import ModuleType

Version = tuple[int, int]
"""Major and minor: all that a variant's name can say."""

BACKEND_VARIABLE = "KERNELS_HUB_BACKEND"

_CPU_NAMES = {"darwin": {"arm64": "aarch64"}, "windows": {"amd64": "x86_64", "arm64": "aarch64"}}


@dataclass(frozen=True)
class System:
    """A machine and its Python environment, as far as variants depend on them."""

    backend: str
    """A key of `BACKENDS`."""
    backend_version: Version | None
    """None where the backend has no versions, or where torch here was not built for it."""
    cpu: str
    os: str
    torch_version: Version | None
    cxx11_abi: bool | None
    """Of torch, on Linux only."""
    tvm_ffi_version: Version | None
    free_threaded: bool
    """A free-threaded interpreter older than 3.15: it has no stable ABI, so no arch variant loads."""
    os_version: Version | None = None
    """Of macOS only."""

    @staticmethod
    def detect(backend: str | None = None) -> System:
        """This process, seen from one backend.

        backend: a name ("cuda") or device type ("mps"). None takes what KERNELS_HUB_BACKEND names, else
            what torch was built for: the first of tpu, neuron, cuda, rocm, metal, xpu, npu, cpu. One
            that torch here was not built for is allowed, for dry runs: its version is None, so only
            noarch variants fit.

        Detected once per backend. Raises DeviceError for an unknown backend.
        """
        wanted = os.environ.get(BACKEND_VARIABLE) or None if backend is None else backend
        return _detect(None if wanted is None else backend_named(wanted).name)


@cache
def _detect(wanted: str | None) -> System:
    import torch

    here, version = _torch_backend(torch)
    os = platform.system().lower()
    machine = platform.machine()
    return System(
        backend=wanted or here,
        backend_version=version if wanted in (None, here) else None,
        cpu=_CPU_NAMES.get(os, {}).get(machine.lower(), machine),
        os=os,
        torch_version=_major_minor(torch.__version__),
        cxx11_abi=torch.compiled_with_cxx11_abi() if os == "linux" else None,
        tvm_ffi_version=_tvm_ffi_version(),
        free_threaded=sys.version_info < (3, 15) and bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
        os_version=_major_minor(platform.mac_ver()[0]) if os == "darwin" else None,
    )


def _torch_backend(torch: ModuleType) -> tuple[str, Version | None]:
    """The backend that this torch was built or extended for. Extensions come first: a neuron
    extension may be loaded into a CUDA build."""
    if hasattr(torch.backends, "tpu"):
        return "tpu", None
    if hasattr(torch, "neuron"):
        return "neuron", None
    if torch.version.cuda is not None:
        return "cuda", _major_minor(torch.version.cuda)
    if torch.version.hip is not None:
        return "rocm", _major_minor(torch.version.hip)
    if torch.backends.mps.is_available():
        return "metal", None
    if (xpu := getattr(torch.version, "xpu", None)) is not None:
        return "xpu", (int(xpu[0:4]), int(xpu[5:6]))  # "20250200" is 2025.2
    if torch._C._get_privateuse1_backend_name() == "npu":
        return "npu", _cann_version()
    return "cpu", None


def _cann_version() -> Version | None:
    try:
        from torch_npu.utils.collect_env import get_cann_version  # type: ignore[import-not-found]
    except ImportError:
        return None
    return _major_minor(get_cann_version())


def _tvm_ffi_version() -> Version | None:
    from importlib import metadata  # slow to import

    try:
        return _major_minor(metadata.version("apache-tvm-ffi"))
    except metadata.PackageNotFoundError:
        return None


def _major_minor(text: str) -> Version | None:
    """(2, 13) of "2.13.0+cpu"; None where it does not start with two numbers."""
    major, _, rest = text.partition(".")
    minor = rest[: next((i for i, c in enumerate(rest) if not c.isdigit()), len(rest))]
    return (int(major), int(minor)) if major.isdigit() and minor else None
