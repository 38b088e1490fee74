"""Derivatives of reductions, softmax and running reductions.

What is greatest shares the gradient evenly where several are equal. Products divide by nothing, so that zeros among
the factors are no matter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from kernels_hub.compiler.autodiff.rule import Derivative, Gradients, Site, along, as_number, zeros
from kernels_hub.compiler.ir.dims import product
from kernels_hub.compiler.ir.graph import Value


def _sum(site: Site) -> Gradients:
    return [along(site.gradient, site.x, site.attrs["axes"])]


def _mean(site: Site) -> Gradients:
    g, axes = site.gradient.cast(site.gradient.dtype.compute), site.attrs["axes"]
    count = product(site.x.shape[axis] for axis in axes)
    return [along((g / as_number(site.graph, count, g)).cast(site.x.dtype), site.x, axes)]


def _prod(site: Site) -> Gradients:
    """Each element's gradient is the product of all others: of those before it and those behind."""
    x, axes = site.x, site.attrs["axes"]
    kept = [axis for axis in range(x.rank) if axis not in axes]
    order = (*kept, *axes)
    count = product(x.shape[axis] for axis in axes)
    rows = x.permute(*order).reshape((*(x.shape[axis] for axis in kept), count))
    last = rows.rank - 1
    before, behind = (rows.cumulate("prod", last, exclusive=True, reverse=one) for one in (False, True))
    others = (before * behind).reshape(tuple(x.shape[axis] for axis in order))
    others = others.permute(*(order.index(axis) for axis in range(x.rank)))
    return [along(site.gradient, x, axes) * others]


def _extreme(op: str) -> Derivative:
    def pull(site: Site) -> Gradients:
        x, axes, wide = site.x, site.attrs["axes"], site.gradient.dtype.compute
        chosen = x.eq(along(site.result, x, axes))
        count = chosen.cast(wide).sum(axes)
        share = (site.gradient.cast(wide) / count).cast(x.dtype)
        return [chosen.select(along(share, x, axes), zeros(site.graph, x))]

    return Derivative(op, pull, "g at the elements that are chosen, shared evenly")


def _softmax(site: Site) -> Gradients:
    axis, wide = site.attrs["axis"], site.gradient.dtype.compute
    g, y = site.gradient.cast(wide), site.result.cast(wide)
    inner = along((g * y).sum(axis), y, (axis,))
    return [(y * (g - inner)).cast(site.x.dtype)]


def _log_softmax(site: Site) -> Gradients:
    axis, wide = site.attrs["axis"], site.gradient.dtype.compute
    g, y = site.gradient.cast(wide), site.result.cast(wide)
    return [(g - y.exp() * along(g.sum(axis), y, (axis,))).cast(site.x.dtype)]


def _logcumsumexp(site: Site) -> Gradients:
    """In logarithms, of positive and negative g each, so that nothing overflows."""
    axis = site.attrs["axis"]

    def of(gradient: Value) -> Value:
        log = (gradient > 0).select(gradient.log(), -math.inf) - site.result
        return (log.flip(axis).along("logcumsumexp", axis).flip(axis) + site.x).exp()

    return [of(site.gradient) - of(-site.gradient)]


def _cumsum(site: Site) -> Gradients:
    return [site.gradient.cumulate("sum", site.attrs["axis"], reverse=True)]


def _cumprod(site: Site) -> Gradients:
    """The sum over all j from i on of g[j] times the product of all up to j but i: no division, n * n products."""
    x, axis = site.x, site.attrs["axis"]
    graph, size, last = site.graph, site.x.shape[site.attrs["axis"]], site.x.rank - 1
    order = (*(one for one in range(x.rank) if one != axis), axis)
    rows, g = x.permute(*order), site.gradient.permute(*order)
    square = (*rows.shape[:-1], size, size)
    left, right = (
        graph.iota(size).broadcast(square, (place,)) for place in (last, last + 1)
    )  # of which element, up to which
    factors = rows.broadcast(square, (*range(last), last + 1))
    one = graph.full(square, 1, x.dtype)
    products = left.eq(right).select(one, factors).along("cumprod", last + 1)
    terms = left.binary("le", right).select(
        products * g.broadcast(square, (*range(last), last + 1)), zeros(graph, products)
    )
    total = terms.sum(last + 1)
    return [total.permute(*(order.index(axis) for axis in range(x.rank)))]


def _running_extreme(op: str) -> Derivative:
    """Each gradient goes to the latest element that is the running extreme."""

    def pull(site: Site) -> Gradients:
        x, axis, graph = site.x, site.attrs["axis"], site.graph
        places = graph.iota(x.shape[axis]).broadcast(x.shape, (axis,))
        latest = x.eq(site.result).select(places, zeros(graph, places)).along("cummax", axis)
        return [
            graph.apply(
                "scatter_elements", zeros(graph, x), latest, site.gradient, axis=axis, reduction="add"
            )
        ]

    return Derivative(op, pull, "g added where the running extreme was last met")


ROWS: Sequence[Derivative] = (
    Derivative("reduce_sum", _sum, "g, broadcast"),
    Derivative("reduce_mean", _mean, "g / count, broadcast"),
    Derivative("reduce_prod", _prod, "g times the product of all other elements"),
    _extreme("reduce_max"),
    _extreme("reduce_min"),
    Derivative("softmax", _softmax, "y * (g - sum(g * y))"),
    Derivative("log_softmax", _log_softmax, "g - exp(y) * sum(g)"),
    Derivative("logcumsumexp", _logcumsumexp, "the sum of g * exp(x - y) from here on"),
    Derivative("cumsum", _cumsum, "the sum of g from here on"),
    Derivative(
        "cumprod", _cumprod, "the sum of g from here on, each times the product of all factors but this"
    ),
    _running_extreme("cummax"),
    _running_extreme("cummin"),
)
