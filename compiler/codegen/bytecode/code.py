"""Statements of a nest as instructions over tiles: registers, places in memory, and the words that say so.

A value has a register, which holds an element for each row and column of a tile; those that do not depend on the rows,
or on the columns, hold fewer. What is read as it lies in memory is a view: nothing is copied. Places that are linear in
the loops are evaluated a tile; any other is computed element by element, and read or written through it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from kernels_hub.compiler.codegen.bytecode.chains import chained
from kernels_hub.compiler.codegen.bytecode.instruction import (
    AS_HELD,
    COMPUTE,
    ELEMENTS,
    MOST_ELEMENTS,
    MOST_ROWS,
    Address,
    Instruction,
    Op,
    Register,
    RegisterKind,
    kind_of,
)
from kernels_hub.compiler.codegen.bytecode.numbers import Numbers
from kernels_hub.compiler.codegen.bytecode.operations import codes
from kernels_hub.compiler.codegen.bytecode.slots import Lists, allocate
from kernels_hub.compiler.codegen.loops import estimate
from kernels_hub.compiler.errors import EngineError
from kernels_hub.compiler.ir.dims import Dim, Expr, Monomial, Opaque, Symbol, atom
from kernels_hub.compiler.ir.proofs import proves_le
from kernels_hub.compiler.ir.types import BOOL, FLOAT32, INT64, DType
from kernels_hub.compiler.schedule.index import Loop, Ranges, linear, variables_in
from kernels_hub.compiler.schedule.kernel import (
    Bound,
    Buffer,
    Compute,
    Constant,
    Guard,
    Load,
    Position,
    Statement,
    Store,
    Test,
    arguments,
    variables,
)

Number = int | float | bool

_HUGE = 1 << 62
_SHORT = 256
"""Columns up to which a row that all rows of a tile read is repeated for each of them."""


class Code:
    """The instructions of a nest while they are made.

    rows: the loops that the rows of a tile count; scalars: those that stand still while a tile is computed; column: the
    loop along its columns.
    """

    def __init__(
        self,
        numbers: Numbers,
        buffers: Mapping[Buffer, int],
        message: Mapping[str, int],
        rows: Sequence[Loop],
        scalars: Sequence[Loop],
        column: Loop | None,
        ranges: Ranges,
    ) -> None:
        self.numbers, self.buffers, self._message = numbers, buffers, message
        self._rows = {loop.name: place for place, loop in enumerate(rows)}
        self._scalars = {loop.name: place for place, loop in enumerate(scalars)}
        self._column = column.name if column is not None else None
        self._column_extent = column.extent if column is not None else None
        self._loops = (*self._rows, *self._scalars, *(() if column is None else (column.name,)))
        self._ranges = ranges
        self.registers: list[Register] = []
        self.values: dict[str, int] = {}
        self.dtypes: dict[str, DType] = {}
        self.lists = Lists()
        self._now: list[Instruction] = []
        self._constants: dict[tuple[RegisterKind, int], int] = {}
        self._indices: dict[Dim, int] = {}
        self._blanks: dict[str, float] = {}
        self._chosen: dict[str, str] = {}
        self.needed: set[int] = set()
        """Registers that who runs the code reads."""
        self.repeats = False
        """Whether rows that all rows of a tile read are repeated."""

    # -- lists

    def begin(self) -> None:
        """A new list: what was computed for places is computed again in it."""
        self._now, self._indices = [], {}

    def end(self) -> int:
        """The number of the list."""
        return self.lists.add(chained(self._now, self.registers, self._is_needed))

    def _is_needed(self, register: int) -> bool:
        """Whether a register is read outside of the list that is being made."""
        return register in self.needed or any(
            register in one.registers for made in self.lists.all for one in made
        )

    def add(self, one: Instruction) -> None:
        """The next instruction of the list."""
        self._now.append(one)

    # -- registers

    def register(self, kind: RegisterKind, *, rows: bool, columns: bool, is_view: bool = False) -> int:
        """A new one."""
        self.registers.append(Register(kind, rows, columns, is_view))
        return len(self.registers) - 1

    def like(self, kind: RegisterKind, operands: Iterable[int]) -> int:
        """A new one that depends on what some others do."""
        given = [self.registers[one] for one in operands]
        return self.register(
            kind, rows=any(one.rows for one in given), columns=any(one.columns for one in given)
        )

    def constant(self, value: Number, dtype: DType) -> int:
        """A register that always holds a number."""
        return self.bits(kind_of(dtype), _bits(value, dtype))

    def bits(self, kind: RegisterKind, bits: int) -> int:
        """The same, of the number's memory."""
        if (kind, bits) not in self._constants:
            self._constants[kind, bits] = self.register(kind, rows=False, columns=False)
            self.registers[-1].constant = bits
        return self._constants[kind, bits]

    def value(self, name: str) -> int:
        """The register of a value."""
        return self.values[name]

    def named(self, name: str, made: int) -> int:
        """The register of a value that is made here: the one that it has, if it was made before in another list."""
        return self.values.setdefault(name, made)

    # -- places

    def place(self, dim: Dim, buffer: int = -1) -> Address | None:
        """A place that is linear in the column, whatever it is in the other loops; None for another.

        What is not linear in these is computed a row.
        """
        if (plain := self._plain(dim, buffer)) is not None:
            return plain
        assert isinstance(dim, Expr)
        linear_part: Dim = 0
        rest: Dim = 0
        for monomial, coefficient in dim.terms:
            term = _term(monomial, coefficient)
            if self._plain(term) is not None:
                linear_part = linear_part + term
            elif self._is_wide(term):
                return None
            else:
                rest = rest + term
        found = self._plain(linear_part, buffer)
        assert found is not None
        return replace(found, offset=self.index(rest))

    def _is_wide(self, dim: Dim) -> bool:
        """Whether a place differs from column to column, as far as its variables tell."""
        for name in variables_in(dim):
            if name == self._column:
                return True
            if name not in self._loops and self.registers[self.value(name.removeprefix("$"))].columns:
                return True
        return False

    def _plain(self, dim: Dim, buffer: int = -1) -> Address | None:
        """A place, where it is linear in the loops."""
        found = linear(dim, self._loops)
        if found is None:
            return None
        steps, rest = found
        if any(variables_in(one) for one in (rest, *steps.values())):
            return None
        column = -1 if self._column is None else self._step(steps[self._column])
        return Address(
            buffer,
            self.numbers.of(rest),
            column,
            tuple(
                (self._rows[name], self.numbers.of(steps[name])) for name in self._rows if steps[name] != 0
            ),
            tuple(
                (self._scalars[name], self.numbers.of(steps[name]))
                for name in self._scalars
                if steps[name] != 0
            ),
        )

    def depends(self, places: Iterable[Address]) -> tuple[bool, bool]:
        """Whether something at these places differs from row to row, and from column to column."""
        given = tuple(places)
        rows = any(one.rows or (one.offset >= 0 and self.registers[one.offset].rows) for one in given)
        return bool(rows), any(one.column >= 0 for one in given)

    def _step(self, step: Dim) -> int:
        return -1 if isinstance(step, int) and step == 0 else self.numbers.of(step)

    def index(self, dim: Dim) -> int:
        """A register of integers with a place, of any form."""
        if dim not in self._indices:
            self._indices[dim] = self._index(dim)
        return self._indices[dim]

    def _index(self, dim: Dim) -> int:
        if (place := self._plain(dim)) is not None:
            to = self.register(RegisterKind.INTEGER, rows=bool(place.rows), columns=place.column >= 0)
            self.add(Instruction(Op.POSITION, to=to, place=place))
            return to
        assert isinstance(dim, Expr)
        plain: Dim = 0
        parts: list[int] = []
        for monomial, coefficient in dim.terms:
            term = _term(monomial, coefficient)
            if self._plain(term) is not None:
                plain = plain + term
            else:
                parts.append(self._term(monomial, coefficient))
        if not (isinstance(plain, int) and plain == 0):
            parts.append(self.index(plain))
        return self._combined("add", parts)

    def _term(self, monomial: Monomial, coefficient: int) -> int:
        sizes: Dim = coefficient
        factors: list[int] = []
        for one, power in monomial:
            for _ in range(power):
                if isinstance(one, Symbol) and one.name in self._loops:
                    factors.append(self.index(atom(one)))
                elif isinstance(one, Symbol) and one.name.startswith("$"):
                    factors.append(self.value(one.name.removeprefix("$")))
                elif isinstance(one, Opaque) and variables_in(atom(one)):
                    factors.append(self._opaque(one))
                else:
                    sizes = sizes * atom(one)
        if not (isinstance(sizes, int) and sizes == 1) or not factors:
            factors.append(self.index(sizes))
        return self._combined("mul", factors)

    def _opaque(self, one: Opaque) -> int:
        if atom(one) not in self._indices:
            name = {"min": "minimum", "max": "maximum"}.get(one.kind, one.kind)
            self._indices[atom(one)] = self._combined(name, [self.index(arg) for arg in one.args])
        return self._indices[atom(one)]

    def _combined(self, name: str, parts: Sequence[int]) -> int:
        found, *rest = parts
        for part in rest:
            to = self.like(RegisterKind.INTEGER, (found, part))
            self.add(Instruction(COMPUTE + codes()[name, "int"], to=to, a=found, b=part))
            found = to
        return found

    # -- guards

    def pending(self, guards: Sequence[Guard]) -> list[Guard]:
        """Those that are not known to hold."""
        found = []
        for guard in guards:
            low, high = self._ranges.bounds(guard.place)
            loaded = any(name.startswith("$v") for name in variables_in(guard.place))
            holds = low is not None and high is not None and not loaded
            if not holds or not (proves_le(guard.low, low) and proves_le(high, guard.high - 1)):
                found.append(guard)
        return found

    def _linear_guards(self, guards: Sequence[Guard]) -> tuple[tuple[Address, int, int], ...] | None:
        found = []
        for guard in guards:
            place = self.place(guard.place)
            if place is None or variables_in(guard.low) or variables_in(guard.high):
                return None
            found.append((place, self.numbers.of(guard.low), self.numbers.of(guard.high)))
        return tuple(found)

    def _test(self, guards: Sequence[Guard]) -> int:
        """A register that says whether guards hold."""
        if (plain := self._linear_guards(guards)) is not None:
            rows, columns = self.depends(place for place, _, _ in plain)
            to = self.register(RegisterKind.TRUTH, rows=rows, columns=columns)
            self.add(Instruction(Op.INSIDE, to=to, guards=plain))
            return to
        parts: list[int] = []
        for guard in guards:
            if variables_in(guard.low) or variables_in(guard.high):
                parts.append(self._between(guard.place - guard.low, 0, _HUGE))
                parts.append(self._between(guard.high - 1 - guard.place, 0, _HUGE))
            else:
                parts.append(self._between(guard.place, guard.low, guard.high))
        found, *rest = parts
        for part in rest:
            to = self.like(RegisterKind.TRUTH, (found, part))
            self.add(Instruction(COMPUTE + codes()["bitand", "bool"], to=to, a=found, b=part))
            found = to
        return found

    def _between(self, dim: Dim, low: Dim, high: Dim) -> int:
        a = self.index(dim)
        to = self.like(RegisterKind.TRUTH, (a,))
        numbers = self.numbers.of(low), self.numbers.of(high)
        self.add(Instruction(Op.BETWEEN, to=to, a=a, number=numbers[0], extra=numbers[1]))
        return to

    # -- statements

    def know(self, body: Iterable[Statement]) -> None:
        """Note the dtypes of statements, and constants."""
        for one in body:
            if not isinstance(one, Store):
                self.dtypes[one.name] = one.dtype
            if isinstance(one, Constant):
                self.values[one.name] = self.constant(one.value, one.dtype)
        self._find_blanks(list(body))

    def _find_blanks(self, body: Sequence[Statement]) -> None:
        """Loads that give another number than 0 where guards do not hold: a choice by a test of the same guards."""
        made = {one.name: one for one in body if not isinstance(one, Store)}
        users: dict[str, int] = {}
        for one in body:
            for arg in arguments(one):
                users[arg] = users.get(arg, 0) + 1
        for one in body:
            if not isinstance(one, Compute) or one.op.name != "select":
                continue
            test, load, blank = (made.get(arg) for arg in one.args)
            if (
                isinstance(test, Test)
                and isinstance(load, Load)
                and isinstance(blank, Constant)
                and load.guards == test.guards
                and load.buffer.dtype.name == "float32"
                and users[load.name] == users[test.name] == 1
            ):
                self._blanks[load.name] = float(blank.value)
                self._chosen[one.name] = load.name
                self._chosen[test.name] = ""

    def emit(self, one: Statement) -> None:
        """A statement that is neither Constant, Reduce, Scan nor Store."""
        if one.name in self._chosen:  # type: ignore[union-attr]
            if load := self._chosen[one.name]:  # type: ignore[union-attr]
                self.values[one.name] = self.value(load)  # type: ignore[union-attr]
            return
        if isinstance(one, Load):
            self._load(one)
        elif isinstance(one, Position):
            self._position(one)
        elif isinstance(one, Test):
            guards = self.pending(one.guards)
            made = self._test(guards) if guards else self.constant(True, BOOL)
            self._give(one.name, made)
        elif isinstance(one, Bound):
            a = self.value(one.arg)
            to = self.named(one.name, self.like(RegisterKind.INTEGER, (a,)))
            code = self._message[one.message]
            self.add(Instruction(Op.BOUND, to=to, a=a, number=self.numbers.of(one.extent), extra=code))
        else:
            assert isinstance(one, Compute), one
            self._compute(one)

    def _give(self, name: str, made: int) -> None:
        """A value is what a register holds; copied where the value has one of its own from another list."""
        known = self.values.setdefault(name, made)
        if known != made:
            self.add(Instruction(Op.COPY, to=known, a=made))

    def _load(self, one: Load) -> None:
        element, kind = _element(one.buffer.dtype), kind_of(one.dtype)
        guards = self.pending(one.guards)
        buffer = self.buffers[one.buffer]
        place, plain = self.place(one.place, buffer), self._linear_guards(guards)
        if place is None or plain is None:
            where = self.index(one.place)
            test = self._test(guards) if guards else -1
            to = self.named(one.name, self.like(kind, [where] + [test] * (test >= 0)))
            at = Address(buffer, self.numbers.of(0), -1, (), ())
            self.add(Instruction(Op.GATHER, to=to, a=where, b=test, element=element, place=at))
            if (blank := self._blanks.get(one.name)) is not None:
                filler = self.constant(blank, one.dtype)
                self.add(Instruction(Op.SELECT, to=to, a=test, b=to, c=filler))
            return
        if self._repeats(one, place, guards):
            to = self.named(one.name, self.register(kind, rows=True, columns=True))
            self.registers[to].is_kept = True
            self.add(Instruction(Op.REPEAT, to=to, element=element, place=place))
            return
        extra = _bits(self._blanks.get(one.name, 0.0), FLOAT32)
        extra -= 1 << 32 if extra >= 1 << 31 else 0
        rows, columns = self.depends((place, *(at for at, _, _ in plain)))
        beside = place.column in {-1, self.numbers.of(1)}
        same = all(at.column < 0 for at, _, _ in plain)
        held = AS_HELD if not plain else {"float32"} if same else ()
        is_view = beside and one.buffer.dtype.name in held
        to = self.named(one.name, self.register(kind, rows=rows, columns=columns, is_view=is_view))
        op = Op.VIEW if is_view else Op.LOAD
        self.add(Instruction(op, to=to, element=element, place=place, guards=plain, extra=extra))

    def _repeats(self, one: Load, place: Address, guards: Sequence[Guard]) -> bool:
        """Whether a load is a row of few columns, the same for all rows of all tiles."""
        short = self._column_extent is not None and estimate(self._column_extent) <= _SHORT
        plain = not place.rows and not place.scalars and place.offset < 0 and place.column >= 0 and not guards
        return self.repeats and short and plain and one.buffer.dtype is FLOAT32

    def _position(self, one: Position) -> None:
        kind = kind_of(one.dtype)
        place = self.place(one.place) if isinstance(one.place, Expr) or kind is RegisterKind.INTEGER else None
        exact = one.dtype.name in AS_HELD and kind is not RegisterKind.TRUTH
        if exact and place is not None:
            rows, columns = self.depends((place,))
            made = self.register(kind, rows=rows, columns=columns)
            to = self.named(one.name, made)
            self.add(Instruction(Op.POSITION, to=to, place=place))
            return
        self._cast(one.name, self.index(one.place), one.dtype, saturate=False)

    def _cast(self, name: str, a: int, dtype: DType, *, saturate: bool) -> None:
        to = self.named(name, self.like(kind_of(dtype), (a,)))
        self.add(Instruction(Op.CAST, to=to, a=a, element=_element(dtype), extra=int(saturate)))

    def _compute(self, one: Compute) -> None:
        name, args = one.op.name, [self.value(arg) for arg in one.args]
        first = self.dtypes[one.args[0]]
        if name in {"stop_gradient", "with_derivative"}:
            self._give(one.name, args[0])
            return
        if name == "cast":
            if first is one.dtype:
                self._give(one.name, args[0])
            else:
                self._cast(one.name, args[0], one.dtype, saturate=bool(one.attrs.get("saturate")))
            return
        kind = kind_of(one.dtype)
        to = self.named(one.name, self.like(kind, args))
        if name == "select":
            self.add(Instruction(Op.SELECT, to=to, a=args[0], b=args[1], c=args[2]))
            return
        given = kind_of(first)
        word = {RegisterKind.INTEGER: "int", RegisterKind.TRUTH: "bool"}.get(given, "float")
        code = codes().get((name, word))
        if code is None:
            raise EngineError(f"bytecode has no {name} of {first}")
        b = args[1] if len(args) > 1 else -1
        self.add(Instruction(COMPUTE + code, to=to, a=args[0], b=b, extra=int(given is RegisterKind.DOUBLE)))
        if kind is RegisterKind.INTEGER and one.dtype.bits < 64 and name not in _WITHIN:
            self.add(Instruction(Op.CAST, to=to, a=to, element=_element(one.dtype)))

    def store(self, one: Store) -> None:
        """A value goes to memory."""
        a, buffer = self.value(one.arg), self.buffers[one.buffer]
        element = _element(one.buffer.dtype)
        place = self.place(one.place, buffer)
        if place is None:
            at = Address(buffer, self.numbers.of(0), -1, (), ())
            self.add(Instruction(Op.SCATTER, a=a, b=self.index(one.place), element=element, place=at))
            return
        self.add(Instruction(Op.STORE, a=a, element=element, place=place))

    def stores(self, found: Sequence[Store], body: Sequence[Statement]) -> None:
        """All stores of a tile, behind what it computes.

        Memory may be that of an operand, element by element: views of it are read before it is written, and two stores
        of views would have to be in the right order.
        """
        views = [one for one in found if self.registers[self.value(one.arg)].is_view]
        if len(found) > 1 and views:
            for one in views:
                a = self.value(one.arg)
                copied = self.like(self.registers[a].kind, (a,))
                self.add(Instruction(Op.COPY, to=copied, a=a))
                self.values[one.arg] = copied
        *others, last = found
        for one in others:
            self.store(one)
        if not self._aim(last, body):
            self.store(last)

    def _aim(self, one: Store, body: Sequence[Statement]) -> bool:
        """Have the last instruction write to memory, where nothing but a store needs its result."""
        a = self.value(one.arg)
        place = self.place(one.place, self.buffers[one.buffer])
        shape = self.registers[a]
        users = sum(
            (statement.arg == one.arg) if isinstance(statement, Store) else one.arg in arguments(statement)
            for statement in body
        )
        if (
            self.lists.all
            or place is None
            or users != 1
            or one.buffer.dtype.name not in AS_HELD
            or shape.is_view
            or not self._now
            or self._now[-1].to != a
            or self._now[-1].op in {Op.LOAD, Op.BOUND, Op.POSITION, Op.GATHER}
            or self._now[-1].a == a
            or place.column not in {-1, self.numbers.of(1)}
            or (shape.rows, shape.columns) != self.depends((place,))
        ):
            return False
        computed = self._now.pop()
        self.registers[a] = Register(shape.kind, shape.rows, shape.columns, is_view=True)
        self.add(Instruction(Op.VIEW, to=a, element=_element(one.buffer.dtype), place=place))
        self.add(computed)
        return True

    # -- words

    def words(self) -> list[int]:
        """All of it, as the interpreter reads it."""
        sizes = allocate(self.registers, self.lists)
        wide = sum(1 for elements, _ in sizes if elements == 2)
        most = (
            max(512, min(MOST_ELEMENTS, 8192 // max(1, wide))) // 64 * 64
            if not self.lists.passes
            else MOST_ELEMENTS
        )
        most = max(most, MOST_ROWS)
        elements_of = (1, MOST_ROWS, most)
        found = [most, len(self._rows), len(self._scalars), len(self.registers)]
        for one in self.registers:
            found += [one.kind, one.rows, one.columns, -1 if one.slot is None else one.slot]
        constants = [
            (number, one.constant) for number, one in enumerate(self.registers) if one.constant is not None
        ]
        found.append(len(constants))
        for number, bits in constants:
            found += [number, bits]
        found.append(len(sizes))
        found += [max(8, elements_of[elements] * size) for elements, size in sizes]
        found.append(len(self.lists.all))
        for one_list in self.lists.all:
            found.append(len(one_list))
            for instruction in one_list:
                found += instruction.words()
        return found


_WITHIN = frozenset({"bitand", "bitor", "bitxor", "maximum", "minimum"})
"""Ops of integers whose results need no wrapping."""


def _term(monomial: Monomial, coefficient: int) -> Dim:
    found: Dim = coefficient
    for one, power in monomial:
        for _ in range(power):
            found = found * atom(one)
    return found


def _element(dtype: DType) -> int:
    found = ELEMENTS.get(dtype.name)
    if found is None:
        raise EngineError(f"bytecode has no {dtype}")
    return found


def _bits(value: Number, dtype: DType) -> int:
    """A number as the memory of a register."""
    kind = kind_of(dtype)
    if kind is RegisterKind.INTEGER:
        return int(value)
    if kind is RegisterKind.TRUTH:
        return int(bool(value))
    number = dtype.numpy.type(value) if dtype.name in {"float32", "float64"} else value
    exact = float(np.asarray(number).astype(dtype.numpy).astype(dtype.compute.numpy))
    if kind is RegisterKind.DOUBLE:
        return int(struct.unpack("<q", struct.pack("<d", exact))[0])
    return int.from_bytes(np.float32(exact).tobytes(), "little")


def depends_on(one: Statement, names: Iterable[str]) -> bool:
    """Whether the places of a statement use one of some variables."""
    return not variables(one).isdisjoint(names)


__all__ = ["INT64", "Address", "Code", "Instruction", "Op", "RegisterKind", "depends_on", "kind_of"]
