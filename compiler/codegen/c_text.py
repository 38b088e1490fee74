"""Lines of C++ or a dialect of it, and statements as such lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from kernels_hub.compiler.codegen.c_scalar import CScalars
from kernels_hub.compiler.codegen.lines import NO_NOTE, CodeLines, note_of
from kernels_hub.compiler.codegen.names import Names
from kernels_hub.compiler.ir.dims import Dim
from kernels_hub.compiler.ir.types import DType
from kernels_hub.compiler.schedule.kernel import (
    Bound,
    Compute,
    Constant,
    Load,
    Position,
    Statement,
    Store,
    Test,
)


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


class CBody:
    """Statements of one nest as lines."""

    def __init__(self, lines: Lines, names: Names, scalars: CScalars) -> None:
        self.lines, self.names, self.scalars = lines, names, scalars
        self.texts: dict[str, str] = {}
        self._origin = ""  # stands behind the first of the lines that come from it
        self.dtypes: dict[str, DType] = {}
        self.checked_later = False
        """Whether indices that data give are checked behind the loop that reads by them."""

    def know(self, body: Iterable[Statement]) -> None:
        """Note the dtypes of statements, and constants, which stand where they are used."""
        for statement in body:
            if not isinstance(statement, Store):
                self.dtypes[statement.name] = statement.dtype
            if isinstance(statement, Constant):
                self.texts[statement.name] = self.scalars.literal(statement.value, statement.dtype)

    def index(self, dim: Dim) -> str:
        """An index expression."""
        return self.scalars.index(dim)

    def use(self, name: str) -> str:
        """A value in an expression."""
        return self.texts.get(name, name)

    def stored(self, text: str, dtype: DType) -> str:  # noqa: ARG002  (a dialect's)
        """A value as it is written to an element of memory."""
        return text

    def emit_at(self, body: Sequence[Statement], at: Sequence[int], level: int) -> None:
        """The statements that stand inside so many loops."""
        for statement, depth in zip(body, at, strict=True):
            if depth == level:
                self.emit(statement)

    def emit(self, one: Statement) -> None:
        """One statement that is neither Reduce nor Scan as a line."""
        if isinstance(one, Constant):
            return
        if isinstance(one, Store):
            value = self.stored(self.use(one.arg), one.buffer.dtype)
            self.lines.add(f"{self.names.buffers[one.buffer]}[{self.index(one.place)}] = {value};")
            return
        note = note_of(one.origin) if isinstance(one, Compute) and one.origin != self._origin else NO_NOTE
        if isinstance(one, Compute):
            self._origin = one.origin
        self.lines.add(f"const {self.scalars.value_type(one.dtype)} {one.name} = {self.value(one)};", note)

    def value(self, one: Statement) -> str:
        """The expression of a statement that is neither Reduce, Scan nor Store."""
        if isinstance(one, Load):
            element = f"{self.names.buffers[one.buffer]}[{self.index(one.place)}]"
            test = self.scalars.test(one.guards)
            if test == "true":
                return element
            kind = self.scalars.value_type(one.dtype)
            if one.dtype.compute is not one.dtype:
                element = f"static_cast<{kind}>({element})"
            return f"({test}) ? {element} : {kind}{{}}"
        if isinstance(one, Position):
            return self.scalars.position(one.place, one.dtype)
        if isinstance(one, Test):
            return self.scalars.test(one.guards)
        if isinstance(one, Bound):
            if self.checked_later:
                return f"kh::bounded({self.use(one.arg)}, {self.index(one.extent)}, {one.name}_wrong)"
            code = self.names.code(one.message)
            return f"kh::bounded({self.use(one.arg)}, {self.index(one.extent)}, {code}, failure)"
        assert isinstance(one, Compute), one
        return self.scalars.compute(
            one, [self.use(arg) for arg in one.args], [self.dtypes[arg] for arg in one.args]
        )
