"""What the loops of a nest cost on a processor: arithmetic by its ports, data by the lines that it moves.

A model to choose by which nests are measured, and no more than that: cycles of one core, in round numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernels_hub.compiler.schedule.kernel import Compute, Constant, Load
from kernels_hub.compiler.schedule.planned_nest import PlannedNest

LINE = 16
"""Floats of a cache line."""
TURN = 2.0
"""Cycles of a loop's turn, its body aside."""
FORK = 4000.0
"""Cycles until threads have shared a loop."""
CONFLICT = 2.0
"""How much more lines cost that fall into few sets of the first cache."""


@dataclass(frozen=True)
class Level:
    """A cache: how many bytes it holds, and how many cycles a line takes to come into it."""

    bytes: int
    cycles: float


@dataclass(frozen=True)
class Machine:
    """A processor. lanes: floats of a vector. registers: of vectors. fused, loads: instructions a cycle.

    latency: cycles until a result can be added to again. threads: cores. hertz: cycles a second.
    """

    lanes: int = 16
    registers: int = 32
    fused: float = 2.0
    loads: float = 2.0
    latency: float = 4.0
    levels: tuple[Level, ...] = (Level(32 << 10, 1.5), Level(768 << 10, 4.0), Level(16 << 20, 15.0))
    threads: int = 1
    hertz: float = 3.5e9

    @classmethod
    def of(cls, isa: str, threads: int) -> Machine:
        """Of an instruction set level (`runtime.toolchain.ISAS`)."""
        lanes = {"avx512": 16, "avx2": 8}.get(isa, 4)
        return cls(lanes=lanes, registers=32 if lanes == 16 else 16, threads=threads)


Lines = tuple[float, ...]
"""Lines of each operand, then of the results."""


class NestCosts:
    """What parts of one nest cost on one machine."""

    def __init__(self, nest: PlannedNest, machine: Machine) -> None:
        self.nest, self.machine = nest, machine
        self._strides = (*(operand.strides for operand in nest.operands), nest.result)
        self._loads = {one.load.name: number for number, one in enumerate(nest.operands)}

    def depends(self, number: int, axis: int) -> bool:
        """Whether an operand, or the results (the last number), differ along an axis."""
        return self._strides[number][axis] != 0

    def lines(self, sizes: Sequence[int], copied: int) -> Lines:
        """Cache lines of a tile."""
        return tuple(self._lines(number, sizes, copied) for number in range(len(self._strides)))

    def _lines(self, number: int, sizes: Sequence[int], copied: int) -> float:
        strides = self._strides[number]
        if copied >> number & 1:
            return math.ceil(self.elements(number, sizes) / LINE)
        lines = 1.0
        for size, stride in zip(sizes, strides, strict=True):
            if stride == 1:
                lines *= math.ceil(size / LINE)
            elif stride:
                lines *= size
        return lines

    def elements(self, number: int, sizes: Sequence[int]) -> int:
        """Elements of a tile of an operand."""
        return math.prod(size for size, stride in zip(sizes, self._strides[number], strict=True) if stride)

    def conflicts(self, number: int, sizes: Sequence[int], copied: int) -> bool:
        """Whether rows of a tile lie so far apart, at a power of two, that few sets of the first cache serve them."""
        if copied >> number & 1:
            return False
        rows = [
            (stride, size) for size, stride in zip(sizes, self._strides[number], strict=True) if stride > 1
        ]
        return any(stride % 256 == 0 and size > 8 * max(1, 1024 // stride) for stride, size in rows)

    def fits(self, level: Level, lines: Lines) -> bool:
        """Whether a tile stays in a cache while it is worked on."""
        return sum(lines) * LINE * 4 <= 0.75 * level.bytes

    def block(self, counts: Mapping[int, int], lane: int | None) -> float:
        """Cycles to add one element to each result of a block. counts: vectors along each axis."""
        machine, nest = self.machine, self.nest
        total = math.prod(counts.values())
        vectors: dict[str, bool] = {}
        alike: dict[str, frozenset[int]] = {}
        loads = arithmetic = 0.0
        live = 1
        for one in nest.before:
            if isinstance(one, Constant):
                vectors[one.name], alike[one.name] = False, frozenset()
                continue
            if isinstance(one, Load):
                number = self._loads[one.name]
                axes = frozenset(axis for axis in nest.axes if self.depends(number, axis))
                vectors[one.name] = lane is not None and lane in axes
            else:
                assert isinstance(one, Compute)
                axes = frozenset().union(*(alike[arg] for arg in one.args))
                vectors[one.name] = any(vectors[arg] for arg in one.args)
            alike[one.name] = axes
            made = math.prod(count for axis, count in counts.items() if axis in axes)
            if isinstance(one, Load):
                loads += made
                live = max(live, made) if vectors[one.name] else live
            elif not (one.name == nest.reduce.arg and nest.reduce.kind == "sum" and one.op.name == "mul"):
                arithmetic += made
        arithmetic += total
        cycles = max(
            arithmetic / machine.fused, loads / machine.loads, machine.latency, (arithmetic + loads) / 5
        )
        spilled = max(0, total + min(live, 4) + 1 - machine.registers)
        return cycles + 2.0 * spilled

    def end(self, sizes: Sequence[int]) -> float:
        """Cycles of what follows the reduction, for a tile of results in the first cache."""
        results = math.prod(sizes[: self.nest.parallel])
        work = 2 + sum(one.op.cost for one in self.nest.after if isinstance(one, Compute))
        return results * work / self.machine.lanes / 2
