"""A loop nest as a Metal kernel: a thread for each turn of the outer loops, which runs the inner ones in order.

Reductions come in passes. A pass runs the inner loops, computes what the reductions and stores of the pass need there,
and feeds them; what follows from the results of one pass is computed before the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from kernels_hub.compiler.codegen.c_text import Lines
from kernels_hub.compiler.codegen.lines import note_of
from kernels_hub.compiler.codegen.loops import PLACES, simplified, turns
from kernels_hub.compiler.codegen.metal.text import THREAD, MetalBody, Parameters
from kernels_hub.compiler.codegen.names import Names
from kernels_hub.compiler.ir.dims import Dim
from kernels_hub.compiler.schedule.kernel import Nest, Reduce, Scan, Statement, Store, arguments, variables

_STARTS = {"sum": 0, "prod": 1, "any": False, "all": True}
_SIGNS = {"sum": "+", "prod": "*", "any": "|", "all": "&"}


def print_nest(name: str, nest: Nest, lines: Lines, names: Names) -> tuple[Parameters, Dim]:
    """Write the kernel of a nest without an anchor; returns what it is given, and how many threads it wants."""
    nest = simplified(nest)
    parameters = Parameters.of(nest)
    body = MetalBody(lines, names, (*nest.outer, *nest.inner))
    body.know(nest.body)
    with lines.block(f"kernel void {name}({parameters.declared(names, body.scalars)})"):
        body.digits(f"static_cast<int64_t>({THREAD})", nest.outer)
        _Passes(nest, body).write()
    return parameters, turns(nest.outer)


class _Passes:
    """The statements of a nest, by pass."""

    def __init__(self, nest: Nest, body: MetalBody) -> None:
        self.nest, self.body = nest, body
        self.inner = nest.is_inner()
        self.pass_of: dict[str, int] = {}
        """Of a value: the pass in which it is known, or, of an inner one, first can be computed."""
        self.made = {statement.name: statement for statement in nest.body if not isinstance(statement, Store)}
        for one in nest.body:
            if not isinstance(one, Store):
                self.pass_of[one.name] = self._first(one) + isinstance(one, Reduce)

    def write(self) -> None:
        """All passes in order."""
        for number in range(1 + max(self.pass_of.values(), default=0)):
            for one in self.nest.body:
                if not self._is_inner(one) and not isinstance(one, Reduce) and self._first(one) == number:
                    self.body.emit(one)
            fed = [
                statement
                for statement in self.nest.body
                if (
                    isinstance(statement, (Reduce, Scan))
                    or (self._is_inner(statement) and isinstance(statement, Store))
                )
                and self._first(statement) == number
            ]
            if fed:
                self._pass(fed)

    def _first(self, statement: Statement) -> int:
        return max((self.pass_of[name] for name in arguments(statement)), default=0)

    def _is_inner(self, statement: Statement) -> bool:
        if isinstance(statement, Store):
            places = {loop.name for loop in self.nest.inner} & variables(statement)
            return bool(places) or any(self.inner[name] for name in arguments(statement))
        return self.inner[statement.name]

    def _pass(self, fed: Sequence[Statement]) -> None:
        needed: set[str] = set()
        waiting = [name for statement in fed for name in arguments(statement)]
        while waiting:
            name = waiting.pop()
            if self.inner[name] and name not in needed:
                needed.add(name)
                waiting += arguments(self.made[name])
        for one in fed:
            if isinstance(one, (Reduce, Scan)):
                self._start(one)
        with ExitStack() as blocks:
            for loop in self.nest.inner:
                blocks.enter_context(self.body.lines.block(self.body.loop(loop)))
            for one in self.nest.body:
                if one in fed:
                    self._feed(one)
                elif not isinstance(one, Store) and one.name in needed:
                    self.body.emit(one)
        for one in fed:
            if isinstance(one, Reduce) and _is_sum(one):
                self.body.lines.add(f"const float {one.name} = {one.name}_sum.value();")

    def _start(self, one: Reduce | Scan) -> None:
        body, name = self.body, one.name
        if _is_sum(one):
            body.lines.add(f"kh::Sum {name}_sum;", note_of(one.origin))
            return
        row = body.dtypes[one.arg] if one.kind in PLACES else one.dtype
        kind = PLACES.get(one.kind, one.kind)
        start: int | float
        if kind in _STARTS:
            start = _STARTS[kind]
        elif row.is_float:
            start = float("-inf" if kind == "max" else "inf")
        else:
            start = row.limits[0 if kind == "max" else 1]
        target = f"{name}_best" if one.kind in PLACES else f"{name}_so_far" if isinstance(one, Scan) else name
        text = body.scalars.literal(start, row)
        body.lines.add(f"{body.scalars.value_type(row)} {target} = {text};", note_of(one.origin))
        if one.kind in PLACES:
            body.lines.add(f"int64_t {name} = 0;")

    def _feed(self, statement: Statement) -> None:
        if not isinstance(statement, (Reduce, Scan)):
            self.body.emit(statement)
            return
        lines, name, value = self.body.lines, statement.name, self.body.use(statement.arg)
        target = f"{name}_so_far" if isinstance(statement, Scan) else name
        if statement.kind in PLACES:
            place: Dim = 0
            for loop in self.nest.inner:
                place = place * loop.extent + loop.index
            word = "greater" if statement.kind == "argmax" else "less"
            with lines.block(f"if (kh::is_{word}({value}, {name}_best))"):
                lines.add(f"{name}_best = {value};")
                lines.add(f"{name} = {self.body.index(place)};")
        elif _is_sum(statement):
            lines.add(f"{name}_sum.add({value});")
        elif statement.kind in {"max", "min"}:
            lines.add(
                f"{target} = kh::{'greater' if statement.kind == 'max' else 'lesser'}({value}, {target});"
            )
        else:
            lines.add(f"{target} = {target} {_SIGNS[statement.kind]} {value};")
        if isinstance(statement, Scan):
            kind = self.body.scalars.value_type(statement.dtype)
            lines.add(f"const {kind} {name} = {f'{name}_sum.value()' if _is_sum(statement) else target};")


def _is_sum(one: Reduce | Scan) -> bool:
    """Whether it is a sum of floats, which is made in parts."""
    return one.kind == "sum" and one.dtype.is_float
