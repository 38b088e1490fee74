"""Nests with reductions as Triton kernels: a tile of [rows, columns], rows of outer turns, columns of inner ones.

Where a row fits a tile, everything is in registers and the statements stand in their order. Longer rows are run
through in columns: a pass feeds the reductions that need none before it, the next uses their results, and computes
again (from memory) what both need.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from kernels_hub.compiler.codegen.cpp_contexts import lane_of
from kernels_hub.compiler.codegen.cpp_loops import turns
from kernels_hub.compiler.codegen.cpp_text import Names
from kernels_hub.compiler.codegen.lines import note_of
from kernels_hub.compiler.codegen.triton_kernel import HOST, Launch
from kernels_hub.compiler.codegen.triton_options import (
    MOST_COLUMNS,
    Options,
    chosen,
    looped_tile,
    whole_tile,
)
from kernels_hub.compiler.codegen.triton_text import Lines
from kernels_hub.compiler.codegen.triton_tiles import Tiles
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.types import DType
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
        self.flat = flatten(tuple(one.index for one in nest.inner), tuple(one.extent for one in nest.inner))

    def persistent(self, condition: str = "", otherwise: Launch | None = None) -> Launch:
        """All columns at once."""
        with self.kernel.define(["ROWS", "COLUMNS"]):
            self.rows()
            self.columns("tl.arange(0, COLUMNS)")
            for one in self.nest.body:
                if isinstance(one, Reduce):
                    self._reduce(one)
                else:
                    self.body.emit(one)
        outer, inner = turns(self.nest.outer), turns(self.nest.inner)
        tile = chosen(whole_tile, (outer, inner), (HOST.index(outer), HOST.index(inner)), late=self.late)
        return self.launch(tile, condition, otherwise)

    def looped(self, *, across: bool) -> Launch:
        """Columns by columns, in as many passes as it takes."""
        level = self._levels()
        passes = sorted(
            {
                level[one.arg] if isinstance(one, Reduce) else self._store_level(one, level)
                for one in self.nest.body
                if isinstance(one, Reduce) or (isinstance(one, Store) and self.has_columns(one))
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

    def _reduce(self, one: Reduce) -> None:
        """A reduction of what is in registers."""
        dtype = self._held(one)
        value = self._tile(one, dtype)
        if one.kind in PLACES:
            kind = PLACES[one.kind]
            self.lines.add(f"{one.name}_all = {value}", note_of(one.origin))
            self.lines.add(f"{one.name}_best = kh.row_{kind}({one.name}_all)")
            none = self.body.index(turns(self.nest.inner))
            places = f"tl.where(column_live, {self.body.index(self.flat)}, {none})"
            self.lines.add(
                f"{one.name} = kh.first_place({one.name}_all, {one.name}_best, {places}, {none})"
                f".to({one.dtype.triton})"
            )
        else:
            self.lines.add(f"{one.name} = {self._finished(one, value)}", note_of(one.origin))
        self._know(one)

    def _held(self, one: Reduce) -> DType:
        """What totals are kept in."""
        if one.kind in {"any", "all"}:
            return types.INT32
        if one.kind in PLACES:
            source = self.body.dtypes[one.arg]
            return types.INT32 if source is types.BOOL else source.compute
        return one.dtype.compute

    def _counted(self, one: Reduce, dtype: DType) -> str:
        """The argument, with the identity where there is no element."""
        source = self.body.dtypes[one.arg].compute
        if one.kind == "all":
            return f"tl.where(column_live, 1 - {one.arg}.to(tl.int32), 0)"
        text = one.arg if source is dtype else f"{one.arg}.to({dtype.triton})"
        return f"tl.where(column_live, {text}, {self._identity(one, dtype)})"

    def _tile(self, one: Reduce, dtype: DType) -> str:
        """The same as a whole tile."""
        text = self._counted(one, dtype)
        whole = len(self.body.shape[one.arg]) == 2
        return text if whole else f"tl.broadcast_to({text}, [ROWS, COLUMNS])"

    def _identity(self, one: Reduce, dtype: DType) -> str:
        kind = PLACES.get(one.kind, one.kind)
        low, high = (-math.inf, math.inf) if dtype.is_float else dtype.limits
        number = {"sum": 0, "prod": 1, "max": low, "min": high, "any": 0, "all": 0}[kind]
        return self.body.scalars.literal(number, dtype)

    def _finished(self, one: Reduce, tile: str) -> str:
        """The result of a tile of totals. any, all: from counts of what is, or is not."""
        if one.kind == "any":
            return f"kh.row_sum(({tile} != 0).to(tl.int32)) > 0"
        if one.kind == "all":
            return f"kh.row_sum(({tile} != 0).to(tl.int32)) == 0"
        return f"kh.row_{one.kind}({tile})"

    def _know(self, one: Reduce) -> None:
        self.body.know(one.name, one.dtype, ["rows"])

    # -- passes ------------------------------------------------------------------------------------

    def _levels(self) -> dict[str, int]:
        """The pass in which a value is first known, or after which, for what follows from reductions."""
        level: dict[str, int] = {}
        for one in self.nest.body:
            if isinstance(one, Store):
                continue
            found = max((level[arg] for arg in arguments(one)), default=0)
            level[one.name] = found + 1 if isinstance(one, Reduce) else found
        return level

    def _store_level(self, one: Store, level: dict[str, int]) -> int:
        return max(level[arg] for arg in arguments(one))

    def _segment(self, number: int, level: dict[str, int]) -> None:
        """What is computed once a row, after pass `number` - 1."""
        for one in self.nest.body:
            if isinstance(one, Reduce):
                continue
            if isinstance(one, Store):
                if not self.has_columns(one) and self._store_level(one, level) == number:
                    self.body.emit(one)
            elif not self.inner[one.name] and level[one.name] == number:
                self.body.emit(one)

    def _pass(self, number: int, level: dict[str, int]) -> None:
        """Once through the columns."""
        fed = [one for one in self.nest.body if isinstance(one, Reduce) and level[one.arg] == number]
        stores = [
            one
            for one in self.nest.body
            if isinstance(one, Store) and self.has_columns(one) and self._store_level(one, level) == number
        ]
        needed = self._needed([one.arg for one in fed] + [arg for one in stores for arg in arguments(one)])
        self.body.dtypes.update({one.name: one.dtype for one in self.nest.body if not isinstance(one, Store)})
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

    def _needed(self, roots: Sequence[str]) -> set[str]:
        """Inner values that some depend on, themselves included."""
        by_name: dict[str, Statement] = {
            one.name: one for one in self.nest.body if not isinstance(one, Store)
        }
        found: set[str] = set()
        waiting = list(roots)
        while waiting:
            name = waiting.pop()
            if name not in found and self.inner[name]:
                found.add(name)
                waiting += arguments(by_name[name])
        return found

    def _start(self, one: Reduce) -> None:
        dtype = self._held(one)
        number = self._identity(one, dtype)
        self.lines.add(f"{one.name}_sum = tl.full([ROWS, COLUMNS], {number}, {dtype.triton})")
        if one.kind in PLACES:
            none = self.body.index(turns(self.nest.inner))
            self.lines.add(f"{one.name}_at = tl.full([ROWS, COLUMNS], {none}, tl.int64)")

    def _feed(self, one: Reduce) -> None:
        dtype = self._held(one)
        name, value = f"{one.name}_sum", self._counted(one, dtype)
        if one.kind in PLACES:
            self.lines.add(f"{one.name}_new = {self._tile(one, dtype)}", note_of(one.origin))
            sign = ">" if one.kind == "argmax" else "<"
            new, none = f"{one.name}_new", self.body.index(turns(self.nest.inner))
            first = f"({one.name}_at == {none})"
            nan = f" | (({new} != {new}) & ({name} == {name}))" if dtype.is_float else ""
            self.lines.add(f"{one.name}_better = column_live & ({first} | ({new} {sign} {name}){nan})")
            self.lines.add(f"{name} = tl.where({one.name}_better, {new}, {name})")
            place = self.body.index(self.flat)
            self.lines.add(f"{one.name}_at = tl.where({one.name}_better, {place}, {one.name}_at)")
            return
        text = {
            "sum": f"{name} + {value}", "prod": f"{name} * {value}", "max": f"kh.max_of({name}, {value})",
            "min": f"kh.min_of({name}, {value})", "any": f"{name} + {value}", "all": f"{name} + {value}",
        }[one.kind]  # fmt: skip
        narrow = dtype.is_integer and dtype.bits < 32
        self.lines.add(f"{name} = {f'({text}).to({dtype.triton})' if narrow else text}", note_of(one.origin))

    def _finish(self, one: Reduce) -> None:
        if one.kind in PLACES:
            kind = PLACES[one.kind]
            none = self.body.index(turns(self.nest.inner))
            self.lines.add(f"{one.name}_best = kh.row_{kind}({one.name}_sum)")
            self.lines.add(
                f"{one.name} = kh.first_place({one.name}_sum, {one.name}_best, {one.name}_at, {none})"
                f".to({one.dtype.triton})"
            )
        else:
            self.lines.add(f"{one.name} = {self._finished(one, f'{one.name}_sum')}")
        self._know(one)
