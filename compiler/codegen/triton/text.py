"""Lines of a Triton kernel, and statements as such lines.

A kernel computes a tile: a block of positions along one or two axes, "rows" and "columns", which are [R, 1] and [1, C]
(or [B], where there is one). A value is of the axes that it depends on, and what uses it broadcasts; what depends on
none is a scalar. Elements beyond the end of an axis are computed like the others, but neither read nor written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from kernels_hub.compiler.codegen.lines import NO_NOTE, CodeLines, note_of
from kernels_hub.compiler.codegen.names import Names
from kernels_hub.compiler.codegen.scalar import size_name
from kernels_hub.compiler.codegen.triton.scalar import Triton
from kernels_hub.compiler.codegen.triton.spellings import SPELLINGS
from kernels_hub.compiler.ir.dims import Dim, dim_symbols
from kernels_hub.compiler.ir.types import FLOAT32, INT64, DType
from kernels_hub.compiler.schedule.index import Loop, Ranges, is_variable
from kernels_hub.compiler.schedule.kernel import (
    Bound,
    Buffer,
    Compute,
    Constant,
    Guard,
    Load,
    Nest,
    Position,
    Reduce,
    Scan,
    Statement,
    Store,
    Test,
    arguments,
    dims_of,
    statements,
    variables,
)
from kernels_hub.escaping import CommentText


class Lines(CodeLines):
    """Lines of Python."""

    indent = "    "
    mark = "#"

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """head: …"""
        self.add(f"{head}:")
        with self._inside():
            yield


@dataclass(frozen=True)
class Axis:
    """An axis of a tile. index: the variable of the positions; live: which of them there are ("" for all)."""

    name: str
    index: str
    live: str = ""


@dataclass
class Arguments:
    """What a kernel is given: buffers and sizes by name, and the place where it reports a failure."""

    buffers: dict[Buffer, None] = field(default_factory=dict)
    sizes: dict[str, None] = field(default_factory=dict)
    fails: bool = False

    @classmethod
    def of(cls, nest: Nest, more: Iterable[Dim] = ()) -> Arguments:
        """Of a nest. `more`: dims that its text uses beside those of loops, statements and views."""
        found = cls()
        dims: list[Dim] = [*more, *(loop.extent for loop in (*nest.outer, *nest.inner))]
        for statement in statements(nest):
            dims += dims_of(statement)
            if isinstance(statement, (Load, Store)):
                found.buffers[statement.buffer] = None
            found.fails |= isinstance(statement, Bound)
        if nest.anchor is not None:
            for view in nest.anchor.views:
                found.buffers[view.buffer] = None
                dims += [view.offset, *view.shape, *view.strides]
        names = {symbol.name for symbol in dim_symbols(dims) if not is_variable(symbol)}
        found.sizes.update(dict.fromkeys(sorted(names)))
        return found

    def names(self, names: Names) -> list[str]:
        """As names, of parameters and of arguments."""
        found = [names.buffers[buffer] for buffer in self.buffers] + [size_name(size) for size in self.sizes]
        return found + (["failure"] if self.fails else [])


class Expressions(Triton):
    """Triton's dialect, in a tile: positions are 32 or 64 bits wide there, and sizes may be constants."""

    def position(self, place: Dim, dtype: DType) -> str:
        """An index expression as a number."""
        return self.cast(f"tl.cast({self.index(place)}, tl.int64)", INT64, dtype)

    def cast(self, text: str, source: DType, to: DType, *, saturate: bool = False) -> str:
        """A value of one dtype as another; all go to narrow floats through float32, as the hardware does it."""
        if source.compute is not FLOAT32 and to.is_float and to.bits < 32 and not saturate:
            text, source = f"({text}).to(tl.float32)", FLOAT32
        return super().cast(text, source, to, saturate=saturate)


