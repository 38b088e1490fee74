"""Nests without an anchor as bytecode: loops over tiles, and reductions as segments and passes (`codegen.contexts`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from kernels_hub.compiler.codegen.bytecode.code import Code, Number, depends_on
from kernels_hub.compiler.codegen.bytecode.instruction import ELEMENTS, Instruction, Op, RegisterKind, kind_of
from kernels_hub.compiler.codegen.contexts import Contexts
from kernels_hub.compiler.codegen.lanes import lane_of
from kernels_hub.compiler.codegen.loops import (
    PLACES,
    cost,
    estimate,
    is_empty,
    simplified,
    turned_loop,
    turns,
)
from kernels_hub.compiler.errors import EngineError
from kernels_hub.compiler.ir.types import BOOL, INT64, DType
from kernels_hub.compiler.schedule.index import Loop, Ranges, flatten
from kernels_hub.compiler.schedule.kernel import Constant, Nest, Reduce, Scan, Statement, Store, arguments

LOOPS, REDUCING, MULTIPLYING, CONVOLVING, ATTENDING, TRANSFORMING = range(6)
"""Kinds of nests, as interpreter/bytecode.cpp reads them."""
REDUCTIONS = {kind: code for code, kind in enumerate(("sum", "prod", "max", "min", "any", "all"))}
"""As in interpreter/bytecode_compute.h."""
_FEW_TURNS = 256
"""Terms of float32 that are added up in float32, element by element."""
_LEAST_COLUMNS = 12
_FEW_RESULTS = 512
_TURNED_ROWS, _TURNED_COLUMNS = 32, 64
"""Tiles of what is read across memory."""

MakeCode = Callable[[Sequence[Loop], Sequence[Loop], Loop | None, Ranges], Code]
"""(rows, scalars, column, ranges) -> code of the program."""


def nest_words(nest: Nest, make: MakeCode) -> list[int] | None:
    """The words of a nest without an anchor; None where it has no turns. Raises EngineError for what has no form."""
    if nest.scatters:
        raise EngineError("bytecode has no scattered writes")
    if nest.scans:
        return None if is_empty(nest.outer) or is_empty(nest.inner) else _scanning(nest, make)
    if not nest.accumulates:
        nest = Nest((*nest.outer, *nest.inner), (), nest.body)
    nest = simplified(nest)
    if is_empty(nest.outer):
        return None
    return _reducing(nest, make) if nest.reduces else _loops(nest, make)


def _work(nest: Nest) -> int:
    return max(1, sum(cost(one) for one in nest.body if not isinstance(one, Constant)))


def emit_all(code: Code, body: Sequence[Statement]) -> None:
    """Statements of one list, the stores behind the others."""
    for one in body:
        if not isinstance(one, (Store, Constant)):
            code.emit(one)
    if stores := [one for one in body if isinstance(one, Store)]:
        code.stores(stores, body)


def _loops(nest: Nest, make: MakeCode) -> list[int]:
    *rows, column = nest.outer or (None,)
    turned = turned_loop(nest)
    if turned is None and (longer := _longer(nest)) is not None:
        rows, column = [*(loop for loop in nest.outer if loop is not longer)], longer
    if turned is not None:
        rows = [*(loop for loop in rows if loop is not turned), turned]
    given = [loop for loop in rows if loop is not None]
    code = make(given, (), column, Ranges(nest.outer))
    code.repeats = turned is None and bool(given)
    code.know(nest.body)
    code.begin()
    emit_all(code, nest.body)
    code.end()
    most = (_TURNED_ROWS, _TURNED_COLUMNS) if turned is not None else (1 << 30, 1 << 30)
    number = code.numbers.of
    return [
        LOOPS, len(given), *(number(loop.extent) for loop in given),
        -1 if column is None else number(column.extent), turned is not None, *most, _work(nest), *code.words(),
    ]  # fmt: skip


def _longer(nest: Nest) -> Loop | None:
    """The longest loop, where the last is too short for vectors and that is many times as long."""
    if len(nest.outer) < 2 or estimate(nest.outer[-1].extent) >= _LEAST_COLUMNS:
        return None
    longest = max(nest.outer, key=lambda loop: estimate(loop.extent))
    return longest if estimate(longest.extent) >= 4 * estimate(nest.outer[-1].extent) else None


def _scanning(nest: Nest, make: MakeCode) -> list[int]:
    """A nest with running sums: a pass along the inner loop, which carries what each row has come to."""
    if len(nest.inner) > 1:
        raise EngineError("bytecode has no running sums over several loops")
    column = nest.inner[0] if nest.inner else None
    code = make(nest.outer, (), column, Ranges((*nest.outer, *nest.inner)))
    code.know(nest.body)
    code.begin()
    carried = {}
    for one in nest.body:
        if isinstance(one, Scan):
            carried[one.name] = _carried(one, code)
    starts, first = code.end(), len(code.lists.all)
    code.begin()
    for one in nest.body:
        if isinstance(one, Scan):
            _run(one, carried[one.name], code)
        elif not isinstance(one, (Store, Constant)):
            code.emit(one)
    for one in nest.body:
        if isinstance(one, Store):
            code.store(one)
    turn = code.end()
    code.lists.passes.append((first, len(code.lists.all)))
    code.begin()
    number = code.numbers.of
    head = [REDUCING, len(nest.outer), *(number(loop.extent) for loop in nest.outer), 0, 0]
    head += [-1 if column is None else number(column.extent), -1, _work(nest), 0]
    return [*head, 1, 1, turn, turn, starts, code.end(), *code.words()]


def _carried(one: Scan, code: Code) -> int:
    """The register of what each row has come to, before the first turn: float64 for sums and products of floats."""
    if one.dtype is BOOL:
        raise EngineError("bytecode has no running choice of truths")
    kind = kind_of(one.dtype)
    start = code.constant(_extreme(one.kind, one.dtype), one.dtype) if one.kind in {"max", "min"} else -1
    if start < 0:
        kind = RegisterKind.DOUBLE if kind is RegisterKind.FLOAT else kind
        bits = int(one.kind == "prod") if kind is RegisterKind.INTEGER else _DOUBLE_ONE * (one.kind == "prod")
        start = code.bits(kind, bits)
    to = code.register(kind, rows=True, columns=False)
    code.add(Instruction(Op.COPY, to=to, a=start))
    return to


def _run(one: Scan, carried: int, code: Code) -> None:
    """Take in a turn's argument."""
    a = code.value(one.arg)
    if code.registers[a].kind is RegisterKind.TRUTH:
        raise EngineError("bytecode has no running sums of truths")
    if not (code.registers[a].rows and code.registers[a].columns):
        copied = code.register(code.registers[a].kind, rows=True, columns=True)
        code.add(Instruction(Op.COPY, to=copied, a=a))
        a = copied
    to = code.register(code.registers[carried].kind, rows=True, columns=True)
    code.add(Instruction(Op.RUNNING, to=to, a=a, c=carried, extra=REDUCTIONS[one.kind]))
    if code.registers[to].kind is not kind_of(one.dtype) or (one.dtype.is_integer and one.dtype.bits < 64):
        wide, to = to, code.register(kind_of(one.dtype), rows=True, columns=True)
        element = ELEMENTS[one.dtype.compute.name if one.dtype.is_float else one.dtype.name]
        code.add(Instruction(Op.CAST, to=to, a=wide, element=element))
    code.values[one.name] = to


