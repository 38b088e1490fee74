"""What a kernel costs: FLOPs, and the bytes that it must read and write; by these, schedules are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernels_hub.compiler.ir.dims import Dim, product
from kernels_hub.compiler.schedule.kernel import (
    Attention,
    Compute,
    Convolution,
    Kernel,
    Nest,
    Product,
    Reduce,
    Schedule,
)
from kernels_hub.compiler.schedule.memory import number


@dataclass(frozen=True)
class KernelCost:
    """Of one run. bytes: each buffer read or written once, whole."""

    flops: int
    bytes: int


def kernel_cost(kernel: Kernel, sizes: Mapping[str, int]) -> KernelCost:
    """The cost of a kernel for these sizes of the symbols."""
    buffers = {**kernel.reads(), **kernel.writes()}
    moved = sum(number(buffer.bytes, sizes) for buffer in buffers)
    return KernelCost(sum(_flops(nest, sizes) for nest in kernel.nests), moved)


def schedule_cost(schedule: Schedule, sizes: Mapping[str, int]) -> KernelCost:
    """The sum over a call."""
    costs = [kernel_cost(kernel, sizes) for kernel in schedule.kernels]
    return KernelCost(sum(one.flops for one in costs), sum(one.bytes for one in costs))


def _flops(nest: Nest, sizes: Mapping[str, int]) -> int:
    outer = _count([loop.extent for loop in nest.outer], sizes)
    whole = outer * _count([loop.extent for loop in nest.inner], sizes)
    inner = nest.is_inner()
    total = 0
    for one in nest.body:
        if isinstance(one, Reduce):
            total += whole
        elif isinstance(one, Compute):
            total += whole if inner[one.name] else outer
    root = nest.root
    if isinstance(root, Product):
        total += 2 * outer * number(root.a.shape[-1], sizes)
    elif isinstance(root, Convolution):
        total += 2 * outer * _count(list(root.w.shape[1:]), sizes)
    elif isinstance(root, Attention):
        scores = _count([loop.extent for loop in root.score_loops], sizes)
        total += 2 * scores * number(root.q.shape[-1] + root.v.shape[-1], sizes)
    return total


def _count(dims: list[Dim], sizes: Mapping[str, int]) -> int:
    return number(product(dims), sizes)
