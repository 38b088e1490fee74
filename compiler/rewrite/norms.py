"""Recognizes layer norm and RMS norm over the last dims, and group norm, with or without weight and bias.

    layer_norm(x, eps, weight, bias) = (x - mean(x)) / sqrt(mean((x - mean(x))**2) + eps) * weight + bias
    rms_norm(x, eps, weight) = x / sqrt(mean(x**2) + eps) * weight
    group_norm(x, eps, weight, bias) = reshape(layer_norm(reshape(x), eps)) * weight + bias: x (N, C, …), normalized
        in groups of channels (the callee's reshape to (N, groups, …) says how many), weight and bias (C,)
    Source: arXiv 1607.06450, arXiv 1910.07467, arXiv 1803.08494

Spellings: a division by the root, or a product with its inverse; squares as x * x or x ** 2; means as sums over a
count; casts to a wider dtype and back, around the norm alone (Llama) or around weight and bias, too (ATen). No number
changes: see `outline`. No rule looks at two reductions; a norm is found step by step:

    x / sqrt(mean(x**2) + eps)        -> rms_norm(x, eps)
    rms_norm(x - mean(x), eps)        -> layer_norm(x, eps)         of a call: what is inside is written out again
    reshape(layer_norm(reshape(x)))   -> group_norm(x, eps)
    norm(x) * weight, … + bias        -> norm(x, weight, bias)      and casts on either side
"""

from __future__ import annotations

import math

from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.operators import same_shapes
from kernels_hub.compiler.ir.proofs import proves_equal
from kernels_hub.compiler.rewrite.outline import closed, outline, outline_between, recognised
from kernels_hub.compiler.rewrite.pattern import Any, Bind, Op, Pattern, Scalar, floats, one_of
from kernels_hub.compiler.rewrite.rule import Match, Rule

X, EPS = Any("x"), Scalar("eps")


def _spread(inner: Pattern) -> Pattern:
    """A statistic, broadcast back."""
    return Op("broadcast", inner, axes=Bind("kept"))


def _mean(inner: Pattern) -> Pattern:
    total = Op("reduce_sum", inner, axes=Bind("axes"))
    return one_of(
        Op("reduce_mean", inner, axes=Bind("axes")),
        Op("div", total, Scalar("count")),
        Op("mul", total, Scalar("count")),
    )


def _square(inner: Pattern) -> Pattern:
    return one_of(Op("mul", inner, inner), Op("pow", inner, Scalar("two", 2)))


def _over_root(x: Pattern, mean: Pattern) -> Pattern:
    """x / sqrt(mean + eps), the broadcast standing anywhere on the way."""
    narrow, wide = Op("add", mean, EPS), Op("add", _spread(mean), EPS)
    root = one_of(_spread(Op("sqrt", narrow)), Op("sqrt", one_of(_spread(narrow), wide)))
    one = Scalar("one", 1)
    inverse = one_of(
        _spread(one_of(Op("rsqrt", narrow), Op("div", one, Op("sqrt", narrow)))),
        Op("rsqrt", one_of(_spread(narrow), wide)),
        Op("div", one, root),
    )
    return one_of(Op("div", x, root), Op("mul", x, inverse))


def _last_axes(match: Match) -> str | None:
    """The statistic is over the last dims, and comes back where it was."""
    rank, axes = match["x"].rank, tuple(match.fact("axes"))
    if not axes or axes != tuple(range(rank - len(axes), rank)):
        return f"axes {axes} of rank {rank} are not the last"
    if tuple(match.fact("kept")) != tuple(range(rank - len(axes))):
        return "the statistic is broadcast along other dims"
    if "count" in match:
        size = math.prod(dim if isinstance(dim, int) else -1 for dim in match["x"].shape[rank - len(axes) :])
        number = match["count"].scalar
        if size <= 0 or not any(math.isclose(number, one, rel_tol=1e-6) for one in (size, 1 / size)):
            return f"{number!r} is not known to be the number of elements"
    return closed(match, ("x", "eps"))


def _reduced(norm: Value) -> set[tuple[int, ...]]:
    """The dims that the statistics of a norm are over."""
    return {
        tuple(node.attrs["axes"])
        for node in norm.attrs["callee"].nodes
        if node.op.name in {"reduce_mean", "reduce_sum"}
    }


def _is_centred(match: Match) -> str | None:
    """What is normalized was centred along the dims of the norm."""
    if (axes := _reduced(match.root)) != {tuple(match.fact("axes"))}:
        return f"the mean is over axes {match.fact('axes')}, the norm over {axes}"
    return _last_axes(match)


