"""In which order the dims of a unit lie in memory: row-major, or channels last around convolutions.

A convolution reads and writes channels last, where the channels of a pixel are one vector. What is made of such a
value element by element lies as it does; a conversion is a copy, and happens only where an input or an output of the
graph meets a convolution.
"""

from __future__ import annotations

from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.op import Shape, Trait
from kernels_hub.compiler.schedule.expand import is_laid_out
from kernels_hub.compiler.schedule.index import permuted, row_major
from kernels_hub.compiler.schedule.units import Kind, Units


class Layout:
    """The strides of units. `rows`: units that must be row-major, whatever is around them."""

    def __init__(self, units: Units, rows: frozenset[Value] = frozenset()) -> None:
        self.units = units
        self._last: set[Value] = set()
        read = {value.operands[0] for value, kind in units.kinds.items() if kind is Kind.CONVOLUTION}
        for value, kind in units.kinds.items():
            if value in units.orders or value in rows or value.rank < 3:
                continue
            like = kind in {Kind.POINTWISE, Kind.POOL} and any(
                one in self._last and one.rank == value.rank for one in self._sources(value)
            )
            if kind is Kind.CONVOLUTION or value in read or like or is_laid_out(value):
                self._last.add(value)

    def strides(self, value: Value) -> Shape:
        """Of a value that lies in memory."""
        if (order := self.units.orders.get(value)) is not None:
            return permuted(value.shape, order)
        if value in self._last:
            return permuted(value.shape, (0, *range(2, value.rank), 1))
        return row_major(value.shape)

    def is_channels_last(self, value: Value) -> bool:
        """Whether it lies channels last."""
        return value in self._last

    def _sources(self, value: Value) -> list[Value]:
        """Stored values of the same shape that it is made of, element by element; and what a pool reads."""
        if self.units.kinds[value] is Kind.POOL:
            return [value.operands[0]]
        found: list[Value] = []
        stack, seen = list(value.operands), set()
        while stack:
            one = stack.pop()
            if one in seen:
                continue
            seen.add(one)
            if self.units.is_stored(one):
                found.append(one)
            elif Trait.POINTWISE in one.op.traits or one.op_name in {"pad", "concat", "slice"}:
                stack += one.operands
        return found
