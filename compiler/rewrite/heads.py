"""Brings attention that is written with other dims to (batch, heads, length, width), the form that has a kernel.

    softmax(f(view(q @ k))) -> view(softmax(f(q @ k)))                  reshape or permute; f: pointwise (scale, mask …)
    reshape(softmax(f(q @ k))) @ v -> reshape(softmax(f(q @ k)) @ v)    rows that were merged for one product alone
    softmax(f(q @ k)) @ v -> the same of four dims                      of two, three, five or more

So heads that stand in any place, several dims of groups, none, and k and v without a batch are one kernel. Exact: all
numbers are computed as before, and rows of scores stay rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kernels_hub.compiler.ir.dims import Dim, product
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.op import Shape, Trait
from kernels_hub.compiler.ir.proofs import proves_equal
from kernels_hub.compiler.rewrite.pattern import Any, Bind, Op, Scope, through
from kernels_hub.compiler.rewrite.regroup import groups
from kernels_hub.compiler.rewrite.rule import Match, Rule

MOST_NODES = 32
_MOVED = frozenset({"reshape", "permute"})


@dataclass(frozen=True)
class _Scores:
    """What a softmax is of: pointwise values, each used once, above the one end at which their product is read."""

    end: Value
    above: frozenset[Value]


def _scores(top: Value, scope: Scope, is_end: Callable[[Value], bool]) -> _Scores | str:
    """The pointwise values from `top` down to the one end; or why there are none."""
    above: set[Value] = set()

    def depends(value: Value) -> list[Value]:
        if is_end(value):
            return [value]
        if Trait.POINTWISE not in value.op.traits or len(above) > MOST_NODES:
            return []
        ends = [end for operand in value.operands for end in depends(operand)]
        if ends:
            above.add(value)
        return ends

    ends = depends(top)
    if len(ends) != 1:
        return f"{top} is made of {len(ends)} products of queries and keys, not of one"
    for value in (*above, ends[0]):
        if scope.uses(value) > 1 or scope.is_output(value):
            return f"{value} is used elsewhere, too"
    return _Scores(ends[0], frozenset(above))


def _again(top: Value, scores: _Scores, made: Value, other: Callable[[Value], Value]) -> Value:
    """The pointwise values once more, above another product. other: what else they read, in its shape."""
    if top is scores.end:
        return made
    operands = (
        _again(operand, scores, made, other)
        if operand is scores.end or operand in scores.above
        else other(operand)
        for operand in top.operands
    )
    return top.graph.apply(top.op, *operands, **top.attrs)


def _is_product(value: Value) -> bool:
    """Whether it is a product of two values that a call gives: products with weights have better kernels."""
    return value.op_name == "matmul" and not any(is_weight(operand) for operand in value.operands)


def is_weight(value: Value) -> bool:
    """Whether a value is a view of what no call gives."""
    while Trait.VIEW in value.op.traits:
        value = value.operands[0]
    return Trait.LEAF in value.op.traits and value.op_name != "input"


def _spread(value: Value, shape: Shape, places: Mapping[int, int]) -> Value | None:
    """A broadcast in another shape. places: where dims are there; None where a dim that it has is nowhere."""
    source, axes = value.operands[0], value.attrs["axes"]
    if any(axis not in places for axis in axes):
        return None
    found = [places[axis] for axis in axes]
    order = sorted(range(source.rank), key=found.__getitem__)
    return source.permute(*order).broadcast(shape, sorted(found))


# -- views between the product and its softmax


def _is_view(value: Value) -> bool:
    """Whether it is a view of the scores, or of what pointwise ops have made of them."""
    if value.op_name not in _MOVED:
        return False
    below = value.operands[0]
    while below.op_name in _MOVED or (Trait.POINTWISE in below.op.traits and below.operands):
        below = next((one for one in below.operands if not _is_spread_number(one)), below.operands[0])
    return _is_product(below)


def _is_spread_number(value: Value) -> bool:
    return value.op_name == "broadcast" and value.operands[0].scalar is not None


def _moves_view(match: Match) -> str | None:
    found = _scores(match["scores"], match.scope, _is_view)
    if isinstance(found, str):
        return found
    view, axis = found.end, match.fact("axis")
    if view.op_name == "permute":
        return None
    x = view.operands[0]
    if axis != view.rank - 1 or not x.rank or not proves_equal(x.shape[-1], view.shape[-1]):
        return f"the dim of the softmax, {axis} of {view.type}, is not the last of {x.type}"
    return None


def _move_view(match: Match) -> Value:
    top, axis = match["scores"], match.fact("axis")
    found = _scores(top, match.scope, _is_view)
    assert isinstance(found, _Scores)
    view = found.end
    x = view.operands[0]
    scores = _again(top, found, x, lambda other: undone(view, other))
    if view.op_name == "permute":
        return scores.softmax(view.attrs["order"][axis]).permute(*view.attrs["order"])
    return scores.softmax(x.rank - 1).reshape(view.shape)


def undone(view: Value, other: Value) -> Value:
    """A value of the shape of a view in the shape of what that is a view of."""
    x = view.operands[0]
    if view.op_name == "permute":
        order = view.attrs["order"]
        if other.op_name == "broadcast":
            spread = _spread(other, x.shape, dict(enumerate(order)))
            assert spread is not None
            return spread
        return other.permute(*(order.index(axis) for axis in range(len(order))))
    if other.op_name == "broadcast":
        old, new = ([at for at, dim in enumerate(one.shape) if dim != 1] for one in (view, x))
        places = dict(zip(old, new, strict=False))
        alike = len(old) == len(new) and all(
            proves_equal(view.shape[a], x.shape[b]) for a, b in places.items()
        )
        spread = _spread(other, x.shape, places if alike else {})
        if spread is not None:
            return spread
    return other.reshape(x.shape)


# -- rows that are merged for the second product


def _merges_rows(match: Match) -> str | None:
    soft, left, v = match["soft"], match.root.operands[0], match["v"]
    if match.fact("axis") != soft.rank - 1:
        return f"the softmax is along {match.fact('axis')}, not along the keys"
    if is_weight(v):
        return f"{v} is a weight: products with weights have better kernels"
    parts = groups(left.shape, soft.shape)
    if parts is None or list(map(len, parts)) != [*[1] * (left.rank - 2), soft.rank - left.rank + 1, 1]:
        return f"{left.type} does not only merge rows of {soft.type}"
    found = _scores(soft.operands[0], match.scope, _is_product)
    return found if isinstance(found, str) else None


def _rows_apart(match: Match) -> Value:
    soft, v, root = match["soft"], match["v"], match.root
    batch = v.rank - 2
    shape = (*soft.shape[:-2], *v.shape[-2:])
    values = v.broadcast(shape, (*range(batch), len(shape) - 2, len(shape) - 1))
    return root.graph.apply("matmul", soft, values, **root.attrs).reshape(root.shape)


# -- four dims


def batch_of(q: Value) -> tuple[Dim, ...]:
    """The batch and the heads among the dims of queries: those that they were before they were merged, if they were."""
    *outer, rows, depth = q.shape
    if len(outer) < 2:
        wide = q.operands[0] if q.op_name == "reshape" else q
        if len(outer) == 1 and wide.rank == 4 and all(map(proves_equal, wide.shape[2:], (rows, depth))):
            return wide.shape[:2]
        return (*outer, *[1] * (2 - len(outer)))
    return outer[0], product(outer[1:])


def _other_dims(match: Match) -> str | None:
    root, soft = match.root, match["soft"]
    if root.rank == 4:
        return "it has four dims"
    if match.fact("axis") != root.rank - 1:
        return f"the softmax is along {match.fact('axis')}, not along the keys"
    for value in _between(match.root.operands[0], soft):
        if match.scope.uses(value) > 1 or match.scope.is_output(value):
            return f"{value} is used elsewhere, too"
    if is_weight(match["v"]):
        return f"{match['v']} is a weight: products with weights have better kernels"
    found = _scores(soft.operands[0], match.scope, _is_product)
    return found if isinstance(found, str) else None


def _between(top: Value, end: Value) -> list[Value]:
    """Casts of the softmax, and itself."""
    found = [top]
    while found[-1] is not end:
        found.append(found[-1].operands[0])
    return found


def _with_four(match: Match) -> Value:
    root, soft = match.root, match["soft"]
    top = soft.operands[0]
    found = _scores(top, match.scope, _is_product)
    assert isinstance(found, _Scores)
    q, turned = found.end.operands
    batch = batch_of(q)

    def four(value: Value) -> Value:
        return with_four_dims(value, batch)

    keys = four(turned_keys(turned)).transpose()
    product_of_four = root.graph.apply("matmul", four(q), keys, **found.end.attrs)
    weights = _again(top, found, product_of_four, four).softmax(3)
    for value in reversed(_between(root.operands[0], soft)[:-1]):
        weights = root.graph.apply(value.op, weights, **value.attrs)
    return root.graph.apply("matmul", weights, four(match["v"]), **root.attrs).reshape(root.shape)


def turned_keys(keys: Value) -> Value:
    """Keys before their last two dims were exchanged, behind what repeats them as well."""
    rank = keys.rank
    if keys.op_name == "broadcast" and tuple(keys.attrs["axes"][-2:]) == (rank - 2, rank - 1):
        source = keys.operands[0].transpose()
        shape = (*keys.shape[:-2], keys.shape[-1], keys.shape[-2])
        return source.broadcast(shape, keys.attrs["axes"])
    return keys.transpose()


def with_four_dims(value: Value, batch: tuple[Dim, ...]) -> Value:
    """A value with these as its first two dims. Broadcasts are made anew, where they may."""
    shape = (*batch, *value.shape[-2:])
    if value.op_name == "broadcast":
        rank = value.rank
        places = {rank - 2: 2, rank - 1: 3}
        if rank > 2 and proves_equal(value.shape[0], batch[0]):
            places[0] = 0
        spread = _spread(value, shape, places)
        if spread is not None:
            return spread
    return value.reshape(shape)


HEADS = (
    Rule("view_behind_softmax", Op("softmax", Any("scores"), axis=Bind("axis")), _move_view, _moves_view,
         doc="softmax(f(view(q @ k))) -> view(softmax(f(q @ k))), for pointwise f"),
    Rule("rows_of_weights_apart",
         Op("matmul", Op("reshape", Op("softmax", axis=Bind("axis"), name="soft").once()).once(), Any("v")),
         _rows_apart, _merges_rows, doc="reshape(softmax(f(q @ k))) @ v -> reshape(softmax(f(q @ k)) @ broadcast(v))"),
    Rule("attention_of_four_dims",
         Op("matmul", through("cast", Op("softmax", axis=Bind("axis"), name="soft")), Any("v")),
         _with_four, _other_dims,
         doc="softmax(f(q @ k)) @ v with two, three, or five and more dims -> with batch and heads"),
)  # fmt: skip
