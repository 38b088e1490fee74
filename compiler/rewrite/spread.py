"""Weights that are spread over a value: a vector along some of its dims, or one number; and what views do to them.

`Spread` is the factor or the summand of a scale or a shift. `behind` carries it from the result of a view to the
operand, `before` from the operand to the result, so that a scale may change places with the view. Arrays are built
only when they are asked for: who looks whether a scale can move builds nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from kernels_hub.compiler.ir.dims import product
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.op import Shape
from kernels_hub.compiler.ir.proofs import proves_equal
from kernels_hub.compiler.ir.types import DType


@dataclass(frozen=True)
class Spread:
    """make: builds the weights, whose dims lie along `axes` (ascending) of the value; number: theirs, if it is one
    known number."""

    make: Callable[[], Value]
    axes: tuple[int, ...]
    dtype: DType
    number: float | None = None

    def over(self, shape: Shape) -> Value:
        """The weights in the shape of the value."""
        return self.make().broadcast(shape, self.axes)

    def along(self, axis: int, dim: int) -> Value:
        """A vector of `dim` elements, of weights that lie along `axis` or are one number."""
        return self.make() if self.axes == (axis,) else self.make().broadcast((dim,), ())


def spread_of(value: Value) -> Spread:
    """What a broadcast of weights spreads; dims of one element that it spreads are left out."""
    weights, axes = value.operands[0], value.attrs["axes"]
    kept = [index for index, dim in enumerate(weights.shape) if not (isinstance(dim, int) and dim == 1)]
    number = weights.scalar if weights.array is not None and weights.array.size == 1 else None
    if len(kept) == weights.rank:
        return Spread(lambda: weights, tuple(axes), weights.dtype, number)
    shape = tuple(weights.shape[place] for place in kept)
    return Spread(lambda: weights.reshape(shape), tuple(axes[place] for place in kept), weights.dtype, number)


def combined(first: Spread, second: Spread, shape: Shape, op: str) -> Spread | None:
    """Both as one; None where neither lies along all dims of the other, so that the result would be larger."""
    axes = tuple(sorted({*first.axes, *second.axes}))
    if axes not in (first.axes, second.axes) or first.dtype is not second.dtype:
        return None
    dims = tuple(shape[axis] for axis in axes)

    def make() -> Value:
        parts = (
            one.make().broadcast(dims, tuple(axes.index(axis) for axis in one.axes))
            if one.axes != axes
            else one.make()
            for one in (first, second)
        )
        return first.make().graph.apply(op, *parts)

    return Spread(make, axes, first.dtype)


def behind(view: Value, spread: Spread) -> Spread | str:
    """Of the operand of a view, what is spread over its result; or why not."""
    return _moved(view, spread, view.shape, view.operands[0].shape, view.attrs.get("order"))


def before(view: Value, spread: Spread) -> Spread | str:
    """Of the result of a view, what is spread over its operand; or why not."""
    order = view.attrs.get("order")
    inverse = None if order is None else tuple(order.index(axis) for axis in range(len(order)))
    return _moved(view, spread, view.operands[0].shape, view.shape, inverse)


def _moved(
    view: Value, spread: Spread, source: Shape, target: Shape, order: tuple[int, ...] | None
) -> Spread | str:
    if not spread.axes:
        return spread
    if order is not None:
        return _permuted(spread, order)
    if view.op_name == "flip":
        turned = tuple(index for index, axis in enumerate(spread.axes) if axis in tuple(view.attrs["axes"]))
        return replace(spread, make=lambda: spread.make().flip(*turned)) if turned else spread
    assert view.op_name == "reshape", view
    return _regrouped(spread, source, target)


def _permuted(spread: Spread, order: tuple[int, ...]) -> Spread:
    axes = [order[axis] for axis in spread.axes]
    places = sorted(range(len(axes)), key=axes.__getitem__)
    if places == list(range(len(axes))):
        return replace(spread, axes=tuple(axes))
    return replace(spread, make=lambda: spread.make().permute(*places), axes=tuple(sorted(axes)))


def _regrouped(spread: Spread, source: Shape, target: Shape) -> Spread | str:
    parts = blocks(source, target)
    if parts is None:
        return f"dims of {source} and of {target} do not meet"
    mine = [(old, new) for old, new in parts if any(axis in spread.axes for axis in old)]
    old = tuple(axis for block, _ in mine for axis in block)
    new = tuple(axis for _, block in mine for axis in block)
    whole, after = tuple(source[axis] for axis in old), tuple(target[axis] for axis in new)
    if any(not isinstance(dim, int) for dim in (*whole, *after)):
        return f"weights along {whole} of {source} have no known size"
    kept = [index for index, dim in enumerate(after) if dim != 1]

    def make() -> Value:
        wide = spread.make().broadcast(whole, tuple(old.index(axis) for axis in spread.axes))
        return wide.reshape(tuple(after[place] for place in kept))

    return replace(spread, make=make, axes=tuple(new[place] for place in kept))


def blocks(source: Shape, target: Shape) -> list[tuple[tuple[int, ...], tuple[int, ...]]] | None:
    """The shortest runs of dims of one shape that hold as many elements as a run of dims of the other, in order."""
    found: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    i = j = 0
    while i < len(source) and j < len(target):
        ends = (
            (a, b)
            for a in range(i + 1, len(source) + 1)
            for b in range(j + 1, len(target) + 1)
            if proves_equal(product(source[i:a]), product(target[j:b]))
        )
        end = min(ends, key=sum, default=None)
        if end is None:
            return None
        found.append((tuple(range(i, end[0])), tuple(range(j, end[1]))))
        i, j = end
    rest = (*source[i:], *target[j:])
    if not found or any(not proves_equal(dim, 1) for dim in rest):
        return None if rest else found
    old, new = found.pop()
    return [*found, ((*old, *range(i, len(source))), (*new, *range(j, len(target))))]
