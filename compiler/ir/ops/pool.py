"""Pooling: a reduction of each window over the spatial dims of (N, C, …).

Windows start at multiples of the stride from -before of the padding. With `ceil`, windows that only partly
fit behind the end count too, unless they would start there (PyTorch's and ONNX's rule); what they miss is
neither a zero nor counted. L2 pooling is the square root of `sum_pool` of squares; global pooling a reduction.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from kernels_hub.compiler.errors import ShapeError
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.dims import Dim, ceildiv
from kernels_hub.compiler.ir.extrema import dim_min
from kernels_hub.compiler.ir.flops import pool_flops
from kernels_hub.compiler.ir.op import (
    BOOL,
    INTS,
    PAIRS,
    Attr,
    Attrs,
    Op,
    Operands,
    ReferenceCall,
    Shape,
    gives,
    one_of,
    same,
    show,
)  # fmt: skip
from kernels_hub.compiler.ir.ops.contract import spatial_attrs
from kernels_hub.compiler.ir.ops.conversion import accumulator, widened
from kernels_hub.compiler.ir.types import NUMBERS, REALS, Array


def _pooled(operands: Operands, attrs: Attrs) -> Shape:
    (x,), kernel = operands, attrs["kernel"]
    if x.rank < 3 or len(kernel) != x.rank - 2:
        raise ShapeError(
            f"takes (batch, channels, spatial dims…) with a kernel {kernel} over these, got {show(x.shape)}"
        )
    if min(kernel) < 1:
        raise ShapeError(f"the kernel {kernel} is empty")
    spatial: list[Dim] = []
    for axis, (stride, dilation, (low, high)) in enumerate(spatial_attrs(attrs, x.rank - 2), 2):
        free = x.shape[axis] + low + high - dilation * (kernel[axis - 2] - 1) - 1
        count = free // stride + 1
        if attrs["ceil"]:
            count = dim_min(ceildiv(free, stride) + 1, ceildiv(x.shape[axis] + low, stride))
        if isinstance(count, int) and count < 0:
            raise ShapeError(f"dim {axis} of {show(x.shape)}, padded, is smaller than the kernel {kernel}")
        spatial.append(count)
    return (*x.shape[:2], *spatial)


class _Windows:
    """The places of an array that each tap of the kernel sees, one array of the result's shape a tap."""

    def __init__(self, step: ReferenceCall, spatial: tuple[int, ...]) -> None:
        self.attrs, self.counts, self.spatial = step.attrs, step.shape[2:], spatial
        before = [low for low, _ in self.attrs["padding"]]
        reach = [
            (count - 1) * stride + dilation * (kernel - 1) + 1 - low - size
            for count, stride, dilation, kernel, low, size in zip(
                self.counts, self.attrs["strides"], self.attrs["dilations"], self.attrs["kernel"], before, spatial,
                strict=True,
            )
        ]  # fmt: skip
        self.margins = [(low, max(0, behind)) for low, behind in zip(before, reach, strict=True)]

    def pad(self, array: Array, value: Any) -> Array:
        """The array with a value wherever a window looks outside."""
        return np.pad(
            array, [(0, 0)] * (array.ndim - len(self.margins)) + self.margins, constant_values=value
        )

    def taps(self, padded: Array) -> Iterator[Array]:
        """What each place of the kernel sees of a padded array."""
        steps = list(zip(self.attrs["dilations"], self.attrs["strides"], self.counts, strict=True))
        for tap in itertools.product(*map(range, self.attrs["kernel"])):
            seen = [
                slice(place * dilation, place * dilation + stride * (count - 1) + 1, stride)
                if count
                else slice(0)
                for place, (dilation, stride, count) in zip(tap, steps, strict=True)
            ]
            yield padded[(..., *seen)]


def _max_pool(step: ReferenceCall) -> Array:
    x = widened(step.operands[0])
    row = types.dtype(x.dtype)
    windows = _Windows(step, x.shape[2:])
    lowest = -np.inf if row.is_float else row.limits[0]
    result = np.full(step.shape, lowest, x.dtype)
    for seen in windows.taps(windows.pad(x, lowest)):
        result = np.maximum(result, seen)
    return result.astype(step.dtype)


def _argmax_pool(step: ReferenceCall) -> Array:
    x = widened(step.operands[0])
    windows = _Windows(step, x.shape[2:])
    inside = windows.pad(np.ones(x.shape[2:], bool), False)
    places = windows.pad(np.arange(inside.size and int(np.prod(x.shape[2:]))).reshape(x.shape[2:]), -1)
    best, result = np.zeros(step.shape, x.dtype), np.full(step.shape, -1, np.int64)
    for seen, counts, tap in zip(
        windows.taps(windows.pad(x, 0)), windows.taps(inside), windows.taps(places), strict=True
    ):
        better = (result < 0) | (seen > best) | (_isnan(seen) & ~_isnan(best))
        taken = better & counts
        best, result = np.where(taken, seen, best), np.where(taken, tap, result)
    return result


def _isnan(x: Array) -> Any:
    return np.isnan(x) if x.dtype.kind == "f" else np.zeros(x.shape, bool)


def _sum_pool(step: ReferenceCall) -> Array:
    return _sum(step)[0].astype(step.dtype)


def _sum(step: ReferenceCall) -> tuple[Array, _Windows]:
    x = accumulator(step.operands[0])
    windows = _Windows(step, x.shape[2:])
    total = np.zeros(step.shape, x.dtype)
    for seen in windows.taps(windows.pad(x, 0)):
        total = total + seen
    return total, windows


def _avg_pool(step: ReferenceCall) -> Array:
    total, windows = _sum(step)
    spatial = step.operands[0].shape[2:]
    counted = windows.pad(np.ones(spatial), 0)
    if step.attrs["count"] == "padded":
        extent = [
            slice(0, low + size + high)
            for (low, high), size in zip(step.attrs["padding"], spatial, strict=True)
        ]
        counted[tuple(extent)] = 1
    count = sum(windows.taps(counted), start=np.zeros(step.shape[2:]))
    return np.asarray(total / count).astype(step.dtype)


_ATTRS = (
    Attr("kernel", INTS),
    Attr("strides", INTS),
    Attr("dilations", INTS),
    Attr("padding", PAIRS),
    Attr("ceil", BOOL, False),
)
_COUNT = Attr(
    "count", one_of("inside", "padded"), "inside", "whether elements of the padding count in the mean"
)

ROWS = (
    Op("max_pool", "The greatest of each window; NaN if one is.", 1, _max_pool, same(*REALS), _pooled, attrs=_ATTRS,
       flops=pool_flops, source="torch.nn.functional.max_pool*d; ONNX MaxPool"),
    Op("argmax_pool", "Its place, row-major in the unpadded spatial dims; the first of equals.", 1, _argmax_pool,
       gives(types.INT64, *REALS), _pooled, attrs=_ATTRS, flops=pool_flops,
       source="torch.nn.functional.max_pool*d"),
    Op("sum_pool", "The sum of each window.", 1, _sum_pool, same(*NUMBERS), _pooled, attrs=_ATTRS,
       flops=pool_flops, source="torch.nn.functional.lp_pool*d; ONNX LpPool"),
    Op("avg_pool", "The mean of each window.", 1, _avg_pool, same("float"), _pooled, attrs=(*_ATTRS, _COUNT),
       flops=pool_flops, source="torch.nn.functional.avg_pool*d; ONNX AveragePool"),
)  # fmt: skip
