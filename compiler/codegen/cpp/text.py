"""Parameters of a generated C++ function, and statements as lines of C++."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from kernels_hub.compiler.codegen.c_text import CBody, Lines
from kernels_hub.compiler.codegen.cpp.scalar import Cpp, storage_type
from kernels_hub.compiler.codegen.names import Names
from kernels_hub.compiler.codegen.scalar import size_name
from kernels_hub.compiler.ir.dims import Dim, dim_symbols
from kernels_hub.compiler.schedule.index import Loop, Ranges, is_variable
from kernels_hub.compiler.schedule.kernel import (
    Bound,
    Buffer,
    Compute,
    Load,
    Nest,
    Statement,
    Store,
    View,
    arguments,
    dims_of,
    statements,
    variables,
)
from kernels_hub.escaping import CommentText


def pointer(view: View, names: Names, index: Callable[[Dim], str] = str) -> str:
    """C++ for where the first element of a view lies."""
    return names.buffers[view.buffer] + ("" if view.offset == 0 else f" + {index(view.offset)}")


@dataclass
class Parameters:
    """What a function is given: buffers, packed operands, sizes, and where it reports a failure."""

    reads: dict[Buffer, None] = field(default_factory=dict)
    writes: dict[Buffer, None] = field(default_factory=dict)
    packed: dict[str, None] = field(default_factory=dict)
    sizes: dict[str, None] = field(default_factory=dict)
    fails: bool = False

    @classmethod
    def of(cls, nest: Nest, more: Iterable[Dim] = ()) -> Parameters:
        """Of a nest. `more`: dims that its text uses beside those in loops and statements."""
        found = cls()
        dims: list[Dim] = [loop.extent for loop in (*nest.outer, *nest.inner)]
        for statement in statements(nest):
            dims += dims_of(statement)
            if isinstance(statement, Load):
                found.reads[statement.buffer] = None
            elif isinstance(statement, Store):
                found.writes[statement.buffer] = None
            found.fails |= isinstance(statement, Bound)
        if nest.anchor is not None:
            for view in nest.anchor.views:
                found.reads[view.buffer] = None
                dims += [view.offset, *view.shape, *view.strides]
        names = {symbol.name for symbol in dim_symbols((*dims, *more)) if not is_variable(symbol)}
        found.sizes.update(dict.fromkeys(sorted(names)))
        return found

    def take_packed(self, nest: Nest, view: View, name: str) -> None:
        """Be given packed memory for an operand of the anchor; its buffer as well only where others read it."""
        others = [] if nest.anchor is None else [one.buffer for one in nest.anchor.views if one is not view]
        others += [statement.buffer for statement in nest.body if isinstance(statement, Load)]
        if not any(other is view.buffer for other in others):
            del self.reads[view.buffer]
        self.packed[name] = None

    def merge(self, other: Parameters) -> None:
        """Take in what another function is given."""
        self.reads.update(other.reads)
        self.writes.update(other.writes)
        self.packed.update(other.packed)
        self.sizes.update(other.sizes)
        self.fails |= other.fails

    def declared(self, names: Names) -> list[str]:
        """As parameters."""
        found = []
        for one in (*self.reads, *(buffer for buffer in self.writes if buffer not in self.reads)):
            constant = "" if one in self.writes else "const "
            found.append(f"{constant}{storage_type(one.dtype)}* {names.buffers[one]}")
        found += [f"const float* {name}" for name in self.packed]
        found += [f"const int64_t {size_name(size)}" for size in self.sizes]
        return found + (["int& failure"] if self.fails else [])

    def passed(self, names: Names) -> list[str]:
        """As arguments."""
        found: list[str] = [names.buffers[buffer] for buffer in self.reads]
        found += [names.buffers[buffer] for buffer in self.writes if buffer not in self.reads]
        found += [*self.packed, *(size_name(size) for size in self.sizes)]
        return found + (["failure"] if self.fails else [])


class CppBody(CBody):
    """Statements of one nest as lines of C++."""

    def __init__(self, lines: Lines, names: Names, loops: Iterable[Loop], *, round_ops: bool = False) -> None:
        super().__init__(lines, names, Cpp(Ranges(tuple(loops)), round_ops=round_ops))
        self._rounded_later: frozenset[str] = frozenset()
        self.copied: frozenset[str] = frozenset()
        """Loads of narrow floats of which nothing but the bits is stored."""
        self._gathered: set[str] = set()
        """Values that are made of elements which were read by an index that data gave."""
        self.elsewhere: dict[int, str] = {}
        """Id of a Load or Store -> the element of float32 that it reads or writes in place of that of its buffer."""

    def know(self, body: Iterable[Statement]) -> None:
        """Note dtypes and constants, and what is made of elements that were read by an index that data gave."""
        body = tuple(body)
        super().know(body)
        for one in body:
            by_data = isinstance(one, Load) and any(name.startswith("$v") for name in variables(one))
            if not isinstance(one, Store) and (by_data or not self._gathered.isdisjoint(arguments(one))):
                self._gathered.add(one.name)

    def know_stores(self, body: Sequence[Statement], *, copies: bool = False) -> None:
        """Note the narrow floats of a nest's whole body that nothing reads but stores of their dtype, which round.

        copies: a load of such a number and its stores copy the bits; each of them goes through `emit` then.
        """
        only = _only_stored(body)
        casts = [one for one in body if isinstance(one, Compute) and one.op.name == "cast"]
        plain = (one for one in casts if not one.attrs.get("saturate"))
        self._rounded_later = frozenset(one.name for one in plain if one.name in only)
        if copies:
            loads = (one.name for one in body if isinstance(one, Load))
            self.copied = frozenset(name for name in loads if name in only)

    def value(self, one: Statement) -> str:
        """The expression of a statement that is neither Reduce, Scan nor Store."""
        if isinstance(one, Compute) and one.name in self._rounded_later and self._is_real(one.args[0]):
            return f"static_cast<{self.scalars.value_type(one.dtype)}>({self.use(one.args[0])})"
        if isinstance(one, Compute) and self._picks(one):
            kind = self.scalars.value_type(one.dtype)
            return f"kh::pick<{kind}>({', '.join(map(self.use, arguments(one)))})"
        return super().value(one)

    def _picks(self, one: Compute) -> bool:
        """Whether it selects among numbers of which the index of one came from data: see kh::pick."""
        return (
            one.op.name == "select"
            and not self._gathered.isdisjoint(one.args[1:])
            and not one.dtype.is_complex
            and one.dtype.compute.bits in {32, 64}
        )

    def emit(self, one: Statement) -> None:
        """One statement that is neither Reduce nor Scan as a line."""
        if isinstance(one, Store) and id(one) in self.elsewhere:
            self.lines.add(f"{self.elsewhere[id(one)]} = {self.use(one.arg)};")
        elif isinstance(one, Load) and id(one) in self.elsewhere:
            self.lines.add(f"const float {one.name} = {self.elsewhere[id(one)]};")
        elif isinstance(one, Store) and one.arg in self.copied:
            element = f"{self.names.buffers[one.buffer]}[{self.index(one.place)}]"
            self.lines.add(f"{element}.bits = {one.arg};")
        elif isinstance(one, Load) and one.name in self.copied:
            bits = f"{self.names.buffers[one.buffer]}[{self.index(one.place)}].bits"
            test = self.scalars.test(one.guards)
            value = bits if test == "true" else f"({test}) ? {bits} : std::uint16_t{{}}"
            self.lines.add(f"const std::uint16_t {one.name} = {value};")
        else:
            super().emit(one)

    def _is_real(self, name: str) -> bool:
        return not self.dtypes[name].is_complex


def _only_stored(body: Sequence[Statement]) -> set[str]:
    """Names of float16 and bfloat16 numbers that nothing reads but stores of their dtype."""
    narrow = {
        one.name: one.dtype
        for one in body
        if not isinstance(one, Store) and one.dtype.name in {"float16", "bfloat16"}
    }
    for one in body:
        for name in arguments(one):
            if type(one) is not Store or one.buffer.dtype is not narrow.get(name):
                narrow.pop(name, None)
    return set(narrow)


def print_nothing(name: str, parameters: Parameters, lines: Lines, names: Names) -> None:
    """The function of a nest that has no turns."""
    with lines.block(f"static void {name}({', '.join(parameters.declared(names))})"):
        lines.comment(CommentText("Nothing to do: a loop has no turns."))
