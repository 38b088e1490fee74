"""A nest with one reduction as C++, by the plan of loops that a search found for it (`schedule.loop_plan`).

Results lie where they are stored while they are reduced: the first block of the axes that are reduced over begins
them, each other one goes on from there. What is held in registers is written out: a variable for each result, or for
each vector of results.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from kernels_hub.compiler.codegen.cpp.function import Function
from kernels_hub.compiler.codegen.cpp.reduce import STACK_ELEMENTS
from kernels_hub.compiler.codegen.loops import turns
from kernels_hub.compiler.codegen.scalar import variable_name
from kernels_hub.compiler.errors import EngineError
from kernels_hub.compiler.ir.dims import Dim, Symbol, atom, product
from kernels_hub.compiler.ir.extrema import substitute
from kernels_hub.compiler.schedule.index import Loop
from kernels_hub.compiler.schedule.kernel import Compute, Constant, Load
from kernels_hub.compiler.schedule.loop_plan import LoopPlan
from kernels_hub.compiler.schedule.planned_nest import Operand, PlannedNest, check_plan, planned_nest

HEADER = "lanes.h"

_START: Mapping[str, str] = {
    "sum": "0.0f", "prod": "1.0f", "max": "-__builtin_inff()", "min": "__builtin_inff()",
}  # fmt: skip
_OPERATORS: Mapping[str, str] = {
    "add": "{} + {}",
    "sub": "{} - {}",
    "mul": "{} * {}",
    "div": "{} / {}",
    "neg": "-{}",
}


def print_planned(function: Function, plan: LoopPlan) -> None:
    """Write the functions of a nest. Raises EngineError where the plan is not one of it."""
    nest = planned_nest(function.nest)
    if nest is None:
        raise EngineError(
            f"{function.name} is no nest that a plan of loops can run: see `schedule.planned_nest`"
        )
    check_plan(plan, nest)
    _Printer(function, nest).emit(plan)


@dataclass(frozen=True)
class _At:
    """Where a part of a plan begins: for each axis a place, and how many elements are left; copies by operand."""

    bases: tuple[Dim, ...]
    sizes: tuple[int, ...]
    copies: Mapping[int, _Copy]

    def stepped(self, axis: int, base: Dim, size: int) -> _At:
        """With other elements of one axis."""
        bases = (*self.bases[:axis], base, *self.bases[axis + 1 :])
        return replace(self, bases=bases, sizes=(*self.sizes[:axis], size, *self.sizes[axis + 1 :]))


@dataclass(frozen=True)
class _Copy:
    """Where the copy of an operand lies, of which elements, and how far apart they are there."""

    name: str
    bases: tuple[Dim, ...]
    strides: tuple[int, ...]


class _Printer:
    def __init__(self, function: Function, nest: PlannedNest) -> None:
        self.function, self.nest = function, nest
        self.lines, self.body, self.names = function.lines, function.body, function.names
        self._counter = itertools.count()

    def emit(self, plan: LoopPlan) -> None:
        """Both functions of the nest."""
        nest, shared = self.nest, []
        inner = plan
        while inner.op == "Share":
            shared.append(inner)
            inner = inner.parts[0]
        loops = [
            Loop(f"$share{number}", one.numbers[1] // one.numbers[2]) for number, one in enumerate(shared)
        ]
        at = _At(tuple(0 for _ in nest.axes), nest.extents, {})
        for loop, one in zip(loops, shared, strict=True):
            axis, _, step = one.numbers
            at = at.stepped(axis, at.bases[axis] + loop.index * step, step)
        work = product(at.sizes) * self.function.work

        def inside() -> None:
            if not loops:
                self.plan(inner, at)
                return
            with self.lines.block(self.function.row_loop(loops)):
                self.function.row_variables(loops)
                self.plan(inner, at)

        self.function.rows(turns(loops), work, inside)

    def plan(self, plan: LoopPlan, at: _At) -> None:
        """One plan, as statements."""
        parts, lines = plan.parts, self.lines
        if plan.op == "Each":
            axis, size, step = plan.numbers
            with self._loop(axis, size, step, at) as below:
                self.plan(parts[0], below)
        elif plan.op == "Peel":
            axis, first = plan.numbers
            self.plan(parts[0], at.stepped(axis, at.bases[axis], first))
            self.plan(parts[1], at.stepped(axis, at.bases[axis] + first, at.sizes[axis] - first))
        elif plan.op == "Stage":
            with lines.block(""):
                self.plan(parts[0], self._copied(plan.numbers[0], at))
        elif plan.op == "Then":
            self.plan(parts[0], at)
            self._end(at)
        elif plan.op == "Hold":
            with lines.block(""):
                self._hold(parts[0], at)
        else:
            with lines.block(""):
                self._hold(LoopPlan("Tile", (), (LoopPlan("Point", plan.numbers),)), at)

    @contextmanager
    def _loop(self, axis: int, size: int, step: int, at: _At) -> Iterator[_At]:
        """A loop over elements of an axis; where it has one turn, none."""
        base = at.bases[axis]
        if size == step:
            yield at
            return
        name = f"at{axis}_{next(self._counter)}"
        first, end = self.body.index(base), self.body.index(base + size)
        with self.lines.block(f"for (int64_t {name} = {first}; {name} < {end}; {name} += {step})"):
            yield at.stepped(axis, atom(Symbol(f"${name}")), step)

    def _copied(self, number: int, at: _At) -> _At:
        """Copy the part of an operand that is read from here on; where what follows finds it."""
        operand, sizes = self.nest.operands[number], at.sizes
        axes = sorted(
            (axis for axis in self.nest.axes if operand.depends(axis)), key=lambda a: -operand.strides[a]
        )
        axes.sort(key=lambda axis: self.nest.result[axis] == 1)
        strides = [0 for _ in self.nest.axes]
        elements = 1
        for axis in reversed(axes):
            strides[axis], elements = elements, elements * sizes[axis]
        name = f"copy{next(self._counter)}"
        small = elements <= STACK_ELEMENTS
        self.lines.add(
            f"alignas(64) float {name}[{elements}];" if small else f"const kh::Row<float> {name}({elements});"
        )
        copy = _Copy(name, at.bases, tuple(strides))
        source = self.names.buffers[operand.load.buffer]
        *others, last = axes
        beside = next((axis for axis in others if operand.strides[axis] == 1), None)
        if operand.strides[last] != 1 and beside is not None:
            others.remove(beside)
        with ExitStack() as opened:
            inner = at
            for axis in others:
                inner = opened.enter_context(self._loop(axis, sizes[axis], 1, inner))
            if operand.strides[last] == 1 or beside is None:
                if sizes[last] > 1:
                    self.lines.add("#pragma omp simd")
                inner = opened.enter_context(self._loop(last, sizes[last], 1, inner))
                to, of = self.place(copy, inner), self.place(operand, inner)
                self.lines.add(f"{name}[{to}] = {source}[{of}];")
            else:
                to, of = self.place(copy, inner), self.place(operand, inner)
                turned = f"{operand.strides[last]}, &{name}[{to}], {strides[beside]}, {sizes[last]}, {sizes[beside]}"
                self.lines.add(f"kh::transpose(&{source}[{of}], {turned});")
        return replace(at, copies={**at.copies, number: copy})

    def place(self, of: Operand | _Copy, at: _At, offsets: Mapping[int, int] | None = None) -> str:
        """Where an element lies in an operand, or in the copy of it."""
        if isinstance(of, Operand):
            return self.body.index(self.moved(of.load.place, at, offsets))
        place: Dim = 0
        for axis, stride in enumerate(of.strides):
            place = place + (at.bases[axis] - of.bases[axis] + (offsets or {}).get(axis, 0)) * stride
        return self.body.index(place)

    def moved(self, place: Dim, at: _At, offsets: Mapping[int, int] | None = None) -> Dim:
        """A place in memory of the nest, with its loops' variables replaced."""
        loops = enumerate(self.nest.loops)
        return substitute(
            place, {loop.name: at.bases[axis] + (offsets or {}).get(axis, 0) for axis, loop in loops}
        )

    def _hold(self, plan: LoopPlan, at: _At) -> None:
        """A block of results: begun or loaded, added to, stored."""
        results = _Results(self, at, plan)
        results.begin()
        with ExitStack() as opened:
            inner = at
            for turn in results.turns:
                axis, size, step = turn.numbers
                inner = opened.enter_context(self._loop(axis, size, step, inner))
            results.add(inner)
        results.store()

    def _end(self, at: _At) -> None:
        """What follows the reduction, for a block of results."""
        nest, lines = self.nest, self.lines
        axes = sorted(range(nest.parallel), key=lambda axis: -nest.result[axis])
        with ExitStack() as opened:
            opened.enter_context(lines.block(""))
            for axis in axes:
                name, base = variable_name(nest.loops[axis].name), at.bases[axis]
                if axis == axes[-1]:
                    lines.add("#pragma omp simd")
                first, end = self.body.index(base), self.body.index(base + at.sizes[axis])
                opened.enter_context(lines.block(f"for (int64_t {name} = {first}; {name} < {end}; ++{name})"))
            result = f"{self.names.buffers[nest.store.buffer]}[{self.body.index(nest.store.place)}]"
            lines.add(f"const float {nest.reduce.name} = {result};")
            for statement in (*nest.after, nest.store):
                self.body.emit(statement)


