"""When `kernelize` may keep a layer's original forward instead of raising."""

from __future__ import annotations

from enum import Flag, auto


class KernelizeFallback(Flag):
    """Cases in which a tagged layer may keep its original forward.

    `DEFAULT` (use_fallback=True) covers everything that a mapping may lack; a kernel that is mapped
    but cannot be loaded still raises. `ALL` tolerates that too. `NONE` (use_fallback=False) raises
    in every case. A layer that breaks the layer contract raises whatever the value.
    """

    NONE = 0
    NO_LAYER = auto()
    """Nothing is mapped under the layer's name."""
    NO_DEVICE = auto()
    """The name is mapped, not for this device type."""
    NO_COMPATIBLE_PROPERTIES = auto()
    """The device type is mapped, not for this capability."""
    NO_COMPATIBLE_MODE = auto()
    """No kernel is registered for, or supports, the mode."""
    CANNOT_LOAD = auto()
    """The kernel is mapped and cannot be found, fetched or imported."""

    DEFAULT = NO_LAYER | NO_DEVICE | NO_COMPATIBLE_PROPERTIES | NO_COMPATIBLE_MODE
    ALL = DEFAULT | CANNOT_LOAD


def as_fallback(use_fallback: bool | KernelizeFallback) -> KernelizeFallback:
    """`kernelize`'s argument as flags."""
    if isinstance(use_fallback, KernelizeFallback):
        return use_fallback
    if isinstance(use_fallback, bool):
        return KernelizeFallback.DEFAULT if use_fallback else KernelizeFallback.NONE
    raise TypeError(f"use_fallback is a bool or KernelizeFallback flags, got {use_fallback!r}")
