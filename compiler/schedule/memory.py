"""One arena for all scratch buffers: each at an offset, disjoint in memory from all that live when it does.

A buffer lives from the first kernel that writes it to the last that reads it. Buffers are placed one by one, each in
the smallest gap that holds it between those that live at some time with it (interval packing, best fit), in several
orders, of which the one that takes the least memory is kept. A buffer
that dies in a kernel which reads it element by element at the place where it writes another may be that other.
The sizes of symbols are known by then: placing is done anew for new sizes, and takes time near linear in buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kernels_hub.compiler.ir.dims import Dim, substitute
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

ALIGNMENT = 64
"""Bytes: a line of the cache, and the widest vector."""


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
    spans: dict[Buffer, list[int]] = {}
    for number, kernel in enumerate(kernels):
        for buffer in (*kernel.writes(), *kernel.reads()):
            if buffer.role is Role.SCRATCH:
                spans.setdefault(buffer, [number, number])[1] = number
    return [Lifetime(buffer, first, last) for buffer, (first, last) in spans.items()]


def place(schedule: Schedule, sizes: Mapping[str, int]) -> Arena:
    """Offsets of all scratch buffers of a schedule for these sizes of its symbols."""
    spans = lifetimes(schedule.kernels)
    heirs = _heirs(schedule.kernels, spans)
    spans = _merged(spans, heirs)
    size_of = {span.buffer: _aligned(number(span.buffer.bytes, sizes)) for span in spans}
    tries = [_packed(sorted(spans, key=order(size_of)), size_of) for order in _ORDERS]
    offsets: dict[Buffer, int] = min(tries, key=lambda one: _extent(one, size_of))
    total = _extent(offsets, size_of)
    for buffer, heir in heirs.items():
        offsets[buffer] = offsets[_root(heir, heirs)]
    return Arena(offsets, total, _most_alive(spans, size_of))


_ORDERS: tuple[Callable[[Mapping[Buffer, int]], Callable[[Lifetime], tuple[int, ...]]], ...] = (
    lambda size_of: lambda span: (-size_of[span.buffer], span.first),
    lambda size_of: lambda span: (span.first - span.last, -size_of[span.buffer]),
    lambda size_of: lambda span: (-size_of[span.buffer] * (span.last - span.first + 1), span.first),
    lambda size_of: lambda span: (span.first, -size_of[span.buffer]),
)
"""Orders in which buffers are placed: largest first, longest first, largest area first, as they come. All are tried."""


def _packed(spans: Sequence[Lifetime], size_of: Mapping[Buffer, int]) -> dict[Buffer, int]:
    """Offsets of buffers that are placed in this order."""
    offsets: dict[Buffer, int] = {}
    placed: list[Lifetime] = []
    for span in spans:
        taken = sorted(
            (offsets[other.buffer], offsets[other.buffer] + size_of[other.buffer])
            for other in placed
            if other.first <= span.last and span.first <= other.last
        )
        offsets[span.buffer] = _gap(taken, size_of[span.buffer])
        placed.append(span)
    return offsets


def _extent(offsets: Mapping[Buffer, int], size_of: Mapping[Buffer, int]) -> int:
    return max((offset + size_of[buffer] for buffer, offset in offsets.items()), default=0)


def number(dim: Dim, sizes: Mapping[str, int]) -> int:
    """A dim with all symbols bound."""
    return dim if isinstance(dim, int) else int(substitute(dim, dict(sizes)))


def _aligned(count: int) -> int:
    return (count + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def _gap(taken: Sequence[tuple[int, int]], size: int) -> int:
    """The offset of the smallest gap that holds `size` bytes; behind all, if none does."""
    best: tuple[int, int] | None = None
    free = 0
    for start, stop in taken:
        room = start - free
        if room >= size and (best is None or room < best[0]):
            best = (room, free)
        free = max(free, stop)
    return best[1] if best is not None else free


def _most_alive(spans: Sequence[Lifetime], size_of: Mapping[Buffer, int]) -> int:
    changes: dict[int, int] = {}
    for span in spans:
        changes[span.first] = changes.get(span.first, 0) + size_of[span.buffer]
        changes[span.last + 1] = changes.get(span.last + 1, 0) - size_of[span.buffer]
    most = alive = 0
    for moment in sorted(changes):
        alive += changes[moment]
        most = max(most, alive)
    return most


def _heirs(kernels: Sequence[Kernel], spans: Sequence[Lifetime]) -> dict[Buffer, Buffer]:
    """Buffers that may take the memory of one that dies in the kernel that makes them."""
    last = {span.buffer: span.last for span in spans}
    first = {span.buffer: span.first for span in spans}
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


def _root(buffer: Buffer, heirs: Mapping[Buffer, Buffer]) -> Buffer:
    while buffer in heirs:
        buffer = heirs[buffer]
    return buffer


def _merged(spans: Sequence[Lifetime], heirs: Mapping[Buffer, Buffer]) -> list[Lifetime]:
    """Lifetimes with those of heirs joined to what they inherit from."""
    whole: dict[Buffer, Lifetime] = {}
    for span in spans:
        root = _root(span.buffer, heirs)
        known = whole.get(root, Lifetime(root, span.first, span.last))
        whole[root] = Lifetime(root, min(known.first, span.first), max(known.last, span.last))
    return list(whole.values())
