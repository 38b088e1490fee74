"""Rough cost model of the search: launches, bytes and FLOPs at assumed rates, for terms and schedules.

They say what is worth measuring, and never what is chosen. Terms are priced as if each product, reduction and
conversion were a kernel and pointwise work half hidden in one; a schedule is priced kernel by kernel, as it is fused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kernels_hub.compiler.ir.cost import Costs
from kernels_hub.compiler.ir.dims import Dim
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.op import Trait
from kernels_hub.compiler.schedule.cost import kernel_cost
from kernels_hub.compiler.schedule.index import Loop
from kernels_hub.compiler.schedule.kernel import (
    Attention,
    Buffer,
    Kernel,
    Load,
    Nest,
    Product,
    Schedule,
)
from kernels_hub.compiler.schedule.memory import number


@dataclass(frozen=True)
class AssumedRates:
    """Of a kind of device. launch: seconds a kernel; bytes and FLOPs a second; products do more FLOPs than loops.

    threads: how many share a kernel; one that has fewer rows than this uses only so many. half: the size of a product
    at which half of its rate is reached, in each of its three dims.
    """

    launch: float
    bytes: float
    products: float
    loops: float
    threads: int
    half: int


RATES: Mapping[str, AssumedRates] = {
    "cpu": AssumedRates(2e-6, 20e9, 150e9, 10e9, 2, 8),
    "cuda": AssumedRates(3e-6, 2e12, 200e12, 20e12, 132, 64),
    "rocm": AssumedRates(5e-6, 3e12, 300e12, 30e12, 304, 64),
}

_VIEW = 1e-9
"""What breaks ties: fewer views, fewer weights."""


class TermCosts:
    """Seconds of the node that makes a value, for one size of each symbol."""

    def __init__(self, sizes: Mapping[str, int], rates: AssumedRates) -> None:
        self._sizes, self._rates, self._costs = sizes, rates, Costs(sizes)

    def of(self, value: Value, *, static: bool) -> float:
        """static: made of weights alone, so that it is computed once."""
        node, rates = value.node, self._rates
        if node.op.traits & (Trait.LEAF | Trait.VIEW):
            return _VIEW
        cost = self._costs.of(node)
        flops, moved = cost.flops or 0, cost.bytes or 0
        if static and not node.symbols():
            return _VIEW + moved * 1e-15
        if node.op.name == "matmul":
            dims = (*value.shape[-2:], value.operands[0].shape[-1])
            rate = rates.products * _efficiency([self._number(dim) for dim in dims], rates.half)
            return rates.launch + max(flops / rate, moved / rates.bytes)
        if Trait.POINTWISE in node.op.traits:
            return _VIEW + max(flops / rates.loops / rates.threads, moved / rates.bytes / 4)
        rate = (
            rates.products if Trait.CONTRACTION in node.op.traits or node.op.name == "call" else rates.loops
        )
        return rates.launch + max(flops / rate, moved / rates.bytes)

    def _number(self, dim: Dim) -> int:
        return number(dim, self._sizes)


def _efficiency(dims: list[int], half: int) -> float:
    share = 1.0
    for dim in dims:
        share *= max(dim, 1) / (max(dim, 1) + half)
    return share


def predict(schedule: Schedule, sizes: Mapping[str, int], rates: AssumedRates) -> float:
    """Seconds of a call."""
    return sum(predict_kernel(kernel, sizes, rates) for kernel in schedule.kernels)


def predict_kernel(kernel: Kernel, sizes: Mapping[str, int], rates: AssumedRates) -> float:
    """Seconds of one kernel."""
    cost = kernel_cost(kernel, sizes)
    rows = max((_rows(nest, sizes) for nest in kernel.nests), default=1)
    threads = max(1, min(rates.threads, rows))
    rate = rates.loops * threads
    anchors = [nest.anchor for nest in kernel.nests if nest.anchor is not None]
    if anchors:
        rate = rates.products * threads / rates.threads
        for anchor in anchors:
            if isinstance(anchor, Product):
                dims = (anchor.a.shape[-2], anchor.a.shape[-1], anchor.b.shape[-1])
                rate *= _efficiency([number(dim, sizes) for dim in dims], rates.half)
    moved = rates.bytes * (1 + threads) / (1 + rates.threads)
    return rates.launch + max(cost.flops / max(rate, 1.0), _moved(kernel, sizes) / moved)


def _moved(kernel: Kernel, sizes: Mapping[str, int]) -> int:
    """Bytes: each buffer whole, or, of a table of which less is looked up, as much as there are turns."""
    whole = {
        *kernel.writes(),
        *(view.buffer for nest in kernel.nests if nest.anchor for view in nest.anchor.views),
    }
    loaded: dict[Buffer, int] = {}
    for nest in kernel.nests:
        turns = _turns((*nest.outer, *nest.inner), sizes)
        for statement in nest.body:
            if isinstance(statement, Load) and statement.buffer not in whole:
                loaded[statement.buffer] = loaded.get(statement.buffer, 0) + turns * max(
                    statement.dtype.bits // 8, 1
                )
    total = sum(number(one.bytes, sizes) for one in whole)
    return total + sum(min(number(one.bytes, sizes), most) for one, most in loaded.items())


def _rows(nest: Nest, sizes: Mapping[str, int]) -> int:
    """Turns that threads may share."""
    in_order = isinstance(nest.anchor, Attention) or nest.accumulates
    return _turns(nest.outer if in_order else (*nest.outer, *nest.inner), sizes)


def _turns(loops: Iterable[Loop], sizes: Mapping[str, int]) -> int:
    turns = 1
    for loop in loops:
        turns *= max(number(loop.extent, sizes), 1)
    return turns
