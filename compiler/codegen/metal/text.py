"""Parameters and thread variables of a Metal kernel, and statements as lines of Metal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kernels_hub.compiler.codegen.c_text import CBody, Lines
from kernels_hub.compiler.codegen.loops import turns
from kernels_hub.compiler.codegen.metal.scalar import MetalScalars
from kernels_hub.compiler.codegen.names import Names
from kernels_hub.compiler.codegen.scalar import size_name, variable_name
from kernels_hub.compiler.errors import EngineError
from kernels_hub.compiler.ir.dims import Dim, dim_symbols
from kernels_hub.compiler.ir.types import DType
from kernels_hub.compiler.schedule.index import Loop, Ranges, is_variable
from kernels_hub.compiler.schedule.kernel import Bound, Buffer, Load, Nest, Store, dims_of, statements

THREAD = "thread_index"
MOST_BUFFERS = 31


@dataclass
class Parameters:
    """Buffers, sizes by name, and whether a failure can be reported."""

    buffers: dict[Buffer, bool] = field(default_factory=dict)
    """Whether they are written."""
    sizes: tuple[str, ...] = ()
    fails: bool = False

    @classmethod
    def of(cls, nest: Nest) -> Parameters:
        """Of a nest."""
        found = cls()
        dims: list[Dim] = [loop.extent for loop in (*nest.outer, *nest.inner)]
        for view in nest.anchor.views if nest.anchor is not None else ():
            found.buffers.setdefault(view.buffer, False)
            dims += [view.offset, *view.shape, *view.strides]
        for statement in statements(nest):
            dims += dims_of(statement)
            if isinstance(statement, (Load, Store)):
                found.buffers[statement.buffer] = isinstance(statement, Store) or found.buffers.get(
                    statement.buffer, False
                )
            found.fails |= isinstance(statement, Bound)
        found.sizes = tuple(sorted({symbol.name for symbol in dim_symbols(dims) if not is_variable(symbol)}))
        return found

    def declared(self, names: Names, scalars: MetalScalars) -> str:
        """As parameters of a kernel."""
        kinds = [
            f"device {'' if written else 'const '}{scalars.storage_type(one.dtype)}* {names.buffers[one]}"
            for one, written in self.buffers.items()
        ]
        kinds += [f"constant int64_t& {size_name(size)}" for size in self.sizes]
        kinds += ["device int* failure"] if self.fails else []
        if len(kinds) > MOST_BUFFERS:
            raise EngineError(f"a Metal kernel takes {MOST_BUFFERS} buffers and sizes, not {len(kinds)}")
        placed = [f"{kind} [[buffer({index})]]" for index, kind in enumerate(kinds)]
        return ", ".join([*placed, f"uint {THREAD} [[thread_position_in_grid]]"])


class MetalBody(CBody):
    """Statements of one nest as lines of Metal."""

    scalars: MetalScalars

    def __init__(self, lines: Lines, names: Names, loops: Iterable[Loop]) -> None:
        super().__init__(lines, names, MetalScalars(Ranges(tuple(loops))))

    def stored(self, text: str, dtype: DType) -> str:
        """A value as it is written to an element of memory: nothing converts to bfloat by itself."""
        return text if dtype.compute is dtype else f"static_cast<{self.scalars.storage_type(dtype)}>({text})"

    def digits(self, number: str, loops: Sequence[Loop]) -> None:
        """Declare the variables of loops that one number counts, row-major."""
        for index, loop in enumerate(loops):
            below = turns(loops[index + 1 :])
            last = isinstance(below, int) and below == 1
            text = number if last else f"{number} / {self.scalars.factor(below)}"
            if index:
                text = f"{text} % {self.scalars.factor(loop.extent)}"
            self.lines.add(f"const int64_t {variable_name(loop.name)} = {text};")

    def loop(self, loop: Loop) -> str:
        """The head of a loop."""
        name = variable_name(loop.name)
        return f"for (int64_t {name} = 0; {name} < {self.index(loop.extent)}; ++{name})"
