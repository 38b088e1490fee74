"""Nests with an anchor as bytecode: what the runtime's products, convolutions, transforms and attention are given."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kernels_hub.compiler.codegen.anchor_loops import as_loops
from kernels_hub.compiler.codegen.bytecode.code import Code
from kernels_hub.compiler.codegen.bytecode.instruction import ELEMENTS, RegisterKind, kind_of
from kernels_hub.compiler.codegen.bytecode.nests import (
    ATTENDING,
    CONVOLVING,
    MULTIPLYING,
    TRANSFORMING,
    MakeCode,
    emit_all,
    nest_words,
)
from kernels_hub.compiler.codegen.bytecode.numbers import Numbers
from kernels_hub.compiler.codegen.causal import causal_scores, mask_of
from kernels_hub.compiler.codegen.cpp.anchors import is_known
from kernels_hub.compiler.codegen.cpp.attention import scaled, stored_in_place
from kernels_hub.compiler.codegen.cpp.packed import takes
from kernels_hub.compiler.codegen.cpp.product import is_flat, row_stride, shared_by
from kernels_hub.compiler.codegen.loops import estimate, is_empty, merged, turns, without_single
from kernels_hub.compiler.errors import EngineError
from kernels_hub.compiler.ir.dims import Dim, product
from kernels_hub.compiler.ir.types import BOOL, FLOAT32
from kernels_hub.compiler.schedule.index import Loop, Ranges, row_major
from kernels_hub.compiler.schedule.kernel import (
    Attention,
    Buffer,
    Convolution,
    FourierTransform,
    Load,
    Nest,
    Product,
    Role,
    Statement,
    View,
    Weights,
    variables,
)

_WEIGHTS = {one: code for code, one in enumerate(Weights)}
"""As in native/reach.h."""
_FORMS = {"full": 0, "half": 1, "real": 2}
"""As in native/linked_fourier.h."""
SPACE = -1
"""The buffer of an attention's result where it is not stored as it is."""


@dataclass(frozen=True)
class PackedBuffer:
    """A weight that is laid out once. words: what the interpreter is told of it."""

    source: Buffer
    words: tuple[int, ...]


