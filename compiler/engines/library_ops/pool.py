"""Pooling: PyTorch's own where padding is symmetric and no window is cut off; else a sum or maximum over the
kernel's places, each a strided slice of the padded operand.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels_hub.compiler.engines.library_ops.site import (
    COMPLEX,
    FLOATS,
    INTS,
    NATIVE_FLOATS,
    REALS,
    LibraryKernel,
    Run,
    Site,
    narrowed,
    widened,
)


class _Windows:
    """What each place of the kernel sees of an operand, padded so that no window looks outside."""

    def __init__(self, site: Site) -> None:
        self.kernel, self.strides, self.dilations = site["kernel"], site["strides"], site["dilations"]
        self.padding, self.counts = site["padding"], site.shape[2:]
        self.spatial = site.operand_shape(0)[2:]
        behind = [
            max(0, (count - 1) * stride + dilation * (kernel - 1) + 1 - low - size)
            for count, stride, dilation, kernel, (low, _), size in zip(
                self.counts,
                self.strides,
                self.dilations,
                self.kernel,
                self.padding,
                self.spatial,
                strict=True,
            )
        ]
        margins = [(low, high) for (low, _), high in zip(self.padding, behind, strict=True)]
        self.around = [one for pair in reversed(margins) for one in pair]
        self.margins = margins

    @property
    def native(self) -> bool:
        """Whether PyTorch's pools see the same windows."""
        return (
            len(self.kernel) <= 3
            and 0 not in self.counts
            and 0 not in self.spatial
            and all(
                low == high <= kernel // 2
                for (low, high), kernel in zip(self.padding, self.kernel, strict=True)
            )
            and self.counts
            == tuple(
                (size + low + high - dilation * (kernel - 1) - 1) // stride + 1
                for size, (low, high), dilation, kernel, stride in zip(
                    self.spatial, self.padding, self.dilations, self.kernel, self.strides, strict=True
                )
            )
        )

    def pad(self, x: Tensor, value: Any) -> Tensor:
        """The operand with a value wherever a window looks outside."""
        return F.pad(x, self.around, value=value) if any(self.around) else x

    def taps(self, padded: Tensor) -> Iterator[Tensor]:
        """One slice a place of the kernel."""
        for tap in itertools.product(*map(range, self.kernel)):
            seen = [
                slice(place * dilation, place * dilation + stride * (count - 1) + 1, stride)
                if count
                else slice(0)
                for place, dilation, stride, count in zip(
                    tap, self.dilations, self.strides, self.counts, strict=True
                )
            ]
            yield padded[(..., *seen)]


def _make_max_pool(site: Site) -> Run:
    windows, shape = _Windows(site), site.shape
    row = site.row
    if windows.native and row.name in NATIVE_FLOATS and 0 not in shape:
        function = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[len(windows.kernel) - 1]
        both = tuple(low for low, _ in windows.padding)
        return lambda x: function(x, windows.kernel, windows.strides, both, windows.dilations)
    lowest = -math.inf if row.is_float else row.limits[0]

    def run(x: Tensor) -> Tensor:
        result = torch.full(shape, lowest, dtype=x.dtype, device=x.device)
        for seen in windows.taps(windows.pad(x, lowest)):
            result = torch.maximum(result, seen)
        return result

    return widened(site, run)


def _make_argmax_pool(site: Site) -> Run:
    windows, shape = _Windows(site), site.shape
    inside = windows.pad(torch.ones(windows.spatial, device=site.device), 0.0).bool()
    count = math.prod(windows.spatial)
    places = windows.pad(torch.arange(count, device=site.device).reshape(windows.spatial), -1)

    def run(x: Tensor) -> Tensor:
        best = torch.zeros(shape, dtype=x.dtype, device=x.device)
        result = torch.full(shape, -1, dtype=torch.int64, device=x.device)
        for seen, counts, tap in zip(
            windows.taps(windows.pad(x, 0)), windows.taps(inside), windows.taps(places), strict=True
        ):
            taken = counts & ((result < 0) | (seen > best) | (torch.isnan(seen) & ~torch.isnan(best)))
            best, result = torch.where(taken, seen, best), torch.where(taken, tap, result)
        return result

    return widened(site, run)


def _sums(site: Site, windows: _Windows) -> Run:
    """Sums of windows, in float32 or int64 at least."""
    shape, row = site.shape, site.row
    wide = torch.int64 if row.is_integer else torch.float32 if row.is_float and row.bits < 32 else site.dtype

    def run(x: Tensor) -> Tensor:
        total = torch.zeros(shape, dtype=wide, device=x.device)
        for seen in windows.taps(windows.pad(x.to(wide), 0)):
            total = total + seen
        return total

    return run


def _make_sum_pool(site: Site) -> Run:
    sums, finish = _sums(site, _Windows(site)), narrowed(site.row)
    return lambda x: finish(sums(x))


def _make_avg_pool(site: Site) -> Run:
    windows, shape = _Windows(site), site.shape
    padded = site["count"] == "padded"
    plain = all(dilation == 1 for dilation in windows.dilations)
    whole = site.row.bits >= 32 or len(windows.kernel) < 3  # avg_pool3d is for float32 and wider
    if windows.native and plain and whole and site.row.name in NATIVE_FLOATS and 0 not in shape:
        function: Any = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[len(windows.kernel) - 1]
        both = tuple(low for low, _ in windows.padding)
        return lambda x: function(x, windows.kernel, windows.strides, both, False, padded)
    counted = windows.pad(torch.ones(windows.spatial, dtype=torch.float64), 0.0).clone()
    if padded:
        extent = tuple(
            slice(0, low + size + high)
            for (low, high), size in zip(windows.padding, windows.spatial, strict=True)
        )
        counted[extent] = 1
    count = torch.zeros(shape[2:], dtype=torch.float64)
    for seen in windows.taps(counted):
        count = count + seen
    sums = _sums(site, windows)
    wide = torch.float64 if site.row.name == "float64" else torch.float32
    divisor = count.to(wide).to(site.device)
    finish = narrowed(site.row)
    return lambda x: finish(sums(x) / divisor)


KERNELS = {
    "max_pool": LibraryKernel(_make_max_pool, REALS),
    "argmax_pool": LibraryKernel(_make_argmax_pool, REALS),
    "sum_pool": LibraryKernel(_make_sum_pool, FLOATS | INTS | COMPLEX),
    "avg_pool": LibraryKernel(_make_avg_pool, FLOATS),
}
