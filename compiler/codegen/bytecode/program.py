"""A schedule as a program of bytecode, called as a translation unit of generated C++ is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernels_hub.compiler.codegen.bytecode.anchors import Anchors, PackedBuffer
from kernels_hub.compiler.codegen.bytecode.code import Code
from kernels_hub.compiler.codegen.bytecode.nests import nest_words
from kernels_hub.compiler.codegen.bytecode.numbers import Numbers
from kernels_hub.compiler.errors import EngineError
from kernels_hub.compiler.ir.dims import Dim, dim_symbols
from kernels_hub.compiler.schedule.index import Loop, Ranges, is_variable
from kernels_hub.compiler.schedule.kernel import (
    Bound,
    Buffer,
    Convolution,
    Kernel,
    Load,
    Nest,
    Schedule,
    dims_of,
    statements,
)
from kernels_hub.compiler.schedule.regions import Branch, Repeat


@dataclass(frozen=True)
class Bytecode:
    """A program, and what it is called with. The fields are those of `cpp.translation_unit.CppCode`.

    words: what the interpreter reads. transforms: whether there are Fourier transforms, which older ones do not know.
    """

    words: tuple[int, ...]
    buffers: tuple[Buffer, ...]
    packed: tuple[PackedBuffer, ...]
    sizes: tuple[str, ...]
    messages: tuple[str, ...]
    steps: tuple[str, ...]
    reads: frozenset[Buffer]
    transforms: bool = False


def generate(schedule: Schedule) -> Bytecode:
    """The bytecode of a schedule. Raises EngineError for what it cannot express."""
    return _Program(schedule).program()


class _Program:
    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        nests = [nest for one in (*schedule.prepare, *schedule.kernels) for nest in _nests(one)]
        self.sizes = tuple(sorted(_symbols(schedule.buffers, nests)))
        self.numbers = Numbers(self.sizes)
        self.messages: dict[str, int] = {}
        for nest in nests:
            for one in statements(nest):
                if isinstance(one, Bound):
                    self.messages.setdefault(one.message, len(self.messages) + 1)
        self.buffers = {buffer: place for place, buffer in enumerate(schedule.buffers)}

    def program(self) -> Bytecode:
        count = len(self.schedule.buffers)
        before = Anchors(self.numbers, self.buffers, self._code, count=count, packs=False)
        during = Anchors(self.numbers, self.buffers, self._code, count=count, packs=True)
        prepare = self._kernels(self.schedule.prepare, before)
        run = self._kernels(self.schedule.kernels, during)
        packed = tuple(during.packed)
        words = [len(self.numbers.rows), *(word for row in self.numbers.rows for word in row)]
        words += [count, len(packed), *(word for one in packed for word in one.words)]
        return Bytecode(
            (*words, *prepare, *run),
            self.schedule.buffers,
            packed,
            self.sizes,
            tuple(self.messages),
            tuple(kernel.name for kernel in self.schedule.kernels),
            frozenset(during.reads),
            before.transforms or during.transforms,
        )

    def _kernels(self, kernels: Sequence[Kernel], anchors: Anchors) -> list[int]:
        words = [len(kernels)]
        for kernel in kernels:
            made = [self._nest(nest, anchors) for nest in _nests(kernel)]
            found = [one for one in made if one is not None]
            words += [len(found), *(word for one in found for word in one)]
        return words

    def _nest(self, nest: Nest, anchors: Anchors) -> list[int] | None:
        if nest.anchor is not None:
            return anchors.words(nest)
        anchors.reads.update(one.buffer for one in nest.body if isinstance(one, Load))
        return nest_words(nest, self._code)

    def _code(
        self, rows: Sequence[Loop], scalars: Sequence[Loop], column: Loop | None, ranges: Ranges
    ) -> Code:
        return Code(self.numbers, self.buffers, self.messages, rows, scalars, column, ranges)


def _nests(kernel: Kernel) -> tuple[Nest, ...]:
    if isinstance(kernel, (Branch, Repeat)):
        raise EngineError("bytecode has no loops and branches of graphs")
    return kernel.nests


def _symbols(buffers: Sequence[Buffer], nests: Sequence[Nest]) -> set[str]:
    dims: list[Dim] = [dim for buffer in buffers for dim in (*buffer.shape, *buffer.strides)]
    for nest in nests:
        dims += [loop.extent for loop in (*nest.outer, *nest.inner)]
        for one in statements(nest):
            dims += dims_of(one)
        if nest.anchor is not None:
            for view in nest.anchor.views:
                dims += [view.offset, *view.shape, *view.strides]
        if isinstance(nest.anchor, Convolution):
            dims += [dim for pair in nest.anchor.padding for dim in pair]
    return {symbol.name for symbol in dim_symbols(dims) if not is_variable(symbol)}
