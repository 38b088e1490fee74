"""Equality saturation of one nest: all loops that the rewrites of `rules` make of the naive ones."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kernels_hub.compiler.schedule.planned_nest import LANES, PlannedNest, lanes_fit
from kernels_hub.compiler.search.nests.rules import FACTS, LANGUAGE, RULES, NestRule
from kernels_hub.compiler.search.saturate import Egglog, Limits
from kernels_hub.compiler.search.terms import rule

CACHE_CUTS = (64, 256)
"""Tiles of which several loops go over what lies in a cache, in elements of an axis."""
WRITTEN_CUTS = (4, 6, 8)
"""Tiles of results that are written out, along an axis without lanes."""


@dataclass(frozen=True)
class NestTerm:
    """A constructor, its numbers, and the classes of its parts."""

    op: str
    numbers: tuple[int, ...]
    parts: tuple[str, ...]


@dataclass(frozen=True)
class NestSpace:
    """What was reached: terms that are equal, by class. root: the class of the whole nest.

    fired: how often each rewrite did. complete: whether nothing more is to be found.
    """

    nest: PlannedNest
    classes: Mapping[str, tuple[NestTerm, ...]]
    root: str
    fired: Mapping[str, int]
    rounds: int
    complete: bool

    @property
    def size(self) -> int:
        """Terms in all."""
        return sum(map(len, self.classes.values()))


def nest_space(
    nest: PlannedNest, lanes: int, limits: Limits | None = None, rules: Sequence[NestRule] = RULES
) -> NestSpace:
    """All that the rewrites reach from the naive loops of a nest. lanes: floats of a vector of the target.

    Raises MissingDependencyError where egglog is not installed.
    """
    limits = limits or Limits(rounds=40, terms=60_000, seconds=20.0)
    engine = Egglog()
    engine.run(LANGUAGE)
    engine.run("\n".join(rule(text, "facts", f"fact:{number}") for number, text in enumerate(FACTS)))
    engine.run(
        "\n".join(
            rule(text, "nests", f"{one.name}:{number}")
            for one in rules
            for number, text in enumerate(one.texts)
        )
    )
    engine.run("\n".join(facts_of(nest, lanes)))
    engine.run(f"(let $root (Alone {nest.naive()}))")
    started = time.monotonic()
    fired: dict[str, int] = {}
    rounds, complete = 0, False
    while rounds < limits.rounds and not complete:
        if time.monotonic() - started > limits.seconds or engine.count() > limits.terms:
            break
        found, changed = engine.round("nests", "facts")
        for name, count in found.items():
            fired[name] = fired.get(name, 0) + count
        complete = not changed
        rounds += 1
    return _read(nest, engine, fired, rounds, complete=complete)


def facts_of(nest: PlannedNest, lanes: int) -> Iterator[str]:
    """What the nest allows: no two turns of a parallel axis meet, and those of a reduced one do so in any order."""
    for axis in nest.axes:
        yield f"({'reduced' if nest.reduces(axis) else 'parallel'} {axis})"
        for elements in cuts(nest, axis, lanes):
            yield f"(cut {axis} {elements})"
    for one, other in itertools.permutations(nest.axes, 2):
        yield f"(free {one} {other})"
    lane = lane_axis(nest)
    for number, operand in enumerate(nest.operands):
        yield f"(bit {number} {1 << number})"
        if lane is not None and operand.depends(lane):
            for axis in nest.axes:
                if not operand.depends(axis):
                    yield f"(reuses {number} {axis})"
    for axis in nest.axes:
        for copied in range(1 << len(nest.operands)):
            if not nest.reduces(axis) and lanes_fit(nest, axis, copied):
                yield from (f"(lanes {axis} {width} {copied})" for width in LANES if width <= lanes)


def lane_axis(nest: PlannedNest) -> int | None:
    """The axis along which results lie beside each other."""
    return next((axis for axis in nest.axes if not nest.reduces(axis) and nest.result[axis] == 1), None)


def cuts(nest: PlannedNest, axis: int, lanes: int) -> tuple[int, ...]:
    """Where tiles of an axis may end, in elements."""
    extent = nest.extents[axis]
    found = {cut for cut in CACHE_CUTS if 2 * cut <= extent}
    if axis == lane_axis(nest):
        found |= {lanes, 2 * lanes, 4 * lanes}
        found |= {width for width in LANES if extent % lanes >= width > extent % lanes % width}
    elif not nest.reduces(axis):
        whole = {cut for cut in WRITTEN_CUTS if extent % cut == 0}
        found |= whole or {WRITTEN_CUTS[-1]}
    return tuple(sorted(cut for cut in found if cut < extent))


def _read(
    nest: PlannedNest, engine: Egglog, fired: Mapping[str, int], rounds: int, *, complete: bool
) -> NestSpace:
    nodes, data = engine.nodes()
    classes: dict[str, list[NestTerm]] = {}
    for node in nodes.values():
        if not node["op"][:1].isupper():
            continue
        numbers, parts = [], []
        for name in node["children"]:
            child = nodes[name]
            if child["eclass"].startswith("i64-"):
                numbers.append(int(child["op"]))
            else:
                parts.append(child["eclass"])
        classes.setdefault(node["eclass"], []).append(NestTerm(node["op"], tuple(numbers), tuple(parts)))
    root = next(name for name, row in data.items() if row.get("let") == "$root")
    ordered = {name: tuple(sorted(set(terms), key=repr)) for name, terms in classes.items()}
    return NestSpace(nest, ordered, root, dict(sorted(fired.items())), rounds, complete)