class Anchors:
    """Makes the words of nests with anchors, and notes what is packed.

    buffers: their places. space: buffers of results of attention that are read again, which grow.
    """

    def __init__(
        self, numbers: Numbers, buffers: dict[Buffer, int], make: MakeCode, *, count: int, packs: bool
    ) -> None:
        self.numbers, self.buffers, self.make = numbers, buffers, make
        self.packed: dict[PackedBuffer, int] = {}
        self._count, self._packs = count, packs
        self.reads: set[Buffer] = set()
        self.transforms = False

    def words(self, nest: Nest) -> list[int] | None:
        """Of a nest with an anchor; None where it has no turns. Raises EngineError for what has no bytecode."""
        anchor = nest.anchor
        if isinstance(anchor, Attention):
            return self._attention(nest, anchor)
        if isinstance(anchor, FourierTransform):
            self._note_loads(nest)
            return None if is_empty(nest.outer) else self._transform(nest, anchor)
        if not isinstance(anchor, (Product, Convolution)):
            raise EngineError(f"bytecode has no {type(anchor).__name__.lower()}")
        self._note_loads(nest)
        if not is_known(anchor, round_ops=False) or nest.inner or is_empty(nest.outer):
            self.reads.update(view.buffer for view in anchor.views)
            return nest_words(as_loops(nest), self.make)
        if isinstance(anchor, Product):
            return self._product(nest, anchor)
        return self._convolution(nest, anchor)

    def _note_loads(self, nest: Nest) -> None:
        self.reads.update(one.buffer for one in nest.body if isinstance(one, Load))

    def _pack(self, source: Buffer, words: Iterable[int]) -> int:
        """The buffer that a weight is packed into."""
        one = PackedBuffer(source, tuple(words))
        return self._count + self.packed.setdefault(one, len(self.packed))

    def _operand(self, view: View) -> list[int]:
        return [self.buffers[view.buffer], self.numbers.of(view.offset)]

    # -- products

    def _product(self, nest: Nest, anchor: Product) -> list[int]:
        *batch, m, n = nest.outer
        of = self.numbers.of
        a, b = anchor.a, anchor.b
        self.reads.add(a.buffer)
        element = ELEMENTS[a.buffer.dtype.name]
        packed = self._packed_product(b, element) if self._packs and takes(b) else -1
        if packed < 0:
            self.reads.add(b.buffer)
        flat = is_flat(anchor, batch)
        shared = shared_by(anchor, batch)
        columns, depth = of(n.extent), of(a.shape[-1])
        depth_step = of(a.strides[-1])
        groups: tuple[tuple[Loop, ...], tuple[Loop, ...]]
        digits: list[int] = [0]
        if flat:
            rows, count, row_step = of(turns((*batch, m))), of(1), of(row_stride(anchor, batch))
            groups = (*batch, m), ()
        elif packed >= 0 and shared is not None and estimate(batch[shared].extent) > estimate(m.extent):
            rows, count, row_step = of(batch[shared].extent), of(m.extent), of(a.strides[shared])
            groups = tuple(batch), (m,)
            digits = [1, of(m.extent), of(a.strides[-2]), of(0)]
        else:
            rows, count, row_step = of(m.extent), of(turns(batch)), of(a.strides[-2])
            groups = (m,), tuple(batch)
            digits = self._digits(anchor, batch, packed=packed >= 0)
        found = [MULTIPLYING, element, *self._operand(a), *self._operand(b), packed]
        found += [count, rows, columns, depth, row_step, depth_step, of(b.strides[-2]), of(b.strides[-1])]
        return [*found, *digits, *self._epilogue(nest, *groups)]

    def _digits(self, anchor: Product, batch: Sequence[Loop], *, packed: bool) -> list[int]:
        of = self.numbers.of
        found = [len(batch)]
        for place, loop in enumerate(batch):
            b_step: Dim = anchor.b.strides[place]
            if packed and not (isinstance(b_step, int) and b_step == 0):
                after = range(place + 1, len(batch))
                b_step = turns(
                    batch[one] for one in after if anchor.b.strides[one] != 0 and batch[one].extent != 1
                )
            found += [of(loop.extent), of(anchor.a.strides[place]), of(b_step)]
        return found

    def _packed_product(self, view: View, element: int) -> int:
        of = self.numbers.of
        *batch, k, n = view.shape
        *strides, stride_k, stride_n = view.strides
        own = [
            (extent, stride)
            for extent, stride in zip(batch, strides, strict=True)
            if extent != 1 and stride != 0
        ]
        words = [0, element, *self._operand(view), of(k), of(n), of(stride_k), of(stride_n)]
        words += [of(product(extent for extent, _ in own)), len(own)]
        for extent, stride in own:
            words += [of(extent), of(0), of(stride)]
        return self._pack(view.buffer, words)

    def _epilogue(self, nest: Nest, rows: tuple[Loop, ...], batch: tuple[Loop, ...]) -> list[int]:
        """The rest of the nest over tiles of results. rows, batch: the loops that their rows, and a batch, count."""
        anchor, column = nest.anchor, nest.outer[-1]
        assert anchor is not None
        body = nest.body
        groups = []
        for loops in (rows, batch):
            single = without_single(Nest(loops, (), body))
            found, body = merged(single.outer, single.body)
            groups.append(found)
        body = without_single(Nest((column,), (), body)).body
        code = self.make(groups[0], groups[1], column, Ranges((*groups[0], *groups[1], column)))
        dtype = anchor.dtype if isinstance(anchor, FourierTransform) else FLOAT32
        result = code.register(kind_of(dtype), rows=True, columns=True, is_view=True)
        code.values[anchor.name] = result
        code.dtypes[anchor.name] = dtype
        code.repeats = True
        code.know(body)
        code.begin()
        emit_all(code, body)
        code.end()
        words: list[int] = []
        for loops in groups:
            words += [len(loops), *(self.numbers.of(loop.extent) for loop in loops)]
        return [*words, result, *code.words()]

    # -- convolutions

    def _convolution(self, nest: Nest, anchor: Convolution) -> list[int]:
        of = self.numbers.of
        x, w = anchor.x, anchor.w
        self.reads.add(x.buffer)
        element = ELEMENTS[x.buffer.dtype.name]
        _, *spatial, _ = nest.outer
        w_steps = [of(one) for one in (*w.strides[:2], *_three(w.strides[2:], 0))]
        packed = -1
        if self._packs and takes(w):
            any_size = self._sizes(anchor, (1,) * 3, (1,) * 3, 1)
            packed = self._pack(w.buffer, [1, element, *self._operand(w), *any_size, *w_steps])
        else:
            self.reads.add(w.buffer)
        out = _three([loop.extent for loop in spatial], 1)
        sizes = self._sizes(anchor, _three(x.shape[2:], 1), out, x.shape[0])
        x_steps = [of(one) for one in (x.strides[0], *_three(x.strides[2:], 0), x.strides[1])]
        found = [
            CONVOLVING,
            element,
            *sizes,
            *self._operand(x),
            *self._operand(w),
            packed,
            *x_steps,
            *w_steps,
        ]
        return [*found, *self._epilogue(nest, nest.outer[:-1], ())]

    def _sizes(self, anchor: Convolution, sizes: Sequence[Dim], out: Sequence[Dim], n: Dim) -> list[int]:
        triples = (
            sizes,
            _three(anchor.w.shape[2:], 1),
            _three(anchor.strides, 1),
            _three([low for low, _ in anchor.padding], 0),
            _three(anchor.dilations, 1),
            out,
        )
        heads = (n, anchor.x.shape[1], anchor.w.shape[0], anchor.groups)
        return [self.numbers.of(one) for one in (*heads, *(dim for triple in triples for dim in triple))]

    # -- Fourier transforms

    def _transform(self, nest: Nest, anchor: FourierTransform) -> list[int]:
        self.transforms = True
        self.reads.update(view.buffer for view in anchor.views)
        (scale,) = struct.unpack("<q", struct.pack("<d", anchor.scale))
        found = [TRANSFORMING, ELEMENTS[anchor.dtype.name], _FORMS[anchor.form], anchor.inverse]
        found += [anchor.samples, anchor.axis, scale, *self._listed(anchor.real.shape)]
        found += [*self._operand(anchor.real), *self._listed(anchor.real.strides)]
        found.append(anchor.imaginary is not None)
        if anchor.imaginary is not None:
            found += [*self._operand(anchor.imaginary), *self._listed(anchor.imaginary.strides)]
        return [*found, *self._epilogue(nest, nest.outer[:-1], ())]

    def _listed(self, numbers: Sequence[Dim]) -> list[int]:
        return [len(numbers), *map(self.numbers.of, numbers)]

    # -- attention

    def _attention(self, nest: Nest, anchor: Attention) -> list[int]:
        of = self.numbers.of
        self.reads.update(view.buffer for view in anchor.views)
        self._note_loads(nest)
        shape = tuple(loop.extent for loop in nest.outer)
        hides = anchor.weights is not Weights.SCORES
        masked = causal_scores(anchor, anchor.scores, anchor.score) if hides else None
        given = masked[1:] if masked else (anchor.scores, anchor.score)
        scale, scores, score = scaled(anchor, *given)
        self.reads.update(one.buffer for one in scores if isinstance(one, Load))
        direct = stored_in_place(nest)
        rest: list[int] = [0]
        if direct is None:
            result = Buffer("attention_result", Role.SCRATCH, FLOAT32, shape, row_major(shape))
            self.buffers[result] = SPACE
            load = Load(anchor.name, FLOAT32, result, result.place(tuple(loop.index for loop in nest.outer)))
            after = nest_words(Nest(nest.outer, nest.inner, (load, *nest.body)), self.make)
            direct = View(result, 0, shape, result.strides)
            if after is None:
                raise EngineError("bytecode has no attention without results")
            rest = [1, of(product(shape)), *after]
        v = anchor.v or anchor.k
        batch, heads, queries, wide = shape
        wide = 0 if anchor.v is None else wide
        sizes = [batch, heads, anchor.k.shape[1], queries, anchor.k.shape[2], anchor.q.shape[3], wide]
        found = [ATTENDING, ELEMENTS[anchor.q.buffer.dtype.name], *map(of, sizes)]
        found += [masked is not None, of(masked[0] if masked else 0), anchor.blank, _WEIGHTS[anchor.weights]]
        found.append(int.from_bytes(struct.pack("<f", scale), "little"))
        views = (anchor.q, anchor.k, v, direct)
        for view in views:
            found += self._operand(view)
        for view in views:
            found += map(of, view.strides)
        found += self._scoring(anchor, scores, score)
        found += self._looking(anchor, scores, score) if hides else [0]
        return [*found, *rest]

    def _scoring(self, anchor: Attention, scores: Sequence[Statement], score: str) -> list[int]:
        if score == "score":
            return [0]
        code = self._code(anchor)
        given = code.register(RegisterKind.FLOAT, rows=False, columns=True, is_view=True)
        code.values["score"], code.dtypes["score"] = given, FLOAT32
        self._emit(code, scores, score)
        return [1, given, code.value(score), *code.words()]

    def _looking(self, anchor: Attention, scores: Sequence[Statement], score: str) -> list[int]:
        found = mask_of(scores, score)
        if found is None:
            return [0]
        statements, condition, plain = found
        *loops, _ = anchor.score_loops
        used = frozenset[str]().union(*(variables(one) for one in statements))
        sizes: list[Dim] = [loop.extent if loop.name in used else 1 for loop in loops]
        steps = [product(sizes[index + 1 :]) if loop.name in used else 0 for index, loop in enumerate(loops)]
        code = self._code(anchor)
        self._emit(code, statements, condition)
        assert code.registers[code.value(condition)].kind is RegisterKind.TRUTH, BOOL
        of = self.numbers.of
        return [1, plain, code.value(condition), *map(of, sizes), *map(of, steps), *code.words()]

    def _code(self, anchor: Attention) -> Code:
        *scalars, keys = anchor.score_loops
        return self.make((), scalars, keys, Ranges(anchor.score_loops))

    @staticmethod
    def _emit(code: Code, body: Sequence[Statement], result: str) -> None:
        code.know(body)
        code.begin()
        emit_all(code, body)
        code.needed.add(code.value(result))
        code.end()


def _three(dims: Sequence[Dim], filler: int) -> tuple[Dim, ...]:
    """Spatial dims as (d, h, w)."""
    return (*(filler,) * (3 - len(dims)), *dims)
