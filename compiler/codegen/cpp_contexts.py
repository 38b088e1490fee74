"""What a nest with inner loops computes where: segment 0, pass 0, segment 1, pass 1, …, numbered 0, 1, 2, 3, …

A pass runs the inner loops and feeds reductions; a segment computes, once an outer turn, what follows from their
results. A value of an earlier pass that a later one needs is read back from where it was stored, or kept in a row of
scratch if it was dear, or else computed again.

With a `lane`, the last outer loop runs inside the others, over a tile: then each value of an outer turn that depends
on it is an array over the tile, kept as the others are.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from kernels_hub.compiler.codegen.cpp_loops import cost, estimate, stride, turns
from kernels_hub.compiler.ir.dims import Dim
from kernels_hub.compiler.schedule.index import Loop
from kernels_hub.compiler.schedule.kernel import (
    Constant,
    Load,
    Nest,
    Position,
    Reduce,
    Statement,
    Store,
    Test,
    arguments,
    variables,
)

TILE = 64
"""Lanes of a tile."""

ROW_BYTES = 1 << 18
"""Scratch of a row: more is computed again."""

DEAR = 8
"""What a value costs (an addition being 1) that is kept rather than computed again."""


class How(enum.Enum):
    """How a context comes by a value."""

    COMPUTED = enum.auto()
    KEPT = enum.auto()  # read from scratch
    STORED = enum.auto()  # read from where it was stored
    TOTAL = enum.auto()  # the result of a reduction, one a lane


class Contexts:
    """See the module."""

    def __init__(self, nest: Nest, lane: Loop | None) -> None:
        self.nest, self.lane = nest, lane
        self.by_name = {one.name: one for one in nest.body if not isinstance(one, Store)}
        self.home: dict[str, int] = {}
        self.fed: dict[str, int] = {}
        self.inner: set[str] = set()
        self.on_lane: set[str] = set()
        self.stores: list[tuple[Store, int, bool]] = []
        self.kept: dict[str, None] = {}
        self.last = 0
        names = {one.name for one in nest.inner}
        for one in nest.body:
            self._place(one, names)
        for context in range(self.last, -1, -1):
            self.needed(context, decide=True)

    def stored_at(self, context: int, *, inner: bool) -> list[Store]:
        """What a context stores, in inner loops or once an outer turn."""
        return [one for one, at, mine in self.stores if at == context and mine == inner]

    def kept_at(self, context: int) -> list[str]:
        """What a context computes and keeps."""
        return [name for name in self.kept if self.home[name] == context]

    def fed_at(self, context: int) -> list[Reduce]:
        """The reductions that a pass feeds."""
        return [one for one in self.nest.body if isinstance(one, Reduce) and self.fed[one.name] == context]

    def is_scalar(self, name: str) -> bool:
        """Whether a value is one variable in scope for a whole outer turn."""
        return name not in self.inner and name not in self.on_lane

    def needed(self, context: int, *, decide: bool = False) -> dict[str, How]:
        """The values that a context makes, but for scalars. decide: note those that are to be kept for it."""
        found: dict[str, How] = {}
        waiting = self._roots(context)
        while waiting:
            name = waiting.pop()
            one = self.by_name.get(name)
            if name in found or one is None or isinstance(one, Constant) or self.is_scalar(name):
                continue
            found[name] = self._how(one, context, decide=decide)
            if found[name] is How.COMPUTED:
                waiting += arguments(one)
        return found

    def store_of(self, name: str, before: int) -> Store | None:
        """An earlier store of a value, from which it can be read back."""
        one = self.by_name[name]
        if isinstance(one, (Load, Position, Test)):
            return None
        for store, at, inner in self.stores:
            if store.arg == name and at < before and inner and store.buffer.dtype is one.dtype:
                return store
        return None

    def _place(self, one: Statement, names: set[str]) -> None:
        args = arguments(one)
        base = max((self.home[arg] for arg in args), default=0)
        inner = bool(variables(one) & names) or any(arg in self.inner for arg in args)
        context = base + 1 if inner and base % 2 == 0 else base
        if isinstance(one, Store):
            self.stores.append((one, context, inner))
            self.last = max(self.last, context)
            return
        if isinstance(one, Reduce):
            self.fed[one.name] = context if context % 2 else context + 1
            self.home[one.name] = self.fed[one.name] + 1
            self.last = max(self.last, self.fed[one.name])
        else:
            self.home[one.name] = context
            if inner:
                self.inner.add(one.name)
        if self.lane is not None and (
            isinstance(one, Reduce)
            or self.lane.name in variables(one)
            or any(arg in self.on_lane for arg in args)
        ):
            self.on_lane.add(one.name)

    def _roots(self, context: int) -> list[str]:
        roots = [arg for one, at, _ in self.stores if at == context for arg in arguments(one)]
        return roots + [one.arg for one in self.fed_at(context)] + self.kept_at(context)

    def _how(self, one: Statement, context: int, *, decide: bool) -> How:
        assert not isinstance(one, Store)
        name = one.name
        if isinstance(one, Reduce):
            return How.TOTAL
        if self.home[name] == context:
            return How.COMPUTED
        if name in self.inner:
            if self.store_of(name, context) is not None:
                return How.STORED
            if decide and self._is_dear(name):
                self.kept[name] = None
            return How.KEPT if name in self.kept else How.COMPUTED
        if isinstance(one, Load) and not any(arg in self.on_lane for arg in arguments(one)):
            return How.COMPUTED
        if decide:
            self.kept[name] = None
        return How.KEPT

    def _is_dear(self, name: str) -> bool:
        elements = estimate(turns(self.nest.inner)) * (TILE if self.lane is not None else 1)
        if elements * 8 > ROW_BYTES:
            return False
        total = 0
        seen: set[str] = set()
        waiting: list[str] = [name]
        while waiting:
            at = waiting.pop()
            if at in seen or self.is_scalar(at):
                continue
            seen.add(at)
            one = self.by_name[at]
            total += cost(one)
            if not isinstance(one, Reduce):
                waiting += arguments(one)
        return total >= DEAR


def lane_of(nest: Nest) -> Loop | None:
    """The last outer loop, where lanes along it read memory better than lanes along the last inner loop."""
    if not nest.outer or not nest.inner:
        return None
    lane = nest.outer[-1]
    if not any(lane.name in variables(one) for one in nest.body):
        return None
    inner = nest.is_inner()
    loads = [one for one in nest.body if isinstance(one, Load) and inner[one.name]]
    return lane if _penalty(lane, loads) < _penalty(nest.inner[-1], loads) else None


def _penalty(loop: Loop, loads: Sequence[Load]) -> float:
    extent = max(1, estimate(loop.extent))
    short = TILE / extent if extent < 16 else 1.0
    return short * (1 + 3 * sum(stride(one.place, loop) not in {0, 1} for one in loads))


def tile_of(extent: Dim) -> int:
    """Lanes of a tile: few that are left over."""
    if not isinstance(extent, int):
        return TILE
    if extent <= TILE:
        return extent
    return next((one for one in (64, 96, 80, 48, 56, 72, 32) if extent % one == 0), TILE)
