"""Instructions of bytecode, the registers and places that they are of, and their words."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from kernels_hub.compiler.errors import EngineError
from kernels_hub.compiler.ir.types import BOOL, FLOAT64, DType

MOST_ROWS, MOST_ELEMENTS = 128, 2048
"""Of a tile; as in interpreter/bytecode.h."""


class RegisterKind(enum.IntEnum):
    """What a register holds; as in interpreter/bytecode.h."""

    FLOAT = 0
    DOUBLE = 1
    INTEGER = 2
    TRUTH = 3


ELEMENTS = {
    name: code
    for code, name in enumerate(
        (
            "float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "uint16",
            "uint32", "bool",
        )
    )
}  # fmt: skip
"""Dtypes of elements in memory -> their codes; as in interpreter/bytecode.h."""

_BYTES = {RegisterKind.FLOAT: 4, RegisterKind.DOUBLE: 8, RegisterKind.INTEGER: 8, RegisterKind.TRUTH: 1}
AS_HELD = {"float32", "float64", "int64", "bool"}
"""Dtypes whose elements are in memory as they are in registers."""
COMPUTE = 100
"""Where the codes of the operations of the op table begin."""


class Op(enum.IntEnum):
    """Instructions, in the order of interpreter/bytecode.cpp; operations of the op table begin at 100."""

    VIEW = 0
    LOAD = 1
    STORE = 2
    GATHER = 3
    SCATTER = 4
    POSITION = 5
    INSIDE = 6
    BOUND = 7
    BETWEEN = 8
    SELECT = 9
    COPY = 10
    CAST = 11
    FEED = 12
    FEED_EACH = 13
    FIND = 14
    REPEAT = 15
    CHAIN = 16
    FEED_DOWN = 17
    RUNNING = 18


def kind_of(dtype: DType) -> RegisterKind:
    """The kind of register for values of a dtype. Raises EngineError for one that has none."""
    if dtype is BOOL:
        return RegisterKind.TRUTH
    if dtype.name not in ELEMENTS:
        raise EngineError(f"bytecode has no {dtype}")
    if dtype.is_integer:
        return RegisterKind.INTEGER
    return RegisterKind.DOUBLE if dtype.compute is FLOAT64 else RegisterKind.FLOAT


@dataclass(frozen=True)
class Address:
    """A place in memory. rows, scalars: (number of the variable, number). column: its step, or -1.

    offset: a register of integers, the same for all columns, which is added; -1 for none.
    """

    buffer: int
    base: int
    column: int
    rows: tuple[tuple[int, int], ...]
    scalars: tuple[tuple[int, int], ...]
    offset: int = -1

    def words(self) -> list[int]:
        """As the interpreter reads it."""
        found = [self.buffer, self.base, self.column, self.offset]
        for terms in (self.rows, self.scalars):
            found += [len(terms), *(word for term in terms for word in term)]
        return found


@dataclass
class Register:
    """A register while a program is made. slot: its memory, None until it has some."""

    kind: RegisterKind
    rows: bool
    columns: bool
    is_view: bool = False
    is_kept: bool = False  # from tile to tile
    constant: int | None = None
    slot: int | None = None

    @property
    def size(self) -> tuple[int, int]:
        """(elements at most, by class: a tile, a column or one; bytes of an element)."""
        return 2 if self.columns else 1 if self.rows else 0, _BYTES[self.kind]


@dataclass(frozen=True)
class Instruction:
    """One instruction; registers by number, -1 for none."""

    op: int
    to: int = -1
    a: int = -1
    b: int = -1
    c: int = -1
    element: int = 0
    number: int = -1
    extra: int = 0
    place: Address | None = None
    guards: tuple[tuple[Address, int, int], ...] = ()
    links: tuple[tuple[int, int], ...] = ()

    @property
    def registers(self) -> tuple[int, ...]:
        """All that it reads or writes."""
        given = [self.to, self.a, self.b, self.c, *(other for _, other in self.links)]
        given += [place.offset for place in self.places]
        return tuple(one for one in given if one >= 0)

    @property
    def places(self) -> tuple[Address, ...]:
        """Its own, and those of its guards."""
        own = () if self.place is None else (self.place,)
        return (*own, *(place for place, _, _ in self.guards))

    def words(self) -> list[int]:
        """As the interpreter reads it."""
        found = [self.op, self.to, self.a, self.b, self.c, self.element, self.number, self.extra]
        found += [0] if self.place is None else [1, *self.place.words()]
        found.append(len(self.guards))
        for place, low, high in self.guards:
            found += [*place.words(), low, high]
        return [*found, len(self.links), *(word for link in self.links for word in link)]
