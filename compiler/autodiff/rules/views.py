"""Derivatives of views, pads and concats: gradients go back to where elements came from; repeated ones add up."""

from __future__ import annotations

from collections.abc import Sequence

from kernels_hub.compiler.autodiff.rule import Derivative, Gradients, Site, apart, zeros
from kernels_hub.compiler.autodiff.rules.contract import summed
from kernels_hub.compiler.autodiff.rules.indexing import scattered_along
from kernels_hub.compiler.ir.dims import Dim, product
from kernels_hub.compiler.ir.extrema import dim_max
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.proofs import proves_equal


def _reshape(site: Site) -> Gradients:
    return [site.gradient.reshape(site.x.shape)]


def _broadcast(site: Site) -> Gradients:
    axes = tuple(axis for axis in range(site.gradient.rank) if axis not in site.attrs["axes"])
    return [summed(site.gradient, axes)]


def _permute(site: Site) -> Gradients:
    order = site.attrs["order"]
    rank = len(order)
    if site.gradient.op_name == "matmul" and order == (*range(rank - 2), rank - 1, rank - 2):
        a, b = (operand.transpose() for operand in site.gradient.operands)
        return [site.graph.apply("matmul", b, a, **site.gradient.attrs)]
    return [site.gradient.permute(*(order.index(axis) for axis in range(len(order))))]


def _slice(site: Site) -> Gradients:
    g, attrs = site.gradient, site.attrs
    padding: list[tuple[Dim, Dim]] = []
    places = zip(attrs["starts"], attrs["steps"], site.x.shape, strict=True)
    for axis, (start, step, dim) in enumerate(places):
        g = apart(g, axis, step)
        padding.append((start, dim - start - g.shape[axis]))
    return [g.pad(padding)]


def _flip(site: Site) -> Gradients:
    return [site.gradient.flip(*site.attrs["axes"])]


def _strided(site: Site) -> Gradients:
    """Each element is added to the place that it was read from."""
    g, graph, attrs = site.gradient, site.graph, site.attrs
    places = graph.size(attrs["offset"]).broadcast_to(g.shape)
    for axis, (dim, stride) in enumerate(zip(g.shape, attrs["strides"], strict=True)):
        steps = graph.iota(dim) * graph.size(stride).broadcast_to((dim,))
        places = places + steps.broadcast(g.shape, (axis,))
    count = product(g.shape)
    flat = zeros(graph, site.x).reshape((product(site.x.shape),))
    added = graph.apply("scatter_nd", flat, places.reshape((count, 1)), g.reshape((count,)), reduction="add")
    return [added.reshape(site.x.shape)]


def _pad(site: Site) -> Gradients:
    x, g, padding = site.x, site.gradient, site.attrs["padding"]
    if site.attrs["mode"] != "constant":
        for axis, (low, high) in enumerate(padding):
            if not (proves_equal(low, 0) and proves_equal(high, 0)):
                g = scattered_along(g, _sources(site, axis, g.shape[axis], low), axis, x.shape[axis])
        return [g]
    inside = g
    for axis, (low, _) in enumerate(padding):
        inside = inside.slice(axis, low, low + x.shape[axis])
    found: list[Value | None] = [inside if site.wanted[0] else None]
    if site.wanted[1]:
        found.append(g.sum() - inside.sum())
        return found
    return [*found, None]


def _sources(site: Site, axis: int, count: Dim, low: Dim) -> Value:
    """Where along an axis each padded place takes its element from."""
    graph, dim, mode = site.graph, site.x.shape[axis], site.attrs["mode"]

    def number(of: Dim) -> Value:
        return graph.size(of).broadcast_to((count,))

    places = graph.iota(count) - number(low)
    if mode == "edge":
        return places.maximum(0).minimum(number(dim - 1))
    if mode == "wrap":
        return places % number(dim)
    period = number(dim_max(2 * (dim - 1), 1))
    folded = places % period
    return folded.binary("lt", number(dim)).select(folded, period - folded)


def _concat(site: Site) -> Gradients:
    axis, start = site.attrs["axis"], 0
    found: list[Value | None] = []
    for operand, wanted in zip(site.operands, site.wanted, strict=True):
        stop = start + operand.shape[axis]
        found.append(site.gradient.slice(axis, start, stop) if wanted else None)
        start = stop
    return found


ROWS: Sequence[Derivative] = (
    Derivative("reshape", _reshape, "g, in the shape of x"),
    Derivative("broadcast", _broadcast, "the sum of g over the dims that were added"),
    Derivative("permute", _permute, "g, permuted back; of a product the product of both, transposed"),
    Derivative("slice", _slice, "g with zeros around, and between where it has steps"),
    Derivative("flip", _flip, "g backwards"),
    Derivative("strided", _strided, "g, added where each element was read"),
    Derivative("pad", _pad, "g without what was padded, or added where it was read; the sum of g outside"),
    Derivative("concat", _concat, "the parts of g"),
)
