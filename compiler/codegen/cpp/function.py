"""A nest as two C++ functions: one for a range of rows, and one that shares the rows among threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernels_hub.compiler.codegen.c_text import Lines
from kernels_hub.compiler.codegen.cpp.text import CppBody, Parameters
from kernels_hub.compiler.codegen.guard_runs import Run
from kernels_hub.compiler.codegen.loops import cost, turns
from kernels_hub.compiler.codegen.names import Names
from kernels_hub.compiler.codegen.scalar import variable_name
from kernels_hub.compiler.ir.dims import Dim
from kernels_hub.compiler.schedule.choices import GRAIN
from kernels_hub.compiler.schedule.index import Loop
from kernels_hub.compiler.schedule.kernel import Constant, Nest


class Function:
    """A nest, the text that grows, and what its functions are given."""

    def __init__(
        self, name: str, nest: Nest, parameters: Parameters, lines: Lines, names: Names, *, round_ops: bool
    ) -> None:
        self.name, self.nest, self.lines, self.names, self.parameters = name, nest, lines, names, parameters
        self.body = CppBody(lines, names, (*nest.outer, *nest.inner), round_ops=round_ops)
        self.body.know(nest.body)
        self.body.know_stores(nest.body, copies=not (nest.accumulates or nest.scatters or nest.anchor))

    @property
    def work(self) -> int:
        """What one turn of all statements costs, an addition being 1."""
        return max(
            1, sum(cost(statement) for statement in self.nest.body if not isinstance(statement, Constant))
        )

    def rows(self, count: Dim, work: Dim, inside: Callable[[], None]) -> None:
        """Write `name_rows(…, begin, end)`, its text by inside(), and `name(…)`, which shares `count` rows.

        work: of a row. Little of it stays with the thread that called.
        """
        lines, declared = self.lines, self.parameters.declared(self.names)
        worth = self.names.choices.grain
        if isinstance(count, int) and isinstance(work, int) and count * work < 2 * worth:
            with lines.block(f"static void {self.name}({', '.join(declared)})"):
                lines.add(f"constexpr int64_t begin = 0, end = {count};")
                inside()
            return
        head = f"static void {self.name}_rows({', '.join([*declared, 'int64_t begin', 'int64_t end'])})"
        with lines.block(head):
            inside()
        lines.add()
        with lines.block(f"static void {self.name}({', '.join(declared)})"):
            grain = str(max(1, worth // max(1, work))) if isinstance(work, int) else ""
            grain = grain or self._grain(self.body.index(work), worth)
            capture = "[&]" if self.parameters.fails else "[=]"
            call = f"kh::parallel({self.body.index(count)}, {grain}, {capture}(int64_t begin, int64_t end)"
            with lines.block(call, "});"):
                passed = [*self.parameters.passed(self.names), "begin", "end"]
                lines.add(f"{self.name}_rows({', '.join(passed)});")

    @staticmethod
    def _grain(work: str, worth: int) -> str:
        """Rows that are worth a thread, of work that only the sizes tell."""
        return f"kh::grain({work})" if worth == GRAIN else f"kh::max<int64_t>(1, {worth} / ({work}))"

    def row_loop(self, loops: Sequence[Loop]) -> str:
        """The head of the loop over rows; where several loops share it, `row_variables` tells them apart."""
        name = variable_name(loops[0].name) if len(loops) == 1 else "row"
        return f"for (int64_t {name} = begin; {name} < end; ++{name})"

    def row_variables(self, loops: Sequence[Loop]) -> None:
        """Declare the variables of loops that share one row number."""
        if len(loops) < 2:
            return
        parts: list[str] = []
        for index, loop in enumerate(loops):
            below = turns(loops[index + 1 :])
            one = isinstance(below, int) and below == 1
            row = "row" if one else f"row / {self.body.scalars.factor(below)}"
            if index:
                row = f"{row} % {self.body.scalars.factor(loop.extent)}"
            parts.append(f"{variable_name(loop.name)} = {row}")
        self.lines.add(f"const int64_t {', '.join(parts)};")

    def loop(self, loop: Loop) -> str:
        """The head of a plain loop."""
        name = variable_name(loop.name)
        return f"for (int64_t {name} = 0; {name} < {self.body.index(loop.extent)}; ++{name})"

    def run_bounds(self, loop: Loop, run: Run, first: str, end: str, *, cut: bool = False) -> tuple[str, str]:
        """Declare the bounds of a run within first..end, turns of a loop; returns their names.

        cut: neither is outside of first..end, nor the end before the first; else such a run has no turns.
        """
        name, scalars = variable_name(loop.name), self.body.scalars
        firsts, ends = ([self.body.index(one) for one in dims] for dims in (run.firsts, run.ends))
        start = scalars.extremum("max", [first, *firsts]) if firsts else first
        stop = scalars.extremum("min", [end, *ends]) if ends else end
        if cut and firsts:
            start = scalars.extremum("min", [start, end])
        self.lines.add(f"const int64_t {name}_first = {start};")
        if run.whole and (test := scalars.test(run.whole)) != "true":
            stop = f"({test}) ? {stop} : {name}_first"
        if cut and ends:
            stop = scalars.extremum("max", [f"{name}_first", stop])
        self.lines.add(f"const int64_t {name}_end = {stop};")
        return f"{name}_first", f"{name}_end"
