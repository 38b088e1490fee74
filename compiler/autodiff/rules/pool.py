"""Derivatives of pooling: each window's gradient goes to its greatest element, or to all of its elements."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from kernels_hub.compiler.autodiff.rule import Derivative, Gradients, Site, zeros
from kernels_hub.compiler.ir.dims import product
from kernels_hub.compiler.ir.graph import Value


def _max_pool(site: Site) -> Gradients:
    x, graph = site.x, site.graph
    places = graph.apply("argmax_pool", x, **site.attrs)
    rows = (*x.shape[:2], product(x.shape[2:]))
    outs = (*x.shape[:2], product(places.shape[2:]))
    flat = zeros(graph, x).reshape(rows)
    added = graph.apply(
        "scatter_elements", flat, places.reshape(outs), site.gradient.reshape(outs), axis=2, reduction="add"
    )
    return [added.reshape(x.shape)]


def _sum_pool(site: Site) -> Gradients:
    return [_added(site, site.gradient)]


def _avg_pool(site: Site) -> Gradients:
    """The sums' gradient, over the number of elements that each window counted."""
    x, graph, attrs = site.x, site.graph, dict(site.attrs)
    how = attrs.pop("count")
    wide = site.gradient.dtype.compute
    ones = graph.full(x.shape, 1, wide)
    if how == "padded":
        ones = ones.pad([(0, 0), (0, 0), *attrs["padding"]], 1)
        attrs["padding"] = [(0, 0)] * len(attrs["padding"])
    counts = graph.apply("sum_pool", ones, **attrs)
    return [_added(site, (site.gradient.cast(wide) / counts).cast(x.dtype))]


def _added(site: Site, g: Value) -> Value:
    """Each window's number added to all elements that the window sees."""
    x, graph, attrs = site.x, site.graph, site.attrs
    spatial = x.shape[2:]
    flat = zeros(graph, x).reshape((*x.shape[:2], product(spatial)))
    rows = (*x.shape[:2], product(g.shape[2:]))
    for tap in itertools.product(*map(range, attrs["kernel"])):
        inside, places = _seen(site, g, tap)
        update = inside.broadcast(g.shape, range(2, g.rank)).select(g, zeros(graph, g)).reshape(rows)
        at = places.broadcast(g.shape, range(2, g.rank)).reshape(rows)
        flat = graph.apply("scatter_elements", flat, at, update, axis=2, reduction="add")
    return flat.reshape(x.shape)


def _seen(site: Site, g: Value, tap: Sequence[int]) -> tuple[Value, Value]:
    """For each window whether what it sees at a tap is inside of the operand, and its row-major place there, or 0."""
    x, graph, attrs = site.x, site.graph, site.attrs
    shape = g.shape[2:]
    inside = graph.full(shape, True, "bool")
    places = graph.full(shape, 0, "int64")
    for axis, (place, dim) in enumerate(zip(tap, x.shape[2:], strict=True)):
        low, _ = attrs["padding"][axis]
        first = graph.size(place * attrs["dilations"][axis] - low).broadcast_to((shape[axis],))
        at = graph.iota(shape[axis]) * attrs["strides"][axis] + first
        size = graph.size(dim).broadcast_to((shape[axis],))
        held = graph.full((shape[axis],), 0, "int64").binary("le", at) & at.binary("lt", size)
        inside = inside & held.broadcast(shape, (axis,))
        places = places * graph.size(dim).broadcast_to(shape) + at.broadcast(shape, (axis,))
    return inside, inside.select(places, graph.full(shape, 0, "int64"))


ROWS: Sequence[Derivative] = (
    Derivative("max_pool", _max_pool, "g, added at each window's first greatest element"),
    Derivative("sum_pool", _sum_pool, "g, added to all that a window sees"),
    Derivative(
        "avg_pool", _avg_pool, "g over the number of elements counted, added to all that a window sees"
    ),
)
