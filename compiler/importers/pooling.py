"""Pooling as models have it: windows larger than the image are cut to it, and a mean of all of it is a reduction.

Some models pool with a window of a thousand pixels to say "all of the image" (`nn.AvgPool2d(1280, ceil_mode=True)` of
transformers' EfficientNet). Taken at its word it would be a million steps over what the image never reaches.
"""

from __future__ import annotations

from kernels_hub.compiler.ir.dims import Dim
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.op import Attrs
from kernels_hub.compiler.ir.ops.contract import spatial_attrs


def pool(kind: str, x: Value, attrs: Attrs, **more: str) -> Value:
    """x (N, C, spatial dims…) pooled by an op of the IR with these attributes."""
    kernel, is_whole = [], x.rank > 2
    for size, window, (stride, dilation, padding) in zip(
        x.shape[2:], attrs["kernel"], spatial_attrs(attrs, x.rank - 2), strict=True
    ):
        kernel.append(_within(size, window, stride, dilation, padding) if attrs["ceil"] else window)
        is_whole = is_whole and kernel[-1] == size and dilation == 1 and padding == (0, 0)
    if kind == "avg_pool" and is_whole:
        return x.mean(range(2, x.rank), keepdims=True)
    return x.apply(kind, x, **{**attrs, "kernel": kernel}, **more)


def _within(size: Dim, window: int, stride: int, dilation: int, padding: tuple[Dim, Dim]) -> int:
    """The window, or, where it is the only one and reaches beyond the padded image, as much of it as does not."""
    padded = size + padding[0] + padding[1]
    if not isinstance(padded, int) or dilation != 1 or not 0 < padded < window < padded + stride:
        return window
    return padded
