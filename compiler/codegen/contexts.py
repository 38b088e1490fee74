"""Assigns the statements of a nest with inner loops to segments (outer) and passes (inner), in execution order.

A pass runs the inner loops and feeds reductions; a segment computes, once an outer turn, what follows from their
results. A value of an earlier pass that a later one needs is read back from where it was stored, or kept in a row of
scratch if it was expensive, or else computed again.

With a `lane`, the last outer loop runs inside the others, over a tile: then each value of an outer turn that depends
on it is an array over the tile, kept as the others are.
"""

from __future__ import annotations

import enum

from kernels_hub.compiler.codegen.lanes import TILE
from kernels_hub.compiler.codegen.loops import cost, estimate, turns
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

ROW_BYTES = 1 << 18
"""Scratch of a row: more is computed again."""

KEPT_COST = 8
"""The cost (an addition being 1) from which a value is kept rather than computed again."""


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
        self.by_name = {
            statement.name: statement for statement in nest.body if not isinstance(statement, Store)
        }
        self.home: dict[str, int] = {}
        self.fed: dict[str, int] = {}
        self.inner: set[str] = set()
        self.on_lane: set[str] = set()
        self.stores: list[tuple[Store, int, bool]] = []
        self.kept: dict[str, None] = {}
        self.last = 0
        names = {loop.name for loop in nest.inner}
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
        return [
            statement
            for statement in self.nest.body
            if isinstance(statement, Reduce) and self.fed[statement.name] == context
        ]

    def is_scalar(self, name: str) -> bool:
        """Whether a value is one variable in scope for a whole outer turn."""
        return name not in self.inner and name not in self.on_lane

    def needed(self, context: int, *, decide: bool = False) -> dict[str, How]:
        """The values that a context makes, but for scalars. decide: note those that are to be kept for it."""
        hows: dict[str, How] = {}
        waiting = self._roots(context)
        while waiting:
            name = waiting.pop()
            one = self.by_name.get(name)
            if name in hows or one is None or isinstance(one, Constant) or self.is_scalar(name):
                continue
            hows[name] = self._how(one, context, decide=decide)
            if hows[name] is How.COMPUTED:
                waiting += arguments(one)
        return hows

    def store_of(self, name: str, before: int) -> Store | None:
        """An earlier store of a value, from which it can be read back."""
        one = self.by_name[name]
        if isinstance(one, (Load, Position, Test)):
            return None
        for store, at, inner in self.stores:
            if store.arg == name and at < before and inner and store.buffer.dtype is one.dtype:
                return store
        return None

    def _place(self, statement: Statement, names: set[str]) -> None:
        args = arguments(statement)
        base = max((self.home[arg] for arg in args), default=0)
        inner = bool(variables(statement) & names) or any(arg in self.inner for arg in args)
        context = base + 1 if inner and base % 2 == 0 else base
        if isinstance(statement, Store):
            self.stores.append((statement, context, inner))
            self.last = max(self.last, context)
            return
        if isinstance(statement, Reduce):
            self.fed[statement.name] = context if context % 2 else context + 1
            self.home[statement.name] = self.fed[statement.name] + 1
            self.last = max(self.last, self.fed[statement.name])
        else:
            self.home[statement.name] = context
            if inner:
                self.inner.add(statement.name)
        if self.lane is not None and (
            isinstance(statement, Reduce)
            or self.lane.name in variables(statement)
            or any(arg in self.on_lane for arg in args)
        ):
            self.on_lane.add(statement.name)

    def _roots(self, context: int) -> list[str]:
        roots = [arg for one, at, _ in self.stores if at == context for arg in arguments(one)]
        return roots + [one.arg for one in self.fed_at(context)] + self.kept_at(context)

    def _how(self, statement: Statement, context: int, *, decide: bool) -> How:
        assert not isinstance(statement, Store)
        name = statement.name
        if isinstance(statement, Reduce):
            return How.TOTAL
        if self.home[name] == context:
            return How.COMPUTED
        if name in self.inner:
            if self.store_of(name, context) is not None:
                return How.STORED
            if decide and self._is_expensive(name):
                self.kept[name] = None
            return How.KEPT if name in self.kept else How.COMPUTED
        if isinstance(statement, Load) and not any(arg in self.on_lane for arg in arguments(statement)):
            return How.COMPUTED
        if decide:
            self.kept[name] = None
        return How.KEPT

    def _is_expensive(self, name: str) -> bool:
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
        return total >= KEPT_COST
