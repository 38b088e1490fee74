"""A call of generated Triton kernels: arranges the tensors, and launches the kernels of each step.

It serves the engine of `compile()` and published layers. With TRITON_INTERPRET=1 in the environment the kernels run in
Triton's interpreter, on tensors on the CPU.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from .arena import Arenas, is_captured
from .binding import Binding
from .intervals import ArenaLayout
from .launcher import Launcher

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

_INTERPRETER = threading.Lock()
"""The interpreter patches Triton's language while it runs: one thread at a time."""

Step = Callable[[Sequence[torch.Tensor], Sequence[int], Launcher], None]


class TritonProgram:
    """A generated module with its tensors on a device. Calls may come from several threads.

    module: with PREPARE and RUN, functions (m, s, on) that launch kernels: m the tensors, s the sizes, on the launcher.
    fixed: a tensor for each buffer; empty ones of the buffer's dtype for what a call brings. tensors: the buffers of
    inputs and then of outputs. symbols: how many sizes there are. fails: whether kernels report indices out of range.
    """

    def __init__(
        self,
        module: Any,
        launcher: Launcher,
        device: torch.device,
        fixed: Sequence[torch.Tensor],
        tensors: Sequence[int],
        symbols: int,
        arenas: Arenas,
        *,
        fails: bool,
    ) -> None:
        self.steps: tuple[Step, ...] = module.RUN
        self.launcher, self.device, self._arenas, self._fails = launcher, device, arenas, fails
        self._fixed, self._tensors = [*fixed, _no_failure(device)], tuple(tensors)
        self._dtypes = [tensor.dtype for tensor in fixed]
        with on_device(device):
            self.launch(module.PREPARE, self._fixed, [1] * symbols)
        self.failure = int(self._fixed[-1].item()) if fails and module.PREPARE else 0
        """0, or the number of a message, counted from 1: weights hold an index that is out of range."""

    def run(
        self,
        binding: Binding,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor] | None = None,
        workspace: torch.Tensor | None = None,
        stream: int | None = None,
    ) -> tuple[Sequence[torch.Tensor], int]:
        """All kernels: the outputs, new ones unless given, and 0, or the number of a message as in `failure`.

        outputs: contiguous. Where kernels report indices out of range this waits for them, unless it is being
        captured.
        """
        with on_device(self.device, stream):
            if outputs is None:
                outputs = [
                    torch.empty(shape, dtype=dtype, device=self.device) for shape, dtype in binding.outputs
                ]
            tensors = self.arguments(binding, inputs, outputs, workspace)
            self.launch(self.steps, tensors, binding.sizes)
            if self._fails and not is_captured(self.device):
                return outputs, int(tensors[-1].item())
        return outputs, 0

    def launch(self, steps: Sequence[Step], tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> None:
        """Some steps, on the current stream of the current device."""
        with _interpreter() if self.device.type == "cpu" else contextlib.nullcontext():
            for step in steps:
                step(tensors, sizes, self.launcher)

    def arguments(
        self,
        binding: Binding,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        workspace: torch.Tensor | None = None,
    ) -> list[torch.Tensor]:
        """What the functions of the module are called with."""
        tensors = list(self._fixed)
        if self._fails:
            tensors[-1] = _no_failure(self.device)
        layout = binding.layout
        scratch = self._scratch(layout, workspace)
        for (buffer, _), tensor in zip(layout.offsets, scratch, strict=True):
            tensors[buffer] = tensor
        for buffer, tensor in zip(self._tensors, (*inputs, *outputs), strict=True):
            tensors[buffer] = tensor.contiguous()
        return tensors

    def _scratch(self, layout: ArenaLayout, workspace: torch.Tensor | None) -> list[torch.Tensor]:
        """A tensor for each scratch buffer, on the current stream."""
        if workspace is not None:
            return _windows(layout, self._dtypes, workspace[: layout.size])
        return self._arenas.of(self.device).views(
            layout, layout.size, lambda memory: _windows(layout, self._dtypes, memory)
        )


@contextlib.contextmanager
def on_device(device: torch.device, stream: int | None = None) -> Iterator[None]:
    """Kernels go to a stream of a device, the current one by default."""
    if device.type == "cpu":
        yield
        return
    with torch.cuda.device(device):
        if stream is None or stream == torch.cuda.current_stream().cuda_stream:
            yield
            return
        with torch.cuda.stream(torch.cuda.ExternalStream(stream, device=device)):
            yield


@contextlib.contextmanager
def _interpreter() -> Iterator[None]:
    """Triton's interpreter, NumPy's, goes to inf and NaN without a word."""
    from triton.runtime.interpreter import np

    with _INTERPRETER, np.errstate(all="ignore"):
        yield


def _windows(layout: ArenaLayout, dtypes: Sequence[torch.dtype], memory: torch.Tensor) -> list[torch.Tensor]:
    return [memory[offset:].view(dtypes[buffer]) for buffer, offset in layout.offsets]


def _no_failure(device: torch.device) -> torch.Tensor:
    return torch.zeros(1, dtype=torch.int32, device=device)
