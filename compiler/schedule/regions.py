"""Kernels that are made of others: those of a loop's body, and those of two branches."""

from __future__ import annotations

from dataclasses import dataclass

from kernels_hub.compiler.ir.dims import Dim
from kernels_hub.compiler.schedule.kernel import Buffer, Kernel


@dataclass(frozen=True)
class State:
    """What a loop carries from turn to turn. A turn reads it at `reads` and writes it at `writes`.

    first: what the first turn reads; last: where it lies after the last turn; between: room for two in turns.
    """

    first: Buffer
    last: Buffer
    between: Buffer
    reads: Buffer
    writes: Buffer


@dataclass(frozen=True)
class Repeat(Kernel):
    """Kernels (`turn`) that run for each turn of a loop, one turn after the other; `nests` are all of theirs.

    trips: how many turns at most. condition: a bool that is tested before the first turn; goes_on: one that each turn
    writes, and that is tested after it. number: the turn's number, an int64 that its kernels read. elements: (where a
    turn reads, the sequence of which that is an element along the first dim). stacks: (where a turn writes, that of
    which it is an element). count: how long stacks are; `message` is what a call fails with that has another number of
    turns. What a turn reads or writes in places of its own (`windows`) is no memory of the schedule.
    """

    turn: tuple[Kernel, ...] = ()
    trips: Dim | Buffer = 0
    condition: Buffer | None = None
    goes_on: Buffer | None = None
    number: Buffer | None = None
    states: tuple[State, ...] = ()
    elements: tuple[tuple[Buffer, Buffer], ...] = ()
    stacks: tuple[tuple[Buffer, Buffer], ...] = ()
    count: Dim = 0
    message: str = ""

    def windows(self) -> dict[Buffer, None]:
        """Buffers that stand for a place in another, which changes with each turn."""
        own = [window for window, _ in (*self.elements, *self.stacks)]
        return dict.fromkeys([*own, *(one for state in self.states for one in (state.reads, state.writes))])

    def reads(self) -> dict[Buffer, None]:
        """Buffers read, each once, in order."""
        given = [self.trips, self.condition, *(state.first for state in self.states)]
        found = [one for one in given if isinstance(one, Buffer)] + [whole for _, whole in self.elements]
        found += [buffer for kernel in self.turn for buffer in kernel.reads()]
        windows = self.windows()
        return dict.fromkeys(one for one in found if one not in windows)

    def writes(self) -> dict[Buffer, None]:
        """Buffers written, each once, in order."""
        found = [one for one in (self.goes_on, self.number) if one is not None]
        found += [one for state in self.states for one in (state.between, state.last)]
        found += [whole for _, whole in self.stacks]
        found += [buffer for kernel in self.turn for buffer in kernel.writes()]
        windows = self.windows()
        return dict.fromkeys(one for one in found if one not in windows)


@dataclass(frozen=True)
class Branch(Kernel):
    """Kernels of which some run (`then`) or others (`otherwise`), as a bool says; `nests` are all of theirs."""

    condition: Buffer | None = None
    then: tuple[Kernel, ...] = ()
    otherwise: tuple[Kernel, ...] = ()

    def reads(self) -> dict[Buffer, None]:
        """Buffers read, each once, in order."""
        found = [self.condition] if self.condition is not None else []
        return dict.fromkeys(
            [*found, *(one for kernel in (*self.then, *self.otherwise) for one in kernel.reads())]
        )

    def writes(self) -> dict[Buffer, None]:
        """Buffers written, each once, in order."""
        return dict.fromkeys(one for kernel in (*self.then, *self.otherwise) for one in kernel.writes())
