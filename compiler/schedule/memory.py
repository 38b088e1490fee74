"""One arena for all scratch buffers: each at an offset, disjoint in memory from all that live when it does.

A buffer lives from the first kernel that writes it to the last that reads it. A buffer that dies in a kernel which
reads it element by element at the place where it writes another may be that other. Offsets are those of `intervals`.
The sizes of symbols are known by then: `place` says what they take exactly, `Places` serves call after call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernels_hub.compiler.ir.dims import Dim, substitute
from kernels_hub.compiler.schedule.intervals import ALIGNMENT, Interval, Packing, most_alive, pack, roomy
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

__all__ = ["ALIGNMENT", "Arena", "Lifetime", "Places", "Span", "lifetimes", "number", "place", "spans"]


@dataclass(frozen=True)
class Lifetime:
    """Numbers of the first and the last kernel that needs a buffer."""

    buffer: Buffer
    first: int
    last: int


@dataclass(frozen=True)
class Arena:
    """Where scratch buffers lie: offsets in bytes. bound: the most bytes that live at once, which no plan can beat."""

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


def place(schedule: Schedule, sizes: Mapping[str, int]) -> Arena:
    """Offsets of all scratch buffers of a schedule for these sizes of its symbols."""
    found = spans(schedule)
    intervals = [Interval(number(one.buffers[0].bytes, sizes), one.first, one.last) for one in found]
    offsets, total = pack(intervals)
    of_buffers = {buffer: at for one, at in zip(found, offsets, strict=True) for buffer in one.buffers}
    return Arena(of_buffers, total, most_alive(intervals))


class Places:
    """Offsets of all scratch buffers of a schedule, and the bytes of all together, for one set of sizes after another.

    A size that depends on symbols is rounded up, so that most calls find what another made.
    """

    def __init__(self, schedule: Schedule) -> None:
        found = spans(schedule)
        self._bytes = [one.buffers[0].bytes for one in found]

        def made(offsets: list[int], total: int) -> tuple[dict[Buffer, int], int]:
            pairs = zip(found, offsets, strict=True)
            return {buffer: at for one, at in pairs for buffer in one.buffers}, total

        self._packing = Packing([(one.first, one.last) for one in found], made)

    def of(self, sizes: Mapping[str, int]) -> tuple[Mapping[Buffer, int], int]:
        """For these sizes of the schedule's symbols."""
        return self._packing.of(
            [one if isinstance(one, int) else roomy(number(one, sizes)) for one in self._bytes]
        )


def number(dim: Dim, sizes: Mapping[str, int]) -> int:
    """A dim with all symbols bound."""
    return dim if isinstance(dim, int) else int(substitute(dim, dict(sizes)))


def _heirs(kernels: Sequence[Kernel], lives: Sequence[Lifetime]) -> dict[Buffer, Buffer]:
    """Buffers that may take the memory of one that dies in the kernel that makes them."""
    last = {one.buffer: one.last for one in lives}
    first = {one.buffer: one.first for one in lives}
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
    if len(kernel.nests) != 1 or used.dtype is not made.dtype or used.size != made.size:
        return False
    nest = kernel.nests[0]
    if nest.inner or isinstance(nest.root, Attention):
        return False  # A later pass may read again what an earlier one has overwritten.
    if nest.root is not None and any(view.buffer is used for view in nest.root.views):
        return False
    reads = {one.place for one in statements(nest) if isinstance(one, Load) and one.buffer is used}
    writes = {one.place for one in nest.body if isinstance(one, Store) and one.buffer is made}
    return len(writes) == 1 and reads == writes
