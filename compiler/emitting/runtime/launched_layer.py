"""The layer's program as Triton kernels: functions that launch them, which are given tensors.

With TRITON_INTERPRET=1 in the environment the kernels run in Triton's interpreter, on tensors on the CPU.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from .arena import ALIGNMENT
from .arguments import Place, dtype_of
from .binaries import Binaries, find_binaries
from .errors import Misfit
from .knobs import knobs_for
from .launcher import Launcher
from .layer import Binding, Layer, Room
from .parts import Shape, Table
from .state import State

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

_MOST_SCRATCH = 256
"""Calls (a room, a stream) whose scratch tensors a thread keeps."""
_INTERPRETER = threading.Lock()
"""The interpreter patches Triton's language while it runs: one thread at a time."""


class LaunchedState(State):
    """The weights as tensors; what the program makes of them is made at the first call on a device."""

    def __init__(self, module: nn.Module, table: Table, place: Place) -> None:
        super().__init__(module, table, place)
        devices = {one.device for one in self.tensors}
        if len(devices) > 1:
            where = " and ".join(sorted(map(str, devices)))
            raise Misfit("devices", f"its weights are on {where}, it was compiled for one device")
        self.device = devices.pop() if devices else None
        self.made: dict[torch.device, list[torch.Tensor]] = {}
        """Device -> a tensor for each buffer, those that a call brings left empty."""


class _Local(threading.local):
    """A thread's arena on each stream, and the scratch tensors that it called with."""

    def __init__(self) -> None:
        self.arenas: dict[tuple[torch.device, int], torch.Tensor] = {}
        self.scratch: dict[tuple[int, torch.device, int], tuple[Room, torch.Tensor, list[torch.Tensor]]] = {}


