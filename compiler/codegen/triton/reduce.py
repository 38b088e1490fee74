"""Nests with reductions as Triton kernels: a tile of [rows, columns], rows of outer turns, columns of inner ones.

Where a row fits a tile, everything is in registers and the statements stand in their order. Longer rows are run
through in columns: a pass feeds the reductions that need none before it, the next uses their results, and computes
again (from memory) what both need.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from kernels_hub.compiler.codegen.lanes import lane_of
from kernels_hub.compiler.codegen.lines import note_of
from kernels_hub.compiler.codegen.loops import turns
from kernels_hub.compiler.codegen.names import Names
from kernels_hub.compiler.codegen.triton.kernel import HOST, Launch
from kernels_hub.compiler.codegen.triton.options import Options, chosen
from kernels_hub.compiler.codegen.triton.text import Lines
from kernels_hub.compiler.codegen.triton.tiles import Tiles
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.types import DType
from kernels_hub.compiler.runtime.tiles import MOST_COLUMNS, looped_tile, whole_tile
from kernels_hub.compiler.schedule.index import flatten
from kernels_hub.compiler.schedule.kernel import Nest, Reduce, Statement, Store, arguments

PLACES = {"argmax": "max", "argmin": "min"}


def print_reduction(name: str, nest: Nest, lines: Lines, names: Names, options: Options) -> Launch:
    """Write the kernel, or two where only the sizes tell whether rows fit a tile."""
    inner, across = turns(nest.inner), lane_of(nest) is not None
    if isinstance(inner, int) and inner <= (256 if across else MOST_COLUMNS):
        return _Reduction(name, nest, lines, names, options).persistent()
    looped = _Reduction(name, nest, lines, names, options).looped(across=across)
    if isinstance(inner, int) or across:
        return looped
    condition = f"{HOST.factor(inner)} <= {MOST_COLUMNS}"
    return _Reduction(f"{name}_whole", nest, lines, names, options).persistent(condition, looped)


class _Reduction(Tiles):
    """One kernel."""

    def __init__(self, name: str, nest: Nest, lines: Lines, names: Names, options: Options) -> None:
        super().__init__(name, nest, lines, names)
        self.late = options.late
        self.flat = flatten(
            tuple(loop.index for loop in nest.inner), tuple(loop.extent for loop in nest.inner)
        )

    def persistent(self, condition: str = "", otherwise: Launch | None = None) -> Launch:
        """All columns at once."""
        with self.kernel.define(["ROWS", "COLUMNS"]):
            self.rows()
            self.columns("tl.arange(0, COLUMNS)")
            for statement in self.nest.body:
                if isinstance(statement, Reduce):
                    self._reduce(statement)
                else:
                    self.body.emit(statement)
        outer, inner = turns(self.nest.outer), turns(self.nest.inner)
        tile = chosen(whole_tile, (outer, inner), (HOST.index(outer), HOST.index(inner)), late=self.late)
        return self.launch(tile, condition, otherwise)

    def looped(self, *, across: bool) -> Launch:
        """Columns by columns, in as many passes as it takes."""
        level = self._levels()
        passes = sorted(
            {
                level[statement.arg] if isinstance(statement, Reduce) else self._store_level(statement, level)
                for statement in self.nest.body
                if isinstance(statement, Reduce)
                or (isinstance(statement, Store) and self.has_columns(statement))
            }
        )
        with self.kernel.define(["ROWS", "COLUMNS"]):
            self.rows()
            self._segment(0, level)
            for number in range(max(passes, default=-1) + 1):
                if number in passes:
                    self._pass(number, level)
                self._segment(number + 1, level)
        outer = turns(self.nest.outer)
        return self.launch(chosen(looped_tile, (outer,), (HOST.index(outer),), across, late=self.late))

    # -- both --------------------------------------------------------------------------------------

    def _reduce(self, reduce: Reduce) -> None:
        """A reduction of what is in registers."""
        dtype = self._held(reduce)
        value = self._tile(reduce, dtype)
        if reduce.kind in PLACES:
            kind = PLACES[reduce.kind]
            self.lines.add(f"{reduce.name}_all = {value}", note_of(reduce.origin))
            self.lines.add(f"{reduce.name}_best = kh.row_{kind}({reduce.name}_all)")
            none = self.body.index(turns(self.nest.inner))
            places = f"tl.where(column_live, {self.body.index(self.flat)}, {none})"
            self.lines.add(
                f"{reduce.name} = kh.first_place({reduce.name}_all, {reduce.name}_best, {places}, {none})"
                f".to({reduce.dtype.triton})"
            )
        else:
            self.lines.add(f"{reduce.name} = {self._finished(reduce, value)}", note_of(reduce.origin))
        self._know(reduce)

    def _held(self, reduce: Reduce) -> DType:
        """What totals are kept in."""
        if reduce.kind in {"any", "all"}:
            return types.INT32
        if reduce.kind in PLACES:
            source = self.body.dtypes[reduce.arg]
            return types.INT32 if source is types.BOOL else source.compute
        return reduce.dtype.compute

    def _counted(self, reduce: Reduce, dtype: DType) -> str:
        """The argument, with the identity where there is no element."""
        source = self.body.dtypes[reduce.arg].compute
        if reduce.kind == "all":
            return f"tl.where(column_live, 1 - {reduce.arg}.to(tl.int32), 0)"
        text = reduce.arg if source is dtype else f"{reduce.arg}.to({dtype.triton})"
        return f"tl.where(column_live, {text}, {self._identity(reduce, dtype)})"

    def _tile(self, reduce: Reduce, dtype: DType) -> str:
        """The same as a whole tile."""
        text = self._counted(reduce, dtype)
        whole = len(self.body.shape[reduce.arg]) == 2
        return text if whole else f"tl.broadcast_to({text}, [ROWS, COLUMNS])"

    def _identity(self, reduce: Reduce, dtype: DType) -> str:
        kind = PLACES.get(reduce.kind, reduce.kind)
        low, high = (-math.inf, math.inf) if dtype.is_float else dtype.limits
        number = {"sum": 0, "prod": 1, "max": low, "min": high, "any": 0, "all": 0}[kind]
        return self.body.scalars.literal(number, dtype)

    def _finished(self, reduce: Reduce, tile: str) -> str:
        """The result of a tile of totals. any, all: from counts of what is, or is not."""
        if reduce.kind == "any":
            return f"kh.row_sum(({tile} != 0).to(tl.int32)) > 0"
        if reduce.kind == "all":
            return f"kh.row_sum(({tile} != 0).to(tl.int32)) == 0"
        return f"kh.row_{reduce.kind}({tile})"

    def _know(self, reduce: Reduce) -> None:
        self.body.know(reduce.name, reduce.dtype, ["rows"])

    # -- passes ------------------------------------------------------------------------------------

    def _levels(self) -> dict[str, int]:
        """The pass in which a value is first known, or after which, for what follows from reductions."""
        level: dict[str, int] = {}
        for statement in self.nest.body:
            if isinstance(statement, Store):
                continue
            found = max((level[arg] for arg in arguments(statement)), default=0)
            level[statement.name] = found + 1 if isinstance(statement, Reduce) else found
        return level

    def _store_level(self, store: Store, level: dict[str, int]) -> int:
        return max(level[arg] for arg in arguments(store))

    def _segment(self, number: int, level: dict[str, int]) -> None:
        """What is computed once a row, after pass `number` - 1."""
        for statement in self.nest.body:
            if isinstance(statement, Reduce):
                continue
            if isinstance(statement, Store):
                if not self.has_columns(statement) and self._store_level(statement, level) == number:
                    self.body.emit(statement)
            elif not self.inner[statement.name] and level[statement.name] == number:
                self.body.emit(statement)

    def _pass(self, number: int, level: dict[str, int]) -> None:
        """Once through the columns."""
        fed = [
            statement
            for statement in self.nest.body
            if isinstance(statement, Reduce) and level[statement.arg] == number
        ]
        stores = [
            statement
            for statement in self.nest.body
            if isinstance(statement, Store)
            and self.has_columns(statement)
            and self._store_level(statement, level) == number
        ]
        needed = self._needed(
            [one.arg for one in fed] + [arg for store in stores for arg in arguments(store)]
        )
        self.body.dtypes.update(
            {
                statement.name: statement.dtype
                for statement in self.nest.body
                if not isinstance(statement, Store)
            }
        )
        for total in fed:
            self._start(total)
        with self.lines.block(f"for start in range(0, {self.body.index(turns(self.nest.inner))}, COLUMNS)"):
            self.columns("start + tl.arange(0, COLUMNS)")
            for one in self.nest.body:
                if isinstance(one, Reduce):
                    if one in fed:
                        self._feed(one)
                elif isinstance(one, Store):
                    if one in stores:
                        self.body.emit(one)
                elif one.name in needed:
                    self.body.emit(one)
        for total in fed:
            self._finish(total)

    def _needed(self, anchors: Sequence[str]) -> set[str]:
        """Inner values that some depend on, themselves included."""
        by_name: dict[str, Statement] = {
            statement.name: statement for statement in self.nest.body if not isinstance(statement, Store)
        }
        names: set[str] = set()
        waiting = list(anchors)
        while waiting:
            name = waiting.pop()
            if name not in names and self.inner[name]:
                names.add(name)
                waiting += arguments(by_name[name])
        return names

    def _start(self, reduce: Reduce) -> None:
        dtype = self._held(reduce)
        number = self._identity(reduce, dtype)
        self.lines.add(f"{reduce.name}_sum = tl.full([ROWS, COLUMNS], {number}, {dtype.triton})")
        if reduce.kind in PLACES:
            none = self.body.index(turns(self.nest.inner))
            self.lines.add(f"{reduce.name}_at = tl.full([ROWS, COLUMNS], {none}, tl.int64)")

    def _feed(self, reduce: Reduce) -> None:
        dtype = self._held(reduce)
        name, value = f"{reduce.name}_sum", self._counted(reduce, dtype)
        if reduce.kind in PLACES:
            self.lines.add(f"{reduce.name}_new = {self._tile(reduce, dtype)}", note_of(reduce.origin))
            sign = ">" if reduce.kind == "argmax" else "<"
            new, none = f"{reduce.name}_new", self.body.index(turns(self.nest.inner))
            first = f"({reduce.name}_at == {none})"
            nan = f" | (({new} != {new}) & ({name} == {name}))" if dtype.is_float else ""
            self.lines.add(f"{reduce.name}_better = column_live & ({first} | ({new} {sign} {name}){nan})")
            self.lines.add(f"{name} = tl.where({reduce.name}_better, {new}, {name})")
            place = self.body.index(self.flat)
            self.lines.add(f"{reduce.name}_at = tl.where({reduce.name}_better, {place}, {reduce.name}_at)")
            return
        text = {
            "sum": f"{name} + {value}", "prod": f"{name} * {value}", "max": f"kh.max_of({name}, {value})",
            "min": f"kh.min_of({name}, {value})", "any": f"{name} + {value}", "all": f"{name} + {value}",
        }[reduce.kind]  # fmt: skip
        narrow = dtype.is_integer and dtype.bits < 32
        self.lines.add(
            f"{name} = {f'({text}).to({dtype.triton})' if narrow else text}", note_of(reduce.origin)
        )

    def _finish(self, reduce: Reduce) -> None:
        if reduce.kind in PLACES:
            kind = PLACES[reduce.kind]
            none = self.body.index(turns(self.nest.inner))
            self.lines.add(f"{reduce.name}_best = kh.row_{kind}({reduce.name}_sum)")
            self.lines.add(
                f"{reduce.name} = kh.first_place({reduce.name}_sum, {reduce.name}_best, {reduce.name}_at, {none})"
                f".to({reduce.dtype.triton})"
            )
        else:
            self.lines.add(f"{reduce.name} = {self._finished(reduce, f'{reduce.name}_sum')}")
        self._know(reduce)
