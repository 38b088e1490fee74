"""Pooling, resizing and sampling over spatial dims."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import reduce
from operator import mul
from typing import Any

from kernels_hub.compiler.importers.aten_ops.call import (
    AtenCall,
    Handler,
    UnsupportedArgumentsError,
    aten,
    spread,
)
from kernels_hub.compiler.importers.grid_sampling import sampled
from kernels_hub.compiler.importers.pooling import pool
from kernels_hub.compiler.ir.dims import Dim, ceildiv, floordiv
from kernels_hub.compiler.ir.graph import Value


def _attrs(
    count: int, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int] | int, ceil: bool,
) -> dict[str, Any]:  # fmt: skip
    sizes = spread(kernel, count)
    return {
        "kernel": sizes,
        "strides": spread(stride, count) if stride else sizes,
        "dilations": spread(dilation, count),
        "padding": [(one, one) for one in spread(padding, count)],
        "ceil": ceil,
    }


def max_pool(count: int, *, places: bool) -> Handler:
    """The handler of so many spatial dims. places: whether it gives those of the greatest elements as well."""

    def handler(
        _: AtenCall, x: Value, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int],
        dilation: Sequence[int], ceil: bool,
    ) -> Value | tuple[Value, Value]:  # fmt: skip
        batched = x if x.rank == count + 2 else x.unsqueeze(0)
        attrs = _attrs(count, kernel, stride, padding, dilation, ceil)
        found = pool("max_pool", batched, attrs)
        result = found if batched is x else found.squeeze(0)
        if not places:
            return result
        indices = pool("argmax_pool", batched, attrs)
        return result, indices if batched is x else indices.squeeze(0)

    return handler


def average_pool(count: int) -> Handler:
    """The handler of so many spatial dims."""

    def handler(
        _: AtenCall, x: Value, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], ceil: bool,
        padded: bool, divisor: int | None = None,
    ) -> Value:  # fmt: skip
        batched = x if x.rank == count + 2 else x.unsqueeze(0)
        attrs = _attrs(count, kernel, stride, padding, 1, ceil)
        if divisor is None:
            result = pool("avg_pool", batched, attrs, count="padded" if padded else "inside")
        else:
            result = pool("sum_pool", batched, attrs) / float(divisor)
        return result if batched is x else result.squeeze(0)

    return handler


for _count in (1, 2, 3):
    aten(f"max_pool{_count}d.default")(max_pool(_count, places=False))
    aten(f"max_pool{_count}d_with_indices.default")(max_pool(_count, places=True))
    aten(f"avg_pool{_count}d.default")(average_pool(_count))


@aten(
    "_adaptive_avg_pool2d.default", "_adaptive_avg_pool3d.default", "adaptive_avg_pool1d.default",
    "adaptive_avg_pool2d.default", "adaptive_avg_pool3d.default",
)  # fmt: skip
def adaptive_avg_pool(_: AtenCall, x: Value, sizes: Sequence[Any]) -> Value:
    """Means over windows that begin at floor(i * n / size) and end at ceil((i + 1) * n / size)."""
    first = x.rank - len(sizes)
    if all(isinstance(size, int) and size == 1 for size in sizes):
        return x.mean(list(range(first, x.rank)), keepdims=True)
    for axis, count in enumerate(sizes, first):
        parts = [
            x.slice(axis, begin, end).mean(axis, keepdims=True) for begin, end in _adaptive(x, axis, count)
        ]
        x = parts[0] if count == 1 else x.graph.apply("concat", *parts, axis=axis)
    return x


def _adaptive(x: Value, axis: int, count: int) -> list[tuple[Dim, Dim]]:
    """Where the windows of adaptive pooling begin and end."""
    if not isinstance(count, int):
        raise UnsupportedArgumentsError(f"adaptive pooling to the symbolic size {count}", of_sizes=True)
    size = x.shape[axis]
    return [(floordiv(i * size, count), ceildiv((i + 1) * size, count)) for i in range(count)]


@aten("adaptive_max_pool1d.default", "adaptive_max_pool2d.default", "adaptive_max_pool3d.default")
def adaptive_max_pool(call: AtenCall, x: Value, sizes: Sequence[Any]) -> tuple[Value, Value]:
    """Maxima over the windows of adaptive pooling, and where they are in the image, counted through it."""
    first = x.rank - len(sizes)
    shape = x.shape[first:]
    if all(
        isinstance(size, int) and count and size % count == 0
        for size, count in zip(shape, sizes, strict=True)
    ):
        equal = [int(size) // count for size, count in zip(shape, sizes, strict=True)]
        nothing, one = [0] * len(sizes), [1] * len(sizes)
        values, places = max_pool(len(sizes), places=True)(call, x, equal, equal, nothing, one, False)
        return values, places
    windows = [_adaptive(x, axis, count) for axis, count in enumerate(sizes, first)]
    values = x
    for axis, ends in enumerate(windows, first):
        parts = [values.slice(axis, begin, end).max(axis, keepdims=True) for begin, end in ends]
        values = parts[0] if len(parts) == 1 else x.graph.apply("concat", *parts, axis=axis)
    found = []
    for cell in itertools.product(*windows):
        window = x
        for axis, (begin, end) in enumerate(cell, first):
            window = window.slice(axis, begin, end)
        flat = window.reshape((*x.shape[:first], reduce(mul, window.shape[first:])))
        at = flat.apply("argmax", flat, axis=flat.rank - 1)
        found.append(_in_image(at, cell, shape).unsqueeze(at.rank))
    joined = found[0] if len(found) == 1 else x.graph.apply("concat", *found, axis=found[0].rank - 1)
    return values, joined.reshape(values.shape)


def _in_image(at: Value, window: Sequence[tuple[Dim, Dim]], image: Sequence[Dim]) -> Value:
    """Places counted through a window, as places counted through the image that it lies in."""
    place, apart = at.like(0), 1
    for (begin, end), size in zip(reversed(window), reversed(image), strict=True):
        width = at.graph.size(end - begin)
        place = place + (at % width + at.graph.size(begin)) * at.graph.size(apart)
        at, apart = at // width, apart * size
    return place


def _spatial(call: AtenCall, scales: Sequence[float | None]) -> dict[str, Any]:
    given = list(scales)
    if all(one is None for one in given):
        return {"shape": call.shape}
    return {"shape": call.shape, "scales": [1.0, 1.0, *(1.0 if one is None else float(one) for one in given)]}


def _nearest(call: AtenCall, x: Value, _: object, *scales: float | None, exact: bool = False) -> Value:
    attrs = _spatial(call, scales)
    if exact:
        return x.apply(
            "resize", x, **attrs, mode="nearest", coordinates="half_pixel", nearest="round_prefer_ceil"
        )
    return x.apply("resize", x, **attrs, mode="nearest", coordinates="asymmetric", nearest="floor")


_ANTIALIASED = {"antialias": True, "exclude_outside": True, "cubic_a": -0.5}
"""PyTorch follows PIL there: taps outside are left out, and the cubic filter's parameter is -0.5, not -0.75."""


