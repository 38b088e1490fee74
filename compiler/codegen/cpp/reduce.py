"""A nest with inner loops as C++: the contexts of `codegen.contexts`, one after the other, for every outer turn.

Either the innermost inner loop is vectorised ("along"), or, where memory runs that way, a tile of the last outer loop
("across").
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from kernels_hub.compiler.codegen.contexts import Contexts, How
from kernels_hub.compiler.codegen.cpp.accumulate import (
    BLOCK,
    clauses,
    declare_row,
    feed_across,
    feed_along,
    finish_along,
    in_order,
    is_parted,
    is_searched,
    keep_along,
    search_row,
    start_across,
    start_along,
    total_of,
    twins_of,
)
from kernels_hub.compiler.codegen.cpp.function import Function
from kernels_hub.compiler.codegen.cpp.halves import print_simd_loop
from kernels_hub.compiler.codegen.cpp.scalar import value_type
from kernels_hub.compiler.codegen.guard_runs import Run, narrowed
from kernels_hub.compiler.codegen.lanes import lane_of, tile_of
from kernels_hub.compiler.codegen.loops import levels, turns
from kernels_hub.compiler.codegen.scalar import variable_name
from kernels_hub.compiler.ir.dims import Dim, ceildiv
from kernels_hub.compiler.ir.extrema import substitute
from kernels_hub.compiler.schedule.index import Loop, flatten
from kernels_hub.compiler.schedule.kernel import Reduce, Statement, Store

STACK_ELEMENTS = 8192
"""Rows of scratch up to this long lie on the stack."""


def print_reduction(function: Function) -> None:
    """Write the functions of a nest with reductions."""
    lane = lane_of(function.nest)
    if lane is None:
        _Along(function).emit()
    else:
        _Across(function, lane).emit()


class _Reduction(ABC):
    """What both ways share."""

    def __init__(self, function: Function, lane: Loop | None) -> None:
        self.function, self.lines, self.body = function, function.lines, function.body
        self.nest = function.nest
        self.inner_turns = turns(self.nest.inner)
        self.contexts = Contexts(self.nest, lane)
        inner = self.nest.inner
        self.flat = flatten(tuple(loop.index for loop in inner), tuple(loop.extent for loop in inner))
        self.runs: dict[str, Run] = {}
        """Loop of the pass that is written -> those of its turns in which guards hold."""

    def emit_rows(self, loops: Sequence[Loop], per_row: Dim) -> None:
        """Both functions; `_row` writes what happens in a row."""

        def inside() -> None:
            self._declare_kept()
            if not loops:
                self._row()
                return
            with self.lines.block(self.function.row_loop(loops)):
                self.function.row_variables(loops)
                self._row()

        self.function.rows(turns(loops), per_row * self.function.work, inside)

    def _row(self) -> None:
        for context in range(self.contexts.last + 1):
            self._pass(context) if context % 2 else self._segment(context)

    @abstractmethod
    def _segment(self, context: int) -> None:
        """What is computed once a row between two passes."""

    @abstractmethod
    def _pass(self, context: int) -> None:
        """One pass over the inner loops."""

    def _kept_place(self, name: str) -> Dim:
        """Where a kept value lies in its row, lanes aside."""
        return self.flat if name in self.contexts.inner else 0

    def _kept_size(self, name: str) -> Dim:
        return self.inner_turns if name in self.contexts.inner else 1

    def _lane_place(self, place: Dim) -> str:
        """A place in a row of kept values as text."""
        return self.body.index(place)

    def _declare_kept(self) -> None:
        for name in self.contexts.kept:
            kind, size = value_type(self.body.dtypes[name]), self._kept_size(name)
            if isinstance(size, int) and size <= STACK_ELEMENTS:
                self.lines.add(f"alignas(64) {kind} {name}_row[{max(1, size)}];")
            else:
                self.lines.add(f"const kh::Row<{kind}> {name}_row({self.body.index(size)});")

    def _is_own_scalar(self, statement: Statement, context: int) -> bool:
        """Whether a segment computes a value once an outer turn."""
        if isinstance(statement, (Store, Reduce)) or not self.contexts.is_scalar(statement.name):
            return False
        return self.contexts.home[statement.name] == context

    def _body_of(self, context: int, needed: Mapping[str, How]) -> list[Statement]:
        """The statements of a pass, in order."""
        fed = {one.name for one in self.contexts.fed_at(context)}
        stores = {id(one) for one in self.contexts.stored_at(context, inner=True)}
        return [
            statement
            for statement in self.nest.body
            if (
                id(statement) in stores
                if isinstance(statement, Store)
                else statement.name in fed or statement.name in needed
            )
        ]

    def _levels(
        self, body: Sequence[Statement], loops: Sequence[Loop], needed: Mapping[str, How]
    ) -> list[int]:
        def innermost(one: Statement) -> bool:
            if isinstance(one, (Reduce, Store)):
                return True
            return needed.get(one.name, How.COMPUTED) is not How.COMPUTED

        return levels(body, loops, innermost)

    def _narrow(
        self,
        body: list[Statement],
        at: list[int],
        context: int,
        loops: Sequence[Loop],
        fixed: Sequence[Loop] = (),
    ) -> tuple[list[Statement], list[int]]:
        """The statements of a pass that feeds reductions alone, without guards that bounds of its loops replace.

        at: how many loops each stands inside.
        """
        self.runs = {}
        if self.contexts.kept_at(context):
            return body, at
        depth: dict[str, int] = {}
        for one, level in zip(body, at, strict=True):
            if isinstance(one, Store):
                return body, at
            depth[one.name] = level
        names = [loop.name for loop in fixed]
        fed, ranges = self.contexts.fed_at(context), self.body.scalars.ranges
        rest, self.runs = narrowed(body, self.nest.body, fed, loops, names, ranges)
        self.body.know(rest)
        return rest, [depth[one.name] for one in rest if not isinstance(one, Store)]

    def _bounds(self, loop: Loop, first: str = "0", end: str = "") -> tuple[str, str]:
        """The bounds of a loop, which are declared where they are not first..end."""
        run, end = self.runs.get(loop.name), end or self.body.index(loop.extent)
        return (first, end) if run is None else self.function.run_bounds(loop, run, first, end)

    def _head(self, loop: Loop, first: str = "0", end: str = "") -> str:
        """The head of a loop, behind the declaration of its bounds where they are not first..end."""
        name = variable_name(loop.name)
        first, end = self._bounds(loop, first, end)
        return f"for (int64_t {name} = {first}; {name} < {end}; ++{name})"

    def _make(self, statement: Statement, context: int, how: How) -> None:
        """A value in a context: computed, or read from where it was kept. Kept on, where this is its home."""
        assert not isinstance(statement, Store)
        name, kind = statement.name, value_type(statement.dtype)
        if how is How.COMPUTED:
            self.body.emit(statement)
            if name in self.contexts.kept and self.contexts.home[name] == context:
                place = self._lane_place(self._kept_place(name))
                self.lines.add(f"{name}_row[{place}] = {self.body.use(name)};")
        elif how is How.KEPT:
            self.lines.add(f"const {kind} {name} = {name}_row[{self._lane_place(self._kept_place(name))}];")
        elif how is How.STORED:
            store = self.contexts.store_of(name, context)
            assert store is not None
            source = f"{self.function.names.buffers[store.buffer]}[{self.body.index(store.place)}]"
            self.lines.add(f"const {kind} {name} = {source};")
        else:
            assert isinstance(statement, Reduce)
            self.lines.add(f"const {kind} {name} = {total_of(statement, self._lane_place(0))};")


class _Along(_Reduction):
    """The innermost loop over vectors; values of an outer turn are scalars."""

    def __init__(self, function: Function) -> None:
        super().__init__(function, None)

    def emit(self) -> None:
        """Both functions."""
        self.emit_rows(self.nest.outer, self.inner_turns)

    def _segment(self, context: int) -> None:
        stores = {id(one) for one in self.contexts.stored_at(context, inner=False)}
        for statement in self.nest.body:
            if isinstance(statement, Store):
                if id(statement) in stores:
                    self.body.emit(statement)
            elif self._is_own_scalar(statement, context):
                self.body.emit(statement)

    def _pass(self, context: int) -> None:
        needed, everything = self.contexts.needed(context), self.contexts.fed_at(context)
        twins = twins_of(everything, self.body)
        fed = [one for one in everything if one.name not in twins]
        body = [
            one for one in self._body_of(context, needed) if isinstance(one, Store) or one.name not in twins
        ]
        if not body:
            return
        loops = self.nest.inner
        at = self._levels(body, loops, needed)
        known = dict(self.body.texts)
        body, at = self._narrow(body, at, context, loops, loops[-1:] if self._is_cut(loops, fed) else ())
        last = [
            one
            for one, depth in zip(body, at, strict=True)
            if depth == len(loops)
            and (isinstance(one, Store) or needed.get(one.name, How.COMPUTED) is How.COMPUTED)
        ]
        for one in fed:
            start_along(one, self.body)

        def emit(level: int) -> None:
            for statement, depth in zip(body, at, strict=True):
                if depth != level:
                    continue
                if isinstance(statement, Reduce):
                    self._feed(statement, loops, cut=self._is_cut(loops, fed))
                elif isinstance(statement, Store):
                    self.body.emit(statement)
                else:
                    self._make(statement, context, needed[statement.name])

        def innermost(bounds: tuple[str, str]) -> None:
            pragma = self._simd([one for one in fed if not is_searched(one, loops[-1].extent)])
            print_simd_loop(self.function, loops[-1], bounds, last, lambda: emit(len(loops)), pragma)

        def nested(level: int) -> None:
            emit(level)
            if level < len(loops) - 1:
                with self.lines.block(self._head(loops[level])):
                    nested(level + 1)
            else:
                self._blocked(loops[-1], fed, innermost)

        if loops:
            nested(0)
        else:
            self._parts([one for one in fed if is_parted(one)], lambda: emit(0))
        self.runs, self.body.texts = {}, known
        for one in fed:
            finish_along(one, self.body)
        for name, place in twins.items():
            self.lines.add(f"const {value_type(self.body.dtypes[name])} {name} = {place}_best;")

    def _feed(self, one: Reduce, loops: Sequence[Loop], *, cut: bool) -> None:
        """One turn of a reduction; of a search in blocks, a value for it."""
        if loops and is_searched(one, loops[-1].extent):
            place = variable_name(loops[-1].name)
            keep_along(one, self.body, f"{place} - block" if cut else place)
        else:
            feed_along(one, self.body, self.body.index(self.flat))

    @staticmethod
    def _simd(fed: Sequence[Reduce]) -> str:
        """What has a loop vectorised, if what it feeds allows that."""
        if any(in_order(one) for one in fed):
            return ""
        told = " ".join(clause for one in fed for clause in clauses(one))
        return f"#pragma omp simd {told}".rstrip()

    @staticmethod
    def _is_cut(loops: Sequence[Loop], fed: Sequence[Reduce]) -> bool:
        """Whether the innermost loop is cut into blocks, as float32 sums and searches for a place need it."""
        if not loops or not any(is_parted(one) or is_searched(one, loops[-1].extent) for one in fed):
            return False
        return not isinstance(loops[-1].extent, int) or loops[-1].extent > BLOCK

    def _parts(self, parted: Sequence[Reduce], inside: Callable[[], None]) -> None:
        """Something that feeds float32 parts, between their declaration and their being added up."""
        if parted:
            self.lines.add(f"float {', '.join(f'{reduce.name}_part = 0' for reduce in parted)};")
        inside()
        for one in parted:
            self.lines.add(f"{one.name}_sum += {one.name}_part;")

    def _blocked(
        self, loop: Loop, fed: Sequence[Reduce], innermost: Callable[[tuple[str, str]], None]
    ) -> None:
        """The innermost loop, cut into blocks where float32 sums or searches need that."""
        extent = self.body.index(loop.extent)
        parted = [one for one in fed if is_parted(one)]
        searched = [one for one in fed if is_searched(one, loop.extent)]
        first = self.body.index(substitute(self.flat, {loop.name: 0}))

        def block(bounds: tuple[str, str], first: str, count: str, room: int) -> None:
            for one in searched:
                declare_row(one, self.body, room)
            self._parts(parted, lambda: innermost(bounds))
            for one in searched:
                search_row(one, self.body, first, count)

        if not self._is_cut((loop,), fed):
            room = loop.extent if isinstance(loop.extent, int) else BLOCK
            block(self._bounds(loop), first, extent, room)
            return
        with self.lines.block(f"for (int64_t block = 0; block < {extent}; block += {BLOCK})"):
            self.lines.add(f"const int64_t stop = kh::min<int64_t>(block + {BLOCK}, {extent});")
            block(("block", "stop"), "block" if first == "0" else f"{first} + block", "stop - block", BLOCK)


class _Across(_Reduction):
    """A tile of the last outer loop over vectors, inside of the inner loops; values of an outer turn are arrays."""

    def __init__(self, function: Function, lane: Loop) -> None:
        super().__init__(function, lane)
        self.lane = lane
        self.tile = tile_of(lane.extent, turns(self.nest.outer[:-1]), wide=not self.contexts.kept)
        self.at_lane = f"{variable_name(lane.name)} - start"

    def emit(self) -> None:
        """Both functions."""
        extent = self.lane.extent
        tiles = Loop("$tile_", ceildiv(extent, self.tile))
        loops = self.nest.outer[:-1]
        if not isinstance(tiles.extent, int) or tiles.extent != 1:
            loops = (*loops, tiles)
        lanes = extent if isinstance(extent, int) and extent < self.tile else self.tile
        self.emit_rows(loops, self.inner_turns * lanes)

    def _row(self) -> None:
        extent, tile = self.lane.extent, self.tile
        if isinstance(extent, int) and extent <= tile:
            self.lines.add(f"constexpr int64_t start = 0, width = {extent};")
        elif isinstance(extent, int) and extent % tile == 0:
            self.lines.add(f"const int64_t start = tile_ * {tile};")
            self.lines.add(f"constexpr int64_t width = {tile};")
        else:
            rest = f"kh::min<int64_t>({tile}, {self.body.index(extent)} - start)"
            self.lines.add(f"const int64_t start = tile_ * {tile}, width = {rest};")
        super()._row()

    def _kept_size(self, name: str) -> Dim:
        return super()._kept_size(name) * self.tile

    def _lane_place(self, place: Dim) -> str:
        if isinstance(place, int) and place == 0:
            return self.at_lane
        return f"{self.body.scalars.factor(place)} * {self.tile} + {self.at_lane}"

    @contextmanager
    def _lanes(self) -> Iterator[None]:
        head = self._head(self.lane, "start", "start + width")
        self.lines.add("#pragma omp simd")
        with self.lines.block(head):
            yield

    def _segment(self, context: int) -> None:
        contexts = self.contexts
        for statement in self.nest.body:
            if self._is_own_scalar(statement, context):
                self.body.emit(statement)
        stores = {id(one) for one in contexts.stored_at(context, inner=False)}
        if not stores and not contexts.kept_at(context):
            return
        needed = contexts.needed(context)
        with self._lanes():
            for statement in self.nest.body:
                if isinstance(statement, Store):
                    if id(statement) in stores:
                        self.body.emit(statement)
                elif statement.name in needed:
                    self._make(statement, context, needed[statement.name])

    def _pass(self, context: int) -> None:
        needed, fed = self.contexts.needed(context), self.contexts.fed_at(context)
        body = self._body_of(context, needed)
        if not body:
            return
        inner = self.nest.inner
        at = self._levels(body, (*inner, self.lane), needed)
        parted = [one for one in fed if is_parted(one)]
        if not inner or (isinstance(self.inner_turns, int) and self.inner_turns <= BLOCK // 2):
            parted = []
        known = dict(self.body.texts)
        cut = inner[:1] if parted and len(inner) == 1 else ()
        body, at = self._narrow(body, at, context, (*inner, self.lane), cut)
        reduced = {one.name for one in fed}
        for one in fed:
            start_across(one, self.body, self.tile, parted=bool(parted))

        def emit(level: int) -> None:
            for statement, depth in zip(body, at, strict=True):
                if depth != level:
                    continue
                if isinstance(statement, Store):
                    self.body.emit(statement)
                elif isinstance(statement, Reduce) and statement.name in reduced:
                    place = self.body.index(self.flat)
                    feed_across(statement, self.body, self.at_lane, place, parted=bool(parted))
                else:
                    self._make(statement, context, needed[statement.name])

        def nested(level: int) -> None:
            emit(level)
            if level == len(inner):
                with self._lanes():
                    emit(level + 1)
            elif level == 0 and parted:
                self._blocked(inner, parted, lambda: nested(1))
            else:
                with self.lines.block(self._head(inner[level])):
                    nested(level + 1)

        nested(0)
        self.runs, self.body.texts = {}, known

    def _blocked(self, inner: Sequence[Loop], parted: Sequence[Reduce], inside: Callable[[], None]) -> None:
        """The outermost inner loop; float32 sums over each block of its turns are added up in float64."""
        loop, step = inner[0], BLOCK // 2
        name, extent = variable_name(loop.name), self.body.index(loop.extent)
        alone = len(inner) == 1
        head = f"for (int64_t block = 0; block < {extent}; block += {step})"
        with self.lines.block(head if alone else self._head(loop)):
            for reduce in parted:
                self.lines.add(f"alignas(64) float {reduce.name}_part[{self.tile}] = {{}};")
            if alone:
                self.lines.add(f"const int64_t stop = kh::min<int64_t>(block + {step}, {extent});")
                with self.lines.block(f"for (int64_t {name} = block; {name} < stop; ++{name})"):
                    inside()
            else:
                inside()
            self.lines.add("#pragma omp simd")
            with self.lines.block("for (int64_t l = 0; l < width; ++l)"):
                for reduce in parted:
                    self.lines.add(f"{reduce.name}_sum[l] += {reduce.name}_part[l];")
