"""Name the modules that run kernels in PyTorch's profiler."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kernels_hub.kernelization.report import report

if TYPE_CHECKING:
    from torch import nn


@contextmanager
def profiler_ranges(model: nn.Module) -> Iterator[None]:
    """Inside, each module of a model that has a kernel runs in a range of PyTorch's profiler that names both.

    Such as "0.up (Linear): bundled:linear@0.1.0/torch-cpu", as `torch.profiler.record_function` makes them:
    `torch.profiler` shows them in its tables and traces, `torch.autograd.profiler.emit_nvtx` passes them on as NVTX
    ranges. Modules that keep their original forward, by what `report(model)` says at the entry, have none.

    Costs nothing outside; inside, some microseconds a call of any module of the process, in all of its threads. Calls
    of a model that `torch.compile` compiled are not seen inside of it.

    >>> model = kernelize(nn.Sequential(nn.SiLU()), mode=Mode.INFERENCE, device="cpu")
    >>> with torch.profiler.profile() as profile, profiler_ranges(model):
    ...     _ = model(torch.ones(2))
    >>> [event.key for event in profile.key_averages() if event.key.startswith("0 ")]
    ['0 (SiLU): bundled:activation@...']
    """
    from torch.autograd.profiler import record_function
    from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

    kernels: dict[str, list[str]] = {}
    for row in report(model):
        if row.kernel is not None:
            kernels.setdefault(row.path.partition(":")[0], []).append(row.kernel)
    names = {
        module: f"{path or 'model'} ({type(module).__qualname__}): {', '.join(kernels[path])}"
        for path, module in model.named_modules()
        if path in kernels
    }
    entered = threading.local()

    def enter(module: nn.Module, *_: object) -> None:
        name = names.get(module)
        if name is not None:
            opened = record_function(name)
            opened.__enter__()
            entered.__dict__.setdefault("ranges", []).append((module, opened))

    def leave(module: nn.Module, *_: object) -> None:
        ranges = entered.__dict__.get("ranges")
        if ranges and ranges[-1][0] is module:
            ranges.pop()[1].__exit__(None, None, None)

    hooks = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave, always_call=True)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
