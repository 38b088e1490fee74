"""Places the weights of a C++ program in memory: copied where kernels read them as they are, packed for products.

Of weights that are only packed, one at a time is in memory. What is equal is held once (`shared`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch

from kernels_hub.compiler.engines.native_plan import PlacedWeights, address
from kernels_hub.compiler.engines.shared import shared
from kernels_hub.compiler.engines.tensors import may_change
from kernels_hub.compiler.errors import EvaluateError
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.ir.types import Array
from kernels_hub.compiler.runtime.native import Loaded
from kernels_hub.compiler.schedule.kernel import Buffer, Role, Schedule
from kernels_hub.compiler.schedule.memory import ALIGNMENT, number


class PackedOperand(Protocol):
    """An operand that is laid out once, and the buffer that it is made of."""

    @property
    def source(self) -> Buffer: ...  # noqa: D102


class ScheduledProgram(Protocol):
    """What a program of a schedule is called with: see `CppCode`, whose fields these are."""

    @property
    def buffers(self) -> Sequence[Buffer]: ...  # noqa: D102
    @property
    def packed(self) -> Sequence[PackedOperand]: ...  # noqa: D102
    @property
    def sizes(self) -> Sequence[str]: ...  # noqa: D102
    @property
    def messages(self) -> Sequence[str]: ...  # noqa: D102
    @property
    def reads(self) -> frozenset[Buffer]: ...  # noqa: D102


def place_weights(
    graph: Graph, schedule: Schedule, program: ScheduledProgram, native: Loaded
) -> PlacedWeights:
    """Copy and pack the weights of a graph."""
    found = PlacedWeights([0] * (len(program.buffers) + len(program.packed)))
    before = {buffer for kernel in schedule.prepare for buffer in kernel.reads()}
    passing: list[Array] = []
    for where, buffer in enumerate(program.buffers):
        if buffer.role is Role.CONSTANT:
            assert buffer.value is not None and buffer.value.array is not None
            found.hold(where, buffer.value.array)
        elif buffer.role is Role.PREPARED:
            found.hold(where, aligned(number(buffer.bytes, {})))
        elif buffer.role is Role.PARAMETER and buffer in program.reads:
            found.hold(where, _kept(_weight(graph, buffer)))
        elif buffer.role is Role.PARAMETER and buffer in before:
            passing.append(_weight(graph, buffer))
            found.addresses[where] = address(passing[-1])
    _check(native.prepare(found.addresses, len(program.sizes)), program)
    passing.clear()
    _pack(graph, program, native, found)
    for where, buffer in enumerate(program.buffers):
        if buffer.role is Role.PREPARED:
            made = found.held.pop(where)
            assert isinstance(made, torch.Tensor)
            if buffer in program.reads:
                found.hold(where, shared(made))
    found.addresses = [address if where in found.held else 0 for where, address in enumerate(found.addresses)]
    return found


def _pack(graph: Graph, program: ScheduledProgram, native: Loaded, found: PlacedWeights) -> None:
    lengths = native.packed_bytes(len(program.packed), len(program.sizes))
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
        _check(native.pack(which, found.addresses, len(program.sizes)), program)
        found.hold(first + which, shared(block))


def _check(code: int, program: ScheduledProgram) -> None:
    if code:
        raise EvaluateError(program.messages[code - 1])


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
