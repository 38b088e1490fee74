"""Regions of images, each brought to one size. As many samples a bin as its size in pixels, which only the data tell.

A bin is looked at on an even grid of ceil(its height) x ceil(its width) points, interpolated bilinearly between pixels;
points more than a pixel outside of the image count as 0. Where how many samples is a number, pointwise ops and a gather
do the same.
"""

from __future__ import annotations

import math

import numpy as np

from kernels_hub.compiler.errors import EvaluateError, TypeRuleError
from kernels_hub.compiler.ir.op import (
    FLOAT,
    INT,
    Attr,
    Attrs,
    Op,
    Operands,
    ReferenceCall,
    Shape,
    Trait,
    one_of,
    require_equal,
    require_integer,
    require_rank,
    show,
)  # fmt: skip
from kernels_hub.compiler.ir.ops.conversion import widened
from kernels_hub.compiler.ir.types import Array, DType


def _dtype(operands: Operands, _: Attrs) -> DType:
    x, regions, images = operands
    if not x.dtype.is_float or regions.dtype is not x.dtype:
        raise TypeRuleError(f"images and regions are floats of one dtype, not {x.dtype} and {regions.dtype}")
    require_integer(images, "places of images (operand 2)")
    return x.dtype


def _aligned(operands: Operands, attrs: Attrs) -> Shape:
    x, regions, images = operands
    for index, (operand, rank) in enumerate(zip(operands, (4, 2, 1), strict=True)):
        require_rank(operand, rank, f"operand {index}")
    require_equal(
        regions.shape[1], 4, f"dim 1 of the regions {show(regions.shape)}", "the corners of a region"
    )
    require_equal(regions.shape[0], images.shape[0], "the number of regions", "that of places of images")
    for name in ("height", "width"):
        if attrs[name] < 1:
            raise TypeRuleError(f"{name} is {attrs[name]}")
    return (regions.shape[0], x.shape[1], attrs["height"], attrs["width"])


def _run_aligned(step: ReferenceCall) -> Array:
    x, regions = widened(step.operands[0]), widened(step.operands[1])
    images, attrs = step.operands[2].astype(np.int64), step.attrs
    if images.size and not (images.min() >= 0 and images.max() < len(x)):
        raise EvaluateError(f"a region is of image {images.min()} to {images.max()} of {len(x)}")
    if not np.isfinite(regions).all():
        raise EvaluateError("a corner of a region is not finite")
    result = np.zeros(step.shape, np.float64)
    least = x.dtype.type(0 if attrs["offset"] else 1)
    for index, (region, image) in enumerate(zip(regions, images, strict=True)):
        left, top, right, bottom = region * x.dtype.type(attrs["scale"]) - x.dtype.type(attrs["offset"])
        high, wide = bottom - top, right - left
        if not attrs["offset"]:
            high, wide = max(high, least), max(wide, least)
        ys = _points(top, high, attrs["height"])
        zs = _points(left, wide, attrs["width"])
        if ys.shape[1] and zs.shape[1]:
            result[index] = _bins(x[image].astype(np.float64), ys, zs, greatest=attrs["mode"] == "max")
    return result.astype(step.dtype)


def _points(start: Array, length: Array, bins: int) -> Array:
    """(bins, samples): none where a region is of no extent."""
    each = length / start.dtype.type(bins)
    samples = max(math.ceil(each), 0)
    steps = np.arange(bins)[:, None] + (np.arange(samples) + 0.5) / max(samples, 1)
    points: Array = np.float64(start) + steps * np.float64(each)
    return points


def _bins(image: Array, ys: Array, zs: Array, *, greatest: bool) -> Array:
    """(C, bins, bins) of an image (C, H, W): the mean of the samples, or of all that is weighed the greatest."""
    shape = (len(image), *ys.shape, *zs.shape)
    parts = [
        image[:, rows[:, None], columns] * (down[:, None] * across)
        for rows, down in _taps(ys.reshape(-1), image.shape[1])
        for columns, across in _taps(zs.reshape(-1), image.shape[2])
    ]
    combined: Array = np.max(parts, 0) if greatest else np.sum(parts, 0)
    combined = combined.reshape(shape)
    bins: Array = combined.max((2, 4)) if greatest else combined.mean((2, 4))
    return bins


def _taps(points: Array, size: int) -> list[tuple[Array, Array]]:
    """The pixels before and behind each point, and their weights."""
    inside = (points >= -1.0) & (points <= size)
    points = points.clip(0, size - 1)
    low = np.floor(points).astype(np.int64)
    behind = points - low
    return [(low, (1 - behind) * inside), (np.minimum(low + 1, size - 1), behind * inside)]


ROWS = (
    Op("roi_align", "Regions (x1, y1, x2, y2) of images x[b, c, y, x], the b of each as operand 2, at one size: "
       "corners times `scale` minus `offset`, sampled as densely as pixels lie.", 3, _run_aligned, _dtype, _aligned,
       attrs=(
           Attr("height", INT), Attr("width", INT), Attr("scale", FLOAT, 1.0),
           Attr("offset", FLOAT, 0.5, "0.5: pixels are squares; 0.0: regions are at least 1 in extent, too"),
           Attr("mode", one_of("avg", "max"), "avg"),
       ), traits=Trait.INDEXING, source="arXiv 1703.06870; ONNX RoiAlign; torchvision.ops.roi_align"),
)  # fmt: skip
