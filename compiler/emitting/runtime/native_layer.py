"""The layer's program as native code: a call of kh_run, which is given addresses."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path

import torch
from torch import nn

from .arena import ALIGNMENT
from .arguments import Place
from .layer import Binding, Layer
from .native import Builder, Native, numbers, pointers
from .native_watched import NativeWatched
from .parts import Shape, Table
from .state import State

_MOST_ADDRESSES = 1024
"""Calls (a module, a set of shapes) whose addresses a thread keeps."""


class NativeState(State):
    """The addresses of weights, and packed copies of those that the program multiplies by.

    others: packed copies that are there, of other programs of the module; equal ones are held once.
    """

    def __init__(
        self,
        module: nn.Module,
        table: Table,
        place: Place,
        native: Native,
        constants: dict[int, torch.Tensor],
        others: Sequence[torch.Tensor] = (),
    ) -> None:
        super().__init__(module, table, place, partial(NativeWatched, native))
        self._table, self._native = table, native
        self.addresses = [0] * (table.buffers + table.packed)
        for buffer, tensor in (*self.plain.items(), *constants.items()):
            self.addresses[buffer] = tensor.data_ptr() or self._memory(0)
        for buffer, size in table.prepared.items():
            self.addresses[buffer] = self._memory(size)
            self.nbytes += size
        self.packed: list[torch.Tensor] = []
        sizes = native.packed_bytes(table.packed)
        if not others:
            for which, size in enumerate(sizes):
                self._hold(which, torch.empty(size, dtype=torch.uint8))
                self.nbytes += size
        native.prepare(self.addresses, len(table.symbols))
        if others:
            for which, size in enumerate(sizes):
                self._pack(which, size, others)

    def _pack(self, which: int, size: int, others: Sequence[torch.Tensor]) -> None:
        own = torch.empty(size, dtype=torch.uint8)
        self._hold(which, own)
        self._native.pack(which, self.addresses, len(self._table.symbols))
        equal = next((one for one in others if one.numel() == size and one.equal(own)), None)
        if equal is None:
            self.nbytes += size
        else:
            self.packed.pop()
            self._hold(which, equal)

    def _hold(self, which: int, operand: torch.Tensor) -> None:
        self.packed.append(operand)
        self.addresses[self._table.buffers + which] = operand.data_ptr() or self._memory(0)

    def _memory(self, size: int) -> int:
        """The address of so many bytes, which PyTorch aligns to 64."""
        self.kept.append(torch.empty(max(size, ALIGNMENT), dtype=torch.uint8))
        return int(self.kept[-1].data_ptr())


class NativeBinding(Binding):
    """Sizes as kh_run takes them, too."""

    __slots__ = ("numbers",)

    def __init__(self, table: Table, shapes: tuple[Shape, ...]) -> None:
        super().__init__(table, shapes)
        self.numbers = numbers(self.sizes)


class _Local(threading.local):
    """A thread's arena, and the addresses that it called with."""

    def __init__(self) -> None:
        self.arena: torch.Tensor | None = None
        self.addresses: dict[
            tuple[int, int], tuple[NativeState, NativeBinding, ctypes.Array[ctypes.c_void_p]]
        ] = {}


class NativeLayer(Layer[NativeState, NativeBinding]):
    """See the module."""

    place = Place(attrgetter("is_cpu"), "cpu", "the CPU")

    def __init__(self, table: Table, folder: Path, shipped: Callable[[], nn.Module] | None = None) -> None:
        super().__init__(table, folder, shipped)
        self._builder = Builder(table, folder)
        self._local = _Local()
        self._empty = torch.zeros(ALIGNMENT, dtype=torch.uint8)
        """Where tensors without elements point to, which have no address."""
        self.beside: tuple[NativeLayer, ...] = ()
        """Other programs of the same modules: packed weights that are equal are held once."""

    def make_state(self, module: nn.Module) -> NativeState:
        """See `Layer`."""
        native = self._builder.native()
        others = [state for one in self.beside if (state := one.known(module)) is not None]
        packed = [operand for state in others for operand in state.packed]
        return NativeState(module, self.table, self.place, native, self.constants(), packed)

    def make_binding(self, shapes: tuple[Shape, ...]) -> NativeBinding:
        """See `Layer`."""
        return NativeBinding(self.table, shapes)

    def run(
        self, state: NativeState, binding: NativeBinding, inputs: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        """See `Layer`."""
        outputs = [torch.empty(shape, dtype=dtype) for shape, dtype, _ in binding.outputs]
        addresses = self._addresses(state, binding)
        empty = self._empty.data_ptr()
        for one, tensor in zip(self.table.inputs, inputs, strict=True):
            addresses[one.buffer] = tensor.data_ptr() or empty
        for (_, _, buffer), tensor in zip(binding.outputs, outputs, strict=True):
            addresses[buffer] = tensor.data_ptr() or empty
        if code := self._builder.native().run(addresses, binding.numbers):
            raise IndexError(f"{self.table.layer}: {self.table.messages[code - 1]}")
        return outputs

    def _addresses(self, state: NativeState, binding: NativeBinding) -> ctypes.Array[ctypes.c_void_p]:
        """Those of a thread's last call of the same kind, to be filled in again."""
        local = self._local
        key = (id(state), id(binding))
        found = local.addresses.get(key)
        if found is None or found[0] is not state or found[1] is not binding:
            if local.arena is None or local.arena.numel() < binding.arena:
                local.arena = torch.empty(max(binding.arena, ALIGNMENT), dtype=torch.uint8)
                local.addresses.clear()
            if len(local.addresses) >= _MOST_ADDRESSES:
                local.addresses.clear()
            addresses = pointers(state.addresses)
            base = local.arena.data_ptr()
            for buffer, offset in binding.offsets:
                addresses[buffer] = base + offset
            found = local.addresses[key] = (state, binding, addresses)
        return found[2]