class TritonBody:
    """Statements of one nest as lines.

    loops: of all variables. axis_of: the axis that a variable runs along, none for what is fixed in a program.
    """

    def __init__(
        self,
        lines: Lines,
        names: Names,
        loops: Iterable[Loop],
        axes: Iterable[Axis],
        axis_of: Mapping[str, str],
    ) -> None:
        self.lines, self.names = lines, names
        self.scalars = Expressions(Ranges(tuple(loops)))
        self.axes = {axis.name: axis for axis in axes}
        self.axis_of: dict[str, str] = dict(axis_of)
        self.shape: dict[str, frozenset[str]] = {}
        self.dtypes: dict[str, DType] = {}

    def index(self, dim: Dim) -> str:
        """An index expression."""
        return self.scalars.index(dim)

    def factor(self, dim: Dim) -> str:
        """An index expression that may stand in any other."""
        return self.scalars.factor(dim)

    def know(self, name: str, dtype: DType, axes: Iterable[str]) -> None:
        """Note a value that no statement here makes."""
        self.dtypes[name], self.shape[name] = dtype, frozenset(axes)

    def axes_of(self, one: Statement) -> frozenset[str]:
        """The axes that a statement depends on."""
        found: set[str] = set()
        for name in variables(one):
            if name in self.axis_of:
                found.add(self.axis_of[name])
        for name in arguments(one):
            found |= self.shape[name]
        return frozenset(found)

    def emit(self, one: Statement) -> None:
        """One statement that is neither Reduce nor Scan as a line, or a few."""
        axes = self.axes_of(one)
        if isinstance(one, Store):
            self._store(one, axes)
            return
        assert not isinstance(one, (Reduce, Scan))
        self.know(one.name, one.dtype, axes)
        note = note_of(one.origin) if isinstance(one, Compute) else NO_NOTE
        if isinstance(one, Bound):
            self._bound(one, axes)
            return
        self.lines.add(f"{one.name} = {self.value(one, axes)}", note)

    def value(self, one: Statement, axes: frozenset[str]) -> str:
        """The expression of a statement that is neither Bound, Reduce, Scan nor Store."""
        if isinstance(one, Load):
            text = self._load(one, axes)
            return text if one.dtype.compute is one.dtype else f"{text}.to({one.dtype.compute.triton})"
        if isinstance(one, Constant):
            compute = one.dtype.compute
            return f"tl.full((), {self.scalars.literal(one.value, one.dtype)}, {compute.triton})"
        if isinstance(one, Position):
            return self.scalars.position(one.place, one.dtype)
        if isinstance(one, Test):
            return f"tl.cast({self.scalars.test(one.guards)}, tl.int1)"
        assert isinstance(one, Compute), one
        return self.scalars.compute(one, one.args, [self.dtypes[arg] for arg in one.args])

    def mask(self, axes: Iterable[str], guards: Sequence[Guard] = ()) -> str:
        """Which elements there are; "" for all."""
        tests = [self.axes[name].live for name in sorted(axes, reverse=True) if self.axes[name].live]
        test = self.scalars.test(guards)
        if test != "True":
            tests.append(test if "&" in test else f"({test})")
        return " & ".join(tests)

    def pointer(self, buffer: Buffer, place: Dim, axes: frozenset[str]) -> str:
        """An address for each element of a tile of these axes."""
        text = self.index(place)
        for name in sorted(axes - self._place_axes(place), reverse=True):
            text += f" + 0 * {self.axes[name].index}"
        return f"{self.names.buffers[buffer]} + {text}"

    def _place_axes(self, place: Dim) -> frozenset[str]:
        names = {symbol.name for symbol in dim_symbols((place,))}
        place_axes = {self.axis_of[name] for name in names if name in self.axis_of}
        for name in names:
            if name.startswith("$") and name[1:] in self.shape:
                place_axes |= self.shape[name[1:]]
        return frozenset(place_axes)

    def _load(self, load: Load, axes: frozenset[str]) -> str:
        mask = self.mask(axes, load.guards)
        pointer = self.pointer(load.buffer, load.place, axes)
        return f"tl.load({pointer}, mask={mask}, other=0)" if mask else f"tl.load({pointer})"

    def _store(self, store: Store, axes: frozenset[str]) -> None:
        mask = self.mask(axes)
        value = store.arg
        pointer = self.pointer(store.buffer, store.place, axes)
        self.lines.add(f"tl.store({pointer}, {value}{', mask=' + mask if mask else ''})")

    def _bound(self, bound: Bound, axes: frozenset[str]) -> None:
        extent = self.index(bound.extent)
        wide = f"{bound.arg}.to(tl.int64)"
        self.lines.add(f"{bound.name}_wrong = kh.is_out_of_range({wide}, {extent})")
        live = self.mask(axes)
        wrong = f"{bound.name}_wrong & {live}" if live else f"{bound.name}_wrong"
        code = self.names.code(bound.message)
        self.lines.add(
            f"tl.store(failure + {bound.name}_wrong.to(tl.int32) * 0, {code}, mask={wrong})",
            CommentText(bound.message),
        )
        self.lines.add(f"{bound.name} = kh.bounded({wide}, {extent})")


def check_spelled(one: Any, kinds: Sequence[DType]) -> str | None:
    """Why Triton cannot compute an op of these dtypes; None where it can."""
    if one.op.name in {"cast", "bitcast"}:
        return None
    first = kinds[0]
    if any(dtype.triton is None for dtype in (*kinds, *(value.dtype for value in one.results))):
        return f"Triton has no element type for {first}"
    if SPELLINGS.of(one.op, first.kind) is None:
        return f"Triton has no expression for {one.op.name} of {first}"
    return None