def _layer_norm(match: Match) -> Value:
    """The norm of what is centred is written out: it stands there already, and is outlined as it is."""
    (written,) = match.graph.call(match.root.attrs["callee"], *match.root.operands)
    return outline_between(written, "layer_norm", {"x": match["x"], "eps": match["eps"]})


def _groups(match: Match) -> str | None:
    """x (N, C, …) is normalized as (N, groups, …) over all dims but the first two."""
    x, grouped, root = match["x"], match["grouped"], match.root
    if x.rank < 3 or not same_shapes(x.shape, root.shape):
        return f"{x.type} comes back as {root.type}"
    channels, count = x.shape[1], grouped.shape[1] if grouped.rank > 2 else 0
    if not proves_equal(x.shape[0], grouped.shape[0]) or not (
        isinstance(channels, int) and isinstance(count, int)
    ):
        return f"{x.type} as {grouped.type} is not known to be groups of channels"
    if count == 0 or channels % count:
        return f"{count} groups do not divide {channels} channels"
    axes = _reduced(match["norm"])
    if axes != {tuple(range(2, grouped.rank))}:
        return f"the statistics of {grouped.type} are over {axes}"
    return closed(match, ("x", "eps"))


_GROUPED = Op("call", Op("reshape", X, name="grouped"), Any("eps"), name="norm").where(
    recognised("layer_norm")
)


_JOINED = {
    "casts": "{0} between casts to a wider dtype and back -> {0} of the narrow dtype",
    "weight": "{0}(x) * weight -> {0}(x, weight)",
    "bias": "{0}(x, weight) + bias -> {0}(x, weight, bias)",
    "wide": "{0} between casts, of weights that are cast too -> {0} of the narrow dtype",
}


def _join(kind: str) -> list[Rule]:
    """Rules that take casts, the weight and the bias in. Those of a group norm lie along the channels."""
    norm = recognised(kind)
    bare = Op("call", X, Any("eps")).where(norm).once()
    weighted = Op("call", X, Any("eps"), Any("weight")).where(norm).once()

    def along(name: str) -> Pattern:
        return Op("broadcast", Any(name), axes=Bind("along"))

    def rule(name: str, pattern: Pattern, *operands: str, new: str = "") -> Rule:
        def guard(match: Match) -> str | None:
            if new:
                rank, axes = match.root.rank, tuple(match.fact("along"))
                wanted = (1,) if kind == "group_norm" else tuple(range(rank - match[new].rank, rank))
                if axes != wanted:
                    return f"{new} {match[new]} lies along {axes} of rank {rank}, not along {wanted}"
            elif match["x"].dtype is not match.root.dtype:
                return f"{match['x'].dtype} goes in, and {match.root.dtype} comes out"
            return closed(match, operands)

        return Rule(
            f"{kind}_{name}",
            pattern,
            lambda match: outline(match, kind, operands),
            guard,
            doc=_JOINED[name].format(kind),
        )

    last = "weight" if kind == "rms_norm" else "bias"
    vectors = ("weight", "bias")[: 1 + (last == "bias")]
    wide = Op("call", Op("cast", X), Any("eps"), *(Op("cast", Any(vector)) for vector in vectors))
    joined = [
        rule("casts", Op("cast", Op("call", Op("cast", X), Any("eps")).where(norm).once()), "x", "eps"),
        rule("weight", Op("mul", bare, along("weight")), "x", "eps", "weight", new="weight"),
        rule("bias", Op("add", weighted, along("bias")), "x", "eps", "weight", "bias", new="bias"),
        rule("wide", Op("cast", wide.where(norm).once()), "x", "eps", *vectors),
    ]
    left_out = {"rms_norm": "rms_norm_bias", "group_norm": "group_norm_casts"}.get(kind)
    return [one for one in joined if one.name != left_out]


RMS_NORM = Rule(
    "rms_norm",
    _over_root(X.where(floats), _mean(_square(X))),
    lambda match: outline(match, "rms_norm", ("x", "eps")),
    _last_axes,
    doc="x / sqrt(mean(x**2) + eps)",
)
_OF_CENTRED = Op("call", Op("sub", X.where(floats), _spread(_mean(X))), Any("eps")).where(
    recognised("rms_norm")
)

NORMS = (
    Rule("layer_norm", _OF_CENTRED, _layer_norm, _is_centred,
         doc="rms_norm(x - mean(x), eps) -> layer_norm(x, eps)", follows=(RMS_NORM,)),
    *_join("layer_norm"),
    Rule("group_norm", Op("reshape", _GROUPED.once()),
         lambda match: outline(match, "group_norm", ("x", "eps")), _groups,
         doc="reshape(layer_norm(reshape(x)))"),
    *_join("group_norm"),
    RMS_NORM,
    *_join("rms_norm"),
)  # fmt: skip
