"""Starts Triton kernels: through the JIT the first time, then with what it compiled.

The JIT looks at every argument again at each launch: 18 microseconds for a normalization, measured with Triton 3.6
beside an H200, of which the driver's part is 9; the kernel itself takes 3. What it compiles for is remembered here
instead: the types and constants, which pointers are aligned, and the integers, of which it tells multiples of 16 and 1.

Layers with Triton kernels take this file along (`shared` in kernel.toml).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

Argument = Tensor | float | str | None
Start = Callable[..., object]


class Kernel(Protocol):
    """A jitted function."""

    def __getitem__(self, grid: tuple[int, ...], /) -> Start: ...


class _Runtime(Protocol):
    launch_enter_hook: object
    launch_exit_hook: object


class _Active(Protocol):
    get_current_stream: Callable[[int], int]


class _Driver(Protocol):
    active: _Active


class _Compiled(NamedTuple):
    """What the JIT made of a kernel. constants: in the order of its parameters."""

    kernel: Kernel  # kept, as a launch is remembered under its address
    runtime: _Runtime
    driver: _Driver
    run: Start
    function: object
    metadata: object
    constants: tuple[object, ...]


_MOST = 4096
"""Launches that are remembered: sizes that come once, as lengths of texts do, must not fill the memory."""

_FIRST = ("gridX", "gridY", "gridZ", "stream", "function")
"""What the driver takes first in Triton 3.6 to 3.9. Where a release has it otherwise, the JIT starts all kernels."""

_HIP = torch.version.hip is not None

# Kernel, device, arguments and constants -> how to start it.
_remembered: dict[tuple[object, ...], _Compiled] = {}


def launch(
    kernel: Kernel, grid: tuple[int, ...], arguments: tuple[Argument, ...], **constants: object
) -> None:
    """Start a kernel on the current stream of the device that its first argument, a tensor, is on.

    constants: all of its tl.constexpr, and Triton's own, such as num_warps.
    """
    first = arguments[0]
    assert isinstance(first, Tensor)
    device = first.get_device()  # -1 on the CPU, under the interpreter
    # Floats come as they are; one is not taken for an integer that Python calls equal to it.
    told = [
        (one.dtype, one.data_ptr() % 16) if isinstance(one, Tensor) else float if type(one) is float else one
        for one in arguments
    ]
    key = (id(kernel), device, *told, *constants.values())
    if _HIP:  # a kernel's offsets are 32-bit there, where each tensor lies in less than 2 GiB
        tensors = (one for one in arguments if isinstance(one, Tensor))
        key += tuple(one.untyped_storage().nbytes() < 1 << 31 for one in tensors)
    found = _remembered.get(key)
    if found is not None:
        _, runtime, driver, run, function, metadata, rest = found
        if not _is_hooked(runtime) and device == torch.cuda.current_device():
            x, y, z = (*grid, 1, 1)[:3]
            stream = driver.active.get_current_stream(device)
            run(x, y, z, stream, function, metadata, None, None, None, *arguments, *rest)
            return
    _launch_through_jit(key, device, kernel, grid, arguments, constants)


def _is_hooked(runtime: _Runtime) -> bool:
    """Whether launches must be told of: to chains of hooks that are not empty, or to a function in their place."""
    return bool(
        getattr(runtime.launch_enter_hook, "calls", True) or getattr(runtime.launch_exit_hook, "calls", True)
    )


def _launch_through_jit(
    key: tuple[object, ...],
    device: int,
    kernel: Kernel,
    grid: tuple[int, ...],
    arguments: tuple[Argument, ...],
    constants: Mapping[str, object],
) -> None:
    if device < 0:
        kernel[grid](*arguments, **constants)
        return
    with torch.cuda.device(device):
        compiled = kernel[grid](*arguments, **constants)
    from triton.knobs import runtime  # not on every platform, and not before a kernel runs
    from triton.runtime import driver

    names = getattr(kernel, "arg_names", ())[len(arguments) :]
    if compiled is None or not constants.keys() >= set(names):
        return  # a hook has launched it, or Triton's own defaults are wanted
    run, function, metadata = (getattr(compiled, name) for name in ("run", "function", "packed_metadata"))
    if tuple(inspect.signature(run).parameters)[: len(_FIRST)] != _FIRST:
        return
    if len(_remembered) >= _MOST:
        _remembered.clear()
    values = tuple(constants[name] for name in names)
    _remembered[key] = _Compiled(kernel, runtime, driver, run, function, metadata, values)


def cdiv(size: int, part: int) -> int:
    """size / part, rounded up. Triton's own, which kernels may call too, takes microseconds here."""
    return -(-size // part)


def next_power_of_2(size: int) -> int:
    """The least power of two that is not less; 1 of 0."""
    return 1 << max(size - 1, 0).bit_length()
