"""Devices: what a mapping is keyed by, and what a model lies on."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from kernels_hub.errors import DeviceError

if TYPE_CHECKING:
    import torch
    from torch import nn

DEVICE_TYPES = ("cpu", "cuda", "rocm", "mps", "xpu", "npu", "neuron", "tpu")
"""Every device type that a mapping may name."""

_ALIASES = {"metal": "mps", "hip": "rocm"}


@dataclass(frozen=True)
class CapabilityProperties:
    """An inclusive range of compute capabilities, as integers: 7.5 is 75, 9.0 is 90."""

    min_capability: int
    max_capability: int = sys.maxsize

    def __post_init__(self) -> None:
        for name in ("min_capability", "max_capability"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool):
                raise DeviceError(
                    f"{type(self).__name__}.{name} must be an integer such as 90 for 9.0, got {value!r}"
                )
        if self.min_capability > self.max_capability:
            raise DeviceError(
                f"{type(self).__name__}: min_capability {self.min_capability} is above "
                f"max_capability {self.max_capability}"
            )

    def __contains__(self, capability: int) -> bool:
        return self.min_capability <= capability <= self.max_capability

    @property
    def width(self) -> int:
        """Size of the interval: the narrowest one that fits is chosen."""
        return self.max_capability - self.min_capability


class CUDAProperties(CapabilityProperties):
    """A range of CUDA compute capabilities: `CUDAProperties(75, 89)` is 7.5 up to 8.9."""


class ROCMProperties(CapabilityProperties):
    """A range of ROCm architectures: `ROCMProperties(94, 94)` is gfx94x (major 9, minor 4)."""


_PROPERTIES: dict[str, type[CapabilityProperties]] = {"cuda": CUDAProperties, "rocm": ROCMProperties}


@dataclass(frozen=True)
class Device:
    """A device type, with a range of capabilities where the type has them.

    type: "cpu", "cuda", "rocm", "mps" (or "metal"), "xpu", "npu", "neuron", "tpu".
    properties: CUDAProperties for "cuda", ROCMProperties for "rocm", else None.

    Raises DeviceError (a ValueError) for an unknown type, or properties of another type.
    """

    type: str
    properties: CapabilityProperties | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.type, str):
            raise DeviceError(f"a device type is a string such as 'cuda', got {self.type!r}")
        object.__setattr__(self, "type", _ALIASES.get(self.type, self.type))
        if self.type not in DEVICE_TYPES:
            raise DeviceError(f"unknown device type {self.type!r}; known: {', '.join(DEVICE_TYPES)}")
        if self.properties is not None:
            expected = _PROPERTIES.get(self.type)
            if expected is None or type(self.properties) is not expected:
                raise DeviceError(
                    f"properties of device {self.type!r} must be "
                    f"{expected.__name__ if expected else 'None'}, got {self.properties!r}"
                )

    def __str__(self) -> str:
        if self.properties is None:
            return self.type
        low, high = self.properties.min_capability, self.properties.max_capability
        return f"{self.type}[{low}..{'' if high == sys.maxsize else high}]"

    @property
    def interval(self) -> tuple[int, int]:
        """Capabilities that a mapping entry for this device serves, inclusive."""
        if self.properties is None:
            return (0, sys.maxsize)
        return (self.properties.min_capability, self.properties.max_capability)


@dataclass(frozen=True)
class Target:
    """A concrete device that kernels are chosen for: a type and, where it has one, a capability."""

    type: str
    capability: int | None = None

    def __str__(self) -> str:
        return (
            self.type
            if self.capability is None
            else f"{self.type} {self.capability // 10}.{self.capability % 10}"
        )


def as_device(device: str | Device) -> Device:
    """A mapping key as a Device. Strings may carry an index ("cuda:0"), which is ignored."""
    return device if isinstance(device, Device) else Device(_type_of(device))


def as_target(device: str | Device | torch.device | None, model: nn.Module) -> Target:
    """The concrete device to choose kernels for.

    device: None (inferred from the model's parameters and buffers; PyTorch's default device for a
        model that has neither, and the device of its hooks for one that accelerate offloads), "cuda", "cuda:1", a
        torch.device, or a Device; a Device with properties names hardware that need not be here
        and must then pin one capability, as in Device("cuda", CUDAProperties(90, 90)).

    Raises DeviceError when it is unknown, or cannot be inferred.
    """
    if device is None:
        return _target_of_torch_device(_find_device(model))
    if isinstance(device, Device):
        if device.properties is None:
            return Target(device.type, _capability(device.type, None))
        low, high = device.interval
        if low != high:
            raise DeviceError(
                f"{device} names a range; choosing kernels needs one capability, "
                f"for example Device({device.type!r}, {type(device.properties).__name__}({low}, {low}))"
            )
        return Target(device.type, low)
    if isinstance(device, str):
        kind = Device(_type_of(device)).type
        index = device.partition(":")[2]
        if index and not index.isdigit():
            raise DeviceError(f"device {device!r}: the index after ':' must be a number, as in 'cuda:0'")
        return Target(kind, _capability(kind, int(index) if index else None))
    return _target_of_torch_device(device)


def is_here(target: Target) -> bool:
    """Whether this process could run kernels on `target`."""
    if target.type == "cpu":
        return True
    if target.type in _PROPERTIES:
        return target.capability is not None and _capability(target.type, None) == target.capability
    import torch

    accelerator = torch.accelerator.current_accelerator()
    return accelerator is not None and accelerator.type == target.type


def _type_of(text: str) -> str:
    if not isinstance(text, str):
        raise DeviceError(f"a device is a string such as 'cuda', a torch.device or a Device, got {text!r}")
    return text.partition(":")[0]


def _target_of_torch_device(device: torch.device) -> Target:
    import torch

    if not isinstance(device, torch.device):
        raise DeviceError(f"a device is a string such as 'cuda', a torch.device or a Device, got {device!r}")
    kind = "rocm" if device.type == "cuda" and torch.version.hip is not None else Device(device.type).type
    return Target(kind, _capability(kind, device.index))


def _find_device(model: nn.Module) -> torch.device:
    devices = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    kinds = sorted({device.type for device in devices})
    if not kinds:  # activations and the like run wherever their inputs lie; kernels serve any device
        import torch

        devices = {torch.get_default_device()}
        kinds = [device.type for device in devices]
    if len(kinds) == 1 and kinds != ["meta"]:
        return min(devices, key=lambda device: device.index or 0)
    if "meta" in kinds and (offloaded := _execution_devices(model)):
        if len({device.type for device in offloaded}) == 1:
            return min(offloaded, key=lambda device: device.index or 0)
        kinds = sorted({device.type for device in offloaded})
    if kinds == ["meta"]:
        raise DeviceError(
            "the model lies on the meta device: pass device= for the one it will run on, "
            f"here {_devices_here()}; or load its weights first"
        )
    raise DeviceError(
        f"the model lies on several device types ({', '.join(kinds)}): pass device= to choose one"
    )


def _execution_devices(model: nn.Module) -> set[torch.device]:
    """Where the hooks of accelerate (`cpu_offload`, `dispatch_model`) run modules whose weights lie elsewhere."""
    import torch

    execution_devices = set()
    for module in model.modules():
        hook = getattr(module, "_hf_hook", None)
        for each_hook in (hook, *getattr(hook, "hooks", ())):  # a SequentialHook holds several
            device = getattr(each_hook, "execution_device", None)
            if isinstance(device, int):
                execution_devices.add(torch.device(device))  # an index of the accelerator
            elif device is not None and torch.device(device).type != "meta":
                execution_devices.add(torch.device(device))
    return execution_devices


def _devices_here() -> str:
    """The `device=` arguments that name hardware of this process, for messages."""
    import torch

    accelerator = torch.accelerator.current_accelerator(check_available=True)
    names = ["cpu"] if accelerator is None else [accelerator.type, "cpu"]
    return " or ".join(f"device={name!r}" for name in names)


@cache
def _capability(kind: str, index: int | None) -> int | None:
    """Capability of a device that is here, as 10 * major + minor; None where there is none."""
    if kind not in _PROPERTIES:
        return None
    import torch

    if not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability(index)
    return major * 10 + minor
