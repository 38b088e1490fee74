"""Brings attention that is written with other dims to (batch, heads, length, width), the form that has a kernel.

    softmax(f(view(q @ k))) -> view(softmax(f(q @ k)))                  reshape or permute; f: pointwise (scale, mask …)
    reshape(softmax(f(q @ k))) @ v -> reshape(softmax(f(q @ k)) @ v)    rows that were merged for one product alone
    softmax(f(q @ k)) @ v -> the same of four dims                      of two, three, five or more

The last two are grown beside the graph, from the product of queries and keys (see `growth`); no rule looks at two
reductions:

    q @ k                          -> heads_scores(product)
    f(heads_scores(…), x)          -> heads_scores(…, step)           f: one pointwise op
    softmax(heads_scores(…))       -> heads_weights(…, soft)          along the keys
    cast(heads_weights(…))         -> heads_weights(…)
    reshape(heads_weights(…))      -> heads_rows(…)                   rows are merged
    heads_rows(…) @ v              -> softmax(…) @ broadcast(v), with four dims, in the graph
    heads_weights(…) @ v           -> the same of four dims, in the graph

each used by the next alone. So heads that stand in any place, several dims of groups, none, and k and v without a batch
are one kernel. Exact: all numbers are computed as before, and rows of scores stay rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from kernels_hub.compiler.ir.dims import Dim, product
from kernels_hub.compiler.ir.graph import Graph, Node, Value
from kernels_hub.compiler.ir.op import Shape, Trait
from kernels_hub.compiler.ir.proofs import proves_equal
from kernels_hub.compiler.rewrite.growth import (
    Growth,
    grown,
    is_known,
    known_as,
    parts,
    plain,
    plain_root,
    products_below,
)
from kernels_hub.compiler.rewrite.outline import composite
from kernels_hub.compiler.rewrite.pattern import Any, Bind, Op, Scope
from kernels_hub.compiler.rewrite.regroup import groups
from kernels_hub.compiler.rewrite.rule import Match, Rule

SCORES, WEIGHTS, ROWS = "heads_scores", "heads_weights", "heads_rows"
MOST_NODES = 32
_MOVED = frozenset({"reshape", "permute"})
_POINTWISE = Op(Trait.POINTWISE).names


@dataclass(frozen=True)
class _Scores:
    """What a softmax is of: pointwise values, each used once, above the one end at which their product is read."""

    end: Value
    above: frozenset[Value]


def _viewed_scores(top: Value, scope: Scope) -> _Scores | str:
    """The pointwise values from `top` down to the one view of a product; or why there are none."""
    above: set[Value] = set()

    def depends(value: Value) -> list[Value]:
        if _is_view(value):
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
    return _elsewhere(scope, *above, ends[0]) or _Scores(ends[0], frozenset(above))


def _elsewhere(scope: Scope, *values: Value) -> str | None:
    """Why these values are not each for one place alone; None if they are."""
    for value in values:
        if scope.uses(value) > 1 or scope.is_output(value):
            return f"{value} is used elsewhere, too"
    return None


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
    return value.op_name == "matmul" and not any(map(is_weight, value.operands))


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
    found = _viewed_scores(match["scores"], match.scope)
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
    found = _viewed_scores(top, match.scope)
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


# -- grown from products of queries and keys


def _has_other_dims(graph: Graph) -> bool:
    """Whether a softmax of scores has other than four dims, or is reshaped."""
    softmaxes = (node for node in graph.nodes if node.op.name == "softmax")
    others = [
        node
        for node in softmaxes
        if node.results[0].rank != 4 or any(user.op.name == "reshape" for user in node.results[0].users)
    ]
    return bool(_products(others))


def _towards_softmax(graph: Graph) -> set[Node]:
    """The products of queries and keys that softmaxes are made of, with pointwise ops between."""
    return _products(node for node in graph.nodes if node.op.name == "softmax")


def _products(softmaxes: Iterable[Node]) -> set[Node]:
    return {node for node in products_below(softmaxes, _POINTWISE) if _is_product(node.results[0])}


def _begins(match: Match) -> str | None:
    """Why a product is not where attention begins; None if it is."""
    if any(map(is_known, match.root.operands)):
        return "it is made of what has been grown"
    return None if _is_product(match.root) else "products with weights have better kernels"


def _known_scores(root: Value) -> list[Value]:
    return [operand for operand in root.operands if composite(operand) == SCORES]


def _passes(match: Match) -> str | None:
    """Why scores do not take in a pointwise op; None if they do."""
    found = _known_scores(match.root)
    if len(found) != 1:
        return f"{plain_root(match.root)} is made of {len(found)} products of queries and keys, not of one"
    return _elsewhere(match.scope, plain(found[0]))


def _take_in(match: Match) -> Value:
    (scores,) = _known_scores(match.root)
    steps = parts(scores)
    return known_as(SCORES, match.root, steps | {f"step {len(steps)}": plain_root(match.root)})


def _along_keys(match: Match) -> str | None:
    if match.fact("axis") != match.root.rank - 1:
        return f"the softmax is along {match.fact('axis')}, not along the keys"
    return _elsewhere(match.scope, plain(match["grown"]))


def _taken(match: Match) -> str | None:
    return _elsewhere(match.scope, plain(match["grown"]))


def _merges_rows(match: Match) -> str | None:
    soft, merged = plain(match["grown"]), match.root
    if soft.op_name != "softmax":
        return f"the rows that are merged are of {soft}, which is a cast"
    found = groups(merged.shape, soft.shape)
    wanted = [*[1] * (merged.rank - 2), soft.rank - merged.rank + 1, 1]
    if found is None or list(map(len, found)) != wanted:
        return f"{merged.type} does not only merge rows of {soft.type}"
    return _taken(match)


def _weighs(match: Match) -> str | None:
    if is_weight(plain(match["v"])):
        return f"{match['v']} is a weight: products with weights have better kernels"
    return _taken(match)


def _weighs_in_other_dims(match: Match) -> str | None:
    return "it has four dims" if match.root.rank == 4 else _weighs(match)


def _rows_apart(match: Match) -> Value:
    root, soft, v = plain_root(match.root), parts(match["grown"])["soft"], plain(match["v"])
    batch = v.rank - 2
    shape = (*soft.shape[:-2], *v.shape[-2:])
    values = v.broadcast(shape, (*range(batch), len(shape) - 2, len(shape) - 1))
    weighed = root.graph.apply("matmul", soft, values, **root.attrs)
    return (weighed if soft.rank == 4 else _with_four(weighed, match["grown"])).reshape(root.shape)


def _of_four(match: Match) -> Value:
    return _with_four(plain_root(match.root), match["grown"]).reshape(match.root.shape)


def _with_four(root: Value, weights: Value) -> Value:
    """The product of weights and values with four dims; the weights are known as what has been grown."""
    end, *above, soft = parts(weights).values()
    q, turned = end.operands
    batch = batch_of(_reshaped_once(q))

    def four(value: Value) -> Value:
        return with_four_dims(value, batch)

    keys = four(turned_keys(turned)).transpose()
    product_of_four = root.graph.apply("matmul", four(q), keys, **end.attrs)
    scores = _again(soft.operands[0], _Scores(end, frozenset(above)), product_of_four, four)
    made, values = scores.softmax(3), root.operands[1]
    for cast in reversed(_casts(root.operands[0], soft)):
        made = root.graph.apply(cast.op, made, **cast.attrs)
    return root.graph.apply("matmul", made, four(values), **root.attrs)


def _reshaped_once(q: Value) -> Value:
    """Queries behind one reshape: the result of other attention, reshaped just now, may have been reshaped again."""
    source = q
    while source.op_name == "reshape":
        (source,) = source.operands
    return q if source is q else source.reshape(q.shape)


def _casts(top: Value, soft: Value) -> list[Value]:
    """The casts of a softmax, the last one first."""
    found = []
    while top is not soft:
        found.append(top)
        (top,) = top.operands
    return found


HEADS = (
    Rule("view_behind_softmax", Op("softmax", Any("scores"), axis=Bind("axis")), _move_view, _moves_view,
         doc="softmax(f(view(q @ k))) -> view(softmax(f(q @ k))), for pointwise f"),
)  # fmt: skip

FOUR_DIMS = Growth("heads", (
    Rule("rows_of_weights_apart", Op("matmul", grown(ROWS), Any("v")), _rows_apart, _weighs,
         doc="heads_rows(...) @ v -> reshape(softmax(f(q @ k)) @ broadcast(v)), with batch and heads"),
    Rule("attention_of_four_dims", Op("matmul", grown(WEIGHTS), Any("v")), _of_four, _weighs_in_other_dims,
         doc="heads_weights(...) @ v with two, three, or five and more dims -> with batch and heads"),
    Rule("heads_scores", Op("matmul"),
         lambda match: known_as(SCORES, match.root, {"product": match.root}), _begins,
         doc="q @ k -> heads_scores(product), where a softmax is made of it"),
    Rule("heads_steps", Op(_POINTWISE), _take_in, _passes,
         doc="f(heads_scores(...), x) -> heads_scores(..., step), for pointwise f"),
    Rule("heads_weights", Op("softmax", grown(SCORES), axis=Bind("axis")),
         lambda match: known_as(WEIGHTS, match.root, parts(match["grown"]) | {"soft": plain_root(match.root)}),
         _along_keys, doc="softmax(heads_scores(...)) -> heads_weights(..., soft), along the keys"),
    Rule("heads_casts", Op("cast", grown(WEIGHTS)),
         lambda match: known_as(WEIGHTS, match.root, parts(match["grown"])), _taken,
         doc="cast(heads_weights(...)) -> heads_weights(...)"),
    Rule("heads_rows", Op("reshape", grown(WEIGHTS)),
         lambda match: known_as(ROWS, match.root, parts(match["grown"])), _merges_rows,
         doc="reshape(heads_weights(...)) -> heads_rows(...), where rows are merged"),
), frozenset({"rows_of_weights_apart", "attention_of_four_dims"}), _towards_softmax, _has_other_dims)  # fmt: skip
"""The pass that brings attention to four dims."""