def _reducing(nest: Nest, make: MakeCode) -> list[int]:
    return _Reducing(nest, make).words()


class _Reducing:
    """A nest with reductions: along the last inner loop, or across, where the columns are results."""

    def __init__(self, nest: Nest, make: MakeCode) -> None:
        self.nest, self.lane = nest, lane_of(nest)
        self.down = self.lane is not None and self._has_few_results()
        self.across = self.lane is not None and not self.down
        if self.down:
            self.rows, self.column, self.turning = (
                nest.inner[-1:],
                self.lane,
                (*nest.outer[:-1], *nest.inner[:-1]),
            )
        elif self.across:
            self.rows, self.column, self.turning = nest.outer[:-1], self.lane, nest.inner
        else:
            self.rows, self.turning = nest.outer, nest.inner[:-1]
            self.column = nest.inner[-1] if nest.inner else None
        self.code = make(self.rows, self.turning, self.column, Ranges((*nest.outer, *nest.inner)))
        self.code.repeats = self.lane is None
        self.contexts = Contexts(nest, None)
        self.inner = self.contexts.inner
        self.flat = flatten(
            tuple(loop.index for loop in nest.inner), tuple(loop.extent for loop in nest.inner)
        )

    def _has_few_results(self) -> bool:
        """Whether results do not fill tiles, and turns of the last inner loop do."""
        *rows, lane = (estimate(loop.extent) for loop in self.nest.outer)
        return prod(rows) * lane < _FEW_RESULTS and estimate(self.nest.inner[-1].extent) >= _LEAST_COLUMNS

    def words(self) -> list[int]:
        code, nest = self.code, self.nest
        code.know(nest.body)
        steps = [
            self._pass(context) if context % 2 else self._segment(context)
            for context in range(self.contexts.last + 1)
        ]
        number = code.numbers.of
        outer = nest.outer[:-1] if self.lane is not None else nest.outer
        found = [REDUCING, len(outer), *(number(loop.extent) for loop in outer), self.across, self.down]
        found += [-1 if self.column is None else number(self.column.extent)]
        found += [number(self.rows[0].extent) if self.down else -1, _work(nest)]
        inner = [(place, loop) for place, loop in enumerate(self.turning) if loop in nest.inner]
        found.append(len(inner))
        for place, loop in inner:
            found += [place, number(loop.extent)]
        found.append(len(steps))
        for step in steps:
            found += step
        return [*found, *code.words()]

    def _segment(self, context: int) -> list[int]:
        self.code.begin()
        stores = self.contexts.stored_at(context, inner=False)
        for one in self.nest.body:
            if isinstance(one, (Store, Constant, Reduce)) or one.name in self.inner:
                continue
            if self.contexts.home[one.name] == context:
                self.code.emit(one)
        for store in stores:
            self.code.store(store)
        self._note_needed({id(one) for one in stores})
        return [0, self.code.end(), -1, -1, -1]

    def _note_needed(self, here: set[int]) -> None:
        """Values that statements read that are not in the list that ends here (which are given by their ids)."""
        for one in self.nest.body:
            if id(one) not in here:
                self.code.needed.update(
                    self.code.values[arg] for arg in arguments(one) if arg in self.code.values
                )

    def _pass(self, context: int) -> list[int]:
        code, fed = self.code, self.contexts.fed_at(context)
        code.begin()
        ends: list[Instruction] = []
        feeds = {one.name: self._start(one, ends) for one in fed}
        starts = code.end()
        first = len(code.lists.all)
        lists = []
        for is_lean in (False, True):
            body = self._body(context, is_lean=is_lean)
            code.begin()
            for one in body:
                if isinstance(one, Reduce):
                    self._feed(one, *feeds[one.name])
                elif not isinstance(one, (Store, Constant)):
                    code.emit(one)
            for one in body:
                if isinstance(one, Store):
                    code.store(one)
            self._note_needed({id(one) for one in body})
            lists.append(code.end())
        code.lists.passes.append((first, len(code.lists.all)))
        code.begin()
        for instruction in ends:
            code.add(instruction)
        return [1, lists[0], lists[1], starts, code.end()]

    def _body(self, context: int, *, is_lean: bool) -> list[Statement]:
        """What a pass computes, in order; lean: without what an earlier one has computed."""
        stores = self.contexts.stored_at(context, inner=True)
        fed = self.contexts.fed_at(context)
        roots: list[Statement] = [*stores, *fed]
        waiting = [arg for one in roots for arg in arguments(one)]
        waiting += [name for name in self.inner if self.contexts.home[name] == context]
        wanted: set[str] = set()
        while waiting:
            name = waiting.pop()
            if name in wanted or name not in self.inner:
                continue
            if is_lean and self.contexts.home[name] != context:
                continue
            wanted.add(name)
            waiting += arguments(self.contexts.by_name[name])
        return [
            one
            for one in self.nest.body
            if (
                any(one is store for store in stores)
                if isinstance(one, Store)
                else one.name in wanted or any(one is reduce for reduce in fed)
            )
        ]

    # -- reductions

    def _shape(self, one: Reduce) -> dict[str, bool]:
        """What a total depends on, as far as the statements before it tell."""
        rows, lane = self._dependencies()
        return {"rows": not self.down and one.name in rows, "columns": one.name in lane}

    def _dependencies(self) -> tuple[set[str], set[str]]:
        """Names of values that depend on the rows, and on the lane."""
        names = [loop.name for loop in self.rows]
        lane = [] if self.lane is None else [self.lane.name]
        found: tuple[set[str], set[str]] = (set(), set())
        for one in self.nest.body:
            if isinstance(one, Store):
                continue
            for known, loops in zip(found, (names, lane), strict=True):
                if depends_on(one, loops) or not known.isdisjoint(arguments(one)):
                    known.add(one.name)
        return found

    def _start(self, one: Reduce, ends: list[Instruction]) -> tuple[int, int]:
        """(the register of the total, that of the best value of a place)."""
        code, shape, dtype = self.code, self._shape(one), one.dtype
        if one.kind in PLACES:
            valued = code.dtypes[one.arg]
            best = code.register(kind_of(valued), **shape)
            total = code.register(RegisterKind.INTEGER, **shape)
            low = _extreme(PLACES[one.kind], valued)
            code.add(Instruction(Op.COPY, to=best, a=code.constant(low, valued)))
            code.add(Instruction(Op.COPY, to=total, a=code.constant(0, INT64)))
            self._end(one, total, ends)
            return total, best
        kind = kind_of(dtype)
        start = code.constant(*self._neutral(one))
        wide = kind is RegisterKind.FLOAT and (
            one.kind == "prod" or (one.kind == "sum" and not self._has_few_turns())
        )
        if wide:
            kind = RegisterKind.DOUBLE
            start = code.bits(kind, 0 if one.kind == "sum" else _DOUBLE_ONE)
        total = code.register(kind, **shape)
        code.add(Instruction(Op.COPY, to=total, a=start))
        self._end(one, total, ends)
        return total, -1

    def _has_few_turns(self) -> bool:
        count = turns(self.nest.inner)
        return self.lane is not None and isinstance(count, int) and count <= _FEW_TURNS

    def _end(self, one: Reduce, total: int, ends: list[Instruction]) -> None:
        """The total under the name of the reduction, in its own dtype."""
        if self.code.registers[total].kind is kind_of(one.dtype) and not (
            one.dtype.is_integer and one.dtype.bits < 64
        ):
            self.code.values[one.name] = total
            return
        to = self.code.register(kind_of(one.dtype), **self._shape(one))
        self.code.values[one.name] = to
        element = ELEMENTS[one.dtype.compute.name if one.dtype.is_float else one.dtype.name]
        ends.append(Instruction(Op.CAST, to=to, a=total, element=element))

    def _neutral(self, one: Reduce) -> tuple[Number, DType]:
        if one.kind in {"any", "all"}:
            return one.kind == "all", BOOL
        if one.kind in {"sum", "prod"}:
            return (0 if one.kind == "sum" else 1), one.dtype
        return _extreme(one.kind, one.dtype), one.dtype

    def _feed(self, one: Reduce, total: int, best: int) -> None:
        code = self.code
        a = code.value(one.arg)
        if one.kind in PLACES:
            place = code.index(self.flat)
            code.add(Instruction(Op.FIND, to=total, a=a, b=place, c=best, extra=REDUCTIONS[PLACES[one.kind]]))
            return
        shape, given = code.registers[total], code.registers[a]
        rows = True if self.down else shape.rows
        columns = shape.columns if self.lane is not None else self.column is not None
        if (given.rows, given.columns) != (rows, columns):
            copied = code.register(given.kind, rows=rows, columns=columns)
            code.add(Instruction(Op.COPY, to=copied, a=a))
            a = copied
        each = self.across or self.column is None
        op = Op.FEED_DOWN if self.down else Op.FEED_EACH if each else Op.FEED
        code.add(Instruction(op, to=total, a=a, extra=REDUCTIONS[one.kind]))


_DOUBLE_ONE = int(np.float64(1).view(np.int64))


def _extreme(kind: str, dtype: DType) -> Number:
    """What is beaten by everything."""
    if dtype is BOOL:
        return kind != "max"
    if dtype.is_float:
        return float("-inf" if kind == "max" else "inf")
    return dtype.limits[0 if kind == "max" else 1]
