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
"""

from __future__ import annotations

import math

from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.proofs import proves_equal
from kernels_hub.compiler.rewrite.outline import Spelled, closed_between, outline_between
from kernels_hub.compiler.rewrite.pattern import Any, Bind, Once, Op, Pattern, Scalar, floats, one_of, through
from kernels_hub.compiler.rewrite.regroup import places
from kernels_hub.compiler.rewrite.rule import Match, Rule

OPERANDS = ("q", "k", "v", "scale", "cap", "mask", "kept", "hidden", "fill", "blank")
MOST_VIEWS = 5
_VIEWS = ("reshape", "permute", "broadcast")


def _narrow(inner: Pattern) -> Pattern:
    """A mask, as it was before it was broadcast: behind as many views as there are."""
    found = inner
    for _ in range(MOST_VIEWS):
        found = one_of(Op({"broadcast", "reshape"}, found), inner)
    return found


def _repeated(name: str) -> Pattern:
    """Heads, repeated for groups of queries or not."""
    one = Any(name)
    wide = Op("broadcast", one, axes=Bind(f"{name} axes"))
    return one_of(Op("reshape", wide, name=f"{name} repeated"), one)


def _spread(name: str) -> Pattern:
    """One head for all queries, as a product spreads it; of k it is turned already."""
    return Op("broadcast", Any(f"{name} shared"), axes=Bind(f"{name} spread")).once()


_PRODUCT = Op(
    "matmul",
    Any("q").where(floats),
    one_of(Op("permute", _repeated("k"), order=Bind("order"), name="turned"), _spread("k")),
)
# Narrow scores are widened for a scale that their dtype does not hold.
_SCALED = one_of(
    Op({"mul", "div"}, through("cast", _PRODUCT.once()).once(), Scalar("scale")).once(), _PRODUCT.once()
)
_CAPPED = Op("mul", Op("tanh", through("cast", _SCALED)).once(), Scalar("cap")).once()
_SCORES = through("cast", one_of(_CAPPED, _SCALED))
_CHOSEN = one_of(
    Op("select", _narrow(Any("kept")), Scalar("", 0.0), Scalar("fill"), name="added"),
    Op("select", _narrow(Any("hidden")), Scalar("fill"), Scalar("", 0.0), name="added"),
)
_MASKED = one_of(
    Op("select", _narrow(Any("kept")), _SCORES, Scalar("fill"), name="masked"),
    Op("select", _narrow(Any("hidden")), Scalar("fill"), _SCORES, name="masked"),
    Op("add", _SCORES, _narrow(through("cast", _CHOSEN)), name="masked"),
    Op("add", _SCORES, _narrow(Any("mask")), name="masked"),
)


def _softmax(most: int) -> Pattern:
    """The weights; those that `blank` asks something of have one more use."""
    masked = one_of(Once(_MASKED, most), _SCORES)
    return Op("softmax", through("cast", masked), axis=Bind("axis"), name="soft")


def _blanked() -> Pattern:
    """Rows that are masked whole, or of NaNs, are a number."""
    soft = Once(_softmax(2), 2)
    every = Op("bitnot", _narrow(Op("reduce_any", _narrow(Any("kept")))))
    lowest, lowest_of_mask = (
        Op("eq", _narrow(Op("reduce_max", one)), Scalar("", -math.inf))
        for one in (Any("masked"), _narrow(one_of(_CHOSEN, Any("mask"))))
    )
    return one_of(
        Op("select", Op("isnan", Any("soft")), Scalar("blank"), soft),
        Op("select", _narrow(every), Scalar("blank"), soft, name="by kept"),
        Op("select", _narrow(lowest), Scalar("blank"), soft, name="by scores"),
        Op("select", _narrow(lowest_of_mask), Scalar("blank"), soft, name="by mask"),
    )


_WEIGHTS = one_of(_blanked().once(), _softmax(1).once())


def _repeats_heads(match: Match, name: str) -> str | None:
    """Why k or v is repeated in another way than each head for its group; None if it is not, or so."""
    if f"{name} repeated" not in match:
        return None
    x, result = match[name], match[f"{name} repeated"]
    wide = result.operands[0].shape
    axes = tuple(axis for axis in range(x.rank + 1) if axis != x.rank - 2)
    if x.rank < 3 or tuple(match.fact(f"{name} axes")) != axes:
        return f"{name} is repeated along {match.fact(f'{name} axes')}, which is not each head for its group"
    heads = (*x.shape[:-3], x.shape[-3] * wide[-3], *x.shape[-2:])
    if result.rank != x.rank or not all(map(proves_equal, result.shape, heads)):
        return f"{name} is repeated to {result.type}, which is not each head for its group"
    return None


def _shares_a_head(match: Match) -> str | None:
    """Why what is spread over k or v is not one head; None if it is."""
    if "v shared" not in match:
        return "k has one head for all queries, and v has not"
    for name in ("k", "v"):
        axes, rank = tuple(match.fact(f"{name} spread")), match.root.rank
        if rank != 4 or axes != (0, 2, 3):
            return f"{name} is spread to dims {axes}, which is not one head for all"
    return None


def _blanks_rows(match: Match) -> str | None:
    """Why what is made blank is not the rows of which nothing is kept; None if it is, or nothing is."""
    how = next((one for one in ("by kept", "by scores", "by mask") if one in match), None)
    if how is None:
        return None
    if "masked" not in match or match["masked"].op_name == ("add" if how == "by kept" else "select"):
        return "rows are made blank of which nothing is kept, but scores are not masked so"
    masked = match["masked"]
    source = masked if how == "by scores" else match["kept"] if how == "by kept" else _added(match)
    chosen = [
        found
        for one in ([masked] if how == "by scores" else masked.operands)
        if (found := places(one, source)) is not None
    ]
    blank = places(match[how].operands[0], source)
    last = masked.rank - 1
    if not chosen or blank != [None if one == last else one for one in chosen[0]]:
        return "the rows that are made blank are not those of which nothing is kept"
    return None


def _added(match: Match) -> Value:
    return match["added"] if "added" in match else match["mask"]


def _operands(match: Match) -> dict[str, Value]:
    given = {operand: match[operand] for operand in OPERANDS if operand in match}
    if "k shared" in match:
        shared = {
            "k": match["k shared"].transpose().unsqueeze(-3),
            "v": match["v shared"].unsqueeze(-3),
        }
        return {name: (given | shared)[name] for name in OPERANDS if name in given or name in shared}
    turned = match["turned"]
    if not _swaps(match.fact("order")):
        order = list(match.fact("order"))
        order[-2:] = reversed(order[-2:])
        given["k"] = turned.operands[0].permute(*order)
    return given


def _swaps(order: tuple[int, ...]) -> bool:
    rank = len(order)
    return tuple(order) == (*range(rank - 2), rank - 1, rank - 2)


def _guard(match: Match) -> str | None:
    rank = match.root.rank
    if match.fact("axis") != rank - 1:
        return f"the softmax is along {match.fact('axis')}, not along the keys"
    if "kept" in match and match["kept"].dtype is not types.BOOL:
        return f"{match['kept']} is no bool"
    given = {operand: match[operand] for operand in OPERANDS if operand in match and operand != "k"}
    if "k shared" in match:
        return (
            _shares_a_head(match)
            or _blanks_rows(match)
            or closed_between(match.root, {**given, "k": match["k shared"], "v": match["v shared"]})
        )
    if "v shared" in match:
        return "v has one head for all queries, and k has not"
    if not _swaps(match.fact("order")) and "k repeated" in match:
        return f"k is permuted by {match.fact('order')} after it is repeated"
    key = match["k"] if _swaps(match.fact("order")) else match["turned"]
    if ("k repeated" in match) is not ("v repeated" in match):
        return "only one of k and v is repeated for groups of heads"
    return (
        _repeats_heads(match, "k")
        or _repeats_heads(match, "v")
        or _blanks_rows(match)
        or closed_between(match.root, {**given, "k": key})
    )


def _attention(match: Match) -> Value:
    if "k shared" in match:
        spelled: Spelled = {
            match["k shared"]: lambda inputs: inputs["k"].squeeze(-3).transpose(),
            match["v shared"]: lambda inputs: inputs["v"].squeeze(-3),
        }
        return outline_between(match.root, "attention", _operands(match), spelled)
    if _swaps(match.fact("order")):
        return outline_between(match.root, "attention", _operands(match))
    return outline_between(
        match.root, "attention", _operands(match), {match["turned"]: lambda inputs: inputs["k"].transpose()}
    )


ATTENTION = (
    Rule("attention", Op("matmul", through("cast", _WEIGHTS), one_of(_repeated("v"), _spread("v"))), _attention, _guard,
         doc="softmax(q @ k^T * scale + mask) @ v"),
)  # fmt: skip


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


SCORES = (
    Rule("scale_of_scores", Op("matmul", _scaled("q"), _scaled("k")), _scale_once, _both_wide, exact=False,
         doc="(q * a) @ (k * b) -> (q @ k) * (a * b), for numbers a and b"),
    Rule("scales_of_scores", Op("mul", Op("mul", Op("matmul", name="product").once(), Scalar("a")).once(), Scalar("b")),
         lambda match: match["product"] * (match["a"].scalar * match["b"].scalar), exact=False,
         doc="(q @ k) * a * b -> (q @ k) * (a * b), for numbers a and b"),
)  # fmt: skip
