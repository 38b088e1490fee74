"""Resizing by interpolation, separable over axes, as ONNX's Resize states it (opset 19).

Along each axis whose scale is not 1, result o is taken at the place x(o) of the operand:
    half_pixel            (o + 0.5) / scale - 0.5
    half_pixel_symmetric  the same about the centre, where scale * dim is no whole number
    pytorch_half_pixel    the same, but 0 for a result of length 1
    align_corners         o * (dim - 1) / (scale * dim - 1)
    asymmetric            o / scale
    crop                  start * (dim - 1) + o * (end - start) * (dim - 1) / (scale * dim - 1), of `roi`;
                          outside of the operand the result is `extrapolation`
and interpolated there: nearest, linear (2 taps), or cubic (4 taps, Keys' with parameter cubic_a). Taps outside
take the edge's value, or (exclude_outside) weight 0. With `antialias`, filters widen by 1 / scale when shrinking.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from kernels_hub.compiler.errors import ShapeError
from kernels_hub.compiler.ir.op import (
    BOOL,
    DIMS,
    FLOAT,
    FLOATS,
    Attr,
    Attrs,
    Op,
    Operands,
    ReferenceCall,
    Shape,
    one_of,
    same,
    show,
)  # fmt: skip
from kernels_hub.compiler.ir.ops.conversion import accumulator, convert
from kernels_hub.compiler.ir.types import REALS, Array


def _resized(operands: Operands, attrs: Attrs) -> Shape:
    (x,), shape = operands, attrs["shape"]
    if len(shape) != x.rank:
        raise ShapeError(f"shape {show(shape)} has not the rank of {show(x.shape)}")
    if attrs["scales"] and len(attrs["scales"]) != x.rank:
        raise ShapeError(f"scales {attrs['scales']} are not one each for {show(x.shape)}")
    if attrs["coordinates"] == "crop" and len(attrs["roi"]) != 2 * x.rank:
        raise ShapeError(f"roi {attrs['roi']} is not all starts, then all ends, for {show(x.shape)}")
    return shape  # type: ignore[no-any-return]


def _resize(step: ReferenceCall) -> Array:
    array, attrs = step.operands[0], step.attrs
    rank = array.ndim
    for axis, (size, count) in enumerate(zip(step.operands[0].shape, step.shape, strict=True)):
        scale = attrs["scales"][axis] if attrs["scales"] else count / size if size else 1.0
        cropped = attrs["coordinates"] == "crop" and (attrs["roi"][axis], attrs["roi"][axis + rank]) != (
            0.0,
            1.0,
        )
        if scale == 1.0 and size == count and not cropped:
            continue
        region = (
            (attrs["roi"][axis], attrs["roi"][axis + rank]) if attrs["coordinates"] == "crop" else (0.0, 1.0)
        )
        places = _places(size, count, scale, attrs["coordinates"], region)
        if attrs["mode"] == "nearest":
            array = np.take(array, _nearest(places, size, attrs["nearest"]), axis)
        else:
            array = _interpolated(accumulator(array), axis, places, scale, attrs)
        if attrs["coordinates"] == "crop":
            outside = (places < 0) | (places > size - 1)
            fill = np.asarray(attrs["extrapolation"]).astype(array.dtype)
            array = np.where(outside.reshape(-1, *[1] * (rank - 1 - axis)), fill, array)
    return convert(np.asarray(array), step.results[0].dtype)


def nearest_taps(size: int, count: int, scale: float, attrs: Attrs) -> Array:
    """Which of `size` elements each of `count` results is, by mode "nearest"."""
    return _nearest(_places(size, count, scale, attrs["coordinates"]), size, attrs["nearest"])


def weighted_taps(size: int, count: int, scale: float, attrs: Attrs) -> tuple[Array, Array]:
    """(elements, their weights) of which each of `count` results is a sum, (count, taps) each."""
    return _tap_table(_places(size, count, scale, attrs["coordinates"]), size, scale, attrs)


def _tap_table(places: Array, size: int, scale: float, attrs: Attrs) -> tuple[Array, Array]:
    found = [_taps(place, size, scale, attrs) for place in places]
    return (
        np.clip([taps for taps, _ in found], 0, size - 1).astype(np.int64),
        np.array([weights for _, weights in found], np.float64),
    )


def _interpolated(array: Array, axis: int, places: Array, scale: float, attrs: Attrs) -> Array:
    """Sums over the taps alone: what is no number elsewhere is not in them."""
    if not places.size:
        return np.take(array, [], axis)
    taps, weights = _tap_table(places, array.shape[axis], scale, attrs)
    along = (-1, *[1] * (array.ndim - 1 - axis))
    return sum(
        (
            np.take(array, tap, axis) * weight.reshape(along)
            for tap, weight in zip(taps.T, weights.T, strict=True)
        ),
        start=np.zeros((), array.dtype),
    )


def _places(
    size: int, count: int, scale: float, mode: str, region: tuple[float, float] = (0.0, 1.0)
) -> Array:
    return np.array([_place(o, size, count, scale, mode, region) for o in range(count)])


def _place(o: int, size: int, count: int, scale: float, mode: str, region: tuple[float, float]) -> float:
    length = scale * size
    if mode == "asymmetric":
        return o / scale
    if mode == "align_corners":
        return 0.0 if length == 1 else o * (size - 1) / (length - 1)
    if mode == "crop":
        start, end = region
        if length == 1:
            return (start + end) * (size - 1) / 2
        return start * (size - 1) + o * (end - start) * (size - 1) / (length - 1)
    if mode == "pytorch_half_pixel" and length == 1:
        return 0.0
    shift = size / 2 * (1 - count / length) if mode == "half_pixel_symmetric" else 0.0
    return shift + (o + 0.5) / scale - 0.5


_ROUND: dict[str, Callable[[Array], Any]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
}


def _nearest(places: Array, size: int, rounding: str) -> Array:
    rounded: Array = np.clip(_ROUND[rounding](places), 0, max(size - 1, 0)).astype(np.int64)
    return rounded


def _taps(place: float, size: int, scale: float, attrs: Attrs) -> tuple[Any, Any]:
    """The elements that the one at `place` is made of, which may lie outside, and their weights."""
    shrink = min(scale, 1.0) if attrs["antialias"] else 1.0
    reach = 1 if attrs["mode"] == "linear" else 2
    base = math.floor(place)
    first = math.floor(-reach / shrink) + 1
    taps = np.arange(base + first, base + 2 - first)
    distance = np.abs(taps - place) * shrink
    weights: Any = _linear(distance) if reach == 1 else _cubic(distance, attrs["cubic_a"])
    if attrs["exclude_outside"]:
        weights = np.where((taps < 0) | (taps >= size), 0, weights)
    if attrs["exclude_outside"] or attrs["antialias"]:
        weights = weights / np.sum(weights)
    return taps, weights


def _linear(distance: Array) -> Any:
    return np.clip(1 - distance, 0, 1)


def _cubic(t: Array, a: float) -> Any:
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
    return np.where(t <= 1, near, np.where(t < 2, far, 0))


_COORDINATES = one_of(
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "crop"
)
_MODE = one_of("nearest", "linear", "cubic")
_NEAREST = one_of("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")

ROWS = (
    Op("resize", "Interpolated to another shape; `scales` default to the ratios of the dims.", 1, _resize,
       same(*REALS), _resized,
       attrs=(
           Attr("shape", DIMS), Attr("scales", FLOATS, ()), Attr("mode", _MODE, "nearest"),
           Attr("coordinates", _COORDINATES, "half_pixel"), Attr("nearest", _NEAREST, "round_prefer_floor"),
           Attr("cubic_a", FLOAT, -0.75), Attr("antialias", BOOL, False), Attr("exclude_outside", BOOL, False),
           Attr("roi", FLOATS, ()), Attr("extrapolation", FLOAT, 0.0),
       ), source="ONNX Resize; torch.nn.functional.interpolate"),
)  # fmt: skip