class _Results:
    """The results of a block that is held in registers: a variable for each, or for each vector of them."""

    def __init__(self, printer: _Printer, at: _At, plan: LoopPlan) -> None:
        self.printer, self.at, self.nest = printer, at, printer.nest
        self.turns = []
        while plan.op == "Turn":
            self.turns.append(plan)
            plan = plan.parts[0]
        plan = plan.parts[0]
        steps: list[tuple[int, range]] = []
        self.lane, self.width = -1, 1
        while plan.op != "Point":
            if plan.op == "Lanes":
                self.lane, self.width = plan.numbers
            else:
                axis, size, step = plan.numbers
                steps.append((axis, range(0, size, step)))
            plan = plan.parts[0]
        self.points = [self._offsets(steps, point) for point in itertools.product(*(one for _, one in steps))]
        self.kind = f"kh::Lanes<{self.width}>"
        self._made: dict[tuple[str, tuple[int, ...]], tuple[str, bool]] = {}

    @staticmethod
    def _offsets(steps: Sequence[tuple[int, range]], point: Sequence[int]) -> dict[int, int]:
        offsets: dict[int, int] = {}
        for (axis, _), offset in zip(steps, point, strict=True):
            offsets[axis] = offsets.get(axis, 0) + offset
        return offsets

    @property
    def _type(self) -> str:
        return "float" if self.width == 1 else f"{self.kind}::type"

    def _result(self, offsets: Mapping[int, int]) -> str:
        place = self.printer.body.index(self.printer.moved(self.nest.store.place, self.at, offsets))
        return f"{self.printer.names.buffers[self.nest.store.buffer]}[{place}]"

    def begin(self) -> None:
        """Declare them: as nothing was added yet, or as they lie in memory."""
        lines, nest, at = self.printer.lines, self.nest, self.at
        start = _START[nest.reduce.kind]
        begun = start if self.width == 1 else f"{self._type}{{}} + {start}"
        parted = [
            a for a in nest.axes if nest.reduces(a) and at.sizes[a] != nest.extents[a] and at.bases[a] != 0
        ]
        if parted:
            tests = [f"{self.printer.body.scalars.factor(at.bases[axis])} == 0" for axis in parted]
            lines.add(f"const bool first = {' && '.join(tests)};")
        for number, offsets in enumerate(self.points):
            value = begun
            if parted:
                result = self._result(offsets)
                known = result if self.width == 1 else f"{self.kind}::load(&{result})"
                value = f"first ? {begun} : {known}"
            lines.add(f"{self._type} total{number} = {value};")

    def add(self, at: _At) -> None:
        """Add one element to each."""
        for number, offsets in enumerate(self.points):
            value, is_vector = self._value(self.nest.reduce.arg, at, offsets)
            total, kind = f"total{number}", self.nest.reduce.kind
            if kind in {"sum", "prod"}:
                text = f"{total} {'+' if kind == 'sum' else '*'} {value}"
            else:
                if self.width > 1 and not is_vector:
                    value = f"({self._type}{{}} + {value})"
                better = f"{value} {'>' if kind == 'max' else '<'} {total}"
                text = f"(({better}) | ({value} != {value})) ? {value} : {total}"
            self.printer.lines.add(f"{total} = {text};")

    def store(self) -> None:
        """Write them to memory."""
        for number, offsets in enumerate(self.points):
            result = self._result(offsets)
            written = (
                f"{result} = total{number}"
                if self.width == 1
                else f"{self.kind}::store(&{result}, total{number})"
            )
            self.printer.lines.add(f"{written};")

    def _value(self, name: str, at: _At, offsets: Mapping[int, int]) -> tuple[str, bool]:
        """What is reduced, or a part of it, for one point: its text, and whether it is a vector."""
        printer, nest = self.printer, self.nest
        statement = next(one for one in nest.before if getattr(one, "name", "") == name)
        if isinstance(statement, Constant):
            return printer.body.use(name), False
        axes = sorted(axis for axis in offsets if self._depends(name, axis))
        key = (name, tuple(offsets[axis] for axis in axes))
        if key in self._made:
            return self._made[key]
        if isinstance(statement, Load):
            number = next(index for index, one in enumerate(nest.operands) if one.load is statement)
            operand = nest.operands[number]
            copy = at.copies.get(number)
            buffer = printer.names.buffers[statement.buffer] if copy is None else copy.name
            element = f"{buffer}[{printer.place(copy or operand, at, offsets)}]"
            is_vector = self.lane >= 0 and operand.depends(self.lane)
            text = f"{self.kind}::load(&{element})" if is_vector else element
        else:
            assert isinstance(statement, Compute)
            found = [self._value(one, at, offsets) for one in statement.args]
            is_vector = any(vector for _, vector in found)
            text = _OPERATORS[statement.op.name].format(*(one for one, _ in found))
        made = f"{name}_{len(self._made)}"
        printer.lines.add(f"const {self._type if is_vector else 'float'} {made} = {text};")
        self._made[key] = (made, is_vector)
        return self._made[key]

    def _depends(self, name: str, axis: int) -> bool:
        """Whether a value differs along an axis."""
        statement = next(one for one in self.nest.before if getattr(one, "name", "") == name)
        if isinstance(statement, Load):
            return any(one.load is statement and one.depends(axis) for one in self.nest.operands)
        return isinstance(statement, Compute) and any(self._depends(one, axis) for one in statement.args)
