"""Settings of just-in-time compilation, read from the environment.

KERNELS_HUB_JIT             off: nothing is compiled; background (the default): beside the model, which runs its
                            original forwards meanwhile; wait: a call waits for what it needs
KERNELS_HUB_JIT_SECONDS     compile time of one call signature (60)
KERNELS_HUB_JIT_SIGNATURES  call signatures of one module that are compiled (8)
KERNELS_HUB_JIT_TRIAL       off: what was compiled is used without timing it against the original
"""

from __future__ import annotations

import functools
import logging
import os
from enum import Enum

logger = logging.getLogger(__name__)

_SECONDS, _SIGNATURES = 60.0, 8


class JitMode(Enum):
    """When layers are compiled, and who waits for it."""

    OFF = "off"
    BACKGROUND = "background"
    WAIT = "wait"


def jit_mode() -> JitMode:
    """KERNELS_HUB_JIT; the default, with one warning, where it is no mode."""
    text = os.environ.get("KERNELS_HUB_JIT", "").strip().lower() or JitMode.BACKGROUND.value
    try:
        return JitMode(text)
    except ValueError:
        _warn("KERNELS_HUB_JIT", text, "off, background or wait")
        return JitMode.BACKGROUND


def seconds_per_signature() -> float:
    """KERNELS_HUB_JIT_SECONDS."""
    return _number("KERNELS_HUB_JIT_SECONDS", _SECONDS)


def signatures_per_module() -> int:
    """KERNELS_HUB_JIT_SIGNATURES."""
    return int(_number("KERNELS_HUB_JIT_SIGNATURES", _SIGNATURES))


def is_timed() -> bool:
    """Whether what was compiled must be faster than the original before it is used.

    Under torch.use_deterministic_algorithms nothing is chosen by time.
    """
    import torch

    if torch.are_deterministic_algorithms_enabled():
        return False
    return os.environ.get("KERNELS_HUB_JIT_TRIAL", "").strip().lower() not in ("off", "0")


def _number(name: str, default: float) -> float:
    text = os.environ.get(name, "").strip()
    try:
        value = float(text) if text else default
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        _warn(name, text, "a number of at least 0")
        return default
    return value


@functools.cache
def _warn(name: str, text: str, expected: str) -> None:
    logger.warning("%s is %r, expected %s; its default is used", name, text[:40], expected)
