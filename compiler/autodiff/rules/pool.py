"""Derivatives of pooling: each window's gradient goes to its first greatest element, or to all of its elements.

What windows see at one place of the kernel is a strided slice of the operand, so that gradients are slices put back:
nothing is scattered, and every engine that pools computes them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from kernels_hub.compiler.autodiff.rule import Derivative, Gradients, Site, apart, zeros
from kernels_hub.compiler.ir.dims import Dim
from kernels_hub.compiler.ir.extrema import dim_max
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.op import Shape
from kernels_hub.compiler.ir.proofs import proves_le


def _max_pool(site: Site) -> Gradients:
    """The greatest of a window is found again, and each place of the kernel takes the gradients that are its own."""
    x, g, attrs = site.x, site.gradient, site.attrs
    margins = _margins(attrs, x.shape[2:], g.shape[2:])
    padded = x.pad([(0, 0), (0, 0), *margins], -float("inf"))
    taps = list(itertools.product(*map(range, attrs["kernel"])))
    seen = [_seen(padded, tap, attrs, g.shape[2:]).unsqueeze(g.rank) for tap in taps]
    first = x.apply("concat", *seen, axis=g.rank).along("argmax", g.rank)
    total: Value | None = None
    for number, tap in enumerate(taps):
        mine = _put_back(first.eq(number).select(g, zeros(site.graph, g)), tap, attrs, padded.shape[2:])
        total = mine if total is None else total + mine
    assert total is not None
    return [_inside(total, margins, x.shape)]


def _sum_pool(site: Site) -> Gradients:
    return [_spread_over(site, site.gradient)]


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
    return [_spread_over(site, (site.gradient.cast(wide) / counts).cast(x.dtype))]


def _spread_over(site: Site, g: Value) -> Value:
    """Each window's number added to all elements that it sees: the sum over windows that see an element.

    That is a pool of step 1 over the numbers, as far apart as windows are.
    """
    x, attrs = site.x, site.attrs
    margins = _margins(attrs, x.shape[2:], g.shape[2:])
    padding: list[tuple[Dim, Dim]] = [(0, 0), (0, 0)]
    for axis, (size, stride, dilation, (low, high)) in enumerate(
        zip(attrs["kernel"], attrs["strides"], attrs["dilations"], margins, strict=True), 2
    ):
        g = apart(g, axis, stride)
        reach = dilation * (size - 1)
        padding.append((reach, low + x.shape[axis] + high - g.shape[axis]))
    plain = {"strides": [1] * len(margins), "padding": [(0, 0)] * len(margins)}
    kernel = {"kernel": attrs["kernel"], "dilations": attrs["dilations"]}
    return _inside(site.graph.apply("sum_pool", g.pad(padding), **plain, **kernel), margins, x.shape)


def _margins(attrs: Mapping[str, Any], dims: Sequence[Dim], counts: Sequence[Dim]) -> list[tuple[Dim, Dim]]:
    """What windows reach before and behind each spatial dim."""
    margins: list[tuple[Dim, Dim]] = []
    for dim, count, size, stride, dilation, (low, _) in zip(
        dims, counts, attrs["kernel"], attrs["strides"], attrs["dilations"], attrs["padding"], strict=True
    ):
        behind = (count - 1) * stride + dilation * (size - 1) + 1 - low - dim
        margins.append((low, behind if proves_le(0, behind) else dim_max(behind, 0)))
    return margins


def _seen(padded: Value, tap: Sequence[int], attrs: Mapping[str, Any], counts: Sequence[Dim]) -> Value:
    """What all windows see at one place of the kernel."""
    for axis, (place, count) in enumerate(zip(tap, counts, strict=True), 2):
        step, first = attrs["strides"][axis - 2], place * attrs["dilations"][axis - 2]
        padded = padded.slice(axis, first, first + (count - 1) * step + 1, step)
    return padded


def _put_back(g: Value, tap: Sequence[int], attrs: Mapping[str, Any], dims: Sequence[Dim]) -> Value:
    """The same the other way: zeros but for what windows see there."""
    padding: list[tuple[Dim, Dim]] = [(0, 0), (0, 0)]
    for axis, (place, dim) in enumerate(zip(tap, dims, strict=True), 2):
        g = apart(g, axis, attrs["strides"][axis - 2])
        first = place * attrs["dilations"][axis - 2]
        padding.append((first, dim - first - g.shape[axis]))
    return g.pad(padding)


def _inside(value: Value, margins: Sequence[tuple[Dim, Dim]], shape: Shape) -> Value:
    """Without the margins."""
    for axis, (low, _) in enumerate(margins, 2):
        value = value.slice(axis, low, low + shape[axis])
    return value


ROWS: Sequence[Derivative] = (
    Derivative("max_pool", _max_pool, "g, added at each window's first greatest element"),
    Derivative("sum_pool", _sum_pool, "g, added to all that a window sees"),
    Derivative(
        "avg_pool", _avg_pool, "g over the number of elements counted, added to all that a window sees"
    ),
)
