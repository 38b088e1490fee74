"""A layer's program as native code or bytecode: calls it with addresses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from pathlib import Path

import torch
from torch import nn

from .arena import Arenas
from .arguments import Place
from .binding import Binding
from .builder import Builder
from .errors import Misfit
from .intervals import ALIGNMENT
from .layer import Layer
from .native import Loaded
from .native_program import NOWHERE, NativeProgram
from .parts import Table
from .state import State


class NativeState(State):
    """The addresses of weights, and packed copies of those that the program multiplies by.

    others: packed copies that are there, of other programs of the module; equal ones are held once.
    """

    def __init__(
        self,
        module: nn.Module,
        table: Table,
        place: Place,
        native: Loaded,
        constants: dict[int, torch.Tensor],
        arenas: Arenas,
        others: Sequence[torch.Tensor] = (),
    ) -> None:
        super().__init__(module, table, place, native.guards)
        self._table, self._native = table, native
        self.addresses = [0] * (table.buffers + table.packed)
        for buffer, tensor in (*self.plain.items(), *constants.items()):
            self.addresses[buffer] = tensor.data_ptr() or NOWHERE
        for buffer, size in table.prepared.items():
            self.addresses[buffer] = self._memory(size)
            self.nbytes += size
        self.packed: list[torch.Tensor] = []
        sizes = native.packed_bytes(table.packed, len(table.symbols))
        if not others:
            for which, size in enumerate(sizes):
                self._hold(which, torch.empty(size, dtype=torch.uint8))
                self.nbytes += size
        _check(native.prepare(self.addresses, len(table.symbols)))
        if others:
            for which, size in enumerate(sizes):
                self._pack(which, size, others)
        tensors = [
            *(parameter.buffer for parameter in table.inputs),
            *(output.buffer for output in table.outputs),
        ]
        self.program = NativeProgram(native, self.addresses, tensors, arenas)

    def _pack(self, which: int, size: int, others: Sequence[torch.Tensor]) -> None:
        own = torch.empty(size, dtype=torch.uint8)
        self._hold(which, own)
        _check(self._native.pack(which, self.addresses, len(self._table.symbols)))
        equal = next((operand for operand in others if operand.numel() == size and operand.equal(own)), None)
        if equal is None:
            self.nbytes += size
        else:
            self.packed.pop()
            self._hold(which, equal)

    def _hold(self, which: int, operand: torch.Tensor) -> None:
        self.packed.append(operand)
        self.addresses[self._table.buffers + which] = operand.data_ptr() or NOWHERE

    def _memory(self, size: int) -> int:
        """The address of so many bytes, which PyTorch aligns to 64."""
        self.kept.append(torch.empty(max(size, ALIGNMENT), dtype=torch.uint8))
        return int(self.kept[-1].data_ptr())


def _check(code: int) -> None:
    if code:
        raise Misfit("weights", "its weights hold an index that is out of range")


class NativeLayer(Layer[NativeState]):
    """See the module."""

    place = Place(attrgetter("is_cpu"), "cpu", "the CPU")

    def __init__(self, table: Table, folder: Path, shipped: Callable[[], nn.Module] | None = None) -> None:
        super().__init__(table, folder, shipped)
        self._builder = Builder(table, folder)
        self._arenas = Arenas()
        self.beside: tuple[NativeLayer, ...] = ()
        """Other programs of the same modules: packed weights that are equal are held once."""

    @property
    def engine(self) -> str:
        """What runs the program, as it is known once one was loaded: "bytecode" is interpreted."""
        return "bytecode" if self._builder.is_bytecode else "cpp"

    def make_state(self, module: nn.Module) -> NativeState:
        """See `Layer`."""
        native = self._builder.native()
        others = [state for layer in self.beside if (state := layer.known(module)) is not None]
        packed = [operand for state in others for operand in state.packed]
        return NativeState(module, self.table, self.place, native, self.constants(), self._arenas, packed)

    def run(self, state: NativeState, binding: Binding, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """See `Layer`."""
        outputs = binding.new_outputs()
        if code := state.program.run(binding, inputs, outputs):
            raise IndexError(f"{self.table.layer}: {self.table.messages[code - 1]}")
        return outputs
