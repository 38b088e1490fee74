"""Resolves device names ("best", "cpu", "cuda:1") to the devices of this machine; says which engines run there."""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING

from kernels_hub.compiler.engines.engine import Device
from kernels_hub.compiler.errors import CompilerError
from kernels_hub.cxx_compiler import find_compiler

if TYPE_CHECKING:
    import torch

_SIMD = {"AVX512": "avx512", "AVX2": "avx2"}


def find_device(spec: str | Device | torch.device = "best") -> Device:
    """The device, with what code is generated for. "best": a GPU where there is one.

    Raises CompilerError for one that there is not.
    """
    import torch

    if isinstance(spec, Device):
        return (
            spec
            if spec.arch
            else find_device(spec.type if spec.type == "cpu" else f"{spec.type}:{spec.index}")
        )
    if not isinstance(spec, str | torch.device):
        raise CompilerError(
            f"a device is a name such as 'cpu', not a {type(spec).__name__}; "
            f"the inputs of a module go with it: compile((module, inputs), 'cpu')"
        )
    text = str(spec)
    if text == "best":
        text = "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, index = text.partition(":")
    if kind == "cpu" and index in {"", "0"}:
        return Device("cpu", 0, _SIMD.get(torch.backends.cpu.get_cpu_capability(), "baseline"))
    if text in {"mps", "mps:0"}:
        if not torch.backends.mps.is_available():
            raise CompilerError(
                f"the device {text!r} is not on this machine: torch {torch.__version__} finds no such GPU"
            )
        return Device("mps")
    if kind not in {"cuda", "rocm"} or (index and not index.isdigit()):
        raise CompilerError(f"there is no device {text!r}; there are best, cpu, cuda:N, rocm:N and mps")
    here = "rocm" if torch.version.hip else "cuda"
    if not torch.cuda.is_available() or (kind == "rocm" and here != "rocm"):
        raise CompilerError(
            f"the device {text!r} is not on this machine: torch {torch.__version__} finds no such GPU"
        )
    number = int(index or torch.cuda.current_device())
    if number >= (count := torch.cuda.device_count()):
        raise CompilerError(f"the device {text!r} is not on this machine, which has {count} GPUs")
    return Device(here, number, _gpu_arch(number))


def no_triton(device: Device) -> str | None:
    """Why Triton kernels cannot run on a device; None where they can."""
    import torch

    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if device.type not in ({"cpu"} if interpreted else {"cuda", "rocm"}):
        return f"it runs on GPUs, not on {device}" if not interpreted else "TRITON_INTERPRET=1 is for the CPU"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if not interpreted and not torch.cuda.is_available():
        return f"this PyTorch ({torch.__version__}) sees no GPU"
    return None


def no_metal(device: Device) -> str | None:
    """Why Metal kernels cannot run on a device; None where they can."""
    import torch

    if device.type != "mps":
        return f"it runs on MPS devices, not on {device}"
    if not torch.backends.mps.is_available():
        return f"this PyTorch ({torch.__version__}) sees no MPS device"
    return None


def no_bytecode(device: Device) -> str | None:
    """Why the engine "bytecode" runs nothing on a device, whatever its interpreter is; None where it may.

    KERNELS_HUB_BYTECODE=build has it take part beside a compiler, which builds its interpreter.
    """
    if (reason := no_cpp(device)) is not None:
        return reason
    if os.environ.get("KERNELS_HUB_BYTECODE") == "build" or find_compiler() is None:
        return None
    return (
        "cpp makes the same kernels with the C++ compiler that is here (KERNELS_HUB_CXX=none: bytecode runs)"
    )


def no_cpp(device: Device) -> str | None:
    """Why C++ kernels cannot run on a device; None where they can."""
    return None if device.type == "cpu" else f"it runs on the CPU, not on {device}"


def synchronize(device: torch.device) -> None:
    """Wait until all that was started on a device is done."""
    import torch

    if device.type != "cpu":
        torch.cuda.synchronize(device)


def _gpu_arch(number: int) -> str:
    import torch

    if torch.version.hip:
        name: str = torch.cuda.get_device_properties(number).gcnArchName
        return name.partition(":")[0]
    major, minor = torch.cuda.get_device_capability(number)
    return f"sm_{major}{minor}"
