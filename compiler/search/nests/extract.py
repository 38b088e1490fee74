"""The cheapest plans of a space of nests, by the model of `machine`: dynamic programming from the smallest tiles up.

What a loop costs depends on what its body leaves in the caches, so that each class keeps several plans: the cheapest
for each block of results that is held, and for what is copied.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from kernels_hub.compiler.schedule.loop_plan import LoopPlan
from kernels_hub.compiler.schedule.planned_nest import MOST_POINTS, MOST_STAGED
from kernels_hub.compiler.search.nests.machine import CONFLICT, FORK, LINE, TURN, Lines, Machine, NestCosts
from kernels_hub.compiler.search.nests.space import NestSpace, NestTerm

MOST_KEPT = 6
"""Plans of a class that are kept."""


@dataclass(frozen=True)
class PricedPlan:
    """A plan and what it is predicted to take. kind: what is held and copied, by which plans differ most."""

    plan: LoopPlan
    seconds: float
    kind: str


@dataclass(frozen=True)
class _Priced:
    """A part of a plan. cycles: without moving data. lines: that come into each cache, of each operand and the results.

    counts, lane: of a block of results, how many there are along each axis, and along which it is a vector.
    turns: how many such parts threads share.
    """

    plan: LoopPlan
    cycles: float
    lines: tuple[Lines, ...] = ()
    kind: str = ""
    counts: tuple[tuple[int, int], ...] = ()
    lane: int | None = None
    turns: int = 1


class _Extraction:
    def __init__(self, space: NestSpace, machine: Machine) -> None:
        self.space, self.machine = space, machine
        self.costs = NestCosts(space.nest, machine)
        self._sizes: dict[str, tuple[int, ...]] = {}
        self._copied: dict[str, int] = {}
        self._best: dict[str, list[_Priced]] = {}

    def price(self, one: _Priced) -> float:
        """Cycles, with those in which lines move."""
        moved = zip(one.lines, self.machine.levels, strict=bool(one.lines))
        alone = one.cycles + sum(sum(lines) * level.cycles for lines, level in moved)
        return alone if one.turns == 1 else alone * math.ceil(one.turns / self.machine.threads) + FORK

    def best(self, name: str) -> list[_Priced]:
        """The plans of a class that are kept, the cheapest first."""
        if name not in self._best:
            found: dict[str, _Priced] = {}
            for term in self.space.classes[name]:
                for one in self._plans(name, term):
                    known = found.get(one.kind)
                    if known is None or self.price(one) < self.price(known):
                        found[one.kind] = one
            self._best[name] = sorted(found.values(), key=lambda one: (self.price(one), str(one.plan)))[
                :MOST_KEPT
            ]
        return self._best[name]

    def sizes(self, name: str) -> tuple[int, ...]:
        """The elements of each axis that a class of plans covers."""
        if name not in self._sizes:
            for term in self.space.classes[name]:
                if term.op in {"Add", "End"}:
                    self._sizes[name] = tuple(1 for _ in self.space.nest.axes)
                    self._copied[name] = term.numbers[0] if term.numbers else 0
                elif term.op in {"Each", "Then"}:
                    below = self.sizes(term.parts[0])
                    if term.op == "Each":
                        below = (*below[: term.numbers[0]], term.numbers[1], *below[term.numbers[0] + 1 :])
                    self._sizes[name], self._copied[name] = below, self._copied[term.parts[0]]
                else:
                    continue
                break
        return self._sizes[name]

    def copied(self, name: str) -> int:
        """The bits of the operands that a class of plans reads from copies."""
        self.sizes(name)
        return self._copied[name]

    def _plans(self, name: str, term: NestTerm) -> Iterator[_Priced]:
        if term.op in {"Add", "Point"}:
            yield _Priced(
                LoopPlan(term.op, term.numbers), 12.0, self._moved(name) if term.op == "Add" else (), "added"
            )
        elif term.op == "End":
            yield _Priced(LoopPlan("End"), 0.0, (), "end")
        elif term.op == "Each":
            yield from self._each(term)
        elif term.op == "Peel":
            for first in self.best(term.parts[0]):
                for rest in self.best(term.parts[1])[:1]:
                    lines = tuple(_sum(a, b) for a, b in zip(first.lines, rest.lines, strict=True))
                    plan = LoopPlan("Peel", term.numbers, (first.plan, rest.plan))
                    yield replace(first, plan=plan, cycles=first.cycles + rest.cycles, lines=lines)
        elif term.op == "Stage":
            yield from self._stage(term)
        elif term.op == "Then":
            yield from self._then(name, term)
        elif term.op == "Hold":
            yield from self._hold(name, term)
        elif term.op in {"Turn", "Tile"}:
            for one in self.best(term.parts[0]) if term.parts[0] in self.space.classes else ():
                turns = term.numbers[1] // term.numbers[2] if term.op == "Turn" else 1
                plan = LoopPlan(term.op, term.numbers, (one.plan,))
                yield replace(one, plan=plan, cycles=one.cycles * turns)
        elif term.op in {"Unroll", "Lanes"}:
            yield from self._written(term)
        elif term.op in {"Alone", "Share"}:
            yield from self._root(term)

    def _moved(self, name: str) -> tuple[Lines, ...]:
        """Lines of a tile that is read once."""
        return tuple(self.costs.lines(self.sizes(name), self.copied(name)) for _ in self.machine.levels)

    def _each(self, term: NestTerm) -> Iterator[_Priced]:
        axis, size, step = term.numbers
        (part,) = term.parts
        turns = size // step
        below = self.sizes(part)
        sizes = (*below[:axis], size, *below[axis + 1 :])
        copied = self.copied(part)
        inner, outer = self.costs.lines(below, copied), self.costs.lines(sizes, copied)
        for one in self.best(part):
            moved = []
            for level, lines in zip(self.machine.levels, one.lines, strict=bool(one.lines)):
                if self.costs.fits(level, outer) and not self._crowded(level, sizes, copied):
                    moved.append(outer)
                    continue
                stays = self.costs.fits(level, inner) and not self._crowded(level, below, copied)
                moved.append(
                    tuple(
                        line if stays and not self.costs.depends(number, axis) else turns * line
                        for number, line in enumerate(lines)
                    )
                )
            cycles = turns * (one.cycles + TURN) if one.kind != "end" else one.cycles
            yield replace(
                one, plan=LoopPlan("Each", term.numbers, (one.plan,)), cycles=cycles, lines=tuple(moved)
            )

    def _crowded(self, level: object, sizes: tuple[int, ...], copied: int) -> bool:
        first = level is self.machine.levels[0]
        numbers = range(len(self.space.nest.operands))
        return first and any(self.costs.conflicts(number, sizes, copied) for number in numbers)

    def _stage(self, term: NestTerm) -> Iterator[_Priced]:
        (operand,) = term.numbers
        (part,) = term.parts
        if part not in self.space.classes or self.costs.elements(operand, self.sizes(part)) > MOST_STAGED:
            return
        copied = self.copied(part) & ~(1 << operand)
        read = self.costs.lines(self.sizes(part), copied)[operand]
        if self.costs.conflicts(operand, self.sizes(part), copied):
            read *= CONFLICT
        elements = self.costs.elements(operand, self.sizes(part))
        for one in self.best(part):
            lines = tuple((*row[:operand], row[operand] + read, *row[operand + 1 :]) for row in one.lines)
            cycles = one.cycles + 10 + elements / 4
            plan = LoopPlan("Stage", term.numbers, (one.plan,))
            yield replace(one, plan=plan, cycles=cycles, lines=lines, kind=f"{one.kind} copy {operand}")

    def _then(self, name: str, term: NestTerm) -> Iterator[_Priced]:
        sizes = self.sizes(name)
        results = (*sizes[: self.space.nest.parallel], *(1 for _ in sizes[self.space.nest.parallel :]))
        lines = self.costs.lines(results, 0)[-1]
        end = self.best(term.parts[1])[0]
        for one in self.best(term.parts[0]):
            moved = tuple(
                row if lines * LINE * 4 <= level.bytes / 2 else (*row[:-1], row[-1] + lines)
                for row, level in zip(one.lines, self.machine.levels, strict=bool(one.lines))
            )
            plan = LoopPlan("Then", (), (one.plan, end.plan))
            yield replace(one, plan=plan, cycles=one.cycles + self.costs.end(sizes) + 4, lines=moved)

    def _hold(self, name: str, term: NestTerm) -> Iterator[_Priced]:
        for one in self.best(term.parts[0]) if term.parts[0] in self.space.classes else ():
            points = math.prod(count for _, count in one.counts)
            cycles = one.cycles + 2.0 * points + 6
            shape = " ".join(f"{axis}x{count}" for axis, count in one.counts)
            kind = f"hold {shape} lanes {one.lane}"
            yield replace(
                one, plan=LoopPlan("Hold", (), (one.plan,)), cycles=cycles, lines=self._moved(name), kind=kind
            )

    def _written(self, term: NestTerm) -> Iterator[_Priced]:
        axis, size = term.numbers[:2]
        for one in self.best(term.parts[0]) if term.parts[0] in self.space.classes else ():
            counts, lane = dict(one.counts), one.lane
            if term.op == "Lanes":
                lane = axis
                counts.setdefault(axis, 1)
            else:
                counts[axis] = counts.get(axis, 1) * (size // term.numbers[2])
            if math.prod(counts.values()) > MOST_POINTS:
                continue
            cycles = self.costs.block(counts, lane)
            plan = LoopPlan(term.op, term.numbers, (one.plan,))
            ordered = tuple(sorted(counts.items()))
            yield _Priced(plan, cycles, (), f"{ordered} {lane}", ordered, lane)

    def _root(self, term: NestTerm) -> Iterator[_Priced]:
        for one in self.best(term.parts[0]):
            if term.op == "Alone":
                yield _Priced(one.plan, self.price(one), (), one.kind)
                continue
            turns = term.numbers[1] // term.numbers[2]
            plan = LoopPlan("Share", term.numbers, (one.plan,))
            yield replace(
                one, plan=plan, turns=one.turns * turns, kind=f"{one.kind.removesuffix(' shared')} shared"
            )


def _sum(a: Lines, b: Lines) -> Lines:
    return tuple(one + other for one, other in zip(a, b, strict=True))


def best_plans(space: NestSpace, count: int, machine: Machine) -> list[PricedPlan]:
    """The cheapest plans of a space, no two alike in what they hold and copy, the cheapest first."""
    extraction = _Extraction(space, machine)
    found = extraction.best(space.root)
    return [PricedPlan(one.plan, extraction.price(one) / machine.hertz, one.kind) for one in found[:count]]
