"""Cost model of kernels: FLOPs, and the bytes that they must read and write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernels_hub.compiler.ir.dims import Dim, product
from kernels_hub.compiler.ir.flops import call_flops, multiply_adds, transform_flops
from kernels_hub.compiler.ir.op import TensorType
from kernels_hub.compiler.schedule.kernel import (
    Attention,
    Buffer,
    Compute,
    Convolution,
    FourierTransform,
    GroupedProduct,
    Kernel,
    Load,
    Nest,
    Product,
    Recurrence,
    Reduce,
    Scan,
    Schedule,
    statements,
)
from kernels_hub.compiler.schedule.memory import number
from kernels_hub.compiler.schedule.regions import Branch, Repeat


@dataclass(frozen=True)
class KernelCost:
    """Of one run. bytes: each buffer read or written once, but of one that is only gathered from, what is gathered."""

    flops: int
    bytes: int


def kernel_cost(kernel: Kernel, sizes: Mapping[str, int]) -> KernelCost:
    """The cost of a kernel for these sizes of the symbols.

    Of a loop whose turns only the data tell, that of one turn; of branches that of the longer one.
    """
    if isinstance(kernel, Repeat):
        turns = 1 if isinstance(kernel.trips, Buffer) else number(kernel.trips, sizes)
        turn = _sum(kernel.turn, sizes)
        return KernelCost(turns * turn.flops, turns * turn.bytes)
    if isinstance(kernel, Branch):
        return max((_sum(one, sizes) for one in (kernel.then, kernel.otherwise)), key=lambda cost: cost.flops)
    written = kernel.writes()
    moved = sum(number(buffer.bytes, sizes) for buffer in written)
    moved += sum(count for buffer, count in _read(kernel, sizes).items() if buffer not in written)
    return KernelCost(sum(_flops(nest, sizes) for nest in kernel.nests), moved)


def schedule_cost(schedule: Schedule, sizes: Mapping[str, int]) -> KernelCost:
    """The sum over a call."""
    return _sum(schedule.kernels, sizes)


def _sum(kernels: Sequence[Kernel], sizes: Mapping[str, int]) -> KernelCost:
    costs = [kernel_cost(kernel, sizes) for kernel in kernels]
    return KernelCost(sum(cost.flops for cost in costs), sum(cost.bytes for cost in costs))


def _read(kernel: Kernel, sizes: Mapping[str, int]) -> dict[Buffer, int]:
    """Bytes read of each buffer: no more than it has, and no more than as many elements as are loaded."""
    found: dict[Buffer, int] = {}
    for nest in kernel.nests:
        for view in nest.anchor.views if nest.anchor is not None else ():
            found[view.buffer] = number(view.buffer.bytes, sizes)
        scores = nest.anchor.score_loops if isinstance(nest.anchor, Attention) else ()
        outer = _count([loop.extent for loop in nest.outer], sizes)
        times = outer * max(_count([loop.extent for loop in loops], sizes) for loops in (nest.inner, scores))
        inner = nest.is_inner()
        for statement in statements(nest):
            if isinstance(statement, Load):
                loads = times if inner.get(statement.name, True) else outer
                most, size = number(statement.buffer.bytes, sizes), max(statement.buffer.dtype.bits // 8, 1)
                found[statement.buffer] = min(most, found.get(statement.buffer, 0) + loads * size)
    return found


def _flops(nest: Nest, sizes: Mapping[str, int]) -> int:
    outer = _count([loop.extent for loop in nest.outer], sizes)
    whole = outer * _count([loop.extent for loop in nest.inner], sizes)
    inner = nest.is_inner()
    total = 0
    for statement in nest.body:
        if isinstance(statement, (Reduce, Scan)):
            total += whole
        elif isinstance(statement, Compute):
            each = call_flops(statement.op, (), (TensorType(statement.dtype, ()),), statement.attrs)
            total += number(each, sizes) * (whole if inner[statement.name] else outer)
    anchor = nest.anchor
    if isinstance(anchor, (Product, GroupedProduct)):
        total += multiply_adds(outer * number(anchor.a.shape[-1], sizes))
    elif isinstance(anchor, Recurrence):
        total += multiply_adds(_count([*anchor.x.shape, anchor.weight.shape[-1]], sizes))
    elif isinstance(anchor, FourierTransform):
        shape = anchor.real.shape
        transforms = _count([*shape[: anchor.axis], *shape[anchor.axis + 1 :]], sizes)
        whole = anchor.form == "full" and anchor.imaginary is not None
        total += transforms * transform_flops(anchor.samples) // (1 if whole else 2)
    elif isinstance(anchor, Convolution):
        total += multiply_adds(outer * _count(list(anchor.w.shape[1:]), sizes))
    elif isinstance(anchor, Attention):
        scores = _count([loop.extent for loop in anchor.score_loops], sizes)
        widths = anchor.q.shape[-1] + (0 if anchor.v is None else anchor.v.shape[-1])
        total += multiply_adds(scores * number(widths, sizes))
    return total


def _count(dims: list[Dim], sizes: Mapping[str, int]) -> int:
    return number(product(dims), sizes)
