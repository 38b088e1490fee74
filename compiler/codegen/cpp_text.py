"""Lines of C++, the names in them, and statements as such lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from kernels_hub.compiler.codegen.lines import NO_NOTE, CodeLines, note_of
from kernels_hub.compiler.codegen.scalar import Cpp, size_name, storage_type, value_type
from kernels_hub.compiler.ir.dims import Dim, dim_symbols
from kernels_hub.compiler.ir.types import DType
from kernels_hub.compiler.schedule.choices import Choices
from kernels_hub.compiler.schedule.index import Loop, Ranges, is_variable
from kernels_hub.compiler.schedule.kernel import (
    Bound,
    Buffer,
    Compute,
    Constant,
    Load,
    Nest,
    Position,
    Role,
    Statement,
    Store,
    Test,
    statements,
)
from kernels_hub.escaping import CommentText, Identifier

_PREFIX = {
    Role.INPUT: "in", Role.PARAMETER: "w", Role.CONSTANT: "c", Role.OUTPUT: "out", Role.SCRATCH: "t",
    Role.PREPARED: "p",
}  # fmt: skip


class Lines(CodeLines):
    """Lines of C++."""

    indent = "  "
    mark = "//"

    @contextmanager
    def block(self, head: str, tail: str = "}") -> Iterator[None]:
        """head { … }"""
        self.add(f"{head} {{".lstrip())
        with self._inside():
            yield
        self.add(tail)


class Names:
    """Identifiers of buffers and sizes, and codes of the messages that calls fail with; what was chosen for loops."""

    def __init__(self, buffers: Iterable[Buffer], choices: Choices | None = None) -> None:
        self.choices = choices or Choices()
        self.buffers: dict[Buffer, Identifier] = {}
        self.messages: dict[str, int] = {}
        taken: set[str] = set()
        for one in buffers:
            name = wanted = Identifier(f"{_PREFIX[one.role]}_{one.name}")
            count = 1
            while name in taken:
                count += 1
                name = Identifier(f"{wanted[:40]}_{count}")
            taken.add(name)
            self.buffers[one] = name

    def add(self, buffer: Buffer) -> None:
        """Name one more buffer; its own name is told from all others."""
        self.buffers[buffer] = Identifier(f"{_PREFIX[buffer.role]}_{buffer.name}")

    def code(self, message: str) -> int:
        """The number that stands for a message: 1 and up."""
        return self.messages.setdefault(message, len(self.messages) + 1)


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
        from kernels_hub.compiler.codegen.cpp_loops import dims_of

        found = cls()
        dims: list[Dim] = [one.extent for one in (*nest.outer, *nest.inner)]
        for one in statements(nest):
            dims += dims_of(one)
            if isinstance(one, Load):
                found.reads[one.buffer] = None
            elif isinstance(one, Store):
                found.writes[one.buffer] = None
            found.fails |= isinstance(one, Bound)
        if nest.root is not None:
            for view in nest.root.views:
                found.reads[view.buffer] = None
                dims += [view.offset, *view.shape, *view.strides]
        names = {one.name for one in dim_symbols((*dims, *more)) if not is_variable(one)}
        found.sizes.update(dict.fromkeys(sorted(names)))
        return found

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
        found += [f"const float* {one}" for one in self.packed]
        found += [f"const int64_t {size_name(one)}" for one in self.sizes]
        return found + (["int& failure"] if self.fails else [])

    def passed(self, names: Names) -> list[str]:
        """As arguments."""
        found: list[str] = [names.buffers[one] for one in self.reads]
        found += [names.buffers[one] for one in self.writes if one not in self.reads]
        found += [*self.packed, *(size_name(one) for one in self.sizes)]
        return found + (["failure"] if self.fails else [])


class Body:
    """Statements of one nest as lines of C++."""

    def __init__(self, lines: Lines, names: Names, loops: Iterable[Loop], *, round_ops: bool = False) -> None:
        self.lines, self.names = lines, names
        self.scalars = Cpp(Ranges(tuple(loops)), round_ops=round_ops)
        self.texts: dict[str, str] = {}
        self._origin = ""  # stands behind the first of the lines that come from it
        self.dtypes: dict[str, DType] = {}

    def know(self, body: Iterable[Statement]) -> None:
        """Note the dtypes of statements, and constants, which stand where they are used."""
        for one in body:
            if not isinstance(one, Store):
                self.dtypes[one.name] = one.dtype
            if isinstance(one, Constant):
                self.texts[one.name] = self.scalars.literal(one.value, one.dtype)

    def index(self, dim: Dim) -> str:
        """An index expression."""
        return self.scalars.index(dim)

    def use(self, name: str) -> str:
        """A value in an expression."""
        return self.texts.get(name, name)

    def emit_at(self, body: Sequence[Statement], at: Sequence[int], level: int) -> None:
        """The statements that stand inside so many loops."""
        for one, depth in zip(body, at, strict=True):
            if depth == level:
                self.emit(one)

    def emit(self, one: Statement) -> None:
        """One statement that is neither Reduce nor Scan as a line."""
        if isinstance(one, Constant):
            return
        if isinstance(one, Store):
            self.lines.add(
                f"{self.names.buffers[one.buffer]}[{self.index(one.place)}] = {self.use(one.arg)};"
            )
            return
        note = note_of(one.origin) if isinstance(one, Compute) and one.origin != self._origin else NO_NOTE
        if isinstance(one, Compute):
            self._origin = one.origin
        self.lines.add(f"const {value_type(one.dtype)} {one.name} = {self.value(one)};", note)

    def value(self, one: Statement) -> str:
        """The expression of a statement that is neither Reduce, Scan nor Store."""
        if isinstance(one, Load):
            element = f"{self.names.buffers[one.buffer]}[{self.index(one.place)}]"
            test = self.scalars.test(one.guards)
            if test == "true":
                return element
            kind = value_type(one.dtype)
            if one.dtype.compute is not one.dtype:
                element = f"static_cast<{kind}>({element})"
            return f"({test}) ? {element} : {kind}{{}}"
        if isinstance(one, Position):
            return self.scalars.position(one.place, one.dtype)
        if isinstance(one, Test):
            return self.scalars.test(one.guards)
        if isinstance(one, Bound):
            code = self.names.code(one.message)
            return f"kh::bounded({self.use(one.arg)}, {self.index(one.extent)}, {code}, failure)"
        assert isinstance(one, Compute), one
        return self.scalars.compute(
            one, [self.use(arg) for arg in one.args], [self.dtypes[arg] for arg in one.args]
        )


def print_nothing(name: str, parameters: Parameters, lines: Lines, names: Names) -> None:
    """The function of a nest that has no turns."""
    with lines.block(f"static void {name}({', '.join(parameters.declared(names))})"):
        lines.comment(CommentText("Nothing to do: a loop has no turns."))