def _interpolated(mode: str, *, antialias: bool = False) -> Handler:
    def handler(call: AtenCall, x: Value, _: object, align_corners: bool, *scales: float | None) -> Value:
        if antialias and not all(isinstance(size, int) for size in (*x.shape[2:], *call.shape[2:])):
            raise UnsupportedArgumentsError("an antialiased resize of a symbolic dim", of_sizes=True)
        coordinates = "align_corners" if align_corners else "half_pixel"
        filtered = _ANTIALIASED if antialias else {}
        return x.apply("resize", x, **_spatial(call, scales), mode=mode, coordinates=coordinates, **filtered)

    return handler


def _by_factors(handler: Handler) -> Handler:
    """The `.vec` overloads: (x, sizes or None, …, factors or None)."""

    def vec(call: AtenCall, x: Value, sizes: Any, *rest: Any) -> Value:
        *options, factors = rest
        scales = factors if factors is not None else [None] * (x.rank - 2)
        result: Value = handler(call, x, sizes, *options, *scales)
        return result

    return vec


def _exact(call: AtenCall, x: Value, sizes: object, *scales: float | None) -> Value:
    return _nearest(call, x, sizes, *scales, exact=True)


_RESIZINGS: dict[str, Handler] = {
    "upsample_nearest1d": _nearest, "upsample_nearest2d": _nearest, "upsample_nearest3d": _nearest,
    "_upsample_nearest_exact1d": _exact, "_upsample_nearest_exact2d": _exact, "_upsample_nearest_exact3d": _exact,
    "upsample_linear1d": _interpolated("linear"), "upsample_bilinear2d": _interpolated("linear"),
    "upsample_trilinear3d": _interpolated("linear"), "upsample_bicubic2d": _interpolated("cubic"),
    "_upsample_bilinear2d_aa": _interpolated("linear", antialias=True),
    "_upsample_bicubic2d_aa": _interpolated("cubic", antialias=True),
}  # fmt: skip
for _name, _handler in _RESIZINGS.items():
    aten(f"{_name}.default")(_handler)
    aten(f"{_name}.vec")(_by_factors(_handler))


_MODES, _PADDINGS = ("linear", "nearest", "cubic"), ("zeros", "border", "reflection")


@aten("grid_sampler_2d.default", "grid_sampler_3d.default")
def grid_sampler(
    call: AtenCall, x: Value, grid: Value, mode: int, padding: int, align_corners: bool
) -> Value:
    """Places in float32 at least: in 16 bits an image has no more than 256 of them."""
    is_known = all(isinstance(size, int) for size in x.shape[2:])
    call.refuse_unless(is_known, "an image of sizes that are no numbers", of_sizes=True)
    how, beyond = _MODES[mode], _PADDINGS[padding]
    finer = grid.cast(grid.dtype.compute)
    result = sampled(x, finer, how, beyond, aligned=align_corners)
    if how == "cubic" or (how == "linear" and beyond == "zeros" and x.rank == 4):
        known = (finer.unary("abs") < math.inf).reduce("all", finer.rank - 1)
        # As PyTorch's kernels for images have it; -0.0 is the number that adds nothing to any other.
        nothing = x.graph.full(known.shape, -0.0, result.dtype)
        result = result + known.select(nothing, math.nan).unsqueeze(1)
    return result
