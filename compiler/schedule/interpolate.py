"""Resizing by interpolation as gathers: along each axis a weighted sum of what lies at its taps.

Where sizes are fixed, the tables of taps and weights are constants (of the op's reference); else they are computed,
in float64 as there, once a call: an axis has as many as it has results, which is little beside what they are for.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence

import numpy as np

from kernels_hub.compiler.ir.graph import Graph, Node, Value
from kernels_hub.compiler.ir.ops.resize import nearest_taps, weighted_taps
from kernels_hub.compiler.ir.proofs import proves_equal
from kernels_hub.compiler.ir.types import FLOAT64, INT64, Array

MOST_TAPS = 8
"""Filters that are wider, as antialiasing has them that shrinks, are left to others."""

_COMPUTED = frozenset({"half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"})

Taps = Sequence[tuple[Value, Value | None]]
"""(where each result of an axis finds an element, that element's weight), one for each tap."""


def is_interpolated(node: Node) -> bool:
    """Whether a resize can be written so."""
    attrs = node.attrs
    if attrs["coordinates"] == "crop" or not (node.operands[0].dtype.is_float or attrs["mode"] == "nearest"):
        return False
    for axis in _resized(node):
        size, count = node.operands[0].shape[axis], node.results[0].shape[axis]
        if isinstance(size, int) and isinstance(count, int):
            if size == 0 or count == 0 or len(_tables(node, axis)) > MOST_TAPS:
                return False
        elif attrs["antialias"] or attrs["coordinates"] not in _COMPUTED:
            return False
    return True


def interpolated(node: Node, x: Value) -> Value:
    """The result of a resize of which `is_interpolated` holds."""
    wide = x if node.attrs["mode"] == "nearest" else x.cast(x.dtype.compute)
    for axis in _resized(node):
        total: Value | None = None
        for place, weight in _taps(node, axis, wide):
            one = wide.graph.apply("gather", wide, place, axis=axis)
            if weight is not None:
                one = one * weight.cast(one.dtype).broadcast(one.shape, (axis,))
            total = one if total is None else total + one
        assert total is not None
        wide = total
    return wide.cast(x.dtype)


def _resized(node: Node) -> list[int]:
    """The axes along which anything happens."""
    shapes = zip(node.operands[0].shape, node.results[0].shape, strict=True)
    scales = node.attrs["scales"]
    return [
        axis
        for axis, (size, count) in enumerate(shapes)
        if not proves_equal(size, count) or (scales and scales[axis] != 1.0)
    ]


def _tables(node: Node, axis: int) -> list[tuple[Array, Array | None]]:
    size, count = node.operands[0].shape[axis], node.results[0].shape[axis]
    assert isinstance(size, int)
    assert isinstance(count, int)
    scale = node.attrs["scales"][axis] if node.attrs["scales"] else count / size
    if node.attrs["mode"] == "nearest":
        return [(nearest_taps(size, count, scale, node.attrs), None)]
    places, weights = weighted_taps(size, count, scale, node.attrs)
    return [*zip(places.T, weights.T, strict=True)]


def _taps(node: Node, axis: int, x: Value) -> Taps:
    graph = x.graph
    size, count = node.operands[0].shape[axis], node.results[0].shape[axis]
    if isinstance(size, int) and isinstance(count, int):
        return [
            (graph.constant(place), None if weight is None else graph.constant(weight.astype(np.float32)))
            for place, weight in _tables(node, axis)
        ]
    at, last = _places(node, axis, graph), graph.size(size - 1, FLOAT64)
    if node.attrs["mode"] == "nearest":
        half = graph.constant(0.5, FLOAT64)
        rounding = node.attrs["nearest"]
        if rounding.startswith("round"):
            at = _minus(at, half) if rounding == "round_prefer_floor" else _plus(at, half)
        down = rounding in {"floor", "round_prefer_ceil"}
        return [(_inside(at.unary("floor" if down else "ceil"), last), None)]
    low = at.unary("floor")
    share = at - low
    rest = _minus(share, graph.constant(1.0, FLOAT64)).unary("neg")
    if node.attrs["mode"] == "linear":
        steps: tuple[int, ...] = (0, 1)
        weights = [rest, share]
    else:
        one, a = graph.constant(1.0, FLOAT64), node.attrs["cubic_a"]
        near, far = (a + 2, -(a + 3), 0.0, 1.0), (a, -5 * a, 8 * a, -4 * a)
        distances = ((far, _plus(share, one)), (near, share), (near, rest), (far, _plus(rest, one)))
        steps, weights = (-1, 0, 1, 2), [_polynomial(*distance) for distance in distances]
    places = [_plus(low, graph.constant(float(step), FLOAT64)) for step in steps]
    if node.attrs["exclude_outside"]:
        zero = graph.constant(0.0, FLOAT64)
        weights = [
            ((place >= _spread_like(zero, place)) & (place <= _spread_like(last, place))).select(
                weight, _spread_like(zero, weight)
            )
            for place, weight in zip(places, weights, strict=True)
        ]
        total = functools.reduce(operator.add, weights)
        weights = [weight / total for weight in weights]
    return [(_inside(place, last), weight) for place, weight in zip(places, weights, strict=True)]


def _polynomial(coefficients: Sequence[float], t: Value) -> Value:
    total = _spread_like(t.graph.constant(coefficients[0], FLOAT64), t)
    for coefficient in coefficients[1:]:
        total = _plus(total * t, t.graph.constant(coefficient, FLOAT64))
    return total


def _places(node: Node, axis: int, graph: Graph) -> Value:
    """Where along an axis each result is taken, as the module of the op says."""
    size, count = node.operands[0].shape[axis], node.results[0].shape[axis]
    result = graph.iota(count, FLOAT64)
    given = node.attrs["scales"][axis] if node.attrs["scales"] else None
    length = graph.size(size, FLOAT64)
    if given is not None:
        scale = graph.constant(given, FLOAT64)
        length = scale * length
    else:
        scale = graph.size(count, FLOAT64) / length
        length = graph.size(count, FLOAT64)
    mode = node.attrs["coordinates"]
    one, half, zero = (graph.constant(number, FLOAT64) for number in (1.0, 0.5, 0.0))
    if mode == "asymmetric":
        return result / _spread_like(scale, result)
    if mode == "align_corners":
        step = graph.size(size - 1, FLOAT64) / length.eq(one).select(one, length - one)
        return result * _spread_like(length.eq(one).select(zero, step), result)
    at = _minus(_plus(result, half) / _spread_like(scale, result), half)
    if mode == "pytorch_half_pixel":
        return _spread_like(length.eq(one), at).select(_spread_like(zero, at), at)
    return at


def _spread_like(scalar: Value, like: Value) -> Value:
    return scalar.broadcast(like.shape, ())


def _plus(x: Value, scalar: Value) -> Value:
    return x + _spread_like(scalar, x)


def _minus(x: Value, scalar: Value) -> Value:
    return x - _spread_like(scalar, x)


def _inside(place: Value, last: Value) -> Value:
    """A place as an index: that of the edge where it lies outside."""
    zero = place.graph.constant(0.0, FLOAT64)
    return place.maximum(_spread_like(zero, place)).minimum(_spread_like(last, place)).cast(INT64)
