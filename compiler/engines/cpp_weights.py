"""The weights of a C++ program in memory: copied where kernels read them as they are, packed where products want that.

Of weights that are only packed, one at a time is in memory. What is equal is held once (`shared`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from kernels_hub.compiler.codegen.cpp import Program
from kernels_hub.compiler.codegen.cpp_library import Library
from kernels_hub.compiler.engines.shared import shared
from kernels_hub.compiler.engines.tensors import may_change
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.ir.types import Array
from kernels_hub.compiler.schedule.kernel import Buffer, Role, Schedule
from kernels_hub.compiler.schedule.memory import ALIGNMENT, number


@dataclass
class Weights:
    """An address for each of `program.buffers` and `program.packed`, 0 for what a call brings; and what is there."""

    addresses: list[int]
    held: dict[int, Any] = field(default_factory=dict)

    def hold(self, where: int, what: Any) -> None:
        """Keep memory alive, and note its address."""
        self.held[where], self.addresses[where] = what, address(what)


def place_weights(graph: Graph, schedule: Schedule, program: Program, library: Library) -> Weights:
    """Copy and pack the weights of a graph."""
    found = Weights([0] * (len(program.buffers) + len(program.packed)))
    before = {buffer for kernel in schedule.prepare for buffer in kernel.reads()}
    passing: list[Array] = []
    for where, buffer in enumerate(program.buffers):
        if buffer.role is Role.CONSTANT:
            assert buffer.value is not None
            found.hold(where, buffer.value.array)
        elif buffer.role is Role.PREPARED:
            found.hold(where, aligned(number(buffer.bytes, {})))
        elif buffer.role is Role.PARAMETER and buffer in program.reads:
            found.hold(where, _kept(_weight(graph, buffer)))
        elif buffer.role is Role.PARAMETER and buffer in before:
            passing.append(_weight(graph, buffer))
            found.addresses[where] = address(passing[-1])
    library.prepare(found.addresses, [1] * len(program.sizes))
    passing.clear()
    _pack(graph, program, library, found)
    for where, buffer in enumerate(program.buffers):
        if buffer.role is Role.PREPARED:
            made = found.held.pop(where)
            if buffer in program.reads:
                found.hold(where, shared(made))
    found.addresses = [one if where in found.held else 0 for where, one in enumerate(found.addresses)]
    return found


def _pack(graph: Graph, program: Program, library: Library, found: Weights) -> None:
    lengths, sizes = library.packed_bytes(program), [1] * len(program.sizes)
    first = len(program.buffers)
    place_of = {buffer: where for where, buffer in enumerate(program.buffers)}
    sources = [place_of[one.source] for one in program.packed]
    last, weight = -1, None
    for which in sorted(range(len(sources)), key=sources.__getitem__):
        source = sources[which]
        if source not in found.held and source != last:
            weight = None  # the one before goes before the next one is made
            last, weight = source, _weight(graph, program.buffers[source])
            found.addresses[source] = address(weight)
        block = aligned(lengths[which])
        found.addresses[first + which] = address(block)
        library.pack(which, found.addresses, sizes)
        found.hold(first + which, shared(block))


def _weight(graph: Graph, buffer: Buffer) -> Array:
    assert buffer.value is not None
    return np.ascontiguousarray(graph.weight(buffer.value.attrs["name"]))


def _kept(array: Array) -> Any:
    """A weight that nobody else can write to, as by `tensors.snapshot`."""
    if not may_change(array):
        return array
    block = aligned(array.nbytes)
    block.numpy()[: array.nbytes] = array.reshape(-1).view(np.uint8)
    return shared(block)


def aligned(size: int) -> torch.Tensor:
    """Bytes, 64-byte aligned as PyTorch allocates them."""
    return torch.empty(max(size, ALIGNMENT), dtype=torch.uint8)


def address(memory: Any) -> int:
    """Of an array or a tensor."""
    return int(memory.data_ptr() if isinstance(memory, torch.Tensor) else memory.ctypes.data)