class LaunchedLayer(Layer[LaunchedState, Binding]):
    """See the module."""

    place = (
        Place(attrgetter("is_cpu"), "cpu", "Triton's interpreter, on the CPU")
        if INTERPRETED
        else Place(attrgetter("is_cuda"), "cuda", "a GPU")
    )

    def __init__(self, table: Table, folder: Path, shipped: Callable[[], nn.Module] | None = None) -> None:
        super().__init__(table, folder, shipped)
        self._local = _Local()
        self._launchers: dict[torch.device, Launcher] = {}
        self._broken: dict[torch.device, str] = {}
        self._module: ModuleType | None = None

    def make_state(self, module: nn.Module) -> LaunchedState:
        """See `Layer`."""
        self._kernels()
        return LaunchedState(module, self.table, self.place)

    def make_binding(self, shapes: tuple[Shape, ...]) -> Binding:
        """See `Layer`."""
        return Binding(self.table, shapes, self.rooms)

    def run(self, state: LaunchedState, binding: Binding, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """See `Layer`."""
        device = self._device(state, inputs)
        if device in self._broken:
            raise Misfit(f"launch on {device}", self._broken[device])
        kernels = self._kernels()
        with _on(device):
            on = self._launcher(device)
            try:
                made = state.made.get(device)
                if made is None:
                    made = state.made[device] = self._made(state, device, on)
                outputs = [
                    torch.empty(shape, dtype=dtype, device=device) for shape, dtype, _ in binding.outputs
                ]
                tensors = self._tensors(binding, made, inputs, outputs, device)
                for step in kernels.RUN:
                    step(tensors, binding.sizes, on)
            except _triton_errors() as error:
                reason = f"Triton cannot run it here: {type(error).__name__}: {_first_line(error)}"
                self._broken[device] = reason
                raise Misfit(f"launch on {device}", reason) from error
            self._check_indices(tensors[-1])
        return outputs

    def _device(self, state: LaunchedState, inputs: Sequence[torch.Tensor]) -> torch.device:
        for one, tensor in zip(self.table.inputs, inputs, strict=True):
            if tensor.device != (state.device or inputs[0].device):
                wanted = "the weights are" if state.device else f"{self.table.inputs[0].name} is"
                where = state.device or inputs[0].device
                raise Misfit("devices", f"{one.name} is on {tensor.device}, {wanted} on {where}")
        if state.device is not None:
            return state.device
        if inputs:
            return inputs[0].device
        return torch.device("cpu") if INTERPRETED else torch.device("cuda", torch.cuda.current_device())

    def _kernels(self) -> Any:
        """The generated module. Raises Misfit where Triton is not here."""
        if self._module is None:
            name = f".{Path(self.table.source).stem}"
            try:
                self._module = importlib.import_module(name, __package__)
            except ImportError as error:
                raise Misfit("build", f"Triton cannot be imported: {error}") from error
        return self._module

    def _launcher(self, device: torch.device) -> Launcher:
        found = self._launchers.get(device)
        if found is None:
            with self._lock:
                arch = arch_of(device)
                binaries: Binaries | None = (
                    None if INTERPRETED else find_binaries(self.folder, self.table, arch)
                )
                found = self._launchers[device] = Launcher(knobs_for(arch), binaries)
        return found

    def _made(self, state: LaunchedState, device: torch.device, on: Launcher) -> list[torch.Tensor]:
        table = self.table
        found = [torch.empty(0, dtype=dtype_of(name), device=device) for name in table.dtypes]
        for buffer, tensor in (*state.plain.items(), *self.constants().items()):
            found[buffer] = tensor.to(device).reshape(-1)
        for buffer, size in table.prepared.items():
            found[buffer] = torch.empty(size, dtype=torch.uint8, device=device).view(
                dtype_of(table.dtypes[buffer])
            )
            state.nbytes += size
        found.append(torch.zeros(1, dtype=torch.int32, device=device))
        for step in self._kernels().PREPARE:
            step(found, [1] * len(table.symbols), on)
        if table.prepared and table.messages and int(found[-1].item()):
            raise Misfit("weights", "its weights hold an index that is out of range")
        return found

    def _tensors(
        self,
        binding: Binding,
        made: list[torch.Tensor],
        inputs: list[torch.Tensor],
        outputs: list[torch.Tensor],
        device: torch.device,
    ) -> list[torch.Tensor]:
        """What the functions of the module are called with."""
        tensors = list(made)
        if self.table.messages:
            tensors[-1] = torch.zeros(1, dtype=torch.int32, device=device)
        room = binding.room
        for (buffer, _), scratch in zip(room.offsets, self._scratch(room, device), strict=True):
            tensors[buffer] = scratch
        for one, tensor in zip(self.table.inputs, inputs, strict=True):
            tensors[one.buffer] = tensor
        for (_, _, buffer), tensor in zip(binding.outputs, outputs, strict=True):
            tensors[buffer] = tensor
        return tensors

    def _scratch(self, room: Room, device: torch.device) -> list[torch.Tensor]:
        """Windows of this thread's arena on the current stream; of a new one while a CUDA graph is captured."""
        local = self._local
        captured = _is_captured()
        stream = 0 if INTERPRETED else torch.cuda.current_stream(device).cuda_stream
        arena = None if captured else local.arenas.get((device, stream))
        found = local.scratch.get((id(room), device, stream))
        if found is not None and found[0] is room and found[1] is arena:
            return found[2]
        if arena is None or arena.numel() < room.size:
            arena = torch.empty(max(room.size, ALIGNMENT), dtype=torch.uint8, device=device)
        windows = [
            arena[offset:].view(dtype_of(self.table.dtypes[buffer])) for buffer, offset in room.offsets
        ]
        if not captured:
            local.arenas[device, stream] = arena
            if len(local.scratch) >= _MOST_SCRATCH:
                local.scratch.clear()
            local.scratch[id(room), device, stream] = (room, arena, windows)
        return windows

    def _check_indices(self, failure: torch.Tensor) -> None:
        if self.table.messages and not _is_captured() and (code := int(failure.item())):
            raise IndexError(f"{self.table.layer}: {self.table.messages[code - 1]}")


def arch_of(device: torch.device) -> str:
    """ "sm_90", "gfx942"; "" of the interpreter."""
    if device.type != "cuda":
        return ""
    properties: Any = torch.cuda.get_device_properties(device)
    if torch.version.hip is not None:
        return str(properties.gcnArchName).partition(":")[0]
    return f"sm_{properties.major}{properties.minor}"


@contextlib.contextmanager
def _on(device: torch.device) -> Iterator[None]:
    """Kernels go to the current stream of this device; the interpreter, NumPy's, goes to inf and NaN without a word."""
    if not INTERPRETED:
        with torch.cuda.device(device):
            yield
        return
    from triton.runtime.interpreter import np

    with _INTERPRETER, np.errstate(all="ignore"):
        yield


def _is_captured() -> bool:
    return not INTERPRETED and torch.cuda.is_current_stream_capturing()


def _triton_errors() -> tuple[type[Exception], ...]:
    """What Triton raises where a kernel does not compile, or does not fit a device."""
    from triton.runtime.errors import TritonError

    return (TritonError,)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0]
