"""Kernels over tiles of [rows, columns]: rows of a nest's outer turns, columns of its inner ones."""

from __future__ import annotations

from kernels_hub.compiler.codegen.loops import turns
from kernels_hub.compiler.codegen.names import Names
from kernels_hub.compiler.codegen.triton.kernel import HOST, KernelText, Launch
from kernels_hub.compiler.codegen.triton.options import Tile
from kernels_hub.compiler.codegen.triton.text import Axis, Lines, TritonBody
from kernels_hub.compiler.schedule.kernel import Nest, Statement, Store, arguments, variables


class Tiles:
    """One such kernel while it is written: ROWS and COLUMNS are its compile-time parameters."""

    def __init__(self, name: str, nest: Nest, lines: Lines, names: Names) -> None:
        self.nest, self.lines = nest, lines
        self.kernel = KernelText(name, nest, lines, names)
        rows = Axis("rows", "row", "row_live") if nest.outer else None
        columns = Axis("columns", "column", "column_live")
        axis_of = {loop.name: "rows" for loop in nest.outer} | {loop.name: "columns" for loop in nest.inner}
        loops = (*nest.outer, *nest.inner)
        self.body = TritonBody(lines, names, loops, [columns, *([rows] if rows else [])], axis_of)
        if rows is None:
            self.body.axes["rows"] = Axis("rows", "row")
        self.inner = nest.is_inner()
        """Name of a value -> whether it has columns."""

    def has_columns(self, one: Statement) -> bool:
        """Whether a statement is one of the inner turns."""
        if not isinstance(one, Store):
            return self.inner[one.name]
        mine = {loop.name for loop in self.nest.inner}
        return any(self.inner[arg] for arg in arguments(one)) or bool(mine & variables(one))

    def rows(self) -> None:
        """Declare the rows of a program."""
        if not self.nest.outer:
            self.lines.add("row = tl.zeros([ROWS, 1], tl.int32)")
            return
        total = self.body.index(turns(self.nest.outer))
        self.lines.add(f"row = {self.kernel.program()} * ROWS + tl.arange(0, ROWS)[:, None]")
        self.lines.add(f"row_live = row < {total}")
        self.kernel.unravel("row", self.nest.outer, self.body.scalars)

    def columns(self, positions: str) -> None:
        """Declare columns."""
        wide = "" if self.kernel.index == "tl.int32" else f".to({self.kernel.index})"
        self.lines.add(f"column = ({positions})[None, :]{wide}")
        self.lines.add(f"column_live = column < {self.body.index(turns(self.nest.inner))}")
        self.kernel.unravel("column", self.nest.inner, self.body.scalars)

    def launch(self, tile: Tile, condition: str = "", otherwise: Launch | None = None) -> Launch:
        """How it is launched: a program for every ROWS rows."""
        outer = turns(self.nest.outer)
        count = HOST.index(outer)
        tests = [condition] if condition else []
        if not isinstance(outer, int):
            tests.append(f"{HOST.factor(outer)} > 0")
        return self.kernel.launch(
            " and ".join(tests), [f"kh.cdiv({count}, {tile.of('ROWS')})"], tile, otherwise
        )
