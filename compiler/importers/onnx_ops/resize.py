# ruff: noqa: D103 (what an importer does is what ONNX says of its op)
"""Resize, Upsample, GridSample, AffineGrid."""

from __future__ import annotations

import math
from typing import Any

from kernels_hub.compiler.importers.grid_sampling import sampled
from kernels_hub.compiler.importers.onnx_node import OnnxNode, onnx_op
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
    for dim in x.shape[2:]:
        if isinstance(dim, Expr):
            raise node.refuse(f"spatial dims of {x.type} must be numbers: bind them")
    return sampled(x, grid, mode, padding, aligned=aligned)


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
