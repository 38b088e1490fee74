"""Nests with running sums as Triton kernels: block by block along a row, each from the total of the previous one."""

from __future__ import annotations

import math

from kernels_hub.compiler.codegen.lines import note_of
from kernels_hub.compiler.codegen.loops import turns
from kernels_hub.compiler.codegen.names import Names
from kernels_hub.compiler.codegen.triton.kernel import HOST, Launch
from kernels_hub.compiler.codegen.triton.options import Options, chosen
from kernels_hub.compiler.codegen.triton.text import Lines
from kernels_hub.compiler.codegen.triton.tiles import Tiles
from kernels_hub.compiler.runtime.tiles import looped_tile
from kernels_hub.compiler.schedule.kernel import Nest, Scan

_JOINED = {"sum": "{} + {}", "prod": "{} * {}", "max": "kh.max_of({}, {})", "min": "kh.min_of({}, {})"}


def print_scan(name: str, nest: Nest, lines: Lines, names: Names, options: Options) -> Launch:
    """Write the kernel."""
    return _Scan(name, nest, lines, names).made(late=options.late)


class _Scan(Tiles):
    """One kernel."""

    def made(self, *, late: bool) -> Launch:
        """Its text, and how it is launched."""
        nest = self.nest
        turning = [statement for statement in nest.body if self.has_columns(statement)]
        with self.kernel.define(["ROWS", "COLUMNS"]):
            self.rows()
            for one in nest.body:
                if not self.has_columns(one):
                    self.body.emit(one)
            for one in turning:
                if isinstance(one, Scan):
                    number = self.body.scalars.literal(_identity(one), one.dtype)
                    self.lines.add(f"{one.name}_so_far = tl.full([ROWS, 1], {number}, {one.dtype.triton})")
            with self.lines.block(f"for start in range(0, {self.body.index(turns(nest.inner))}, COLUMNS)"):
                self.columns("start + tl.arange(0, COLUMNS)")
                for one in turning:
                    if isinstance(one, Scan):
                        self._turn(one)
                    else:
                        self.body.emit(one)
        outer = turns(nest.outer)
        return self.launch(chosen(looped_tile, (outer,), (HOST.index(outer),), False, late=late))

    def _turn(self, scan: Scan) -> None:
        """A block of columns."""
        name, dtype = scan.name, scan.dtype
        source, number = self.body.dtypes[scan.arg].compute, self.body.scalars.literal(_identity(scan), dtype)
        value = scan.arg if source is dtype else f"{scan.arg}.to({dtype.triton})"
        if len(self.body.shape[scan.arg]) < 2:
            value = f"tl.broadcast_to({value}, [ROWS, COLUMNS])"
        self.lines.add(f"{name}_all = tl.where(column_live, {value}, {number})", note_of(scan.origin))
        join = _JOINED[scan.kind].format
        before, block = f"{name}_so_far", f"{name}_all"
        self.lines.add(f"{name} = ({join(before, f'kh.running_{scan.kind}({block})')}).to({dtype.triton})")
        self.lines.add(f"{before} = ({join(before, f'kh.row_{scan.kind}({block})')}).to({dtype.triton})")
        self.body.know(name, dtype, ["rows", "columns"])


def _identity(scan: Scan) -> float:
    """What changes nothing."""
    low, high = (-math.inf, math.inf) if scan.dtype.is_float else scan.dtype.limits
    return {"sum": 0, "prod": 1, "max": low, "min": high}[scan.kind]
