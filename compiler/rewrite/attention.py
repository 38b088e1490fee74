"""Recognizes scaled-dot-product attention in the forms that importers and exporters write.

    attention(q, k, v, …) = softmax(q @ k^T * scale + mask) @ v                         Source: arXiv 1706.03762

Beside q, k and v the call has operands where the model has them:

scale        a number that the scores are multiplied by (or divided by: see the callee)
cap          a number: scores are cap * tanh(scores), so that none is larger
mask         floats, added to the scores
kept, fill   bools: scores stay where `kept` is true, and elsewhere are `fill` (or have it added, and where they
             stay 0: see the callee). A fill that is finite gives a row that is masked whole weights all the same
hidden, fill the same with bools that are true where scores are `fill`
blank        a number: the weights of a row that is masked whole, as torch has it, or of one of NaNs

Masks stand as they were before they were broadcast. k and v that are repeated for groups of heads go in as they were
before: with fewer heads, and with one where a product spreads them over all heads. k goes in with heads, keys and
features in the order of v. No number changes: see `outline`; but `scale_of_scores` gathers a scale that is spread over
q and k, up to rounding.

No rule looks at two reductions. Attention is grown beside the graph, an op at a time, from the products that a softmax
is made of (see `growth`):

    q @ turned                               -> attention_scores(q, turned)                 turned: k^T
    attention_scores(…) * scale              -> attention_scores(…, scale)                  or divided by it
    cap * tanh(attention_scores(…))          -> attention_scores(…, cap)
    attention_scores(…) + mask, select(…)    -> attention_scores(…, mask), …(…, kept, fill), …(…, hidden, fill)
    softmax(attention_scores(…))             -> attention_weights(…)
    select(…, blank, attention_weights(…))   -> attention_weights(…, blank)
    attention_weights(…) @ v                 -> attention(q, k, v, …), in the graph

in this order, each at most once, and with casts between. A softmax whose weights become no attention stays as it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.graph import Graph, Node, Value
from kernels_hub.compiler.ir.proofs import proves_equal
from kernels_hub.compiler.rewrite.growth import (
    Growth,
    grown,
    known_as,
    parts,
    plain,
    plain_root,
    products_below,
)
from kernels_hub.compiler.rewrite.outline import (
    Spelled,
    closed_between,
    composite,
    outline_between,
)
from kernels_hub.compiler.rewrite.pattern import Any, Bind, Op, Pattern, Scalar, floats, one_of, through
from kernels_hub.compiler.rewrite.regroup import places
from kernels_hub.compiler.rewrite.rule import Match, Rule

OPERANDS = ("q", "k", "v", "scale", "cap", "mask", "kept", "hidden", "fill", "blank")
SCORES, TANH, WEIGHTS = "attention_scores", "tanh_of_attention_scores", "attention_weights"
MOST_VIEWS = 5
_VIEWS = ("reshape", "permute", "broadcast")
_WIDENS = frozenset({"broadcast", "reshape"})
_MASKS = frozenset({"mask", "kept", "hidden"})
_BETWEEN = frozenset({"cast", "mul", "div", "tanh", "select", "add"})
"""Ops between a softmax and the product of queries and keys."""


def _narrow(inner: Pattern) -> Pattern:
    """A mask, as it was before it was broadcast: behind as many views as there are."""
    found = inner
    for _ in range(MOST_VIEWS):
        found = one_of(Op(_WIDENS, found), inner)
    return found


def _below(value: Value, passed: frozenset[str]) -> Iterator[Value]:
    """A value, and what is behind it and ops of these names."""
    yield value
    while value.op_name in passed:
        (value,) = value.operands
        yield value


def _uncast(value: Value) -> Value:
    while value.op_name == "cast":
        (value,) = value.operands
    return value


def _elsewhere(match: Match, value: Value, most: int = 1) -> str | None:
    """Why a value is not for the root alone; None if it is."""
    if match.scope.is_output(value):
        return f"{value} is an output"
    uses = match.scope.uses(value)
    return f"{value} is used {uses} times" if uses > most else None


def _has(match: Match, *names: str) -> str | None:
    """Why scores are not to be scaled, capped or masked any more: they have these operands."""
    found = [name for name in parts(match["grown"]) if name in names]
    return f"{plain(match['grown'])} has a {found[0]} already" if found else None


def _taken(match: Match, most: int = 1) -> str | None:
    """Why what has been grown is not for the root alone; None if it is, or was cast, which costs nothing again."""
    whole = plain(match["grown"])
    return None if whole.op_name == "cast" else _elsewhere(match, whole, most)


def _most_of_scores(match: Match) -> int:
    """How often scores may be used: masked ones by what makes rows blank, too."""
    return 2 if _MASKS & parts(match["grown"]).keys() else 1


def _takes(name: str, *operands: str) -> Callable[[Match], Value]:
    """What has been grown, with more operands."""

    def take(match: Match) -> Value:
        more = {operand: match[operand] for operand in operands if operand in match}
        return known_as(name, match.root, parts(match["grown"]) | more)

    return take


# -- scores


def _scales(match: Match) -> str | None:
    return _has(match, "scale", "cap", *_MASKS) or _elsewhere(match, plain(match["grown"]))


def _caps(match: Match) -> str | None:
    return _has(match, "cap", *_MASKS) or _taken(match)


def _casts(match: Match) -> str | None:
    return _taken(match, _most_of_scores(match) if composite(match["grown"]) == SCORES else 1)


def _cast(match: Match) -> Value:
    return known_as(match["grown"].attrs["callee"].name, match.root, parts(match["grown"]))


_CHOSEN = one_of(
    Op("select", _narrow(Any("kept")), Scalar("", 0.0), Scalar("fill"), name="added"),
    Op("select", _narrow(Any("hidden")), Scalar("fill"), Scalar("", 0.0), name="added"),
)
_MASKED = one_of(
    Op("select", _narrow(Any("kept")), grown(SCORES), Scalar("fill")),
    Op("select", _narrow(Any("hidden")), Scalar("fill"), grown(SCORES)),
    Op("add", grown(SCORES), _narrow(through("cast", _CHOSEN))),
    Op("add", grown(SCORES), _narrow(Any("mask"))),
)


def _masks(match: Match) -> str | None:
    if "kept" in match and match["kept"].dtype is not types.BOOL:
        return f"{match['kept']} is no bool"
    given = [*parts(match["grown"]).values(), *(match[name] for name in (*_MASKS, "fill") if name in match)]
    if len(set(given)) < len(given):
        return "two operands are the same value"
    return _has(match, *_MASKS) or _taken(match)


# -- weights


def _of_keys(match: Match) -> str | None:
    if match.fact("axis") != match.root.rank - 1:
        return f"the softmax is along {match.fact('axis')}, not along the keys"
    return _taken(match, _most_of_scores(match))


def _blanked() -> Pattern:
    """Rows that are masked whole, or of NaNs, are a number."""
    weights = grown(WEIGHTS)
    every = Op("bitnot", _narrow(Op("reduce_any", _narrow(Any("kept")))))
    lowest, lowest_of_mask = (
        Op("eq", _narrow(Op("reduce_max", one)), Scalar("", -math.inf))
        for one in (Any("masked"), _narrow(one_of(_CHOSEN, Any("mask"))))
    )
    return one_of(
        Op("select", Op("isnan", Any("soft")), Scalar("blank"), weights),
        Op("select", _narrow(every), Scalar("blank"), weights, name="by kept"),
        Op("select", _narrow(lowest), Scalar("blank"), weights, name="by scores"),
        Op("select", _narrow(lowest_of_mask), Scalar("blank"), weights, name="by mask"),
    )


def _blanks_rows(match: Match) -> str | None:
    """Why what is made blank is not the rows of which nothing is kept, or of NaNs; None if it is."""
    soft, given = plain(match["grown"]), parts(match["grown"])
    if soft.op_name != "softmax":
        return f"{soft} is cast or made blank already"
    if why := _elsewhere(match, soft, 2):
        return why
    if "soft" in match:
        return None if match["soft"] is soft else f"{match['soft']} is not {soft}"
    how = next(one for one in ("by kept", "by scores", "by mask") if one in match)
    masked = _uncast(soft.operands[0]) if _MASKS & given.keys() else match.found.values.get("masked")
    if masked is None or masked.op_name == ("add" if how == "by kept" else "select"):
        return "rows are made blank of which nothing is kept, but scores are not masked so"
    source = match["kept"] if how == "by kept" else masked if how == "by scores" else _added(match, masked)
    if not _is_what_masks(match, masked, source):
        return f"{source} is not what masks {masked}"
    masks = [masked] if how == "by scores" else masked.operands
    chosen = [found for one in masks if (found := places(one, source)) is not None]
    blank = places(match[how].operands[0], source)
    last = masked.rank - 1
    if not chosen or blank != [None if one == last else one for one in chosen[0]]:
        return "the rows that are made blank are not those of which nothing is kept"
    return None


def _added(match: Match, masked: Value) -> Value:
    """The mask that rows are made blank by: a choice of numbers, or numbers."""
    if "fill" in parts(match["grown"]):
        return next(
            one
            for mask in masked.operands
            for one in _below(mask, _WIDENS | {"cast"})
            if one.op_name == "select"
        )
    return match["added"] if "added" in match else match["mask"]


def _is_what_masks(match: Match, masked: Value, source: Value) -> bool:
    """Whether what rows are made blank by is the mask of the scores, where both have it under one name."""
    given = parts(match["grown"])
    if "masked" in match:
        return match["masked"] is masked
    if "fill" in given and "added" in match:
        return match["added"] is source
    both = any(name in given and name in match for name in ("kept", "mask"))
    return not both or any(source in _below(one, _WIDENS) for one in masked.operands)


# -- attention


def _repeated(name: str) -> Pattern:
    """Heads, repeated for groups of queries or not."""
    one = Any(name)
    wide = Op("broadcast", one, axes=Bind(f"{name} axes"))
    return one_of(Op("reshape", wide, name=f"{name} repeated"), one)


def _spread(name: str) -> Pattern:
    """One head for all queries, as a product spreads it; of k it is turned already."""
    return Op("broadcast", Any(f"{name} shared"), axes=Bind(f"{name} spread")).once()


def _keys(match: Match) -> Value:
    """k, turned."""
    return parts(match["grown"])["turned"]


def _repeats_heads(heads: Value, name: str) -> str | None:
    """Why k or v, which is repeated, is so in another way than each head for its group; None if it is so."""
    wide = heads.operands[0]
    x, repeated = wide.operands[0], tuple(wide.attrs["axes"])
    axes = tuple(axis for axis in range(x.rank + 1) if axis != x.rank - 2)
    if x.rank < 3 or repeated != axes:
        return f"{name} is repeated along {repeated}, which is not each head for its group"
    shape = (*x.shape[:-3], x.shape[-3] * wide.shape[-3], *x.shape[-2:])
    if heads.rank != x.rank or not all(map(proves_equal, heads.shape, shape)):
        return f"{name} is repeated to {heads.type}, which is not each head for its group"
    return None


def _are_repeated(heads: Value) -> bool:
    return heads.op_name == "reshape" and heads.operands[0].op_name == "broadcast"


def _shares_a_head(match: Match) -> str | None:
    """Why what is spread over k or v is not one head; None if it is."""
    if "v shared" not in match:
        return "k has one head for all queries, and v has not"
    for name, axes in (("k", _keys(match).attrs["axes"]), ("v", match.fact("v spread"))):
        if match.root.rank != 4 or tuple(axes) != (0, 2, 3):
            return f"{name} is spread to dims {tuple(axes)}, which is not one head for all"
    return None


def _swaps(order: tuple[int, ...]) -> bool:
    rank = len(order)
    return tuple(order) == (*range(rank - 2), rank - 1, rank - 2)


def _found_keys(match: Match) -> Value:
    """k as it stands in the graph: the same before it was turned, if the last two dims were exchanged, and repeated."""
    turned = _keys(match)
    if turned.op_name == "broadcast":
        return turned.operands[0]
    if not _swaps(turned.attrs["order"]):
        return turned
    heads = turned.operands[0]
    return heads.operands[0].operands[0] if "v repeated" in match else heads


def _ends(match: Match) -> dict[str, Value]:
    """What attention is outlined between: all operands as they stand in the graph."""
    values = match["v shared"] if "v shared" in match and _keys(match).op_name == "broadcast" else match["v"]
    given = parts(match["grown"]) | {"k": _found_keys(match), "v": plain(values)}
    return {name: given[name] for name in OPERANDS if name in given}


def _weighs(match: Match) -> str | None:
    soft, turned = _uncast(plain(match["grown"])), _keys(match)
    if why := _taken(match):
        return why
    masked = _uncast(soft.operands[0]) if soft.op_name == "softmax" else None
    if masked is not None and _MASKS & parts(match["grown"]).keys() and (why := _elsewhere(match, masked)):
        return why
    return _has_these_heads(match, turned) or closed_between(match.root, _ends(match))


def _has_these_heads(match: Match, turned: Value) -> str | None:
    """Why k has not the heads of v; None if it has."""
    if turned.op_name == "broadcast":
        return _shares_a_head(match)
    if "v shared" in match:
        return "v has one head for all queries, and k has not"
    if "v repeated" not in match:
        return None
    heads, order = turned.operands[0], turned.attrs["order"]
    if not _are_repeated(heads):
        return "only one of k and v is repeated for groups of heads"
    if not _swaps(order):
        return f"k is permuted by {order} after it is repeated"
    return _repeats_heads(heads, "k") or _repeats_heads(match["v repeated"], "v")


def _attention(match: Match) -> Value:
    given, turned = _ends(match), _keys(match)
    spelled: Spelled = {}
    if turned.op_name == "broadcast":
        spelled = {
            given["k"]: lambda inputs: inputs["k"].squeeze(-3).transpose(),
            given["v"]: lambda inputs: inputs["v"].squeeze(-3),
        }
        given["k"], given["v"] = given["k"].transpose().unsqueeze(-3), given["v"].unsqueeze(-3)
    elif not _swaps(turned.attrs["order"]):
        order = list(turned.attrs["order"])
        order[-2:] = reversed(order[-2:])
        given["k"] = turned.operands[0].permute(*order)
        spelled = {turned: lambda inputs: inputs["k"].transpose()}
    return outline_between(plain_root(match.root), "attention", given, spelled)


def _towards_softmax(graph: Graph) -> set[Node]:
    """The products that softmaxes are made of, with pointwise ops between."""
    return products_below((node for node in graph.nodes if node.op.name == "softmax"), _BETWEEN)


_TURNED = one_of(Op("permute", name="turned"), Op("broadcast", name="turned").once())

ATTENTION = Growth("attention", (
    Rule("attention", Op("matmul", grown(WEIGHTS), one_of(_repeated("v"), _spread("v"))), _attention, _weighs,
         doc="attention_weights(q, turned, ...) @ v -> attention(q, k, v, ...)"),
    Rule("attention_scores", Op("matmul", Any("q").where(floats), _TURNED),
         lambda match: known_as(SCORES, match.root, {"q": match["q"], "turned": match["turned"]}),
         doc="q @ k^T -> attention_scores(q, k^T), where a softmax is made of it"),
    Rule("attention_scale", Op({"mul", "div"}, grown(SCORES), Scalar("scale")), _takes(SCORES, "scale"), _scales,
         doc="attention_scores(...) * scale -> attention_scores(..., scale)"),
    Rule("attention_tanh", Op("tanh", grown(SCORES)), _takes(TANH), _caps,
         doc="tanh(attention_scores(...)) -> tanh_of_attention_scores(...)"),
    Rule("attention_cap", Op("mul", grown(TANH), Scalar("cap")), _takes(SCORES, "cap"), _taken,
         doc="tanh_of_attention_scores(...) * cap -> attention_scores(..., cap)"),
    Rule("attention_mask", _MASKED, _takes(SCORES, "mask", "kept", "hidden", "fill"), _masks,
         doc="attention_scores(...) + mask, or a choice between them and a number -> attention_scores(..., mask)"),
    Rule("attention_casts", Op("cast", grown(SCORES, WEIGHTS)), _cast, _casts,
         doc="cast(attention_scores(...)) -> attention_scores(...), and so for attention_weights"),
    Rule("attention_weights", Op("softmax", grown(SCORES), axis=Bind("axis")), _takes(WEIGHTS), _of_keys,
         doc="softmax(attention_scores(...)) -> attention_weights(...), along the keys"),
    Rule("attention_blank", _blanked(), _takes(WEIGHTS, *OPERANDS), _blanks_rows,
         doc="select(no key is kept, blank, attention_weights(...)) -> attention_weights(..., blank)"),
), frozenset({"attention"}), _towards_softmax)  # fmt: skip
"""The pass that finds attention."""


def _scaled(name: str) -> Pattern:
    return through(_VIEWS, Op("mul", Any(name), Scalar(f"scale of {name}"), name=f"scaled {name}").once())


def _both_wide(match: Match) -> str | None:
    if match.root.dtype.bits < 32 and match.root.dtype is not types.BFLOAT16:
        return f"unscaled scores may be too large for {match.root.dtype}"
    for view, name in zip(match.root.operands, ("q", "k"), strict=True):
        while view is not match[f"scaled {name}"]:
            if match.scope.uses(view) > 1:
                return f"{view} is used {match.scope.uses(view)} times"
            (view,) = view.operands  # noqa: PLW2901 (goes up the chain)
    return None


def _scale_once(match: Match) -> Value:
    q, k = (
        _without(operand, match[f"scaled {name}"], match[name])
        for operand, name in zip(match.root.operands, ("q", "k"), strict=True)
    )
    scale: float = match["scale of q"].scalar * match["scale of k"].scalar
    return match.graph.apply("matmul", q, k, **match.root.attrs) * scale


def _without(value: Value, old: Value, new: Value) -> Value:
    """The same views of another value."""
    if value is old:
        return new
    return value.graph.apply(value.op, _without(value.operands[0], old, new), **value.attrs)


SCALES = (
    Rule("scale_of_scores", Op("matmul", _scaled("q"), _scaled("k")), _scale_once, _both_wide, exact=False,
         doc="(q * a) @ (k * b) -> (q @ k) * (a * b), for numbers a and b"),
    Rule("scales_of_scores", Op("mul", Op("mul", Op("matmul", name="product").once(), Scalar("a")).once(), Scalar("b")),
         lambda match: match["product"] * (match["a"].scalar * match["b"].scalar), exact=False,
         doc="(q @ k) * a * b -> (q @ k) * (a * b), for numbers a and b"),
)  # fmt: skip
