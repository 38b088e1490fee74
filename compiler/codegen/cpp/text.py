"""Parameters of a generated C++ function, and statements as lines of C++."""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
    Load,
    Nest,
    Store,
    View,
    dims_of,
    statements,
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


def print_nothing(name: str, parameters: Parameters, lines: Lines, names: Names) -> None:
    """The function of a nest that has no turns."""
    with lines.block(f"static void {name}({', '.join(parameters.declared(names))})"):
        lines.comment(CommentText("Nothing to do: a loop has no turns."))
