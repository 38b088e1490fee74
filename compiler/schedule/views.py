"""Views as index arithmetic: which element of which value an element of a view is."""

from __future__ import annotations

from kernels_hub.compiler.ir.dims import Dim
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.op import Trait
from kernels_hub.compiler.schedule.index import Loop, Ranges, flatten

Index = tuple[Dim, ...]


def step(value: Value, index: Index, ranges: Ranges) -> tuple[Value, Index]:
    """The operand of a view, and the index into it of an element of the view."""
    (operand,), attrs = value.operands, value.attrs
    name = value.op_name
    if name == "reshape":
        return operand, _reshaped(index, value.shape, operand.shape, ranges)
    if name == "broadcast":
        return operand, tuple(
            0 if isinstance(dim, int) and dim == 1 else index[axis]
            for axis, dim in zip(attrs["axes"], operand.shape, strict=True)
        )
    if name == "permute":
        order = attrs["order"]
        return operand, tuple(index[order.index(axis)] for axis in range(operand.rank))
    if name == "slice":
        return operand, tuple(
            start + by * one for start, by, one in zip(attrs["starts"], attrs["steps"], index, strict=True)
        )
    if name == "flip":
        return operand, tuple(
            dim - 1 - one if axis in attrs["axes"] else one
            for axis, (one, dim) in enumerate(zip(index, operand.shape, strict=True))
        )
    assert name == "strided", name
    place = attrs["offset"]
    for one, stride in zip(index, attrs["strides"], strict=True):
        place = place + one * stride
    return operand, ranges.unflatten(place, operand.shape)


def walk(
    value: Value, index: Index, ranges: Ranges, stop: frozenset[Value] | set[Value] = frozenset()
) -> tuple[Value, Index]:
    """The first value under a chain of views that is none (or is in `stop`), and the index into it."""
    while Trait.VIEW in value.op.traits and value not in stop:
        value, index = step(value, index, ranges)
    return value, index


def loops_of(value: Value, prefix: str = "$d") -> tuple[Loop, ...]:
    """A loop for each dim."""
    return tuple(Loop(f"{prefix}{axis}", dim) for axis, dim in enumerate(value.shape))


def _reshaped(index: Index, shape: Index, to: Index, ranges: Ranges) -> Index:
    """The index into `to` of the element at `index` of `shape`; dims that both begin or end with are left alone."""
    front = 0
    while front < min(len(shape), len(to)) and shape[front] == to[front]:
        front += 1
    back = 0
    while back < min(len(shape), len(to)) - front and shape[-1 - back] == to[-1 - back]:
        back += 1
    middle, target = slice(front, len(shape) - back), slice(front, len(to) - back)
    place = flatten(index[middle], shape[middle])
    return (*index[:front], *ranges.unflatten(place, to[target]), *index[len(shape) - back :])
