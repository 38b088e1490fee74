"""The layer's program as native code: a call of kh_run, which is given addresses."""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path

import torch
from torch import nn

from .arena import ALIGNMENT, Packing
from .arguments import Place
from .layer import Binding, Layer, Room
from .native import Builder, Native, numbers, pointers
from .native_watched import NativeWatched
from .parts import Shape, Table
from .state import State

_MOST_FRAMES = 128
"""Kinds of calls (a room, a thread) for which a module's state keeps a frame."""
_ADDRESS = torch.Tensor.data_ptr
_SMALL = 1 << 20
"""Bytes of an output up to which one is kept to make others like it."""


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
        self.frames: dict[tuple[int, int], Frame] = {}
        """Kept here, so that they end with the module."""
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
    """Sizes as kh_run takes them, too, and outputs to make more like.

    `empty_like` takes half as long as `empty`, so small outputs have something to be like.
    """

    __slots__ = ("_is_new", "_like", "numbers", "place")

    def __init__(self, table: Table, shapes: tuple[Shape, ...], rooms: Packing[Room]) -> None:
        super().__init__(table, shapes, rooms)
        self.numbers = numbers(self.sizes)
        self.place = ctypes.addressof(self.numbers)
        self._like: list[torch.Tensor] | None = None
        self._is_new = True

    def new_outputs(self) -> list[torch.Tensor]:
        """Memory for a call's."""
        if self._like is not None:
            return list(map(torch.empty_like, self._like))
        made = [torch.empty(shape, dtype=dtype) for shape, dtype, _ in self.outputs]
        if not self._is_new and all(one.nbytes <= _SMALL for one in made):
            self._like = list(map(torch.empty_like, made))
        self._is_new = False
        return made


class Frame:
    """What calls of one kind have in common, on one thread: addresses to be filled in again."""

    __slots__ = ("addresses", "place", "room")

    def __init__(self, state: NativeState, room: Room, arena: torch.Tensor) -> None:
        self.room = room
        self.addresses = pointers(state.addresses)
        self.place = ctypes.addressof(self.addresses)
        base = arena.data_ptr()
        for buffer, offset in room.offsets:
            self.addresses[buffer] = base + offset


class _Local(threading.local):
    """A thread's arena. number: no other arena's, before or after."""

    def __init__(self) -> None:
        self.grow(0)

    def grow(self, size: int) -> None:
        """Have a new one, of at least so many bytes."""
        self.arena = torch.empty(max(size, ALIGNMENT), dtype=torch.uint8)
        self.number = next(_NUMBERS)


_NUMBERS = itertools.count()


class NativeLayer(Layer[NativeState, NativeBinding]):
    """See the module."""

    place = Place(attrgetter("is_cpu"), "cpu", "the CPU")

    def __init__(self, table: Table, folder: Path, shipped: Callable[[], nn.Module] | None = None) -> None:
        super().__init__(table, folder, shipped)
        self._builder = Builder(table, folder)
        self._local = _Local()
        self._buffers = [*(one.buffer for one in table.inputs), *(one.buffer for one in table.outputs)]
        self._empty = torch.zeros(ALIGNMENT, dtype=torch.uint8)
        self._nowhere = self._empty.data_ptr()
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
        return NativeBinding(self.table, shapes, self.rooms)

    def run(
        self, state: NativeState, binding: NativeBinding, inputs: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        """See `Layer`."""
        frame = self._frame(state, binding.room)
        addresses, outputs, empty = frame.addresses, binding.new_outputs(), self._nowhere
        for buffer, address in zip(self._buffers, map(_ADDRESS, (*inputs, *outputs)), strict=True):
            addresses[buffer] = address or empty
        if code := self._builder.native().run(frame.place, binding.place):
            raise IndexError(f"{self.table.layer}: {self.table.messages[code - 1]}")
        return outputs

    def _frame(self, state: NativeState, room: Room) -> Frame:
        """That of a thread's last call of the same kind. It holds its room: no other has its id while it is kept."""
        local, frames = self._local, state.frames
        found = frames.get((local.number, id(room)))
        if found is None:
            if local.arena.numel() < room.size:
                local.grow(room.size)
            if len(frames) >= _MOST_FRAMES:
                frames.clear()
            found = frames[local.number, id(room)] = Frame(state, room, local.arena)
        return found
