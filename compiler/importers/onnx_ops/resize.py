# ruff: noqa: D103 (what an importer does is what ONNX says of its op)
"""Resize, Upsample, GridSample, AffineGrid."""

from __future__ import annotations

import math
from typing import Any

from kernels_hub.compiler.importers.onnx_node import OnnxNode, onnx_op
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.dims import Dim, Expr, product
from kernels_hub.compiler.ir.graph import Value

_COORDINATES = {"tf_crop_and_resize": "crop"}


def scaled_size(dim: Dim, scale: float) -> Dim:
    """floor(dim * scale), also of symbolic dims where the scale is a ratio of small numbers."""
    if isinstance(dim, int):
        return math.floor(dim * scale)
    above, below = float(scale).as_integer_ratio()
    return dim * above // below


@onnx_op("Upsample", since=1)
def upsample(node: OnnxNode) -> Value:
    x = node.input(0)
    scales = node.attr("scales") or _floats(node, 1)
    shape = [scaled_size(dim, scale) for dim, scale in zip(x.shape, scales, strict=True)]
    mode = node.attr("mode", "nearest")
    return node.graph.apply(
        "resize", x, shape=shape, scales=scales, mode="linear" if "linear" in mode else "nearest",
        coordinates="asymmetric", nearest="floor",
    )  # fmt: skip


def _floats(node: OnnxNode, index: int) -> list[float]:
    value = node.optional(index)
    if value is None or value.shape == (0,):
        return []
    return [float(one) for one in node.known(value, "the scales").reshape(-1)]


@onnx_op("Resize", since=10)
def resize_10(node: OnnxNode) -> Value:
    x, scales = node.input(0), _floats(node, 1)
    shape = [scaled_size(dim, scale) for dim, scale in zip(x.shape, scales, strict=True)]
    return node.graph.apply(
        "resize", x, shape=shape, scales=scales, mode=node.attr("mode", "nearest"), coordinates="asymmetric",
        nearest="floor",
    )  # fmt: skip


@onnx_op("Resize", since=11)
def resize(node: OnnxNode) -> Value:
    x = node.input(0)
    axes = [x.axis(axis) for axis in node.attr("axes", range(x.rank))]
    scales = _floats(node, 2)
    sizes = None if scales or node.optional(3) is None else node.dims(3, "the sizes")
    shape, every = list(x.shape), [1.0] * x.rank
    if sizes is not None:
        sizes = _kept_ratio(node, [x.shape[axis] for axis in axes], sizes)
        for axis, size in zip(axes, sizes[0], strict=True):
            shape[axis] = size
        if sizes[1] is not None:
            for axis in axes:
                every[axis] = sizes[1]
        elif all(isinstance(dim, int) for dim in (*shape, *x.shape)):
            every = [new / old if old else 1.0 for new, old in zip(shape, x.shape, strict=True)]
        else:
            every = []
    elif scales:
        for axis, scale in zip(axes, scales, strict=True):
            shape[axis], every[axis] = scaled_size(x.shape[axis], scale), scale
    else:
        raise node.refuse("neither scales nor sizes are given")
    coordinates = node.attr("coordinate_transformation_mode", "half_pixel")
    attributes: dict[str, Any] = {}
    if coordinates == "tf_crop_and_resize":
        roi, given = [0.0] * x.rank + [1.0] * x.rank, _floats(node, 1)
        for index, axis in enumerate(axes):
            roi[axis], roi[axis + x.rank] = given[index], given[index + len(axes)]
        attributes["roi"] = roi
    return node.graph.apply(
        "resize", x, shape=shape, scales=every, mode=node.attr("mode", "nearest"),
        coordinates=_COORDINATES.get(coordinates, coordinates),
        nearest=node.attr("nearest_mode", "round_prefer_floor"), cubic_a=node.attr("cubic_coeff_a", -0.75),
        antialias=bool(node.attr("antialias", 0)), exclude_outside=bool(node.attr("exclude_outside", 0)),
        extrapolation=node.attr("extrapolation_value", 0.0), **attributes,
    )  # fmt: skip


