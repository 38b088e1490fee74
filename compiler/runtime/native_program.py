"""A native call: fills in the addresses of tensors, and calls kh_run once.

It serves the engine of `compile()`, which has one program for a plan, published layers, which have one for each module,
and their gradients.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from .arena import Arenas
from .binding import Binding
from .intervals import ALIGNMENT, ArenaLayout
from .native import Loaded, pointers

_MOST_FRAMES = 128
"""Kinds of calls (a layout, a thread) for which a program keeps a frame."""
_ADDRESS = torch.Tensor.data_ptr
_EMPTY = torch.zeros(ALIGNMENT, dtype=torch.uint8)
NOWHERE = _EMPTY.data_ptr()
"""Where tensors without elements point to, which have no address."""


class _Frame:
    """What calls of one layout have in common, on one thread: addresses, of which those of tensors change."""

    __slots__ = ("addresses", "layout", "place")

    def __init__(self, fixed: Sequence[int], layout: ArenaLayout, memory: torch.Tensor | None) -> None:
        self.layout = layout  # held: no other has its id while this is kept
        self.addresses = pointers(fixed)
        self.place = ctypes.addressof(self.addresses)
        base = memory.data_ptr() if memory is not None else 0
        for buffer, offset in layout.offsets:
            self.addresses[buffer] = base + offset


class NativeProgram:
    """A loaded program with its weights. Calls may come from several threads.

    fixed: an address for each buffer, then for each packed operand; any for what a call brings. The caller keeps what
    lies there. tensors: the buffers of inputs and then of outputs. arenas: may be shared by programs of which a thread
    runs one at a time.
    """

    __slots__ = ("_arenas", "_fixed", "_frames", "_tensors", "native")

    def __init__(self, native: Loaded, fixed: Sequence[int], tensors: Sequence[int], arenas: Arenas) -> None:
        self.native = native
        self._fixed, self._tensors, self._arenas = tuple(fixed), tuple(tensors), arenas
        self._frames: dict[tuple[int, int], _Frame] = {}

    def run(
        self,
        binding: Binding,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        workspace: torch.Tensor | None = None,
    ) -> int:
        """All kernels. inputs, outputs: contiguous. workspace: takes the arena's place for this call.

        Returns 0, or the number of a message, counted from 1: an index that is out of range.
        """
        frame = self.frame(binding, inputs, outputs, workspace)
        return int(self.native.run(frame.place, binding.sizes_at))

    def run_steps(
        self,
        steps: Sequence[int],
        binding: Binding,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        workspace: torch.Tensor | None = None,
    ) -> int:
        """As `run`, of some kernels."""
        address = self.frame(binding, inputs, outputs, workspace).place
        codes = (self.native.step(step, address, binding.sizes_at) for step in steps)
        return next((code for code in codes if code), 0)

    def frame(
        self,
        binding: Binding,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        workspace: torch.Tensor | None = None,
    ) -> _Frame:
        """All addresses of a call: that of the thread's last call of this layout, with these tensors filled in."""
        if workspace is None:
            number = self._arenas.cpu.number
            frame = self._frames.get((number, id(binding.layout))) or self._new_frame(binding.layout)
        else:
            frame = _Frame(self._fixed, binding.layout, workspace)
        addresses = frame.addresses
        for buffer, address in zip(self._tensors, map(_ADDRESS, (*inputs, *outputs)), strict=True):
            addresses[buffer] = address or NOWHERE
        return frame

    def _new_frame(self, layout: ArenaLayout) -> _Frame:
        arena = self._arenas.cpu
        arena.fit(layout.size)
        if len(self._frames) >= _MOST_FRAMES:
            self._frames.clear()
        frame = self._frames[arena.number, id(layout)] = _Frame(self._fixed, layout, arena.memory)
        return frame
