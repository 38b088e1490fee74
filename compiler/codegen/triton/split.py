"""Split-K: long reductions with few rows, and products of few tiles, in two phases, to occupy a GPU.

The first nest reduces parts of each row to scratch memory, the second these to the result, with all that follows from
it. Only rows of one pass are split, whose length is known and has a divisor that is fit. A product is split along the
dim that it sums over (split-K): its parts are one more dim of its batch, and its epilogue follows on their sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kernels_hub.compiler.codegen.lanes import lane_of
from kernels_hub.compiler.codegen.loops import is_empty, simplified, turns, with_dims
from kernels_hub.compiler.ir.dims import Dim
from kernels_hub.compiler.ir.extrema import substitute
from kernels_hub.compiler.ir.types import FLOAT32
from kernels_hub.compiler.runtime.tiles import PROGRAMS, product_tile
from kernels_hub.compiler.schedule.index import Loop, flatten, row_major
from kernels_hub.compiler.schedule.kernel import (
    Buffer,
    Kernel,
    Load,
    Nest,
    Product,
    Reduce,
    Role,
    Schedule,
    Statement,
    Store,
    View,
    arguments,
    variables,
)

KINDS = frozenset({"sum", "prod", "max", "min", "any", "all"})
LEAST = 2048
"""Elements of a part, at least."""

LEAST_DEPTH = 512
"""Of a part of a product, at least."""

MOST_PARTS = 16
"""Of a product: each is written and read once more."""

LANES = 64
"""Rows of a program where they lie side by side."""


def split_reductions(schedule: Schedule) -> Schedule:
    """The schedule with long reductions of few rows in two nests each; scratch buffers are added for the parts."""
    count = sum(buffer.role is Role.SCRATCH for buffer in schedule.buffers)
    added: list[Buffer] = []
    kernels: list[Kernel] = []
    for kernel in schedule.kernels:
        nests: list[Nest] = []
        for nest in kernel.nests:
            plan = _plan(nest) or _plan_of_product(nest)
            if plan is None:
                nests.append(nest)
                continue
            pair, buffers = plan.nests(f"part{count + len(added)}")
            nests += pair
            added += buffers
        kernels.append(replace(kernel, nests=tuple(nests)))
    if not added:
        return schedule
    return replace(schedule, buffers=(*schedule.buffers, *added), kernels=tuple(kernels))


@dataclass(frozen=True)
class _Plan:
    """A nest, the inner loop that is cut, and into how many parts."""

    nest: Nest
    loop: Loop
    parts: int

    def nests(self, name: str) -> tuple[tuple[Nest, Nest], list[Buffer]]:
        """Both nests, and the buffers between them."""
        nest, parts = self.nest, Loop(f"{self.loop.name}_part", self.parts)
        extent = self.loop.extent
        assert isinstance(extent, int)
        rest = Loop(self.loop.name, extent // self.parts)
        moved = {self.loop.name: parts.index * rest.extent + rest.index}
        shape = (*(loop.extent for loop in nest.outer), self.parts)
        where = flatten((*(loop.index for loop in nest.outer), parts.index), shape)
        reduces = [statement for statement in nest.body if isinstance(statement, Reduce)]
        buffers = {
            reduction.name: Buffer(
                f"{name}_{reduction.name}", Role.SCRATCH, reduction.dtype, shape, row_major(shape)
            )
            for reduction in reduces
        }
        stores = [Store(buffers[reduction.name], where, reduction.name) for reduction in reduces]
        body = [
            with_dims(one, lambda dim: substitute(dim, moved))
            for one in _needed(nest.body, [reduction.name for reduction in reduces])
        ]
        inner = tuple(rest if loop is self.loop else loop for loop in nest.inner)
        first = Nest((*nest.outer, parts), inner, (*body, *stores))
        return (first, Nest(nest.outer, (parts,), self._second(buffers, where))), list(buffers.values())

    def _second(self, buffers: dict[str, Buffer], where: Dim) -> tuple[Statement, ...]:
        """The parts reduced, and what follows."""
        inner = self.nest.is_inner()
        body: list[Statement] = []
        for one in self.nest.body:
            if isinstance(one, Reduce):
                part = f"{one.name}_part"
                body.append(Load(part, one.dtype, buffers[one.name], where))
                body.append(replace(one, arg=part))
            elif isinstance(one, Store) or not inner[one.name]:
                body.append(one)
        stores = [statement for statement in body if isinstance(statement, Store)]
        return (*_needed(body, [name for store in stores for name in arguments(store)]), *stores)


@dataclass(frozen=True)
class _ProductPlan:
    """A nest with a product for its anchor, and into how many parts its depth is cut."""

    nest: Nest
    parts: int

    def nests(self, name: str) -> tuple[tuple[Nest, Nest], list[Buffer]]:
        """Both nests, and the buffer between them."""
        nest, anchor = self.nest, self.nest.anchor
        assert isinstance(anchor, Product)
        part = Loop(f"{nest.outer[-1].name}_part", self.parts)
        shape = (self.parts, *(loop.extent for loop in nest.outer))
        buffer = Buffer(f"{name}_{anchor.name}", Role.SCRATCH, FLOAT32, shape, row_major(shape))
        where = flatten((part.index, *(loop.index for loop in nest.outer)), shape)
        cut = replace(
            anchor,
            a=_cut(anchor.a, len(anchor.a.shape) - 1, self.parts),
            b=_cut(anchor.b, len(anchor.b.shape) - 2, self.parts),
            dtype=FLOAT32,
        )  # fmt: skip
        first = Nest((part, *nest.outer), (), (Store(buffer, where, anchor.name),), cut)
        one = f"{anchor.name}_part"
        body = (Load(one, FLOAT32, buffer, where), Reduce(anchor.name, FLOAT32, "sum", one, anchor.origin))
        return (first, Nest(nest.outer, (part,), (*body, *nest.body))), [buffer]


def _cut(view: View, axis: int, parts: int) -> View:
    """A view with one dim cut into parts, which become its first dim."""
    extent, stride = view.shape[axis] // parts, view.strides[axis]
    shape = (parts, *view.shape[:axis], extent, *view.shape[axis + 1 :])
    return replace(view, shape=shape, strides=(stride * extent, *view.strides))


def _plan_of_product(nest: Nest) -> _ProductPlan | None:
    anchor = nest.anchor
    if not isinstance(anchor, Product) or nest.inner or is_empty(nest.outer):
        return None
    *batch, rows, columns = nest.outer
    sizes = (rows.extent, columns.extent, anchor.a.shape[-1], turns(batch))
    if not all(isinstance(size, int) for size in sizes):
        return None
    m, n, depth, many = (int(size) for size in sizes)
    bits = anchor.a.buffer.dtype.bits
    tile = product_tile(m, n, depth, many, 33 if bits == 32 else bits, 3, None)
    programs = many * -(-m // tile["ROWS"]) * -(-n // tile["COLUMNS"])
    most = min(PROGRAMS // programs, depth // LEAST_DEPTH, MOST_PARTS)
    parts = max((one for one in range(1, most + 1) if depth % (one * 16) == 0), default=1)
    return _ProductPlan(nest, parts) if parts > 1 else None


def _plan(nest: Nest) -> _Plan | None:
    """How a nest is split; None where it is not."""
    reduces = [statement for statement in nest.body if isinstance(statement, Reduce)]
    if nest.anchor is not None or not reduces or any(reduction.kind not in KINDS for reduction in reduces):
        return None
    nest = simplified(nest)
    outer, inner = turns(nest.outer), turns(nest.inner)
    if not isinstance(outer, int) or not isinstance(inner, int) or is_empty((*nest.outer, *nest.inner)):
        return None
    if not _is_one_pass(nest):
        return None
    programs = -(-outer // LANES) if lane_of(nest) is not None else outer
    most = min(PROGRAMS // programs, inner // LEAST)
    best: tuple[int, Loop] | None = None
    for loop in nest.inner:
        assert isinstance(loop.extent, int)
        parts = max(
            (one for one in range(1, min(most, loop.extent) + 1) if loop.extent % one == 0), default=1
        )
        if parts > (best[0] if best else 3):
            best = parts, loop
    return _Plan(nest, best[1], best[0]) if best else None


def _is_one_pass(nest: Nest) -> bool:
    """Whether nothing in the inner loops follows from a reduction, or is stored."""
    mine = {loop.name for loop in nest.inner}
    inner = nest.is_inner()
    after: set[str] = set()
    for statement in nest.body:
        follows = any(arg in after for arg in arguments(statement))
        if isinstance(statement, Store):
            if any(inner[arg] for arg in arguments(statement)) or mine & variables(statement):
                return False
        elif isinstance(statement, Reduce):
            if follows:
                return False
            after.add(statement.name)
        elif follows:
            if inner[statement.name]:
                return False
            after.add(statement.name)
    return True


def _needed(body: Sequence[Statement], anchors: Sequence[str]) -> list[Statement]:
    """The statements that some names take, in order."""
    wanted = set(anchors)
    statements: list[Statement] = []
    for statement in reversed(body):
        if not isinstance(statement, Store) and statement.name in wanted:
            statements.append(statement)
            wanted.update(arguments(statement))
    return statements[::-1]