def _kept_ratio(node: OnnxNode, old: list[Dim], new: Any) -> tuple[list[Dim], float | None]:
    """Sizes by keep_aspect_ratio_policy, and the scale where that gives one."""
    policy = node.attr("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return list(new), None
    if any(isinstance(dim, Expr) for dim in (*old, *new)):
        raise node.refuse(
            f"keep_aspect_ratio_policy {policy} needs numbers, not {old} to {list(new)}: bind the dims"
        )
    ratios = [b / a for a, b in zip(old, new, strict=True)]
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    return [math.floor(scale * dim + 0.5) for dim in old], scale


@onnx_op("GridSample", since=16)
def grid_sample(node: OnnxNode) -> Value:
    """x (N, C, …spatial) sampled at grid (N, …result, one coordinate a spatial dim, the last dim first)."""
    x, grid = node.input(0), node.input(1)
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(
        node.attr("mode", "linear"), node.attr("mode", "linear")
    )
    padding, aligned = node.attr("padding_mode", "zeros"), bool(node.attr("align_corners", 0))
    rank = x.rank - 2
    for dim in x.shape[2:]:
        if isinstance(dim, Expr):
            raise node.refuse(f"spatial dims of {x.type} must be numbers: bind them")
    sizes: list[int] = list(x.shape[2:])
    out = grid.shape[1:-1]
    points = grid.reshape((grid.shape[0], -1, rank))
    places = []
    for axis in range(rank):
        at = points.slice(2, rank - 1 - axis, rank - axis).squeeze(2)
        size = float(sizes[axis])
        at = (at + 1.0) * ((size - 1.0) / 2) if aligned else ((at + 1.0) * size - 1.0) / 2.0
        places.append(at)
    flat = x.reshape((*x.shape[:2], -1))
    if mode == "nearest":
        taps: list[list[_Tap]] = [[(at.unary("round"), None)] for at in places]
    else:
        taps = [_taps(at, cubic=mode == "cubic") for at in places]
    result = _weighted(flat, taps, sizes, padding, aligned=aligned)
    return result.reshape((*x.shape[:2], *out))


_Tap = tuple[Value, Value | None]


def _taps(at: Value, *, cubic: bool) -> list[_Tap]:
    """(place, weight) of the 2 or 4 elements between which a place lies."""
    base = at.unary("floor")
    share = at - base
    if not cubic:
        return [(base, 1.0 - share), (base + 1.0, share)]
    return [(base + float(step), _keys((share - float(step)).unary("abs"))) for step in (-1, 0, 1, 2)]


def _keys(t: Value, a: float = -0.75) -> Value:
    near = ((t * (a + 2) - (a + 3)) * t) * t + 1.0
    far = ((t * a - 5 * a) * t + 8 * a) * t - 4 * a
    return (t <= 1.0).select(near, far)


def _weighted(flat: Value, taps: list[list[_Tap]], sizes: list[int], padding: str, *, aligned: bool) -> Value:
    """The sum over all combinations of taps, one a spatial dim, of elements times their weights."""
    partial: list[tuple[Value | None, Value | None, Value | None]] = [(None, None, None)]
    for axis, choices in enumerate(taps):
        stride = float(math.prod(sizes[axis + 1 :]))
        extended: list[tuple[Value | None, Value | None, Value | None]] = []
        for place, weight, inside in partial:
            for at, share in choices:
                real, within = _inside(at, sizes[axis], padding, aligned=aligned)
                step = real * stride
                extended.append((
                    step if place is None else place + step,
                    share if weight is None else weight if share is None else weight * share,
                    within if inside is None else inside if within is None else inside & within,
                ))  # fmt: skip
        partial = extended
    total: Value | None = None
    for place, weight, inside in partial:
        assert place is not None
        at = place.cast(types.INT64).unsqueeze(1)
        seen = flat.gather_elements(at.broadcast_to((*flat.shape[:2], at.shape[-1])), 2)
        seen = seen if weight is None else seen * weight.cast(flat.dtype).unsqueeze(1)
        seen = seen if inside is None else inside.unsqueeze(1).select(seen, 0)
        total = seen if total is None else total + seen
    assert total is not None
    return total


def _inside(at: Value, size: int, padding: str, *, aligned: bool) -> tuple[Value, Value | None]:
    """A place that there is for each whole place, and whether it was one (None: always)."""
    last = float(size - 1)
    if padding == "zeros":
        return at.clamp(0.0, last), (at >= 0.0) & (at <= last)
    if padding == "border":
        return at.clamp(0.0, last), None
    low, high = (0.0, last) if aligned else (-0.5, size - 0.5)
    span = high - low
    if span == 0.0:
        return at.clamp(0.0, 0.0), None
    folded = (at - low).binary("mod", 2 * span)
    mirrored = (folded > span).select(2 * span - folded, folded) + low
    return mirrored.unary("round").clamp(0.0, last), None


@onnx_op("AffineGrid", since=20)
def affine_grid(node: OnnxNode) -> Value:
    """Places for GridSample: theta (N, d, d + 1) applied to the centres (or corners) of a d-dimensional image.

    Its function body in ONNX squeezes every dim of 1 out of theta, and so does not take a batch of 1.
    """
    theta = node.input(0)
    spatial = node.dims(1, "the size")[2:]
    rank, graph = len(spatial), node.graph
    columns = []
    for axis in reversed(range(rank)):
        size = graph.size(spatial[axis]).cast(theta.dtype)
        at = graph.iota(spatial[axis], theta.dtype)
        if node.attr("align_corners", 0):
            at = at * (2.0 / (size - 1.0).maximum(1.0)) - 1.0
        else:
            at = (at * 2.0 + 1.0) / size - 1.0
        columns.append(at.broadcast((*spatial, 1), (axis,)))
    columns.append(graph.full((*spatial, 1), 1.0, theta.dtype))
    places = graph.apply("concat", *columns, axis=rank).reshape((product(spatial), rank + 1))
    grid = places.matmul(theta.transpose())
    return grid.reshape((theta.shape[0], *spatial, rank))
