"""Weights that scales and shifts go into: values of parameters alone, and weights of products times vectors."""

from __future__ import annotations

from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.rewrite.pattern import Scope
from kernels_hub.compiler.rewrite.spread import Spread

MOST_NODES = 64


def static(value: Value) -> str | None:
    """A condition: made of parameters and constants alone, by few ops."""
    seen, stack = {value}, [value]
    while stack:
        one = stack.pop()
        if one.op_name not in {"parameter", "constant"} and not one.operands:
            return f"{value} depends on {one} ({one.op_name})"
        if len(seen) > MOST_NODES:
            return f"{value} takes more than {MOST_NODES} ops to see that it is a weight"
        for operand in one.operands:
            if operand not in seen:
                seen.add(operand)
                stack.append(operand)
    return None


def times(weight: Value, scale: Value, axes: tuple[int, ...]) -> Value:
    """A weight times a scale along some of its dims. Of a broadcast weight, what is spread is multiplied, once."""
    if weight.op_name == "broadcast":
        inner, places = weight.operands[0], tuple(weight.attrs["axes"])
        spreads = all(
            axis in places and inner.shape[places.index(axis)] == weight.shape[axis] for axis in axes
        )
        if spreads:
            product = times(inner, scale, tuple(places.index(axis) for axis in axes))
            return product.broadcast(weight.shape, places)
    return weight * scale.broadcast(weight.shape, axes)


def of_groups(vector: Value, groups: int, rows: int) -> Value:
    """(channels,) -> (rows, channels / groups): each row has the part of its group."""
    channels = vector.shape[0]
    assert isinstance(channels, int)
    parts = vector.reshape((groups, channels // groups))
    each = parts.broadcast((groups, rows // groups, channels // groups), (0, 2))
    return each.reshape((rows, channels // groups))


def in_transposed(weight: Value, vector: Value, groups: int) -> Value:
    """A vector along the channels that a convolution takes in (or a transposed one gives), beside its weight."""
    rows = weight.shape[0]
    assert isinstance(rows, int)
    return of_groups(vector, groups, rows).broadcast(weight.shape, (0, 1))


def fits(number: float | None, dtype: types.DType) -> str | None:
    """Whether weights may be multiplied by a number and stay weights."""
    if number is None:
        return None
    least = 2.0**-8 if dtype is types.FLOAT16 else 1e-30
    if not least <= abs(number) <= 1 / least:
        return f"weights of {dtype} times {number!r} may leave its range"
    return None


def may_be_scaled(weight: Value, spread: Spread, scope: Scope) -> str | None:
    """None where a weight may take a scale. A number saves one multiplication an element at most, which is no reason
    to keep a second copy of a weight that something else uses, too."""
    if (why := fits(spread.number, weight.dtype)) is not None:
        return why
    if spread.dtype is not weight.dtype:
        return f"the weights are {weight.dtype}, the scale {spread.dtype}"
    source, uses = weight, scope.uses(weight)
    while source.op_name in {"broadcast", "reshape", "permute"}:
        source = source.operands[0]
        uses = max(uses, scope.uses(source))
    return f"{source} is used {uses} times" if not spread.axes and uses > 1 else None
