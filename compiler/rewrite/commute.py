"""Moves scales by weights through ops that commute with them, into the weights of a product.

    permute(conv(x, w) + b) * s -> permute(conv(x, w * s) + b * s)          behind: `scaled`
    matmul(reshape(relu(x * 2)), w) -> matmul(reshape(relu(x)), w * 2)      before: `carried`

On the way may be permutes, reshapes, flips, concats, shifts by weights, bounds (where the scale is a known number
above zero), pads with zeros and sums; each must be used once, and be no output. Where one of them stops the scale,
nothing moves, and the reason is given. None of this is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.rewrite.affine_weights import fits, in_transposed, may_be_scaled, static, times
from kernels_hub.compiler.rewrite.pattern import Scope
from kernels_hub.compiler.rewrite.spread import Spread, before, behind, combined, spread_of

Build = Callable[[], Value]
MOST_ON_THE_WAY = 16

VIEWS = frozenset({"permute", "reshape", "flip"})
_BOUNDS = frozenset({"maximum", "minimum"})
_SUMS = frozenset({"reduce_sum", "reduce_mean"})
_CONVOLUTIONS = frozenset({"conv", "conv_transpose"})
WAYS = VIEWS | _BOUNDS | _SUMS | {"matmul", "neg", "concat", "add"}
"""Ops that a scale may go through; a matmul, since its weight may be its left operand."""


def weights_of(value: Value) -> Spread | str:
    """What a value spreads of weights over its shape; or why it is no such."""
    if value.op_name != "broadcast":
        return f"{value} is made by {value.op_name}, not by broadcast"
    why = static(value.operands[0])
    return why if why is not None else spread_of(value)


def beside_weights(value: Value) -> tuple[Value, Spread] | str:
    """The moving operand of a sum or product with weights, and what is spread over it."""
    first, second = value.operands
    for x, other in ((first, second), (second, first)):
        found = weights_of(other)
        if isinstance(found, Spread) and static(x) is not None:
            return x, found
    reason = weights_of(second)
    return reason if isinstance(reason, str) else f"{first} and {second} are made of weights alone"


def _bounded(value: Value) -> tuple[Value, float] | None:
    """What a bound by a known number bounds, and the number."""
    first, second = value.operands
    for x, other in ((first, second), (second, first)):
        source = other
        while source.op_name in {"broadcast", "reshape", "permute"}:
            source = source.operands[0]
        if source.scalar is not None and not isinstance(source.scalar, complex):
            return x, float(source.scalar)
    return None


def used_once(value: Value, scope: Scope) -> str | None:
    """A condition: one place uses the value, and it is no output."""
    if scope.is_output(value):
        return f"{value} is an output"
    uses = scope.uses(value)
    return f"{value} is used {uses} times" if uses > 1 else None


# -- behind a product


def scaled(value: Value, spread: Spread, scope: Scope, depth: int = 0) -> Build | str:
    """How `value` times what is spread over it is made of a product with other weights; or why not."""
    why = used_once(value, scope)
    if why is not None or depth > MOST_ON_THE_WAY:
        return why or f"more than {MOST_ON_THE_WAY} ops lie between the scale and a product"
    name = value.op_name
    if name == "matmul":
        return _scaled_matmul(value, spread, scope)
    if name in _CONVOLUTIONS:
        return _scaled_conv(value, spread, scope)
    if name in VIEWS:
        inner = behind(value, spread)
        return (
            inner
            if isinstance(inner, str)
            else _same_op_on(value, scaled(value.operands[0], inner, scope, depth + 1))
        )
    if name == "neg":
        return _same_op_on(value, scaled(value.operands[0], spread, scope, depth + 1))
    if name == "concat":
        return _scaled_concat(value, spread, scope, depth)
    if name in _BOUNDS:
        return _scaled_bound(value, spread, scope, depth)
    if name == "add":
        return _scaled_sum(value, spread, scope, depth)
    if name in _SUMS:
        kept = [axis for axis in range(value.operands[0].rank) if axis not in tuple(value.attrs["axes"])]
        inside = replace(spread, axes=tuple(kept[axis] for axis in spread.axes))
        return _same_op_on(value, scaled(value.operands[0], inside, scope, depth + 1))
    return f"{value} is made by {name}, which does not commute with a scale"


def _same_op_on(value: Value, build: Build | str) -> Build | str:
    """The op of a value on another operand."""
    if isinstance(build, str):
        return build
    return lambda: value.graph.apply(value.op, build(), **value.attrs)


def _scaled_matmul(value: Value, spread: Spread, scope: Scope) -> Build | str:
    left, right = value.operands
    rows, columns = value.rank - 2, value.rank - 1
    refused = ""
    for place, axis in ((1, columns), (0, rows)):
        weight, other = value.operands[place], value.operands[1 - place]
        reason = static(weight) or ("both operands are weights" if static(other) is None else None)
        if reason is None and spread.axes not in ((), (axis,)):
            reason = f"the scale lies along {spread.axes}, not along {axis}"
        reason = reason or may_be_scaled(weight, spread, scope)
        if reason is None:
            axes = (weight.rank - 1 if place else weight.rank - 2,) if spread.axes else ()

            def build(weight: Value = weight, place: int = place, axes: tuple[int, ...] = axes) -> Value:
                product = times(weight, spread.make(), axes)
                operands = (left, product) if place else (product, right)
                return value.graph.apply("matmul", *operands, **value.attrs)

            return build
        refused = refused or reason
    return refused


def _scaled_conv(value: Value, spread: Spread, scope: Scope) -> Build | str:
    x, weight = value.operands
    reason = static(weight) or ("both operands are weights" if static(x) is None else None)
    if reason is None and spread.axes not in ((), (1,)):
        reason = f"the scale lies along {spread.axes}, not along 1"
    reason = reason or may_be_scaled(weight, spread, scope)
    if reason is not None:
        return reason

    def build() -> Value:
        if not spread.axes:
            product = times(weight, spread.make(), ())
        elif value.op_name == "conv":
            product = times(weight, spread.make(), (0,))
        else:
            product = weight * in_transposed(weight, spread.make(), value.attrs["groups"])
        return value.graph.apply(value.op, x, product, **value.attrs)

    return build


def _scaled_concat(value: Value, spread: Spread, scope: Scope, depth: int) -> Build | str:
    axis = value.attrs["axis"]
    parts: list[Build] = []
    start = 0
    for part in value.operands:
        own = spread
        if axis in spread.axes:
            dim = part.shape[axis]
            if not isinstance(dim, int):
                return f"the size of {part} along {axis} is not known"
            own = _cut(spread, axis, start, dim)
            start += dim
        build = scaled(part, own, scope, depth + 1)
        if isinstance(build, str):
            return build
        parts.append(build)
    return lambda: value.graph.apply("concat", *(build() for build in parts), axis=axis)


def _cut(spread: Spread, axis: int, start: int, dim: int) -> Spread:
    place = spread.axes.index(axis)

    def make() -> Value:
        whole = spread.make()
        return whole.slice(place, start, start + dim)

    return replace(spread, make=make)


def _scaled_bound(value: Value, spread: Spread, scope: Scope, depth: int) -> Build | str:
    found = _bounded(value)
    if found is None:
        return f"{value} bounds by what is no known number"
    if spread.number is None or not spread.number > 0:
        return f"{value} is a bound, and the scale no known number above zero"
    x, bound = found
    limit = bound * spread.number
    if math.isinf(limit) and not math.isinf(bound):
        return f"the bound {bound!r} times {spread.number!r} is infinite"
    build = scaled(x, spread, scope, depth + 1)
    if isinstance(build, str):
        return build
    return lambda: build().binary(value.op_name, limit)


def _scaled_sum(value: Value, spread: Spread, scope: Scope, depth: int) -> Build | str:
    found = beside_weights(value)
    if isinstance(found, str):
        return found
    x, shift = found
    both = combined(shift, spread, value.shape, "mul")
    if both is None:
        return f"the shift lies along {shift.axes}, the scale along {spread.axes}"
    build = scaled(x, spread, scope, depth + 1)
    if isinstance(build, str):
        return build
    return lambda: build() + both.over(value.shape)


# -- shifts


def shifted(value: Value, spread: Spread, scope: Scope) -> Build | str:
    """How `value`, a view, plus what is spread over it is a view of a product or of a shift plus that; or why not."""
    way: list[Value] = []
    while value.op_name in VIEWS and len(way) <= MOST_ON_THE_WAY:
        why = used_once(value, scope)
        inner = why if why is not None else behind(value, spread)
        if isinstance(inner, str):
            return inner
        spread = inner
        way.append(value)
        value = value.operands[0]
    ends = value.op_name in {"matmul", *_CONVOLUTIONS} or (
        value.op_name == "add" and isinstance(beside_weights(value), tuple)
    )
    why = used_once(value, scope) if ends else f"{value} is made by {value.op_name}, no product and no shift"
    if why is not None:
        return why

    moved, end = spread, value

    def build() -> Value:
        made = end + moved.over(end.shape)
        for view in reversed(way):
            made = view.graph.apply(view.op, made, **view.attrs)
        return made

    return build


# -- before a product


@dataclass(frozen=True)
class Carried:
    """A value as another one times (or plus) what is spread over it."""

    spread: Spread
    build: Build


def carried(value: Value, op: str, scope: Scope, depth: int = 0) -> Carried | str:
    """The last scale (op "mul") or shift ("add") by weights in what a value is made of, taken out of it; or why not."""
    why = used_once(value, scope)
    if why is not None or depth > MOST_ON_THE_WAY:
        return why or f"more than {MOST_ON_THE_WAY} ops lie between the scale and the product"
    name = value.op_name
    if name == op:
        found = beside_weights(value)
        if isinstance(found, str):
            return found
        x, spread = found
        why = fits(spread.number, value.dtype) if op == "mul" else None
        return why if why is not None else Carried(spread, lambda: x)
    if name == "concat":
        return _carried_concat(value, op, scope, depth)
    if name in VIEWS:
        inner = carried(value.operands[0], op, scope, depth + 1)
        if isinstance(inner, str):
            return inner
        outer = before(value, inner.spread)
        if isinstance(outer, str):
            return outer
        return Carried(outer, _moved_again(value, inner.build))
    if op == "mul" and name in _BOUNDS:
        return _carried_bound(value, scope, depth)
    if op == "mul" and name == "pad" and value.attrs["mode"] == "constant" and _pads_zeros(value):
        inner = carried(value.operands[0], op, scope, depth + 1)
        if isinstance(inner, str):
            return inner
        padded = [
            axis for axis, sides in enumerate(value.attrs["padding"]) if any(side != 0 for side in sides)
        ]
        if any(axis in padded for axis in inner.spread.axes):
            return f"the scale lies along {inner.spread.axes}, of which {padded} are padded"
        build = inner.build
        return Carried(
            inner.spread, lambda: value.graph.apply("pad", build(), value.operands[1], **value.attrs)
        )
    return f"{value} is made by {name}, not by {op}"


def _pads_zeros(value: Value) -> bool:
    number = value.operands[1].scalar
    return number is not None and not isinstance(number, complex) and number == 0


def _moved_again(view: Value, build: Build) -> Build:
    return lambda: view.graph.apply(view.op, build(), **view.attrs)


def _carried_bound(value: Value, scope: Scope, depth: int) -> Carried | str:
    found = _bounded(value)
    if found is None:
        return f"{value} bounds by what is no known number"
    x, bound = found
    inner = carried(x, "mul", scope, depth + 1)
    if isinstance(inner, str):
        return inner
    number, build = inner.spread.number, inner.build
    if number is None or not number > 0:
        return f"{value} is a bound, and the scale no known number above zero"
    limit = bound / number
    if math.isinf(limit) and not math.isinf(bound):
        return f"the bound {bound!r} / {number!r} is infinite"
    return Carried(inner.spread, lambda: build().binary(value.op_name, limit))


def _carried_concat(value: Value, op: str, scope: Scope, depth: int) -> Carried | str:
    """One number if all parts carry the same, else a vector along the axis; all parts must carry something."""
    axis = value.attrs["axis"]
    parts: list[Carried] = []
    sizes: list[int] = []
    for part in value.operands:
        one = carried(part, op, scope, depth + 1)
        if isinstance(one, str):
            return one
        if one.spread.axes not in ((), (axis,)):
            return f"a part is scaled along {one.spread.axes}, not along {axis}"
        dim = part.shape[axis]
        if not isinstance(dim, int):
            return f"the size of {part} along {axis} is not known"
        parts.append(one)
        sizes.append(dim)

    def build() -> Value:
        return value.graph.apply("concat", *(part.build() for part in parts), axis=axis)

    numbers = {part.spread.number for part in parts}
    if len(numbers) == 1 and None not in numbers:
        return Carried(parts[0].spread, build)

    def make() -> Value:
        vectors = (part.spread.along(axis, dim) for part, dim in zip(parts, sizes, strict=True))
        return value.graph.apply("concat", *vectors, axis=0)

    return Carried(Spread(make, (axis,), value.dtype), build)
