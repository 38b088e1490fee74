"""A layer's program as Triton kernels.

With TRITON_INTERPRET=1 in the environment the kernels run in Triton's interpreter, on tensors on the CPU.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from .arena import Arenas
from .arguments import Place, dtype_of
from .binaries import Binaries, find_binaries
from .binding import Binding
from .errors import Misfit
from .knobs import knobs_for
from .launcher import Launcher
from .layer import Layer
from .parts import Table
from .state import State
from .triton_program import INTERPRETED, TritonProgram


class LaunchedState(State):
    """The weights as tensors; what the program makes of them is made at the first call on a device."""

    def __init__(self, module: nn.Module, table: Table, place: Place) -> None:
        super().__init__(module, table, place)
        devices = {tensor.device for tensor in self.tensors}
        if len(devices) > 1:
            where = " and ".join(sorted(map(str, devices)))
            raise Misfit("devices", f"its weights are on {where}, it was compiled for one device")
        self.device = devices.pop() if devices else None
        self.programs: dict[torch.device, TritonProgram] = {}


class LaunchedLayer(Layer[LaunchedState]):
    """See the module. package: the one that the module of the kernels is in."""

    place = (
        Place(attrgetter("is_cpu"), "cpu", "Triton's interpreter, on the CPU")
        if INTERPRETED
        else Place(attrgetter("is_cuda"), "cuda", "a GPU")
    )

    def __init__(
        self, table: Table, folder: Path, shipped: Callable[[], nn.Module] | None = None, *, package: str
    ) -> None:
        super().__init__(table, folder, shipped)
        self.package = package
        self._arenas = Arenas()
        self._launchers: dict[torch.device, Launcher] = {}
        self._broken: dict[torch.device, str] = {}
        self._module: ModuleType | None = None

    def make_state(self, module: nn.Module) -> LaunchedState:
        """See `Layer`."""
        self._kernels()
        return LaunchedState(module, self.table, self.place)

    def run(self, state: LaunchedState, binding: Binding, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """See `Layer`."""
        device = self._device(state, inputs)
        if device in self._broken:
            raise Misfit(f"launch on {device}", self._broken[device])
        try:
            program = state.programs.get(device)
            if program is None:
                program = state.programs[device] = self._program(state, device)
            if program.failure:
                raise Misfit("weights", "its weights hold an index that is out of range")
            outputs, code = program.run(binding, inputs)
        except _triton_errors() as error:
            reason = f"Triton cannot run it here: {type(error).__name__}: {_first_line(error)}"
            self._broken[device] = reason
            raise Misfit(f"launch on {device}", reason) from error
        if code:
            raise IndexError(f"{self.table.layer}: {self.table.messages[code - 1]}")
        return list(outputs)

    def _device(self, state: LaunchedState, inputs: Sequence[torch.Tensor]) -> torch.device:
        for parameter, tensor in zip(self.table.inputs, inputs, strict=True):
            if tensor.device != (state.device or inputs[0].device):
                expected = "the weights are" if state.device else f"{self.table.inputs[0].name} is"
                where = state.device or inputs[0].device
                raise Misfit("devices", f"{parameter.name} is on {tensor.device}, {expected} on {where}")
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
                self._module = importlib.import_module(name, self.package)
            except ImportError as error:
                raise Misfit("build", f"Triton cannot be imported: {error}") from error
        return self._module

    def _launcher(self, device: torch.device) -> Launcher:
        launcher = self._launchers.get(device)
        if launcher is None:
            with self._lock:
                arch = arch_of(device)
                binaries: Binaries | None = (
                    None if INTERPRETED else find_binaries(self.folder, self.table, arch)
                )
                launcher = self._launchers[device] = Launcher(knobs_for(arch), binaries)
        return launcher

    def _program(self, state: LaunchedState, device: torch.device) -> TritonProgram:
        table = self.table
        fixed = [torch.empty(0, dtype=dtype_of(name), device=device) for name in table.dtypes]
        for buffer, tensor in (*state.plain.items(), *self.constants().items()):
            fixed[buffer] = tensor.to(device).reshape(-1)
        for buffer, size in table.prepared.items():
            fixed[buffer] = torch.empty(size, dtype=torch.uint8, device=device).view(fixed[buffer].dtype)
            state.nbytes += size
        tensors = [
            *(parameter.buffer for parameter in table.inputs),
            *(output.buffer for output in table.outputs),
        ]
        return TritonProgram(
            self._kernels(),
            self._launcher(device),
            device,
            fixed,
            tensors,
            len(table.symbols),
            self._arenas,
            fails=bool(table.messages),
        )


def arch_of(device: torch.device) -> str:
    """ "sm_90", "gfx942"; "" of the interpreter."""
    if device.type != "cuda":
        return ""
    properties: Any = torch.cuda.get_device_properties(device)
    if torch.version.hip is not None:
        return str(properties.gcnArchName).partition(":")[0]
    return f"sm_{properties.major}{properties.minor}"


def _triton_errors() -> tuple[type[Exception], ...]:
    """What Triton raises where a kernel does not compile, or does not fit a device."""
    from triton.runtime.errors import TritonError

    return (TritonError,)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0]
