"""One arena for all scratch buffers: each at an offset, disjoint in memory from all that live when it does.

A buffer lives from the first kernel that writes it to the last that reads it. A buffer that dies in a kernel which
reads it element by element at the place where it writes another may be that other. Offsets are those of `intervals`.
The sizes of symbols are known by then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernels_hub.compiler.ir.extrema import number
from kernels_hub.compiler.runtime.intervals import (
    ALIGNMENT,
    Interval,
    most_alive,
    pack,
)
from kernels_hub.compiler.schedule.kernel import (
    Attention,
    Buffer,
    Kernel,
    Load,
    Role,
    Schedule,
    Store,
    statements,
)
from kernels_hub.compiler.schedule.regions import Branch, Repeat

__all__ = ["ALIGNMENT", "BufferLayout", "Lifetime", "Span", "lifetimes", "number", "place", "spans"]


@dataclass(frozen=True)
class Lifetime:
    """Numbers of the first and the last kernel that needs a buffer."""

    buffer: Buffer
    first: int
    last: int


@dataclass(frozen=True)
class BufferLayout:
    """Where scratch buffers lie in an arena.

    offsets: in bytes. size: bytes in all. bound: the most bytes that live at once, which no layout can beat.
    """

    offsets: Mapping[Buffer, int]
    size: int
    bound: int


def lifetimes(kernels: Sequence[Kernel]) -> list[Lifetime]:
    """Of scratch buffers, in the order in which they are first written."""
    found: dict[Buffer, list[int]] = {}
    for moment, kernel in enumerate(kernels):
        for buffer in (*kernel.writes(), *kernel.reads()):
            if buffer.role is Role.SCRATCH:
                found.setdefault(buffer, [moment, moment])[1] = moment
    return [Lifetime(buffer, first, last) for buffer, (first, last) in found.items()]


@dataclass(frozen=True)
class Span:
    """Buffers of one size that share memory, and the numbers of the first and the last kernel that needs one."""

    buffers: tuple[Buffer, ...]
    first: int
    last: int


def spans(schedule: Schedule) -> list[Span]:
    """The scratch buffers of a schedule, with those together of which one takes the memory of another."""
    lives = lifetimes(schedule.kernels)
    heirs = _heirs(schedule.kernels, lives)
    found: dict[Buffer, Span] = {}
    for one in lives:
        root = one.buffer
        while root in heirs:
            root = heirs[root]
        known = found.get(root, Span((), one.first, one.last))
        buffers = (*known.buffers, one.buffer)
        found[root] = Span(buffers, min(known.first, one.first), max(known.last, one.last))
    return list(found.values())


def place(schedule: Schedule, sizes: Mapping[str, int]) -> BufferLayout:
    """Offsets of all scratch buffers of a schedule for these sizes of its symbols."""
    found = spans(schedule)
    intervals = [Interval(number(one.buffers[0].bytes, sizes), one.first, one.last) for one in found]
    offsets, total = pack(intervals)
    of_buffers = {buffer: at for one, at in zip(found, offsets, strict=True) for buffer in one.buffers}
    return BufferLayout(of_buffers, total, most_alive(intervals))


def _heirs(kernels: Sequence[Kernel], lives: Sequence[Lifetime]) -> dict[Buffer, Buffer]:
    """Buffers that may take the memory of one that dies in the kernel that makes them."""
    last = {lifetime.buffer: lifetime.last for lifetime in lives}
    first = {lifetime.buffer: lifetime.first for lifetime in lives}
    heirs: dict[Buffer, Buffer] = {}
    taken: set[Buffer] = set()
    for moment, kernel in enumerate(kernels):
        for made in kernel.writes():
            if first.get(made) != moment:
                continue
            for used in kernel.reads():
                fits = last.get(used) == moment and first.get(used, moment) < moment and used not in taken
                if fits and made not in heirs and _in_place(kernel, used, made):
                    heirs[made] = used
                    taken.add(used)
    return heirs


def _in_place(kernel: Kernel, used: Buffer, made: Buffer) -> bool:
    """Whether each element of `used` is read by the very turn, and the very pass, that writes its place in `made`."""
    if (
        isinstance(kernel, (Branch, Repeat))
        or len(kernel.nests) != 1
        or used.dtype is not made.dtype
        or used.size != made.size
    ):
        return False
    nest = kernel.nests[0]
    if nest.inner or isinstance(nest.anchor, Attention):
        return False  # A later pass may read again what an earlier one has overwritten.
    if nest.anchor is not None and any(view.buffer is used for view in nest.anchor.views):
        return False
    reads = {
        statement.place
        for statement in statements(nest)
        if isinstance(statement, Load) and statement.buffer is used
    }
    writes = {
        statement.place
        for statement in nest.body
        if isinstance(statement, Store) and statement.buffer is made
    }
    return len(writes) == 1 and reads == writes
