"""Memory of registers: each has a slot while it is needed, which others take before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kernels_hub.compiler.codegen.bytecode.instruction import Instruction, Register


@dataclass
class Lists:
    """Lists of instructions in the order in which they run. passes: those that run again and again: (first, behind)."""

    all: list[list[Instruction]] = field(default_factory=list)
    passes: list[tuple[int, int]] = field(default_factory=list)

    def add(self, one: Sequence[Instruction]) -> int:
        """The number of a new list."""
        self.all.append(list(one))
        return len(self.all) - 1


def allocate(registers: Sequence[Register], lists: Lists) -> list[tuple[int, int]]:
    """Give registers memory, which those share that are not needed at the same time; its sizes."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    starts, moment = [], 0
    for instructions in lists.all:
        starts.append(moment)
        for instruction in instructions:
            for one in instruction.registers:
                first.setdefault(one, moment)
                last[one] = moment
            moment += 1
    starts.append(moment)
    for begin, end in lists.passes:
        for number, final in last.items():
            if first[number] < starts[begin] <= final < starts[end]:
                last[number] = starts[end] - 1
    sizes: list[tuple[int, int]] = []
    free: dict[tuple[int, int], list[int]] = {}
    ends: dict[int, list[int]] = {}
    for register in registers:
        if register.constant is not None or register.is_kept:
            register.slot = len(sizes)
            sizes.append(register.size)
    order = sorted((first[number], number) for number in first)
    released = 0
    for begin, number in order:
        register = registers[number]
        if register.is_view or register.slot is not None:
            continue
        for moment in range(released, begin):
            for slot in ends.pop(moment, ()):
                free.setdefault(sizes[slot], []).append(slot)
        released = max(released, begin)
        known = free.get(register.size)
        if known:
            register.slot = known.pop()
        else:
            register.slot = len(sizes)
            sizes.append(register.size)
        ends.setdefault(last[number], []).append(register.slot)
    return sizes
