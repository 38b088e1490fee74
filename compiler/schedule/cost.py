"""What a kernel costs: FLOPs, and the bytes that it must read and write; by these, schedules are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernels_hub.compiler.ir.dims import Dim, product
from kernels_hub.compiler.schedule.kernel import (
    Attention,
    Buffer,
    Compute,
    Convolution,
    GroupedProduct,
    Kernel,
    Load,
    Nest,
    Product,
    Reduce,
    Scan,
    Schedule,
    statements,
)
from kernels_hub.compiler.schedule.memory import number


@dataclass(frozen=True)
class KernelCost:
    """Of one run. bytes: each buffer read or written once, but of one that is only gathered from, what is gathered."""

    flops: int
    bytes: int


def kernel_cost(kernel: Kernel, sizes: Mapping[str, int]) -> KernelCost:
    """The cost of a kernel for these sizes of the symbols."""
    written = kernel.writes()
    moved = sum(number(buffer.bytes, sizes) for buffer in written)
    moved += sum(count for buffer, count in _read(kernel, sizes).items() if buffer not in written)
    return KernelCost(sum(_flops(nest, sizes) for nest in kernel.nests), moved)


def schedule_cost(schedule: Schedule, sizes: Mapping[str, int]) -> KernelCost:
    """The sum over a call."""
    costs = [kernel_cost(kernel, sizes) for kernel in schedule.kernels]
    return KernelCost(sum(one.flops for one in costs), sum(one.bytes for one in costs))


def _read(kernel: Kernel, sizes: Mapping[str, int]) -> dict[Buffer, int]:
    """Bytes read of each buffer: no more than it has, and no more than as many elements as are loaded."""
    found: dict[Buffer, int] = {}
    for nest in kernel.nests:
        for view in nest.root.views if nest.root is not None else ():
            found[view.buffer] = number(view.buffer.bytes, sizes)
        scores = nest.root.score_loops if isinstance(nest.root, Attention) else ()
        outer = _count([loop.extent for loop in nest.outer], sizes)
        times = outer * max(_count([loop.extent for loop in loops], sizes) for loops in (nest.inner, scores))
        inner = nest.is_inner()
        for one in statements(nest):
            if isinstance(one, Load):
                loads = times if inner.get(one.name, True) else outer
                most, size = number(one.buffer.bytes, sizes), max(one.buffer.dtype.bits // 8, 1)
                found[one.buffer] = min(most, found.get(one.buffer, 0) + loads * size)
    return found


def _flops(nest: Nest, sizes: Mapping[str, int]) -> int:
    outer = _count([loop.extent for loop in nest.outer], sizes)
    whole = outer * _count([loop.extent for loop in nest.inner], sizes)
    inner = nest.is_inner()
    total = 0
    for one in nest.body:
        if isinstance(one, (Reduce, Scan)):
            total += whole
        elif isinstance(one, Compute):
            total += whole if inner[one.name] else outer
    root = nest.root
    if isinstance(root, (Product, GroupedProduct)):
        total += 2 * outer * number(root.a.shape[-1], sizes)
    elif isinstance(root, Convolution):
        total += 2 * outer * _count(list(root.w.shape[1:]), sizes)
    elif isinstance(root, Attention):
        scores = _count([loop.extent for loop in root.score_loops], sizes)
        total += 2 * scores * number(root.q.shape[-1] + root.v.shape[-1], sizes)
    return total


def _count(dims: list[Dim], sizes: Mapping[str, int]) -> int:
    return number(product(dims), sizes)
