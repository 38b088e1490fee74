"""Merges products of one value by several weights into one product; a slice of a product is a smaller one.

    concat(conv(x, v) + a, conv(x, w) + b) -> conv(x, concat(v, w)) + concat(a, b)
    matmul(x, w)[columns] -> matmul(x, w[:, columns])

Between the products and the concat may be what all of them go through alike: shifts by weights, bounds by the same
number, and other pointwise ops of one operand. Exact: no element is computed otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.op import Trait
from kernels_hub.compiler.ir.proofs import proves_equal
from kernels_hub.compiler.rewrite.affine_weights import static
from kernels_hub.compiler.rewrite.commute import MOST_ON_THE_WAY, Build, beside_weights, used_once
from kernels_hub.compiler.rewrite.pattern import Any, Op, Scope
from kernels_hub.compiler.rewrite.rule import Match, Rule
from kernels_hub.compiler.rewrite.spread import Spread

_CHANNELS = 1


def _merged(parts: Sequence[Value], axis: int, scope: Scope, depth: int = 0) -> Build | str:
    """How the concat of the parts is computed by one product; or why not."""
    first = parts[0]
    for part in parts:
        why = used_once(part, scope)
        if why is not None:
            return why
        if part.op_name != first.op_name:
            return f"{part} is made by {part.op_name}, {first} by {first.op_name}"
    if depth > MOST_ON_THE_WAY:
        return f"more than {MOST_ON_THE_WAY} ops lie between the products and the concat"
    if first.op_name in {"conv", "matmul"}:
        return _one_product(parts, axis)
    if first.op_name == "add":
        return _one_shift(parts, axis, scope, depth)
    if Trait.POINTWISE in first.op.traits:
        return _one_pointwise(parts, axis, scope, depth)
    return f"{first} is made by {first.op_name}, which is no product"


def _one_product(parts: Sequence[Value], axis: int) -> Build | str:
    first = parts[0]
    columns = _CHANNELS if first.op_name == "conv" else first.rank - 1
    if axis != columns:
        return f"the products stand side by side along {axis}, not along {columns}"
    if first.attrs.get("groups", 1) != 1:
        return f"{first} has groups"
    x, weight = first.operands
    for part in parts:
        if part.operands[0] is not x:
            return f"{part} is of {part.operands[0]}, {first} of {x}"
        why = static(part.operands[1])
        if why is None and part.attrs != first.attrs:
            why = f"{part} and {first} differ: {part.attrs} and {first.attrs}"
        if why is None and part.operands[1].dtype is not weight.dtype:
            why = f"the weights are {weight.dtype} and {part.operands[1].dtype}"
        if why is not None:
            return why
    place = 0 if first.op_name == "conv" else weight.rank - 1
    for part in parts:
        other = part.operands[1]
        alike = (
            proves_equal(a, b)
            for at, (a, b) in enumerate(zip(weight.shape, other.shape, strict=True))
            if at != place
        )
        if not all(alike):
            return f"the weights are {weight.type} and {other.type}"

    def build() -> Value:
        weights = _side_by_side([part.operands[1] for part in parts], place)
        return first.graph.apply(first.op, x, weights, **first.attrs)

    return build


def _side_by_side(weights: Sequence[Value], axis: int) -> Value:
    """A concat of weights; of those that are broadcast alike, the broadcast of the concat."""
    first = weights[0]
    wide = [weight for weight in weights if weight.op_name == "broadcast" and weight.attrs == first.attrs]
    if len(wide) == len(weights) and axis in first.attrs["axes"]:
        place = tuple(first.attrs["axes"]).index(axis)
        inner = [weight.operands[0] for weight in weights]
        if all(loop.shape[place] == of.shape[axis] for loop, of in zip(inner, weights, strict=True)):
            whole = _side_by_side(inner, place)
            shape = (*first.shape[:axis], whole.shape[place], *first.shape[axis + 1 :])
            return whole.broadcast(shape, first.attrs["axes"])
    return first.graph.apply("concat", *weights, axis=axis)


def _one_shift(parts: Sequence[Value], axis: int, scope: Scope, depth: int) -> Build | str:
    sources: list[Value] = []
    spreads: list[Spread] = []
    for part in parts:
        found = beside_weights(part)
        if isinstance(found, str):
            return found
        x, spread = found
        if spread.axes not in ((), (axis,)) or not isinstance(part.shape[axis], int):
            return f"what is added to {part} lies along {spread.axes}, not along {axis}"
        sources.append(x)
        spreads.append(spread)
    inner = _merged(sources, axis, scope, depth + 1)
    if isinstance(inner, str):
        return inner
    build = inner

    def shifted() -> Value:
        sizes = [part.shape[axis] for part in parts]
        vectors = [
            spread.along(axis, dim)
            for spread, dim in zip(spreads, sizes, strict=True)
            if isinstance(dim, int)
        ]
        whole = build()
        return whole + whole.graph.apply("concat", *vectors, axis=0).broadcast(whole.shape, (axis,))

    return shifted


def _one_pointwise(parts: Sequence[Value], axis: int, scope: Scope, depth: int) -> Build | str:
    first = parts[0]
    place, numbers = _moving_place(first)
    if place is None:
        return f"{first} is made of more than one value"
    for part in parts:
        if part.attrs != first.attrs or _moving_place(part) != (place, numbers):
            return f"{part} and {first} are not computed alike"
    inner = _merged([part.operands[place] for part in parts], axis, scope, depth + 1)
    if isinstance(inner, str):
        return inner
    build, at = inner, place

    def computed() -> Value:
        whole = build()
        operands = [
            whole if other == at else _number(operand).broadcast_to(whole.shape)
            for other, operand in enumerate(first.operands)
        ]
        return first.graph.apply(first.op, *operands, **first.attrs)

    return computed


def _number(value: Value) -> Value:
    while value.op_name in {"broadcast", "reshape", "permute"}:
        value = value.operands[0]
    return value


def _moving_place(value: Value) -> tuple[int | None, tuple[str, ...]]:
    """The place of the only operand that is no known number, and the numbers as they are spelled."""
    sources = [_number(operand) for operand in value.operands]
    moving = [index for index, source in enumerate(sources) if source.scalar is None or source.rank]
    numbers = tuple(repr(source.scalar) for index, source in enumerate(sources) if index not in moving)
    return (moving[0] if len(moving) == 1 else None), numbers


def _concat(match: Match) -> Build | str:
    root = match.root
    if len(root.operands) < 2:
        return "the concat is of one"
    return _merged(root.operands, root.attrs["axis"], match.scope)


def _build(found: Build | str) -> Value:
    assert not isinstance(found, str)
    return found()


def _refuses(found: Build | str) -> str | None:
    return found if isinstance(found, str) else None


def _slice(match: Match) -> Build | str:
    root, product = match.root, match["product"]
    columns = _CHANNELS if product.op_name == "conv" else product.rank - 1
    if product.attrs.get("groups", 1) != 1:
        return f"{product} has groups"
    for axis in range(root.rank):
        whole = proves_equal(root.shape[axis], product.shape[axis]) and root.attrs["steps"][axis] == 1
        if axis != columns and not whole:
            return f"the slice is along {axis}, not along {columns} alone"
    weight = match["w"]
    while weight.op_name == "broadcast" and weight.rank - 1 in weight.attrs["axes"]:
        weight = weight.operands[0]
    place = 0 if product.op_name == "conv" else weight.rank - 1
    start, stop, step = (root.attrs[key][columns] for key in ("starts", "stops", "steps"))

    def build() -> Value:
        part = weight.slice(place, start, stop, step)
        if weight is not match["w"]:
            wide = match["w"]
            part = part.broadcast((*wide.shape[:-1], part.shape[-1]), wide.attrs["axes"])
        return root.graph.apply(product.op, match["x"], part, **product.attrs)

    return build


NEIGHBOURING = (
    Rule("concat_of_products", Op("concat"), lambda match: _build(_concat(match)),
         lambda match: _refuses(_concat(match)), doc="concat(conv(x, v), conv(x, w)) -> conv(x, concat(v, w))"),
    Rule("slice_of_product",
         Op("slice", Op({"conv", "matmul"}, Any("x"), Any("w").where(static), name="product").once()),
         lambda match: _build(_slice(match)), lambda match: _refuses(_slice(match)),
         doc="matmul(x, w)[columns] -> matmul(x, w[:, columns])"),
)  # fmt: skip
