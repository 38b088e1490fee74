"""C++ of loaded layers that is being built: each layer package builds its own, in its module `native`."""

from __future__ import annotations

import functools
import inspect
import sys
import time
from types import ModuleType
from typing import TYPE_CHECKING

from kernels_hub.kernelization.generation import is_within_generation

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from kernels_hub.kernelization.bind import Forward


def wait_for_native_builds(timeout: float | None = None) -> bool:
    """Wait for what is being built, at most so many seconds; whether nothing is left."""
    deadline = None if timeout is None else time.monotonic() + timeout
    ready = True
    for native in _modules():
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready = native.wait_for_builds(left) and ready
    return ready


def build_at_once() -> None:
    """Have calls of the layers that are loaded wait for what they need from now on."""
    for native in _modules():
        native.begin_to_wait()


def _modules() -> list[ModuleType]:
    return [
        module
        for name, module in list(sys.modules.items())
        if name.endswith(".native") and hasattr(module, "wait_for_builds")
    ]


def until_built(kernel: Forward, cls: type[nn.Module]) -> Forward:
    """A forward that is the class's own until the kernel's native code is here, and for good where it cannot be.

    The kernel itself where that is here already, or where calls wait for it. Within one `generate` nothing changes.
    """
    native = _native_of(kernel)
    if native is None or not hasattr(native, "is_built") or native.is_built(begins=False):
        return kernel
    return _gate(kernel, cls.forward, native)


@functools.lru_cache(maxsize=4096)
def _gate(kernel: Forward, original: Callable[..., object], native: ModuleType) -> Forward:
    decided: list[bool] = []

    @functools.wraps(kernel)
    def forward(self: nn.Module, *args: object, **kwargs: object) -> object:
        if not decided and not is_within_generation(decided) and (built := native.is_built()) is not None:
            decided.append(built)
        return (kernel if decided and decided[0] else type(self).forward)(self, *args, **kwargs)

    forward.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
    del forward.__wrapped__
    forward.decided = decided  # type: ignore[attr-defined]
    return forward


def is_decided(forward: Forward) -> bool:
    """Whether a bound forward runs its kernel already, and not until its native code is there the original."""
    decided = getattr(forward, "decided", None)
    return decided is None or (bool(decided) and decided[0])


def _native_of(forward: object) -> ModuleType | None:
    package = str(getattr(forward, "__module__", "")).partition(".")[0]
    return sys.modules.get(f"{package}.native")


def has_native_code(kernel: Forward) -> bool | None:
    """Whether the native code of a kernel is here, or it has none; None while it is being built, which begins now."""
    native = _native_of(kernel)
    if native is None or not hasattr(native, "is_built"):
        return True
    return native.is_built()  # type: ignore[no-any-return]


def original_runs(forward: object) -> str | None:
    """Why a swapped forward runs PyTorch's code: its package has no native code here. None where kernels run."""
    native = _native_of(forward)
    if native is None or not hasattr(native, "lacking"):
        return None
    found = native.lacking()
    if not found.all:
        return None
    return "PyTorch's code runs, as there is no native code: " + "; ".join(
        sorted(set(found.reasons.values()))
    )
