"""Images sampled between their elements: GridSample of ONNX, grid_sample of PyTorch."""

from __future__ import annotations

import math

from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.types import INT32, INT64, DType

_Tap = tuple[Value, Value | None]


def sampled(x: Value, grid: Value, mode: str, padding: str, *, aligned: bool) -> Value:
    """x (N, C, spatial dims, numbers) sampled at grid (N, ..., one coordinate a spatial dim, the last dim first).

    mode: "nearest", "linear" or "cubic". padding: "zeros", "border" or "reflection". A coordinate that is no number
    is outside of the image, or at its first element where there is no outside.
    """
    sizes = [int(size) for size in x.shape[2:]]
    rank = len(sizes)
    points = grid.reshape((grid.shape[0], -1, rank))
    places = []
    for axis, size in enumerate(map(float, sizes)):
        at = points.slice(2, rank - 1 - axis, rank - axis).squeeze(2)
        at = (at + 1.0) * ((size - 1.0) / 2) if aligned else ((at + 1.0) * size - 1.0) / 2.0
        if padding == "reflection":
            at = (at.unary("abs") < math.inf).select(at, 0.0)
        else:  # beyond the outermost taps all is the same
            at = at.unary("isnan").select(-2.0 if padding == "zeros" else 0.0, at).clamp(-4.0, size + 3.0)
        places.append(at)
    flat = x.reshape((*x.shape[:2], -1))
    # Where nothing is reflected, a place is a whole number from its first moment: clamped, it needs no check.
    whole = places[0].dtype if padding == "reflection" else INT32 if math.prod(sizes) < 2**31 else INT64
    if mode == "nearest":
        taps: list[list[_Tap]] = [[(at.unary("round").cast(whole), None)] for at in places]
    else:
        taps = [_taps(at, whole, cubic=mode == "cubic") for at in places]
    result = _weighted(flat, taps, sizes, padding, aligned=aligned)
    return result.reshape((*x.shape[:2], *grid.shape[1:-1]))


def _taps(at: Value, whole: DType, *, cubic: bool) -> list[_Tap]:
    """(place, weight) of the 2 or 4 elements between which a place lies. whole: dtype of the places."""
    floor = at.unary("floor")
    share, base = at - floor, floor.cast(whole)
    if not cubic:
        return [(base, 1.0 - share), (base + 1, share)]
    return [(base + step, _keys((share - float(step)).unary("abs"))) for step in (-1, 0, 1, 2)]


def _keys(t: Value, a: float = -0.75) -> Value:
    near = ((t * (a + 2) - (a + 3)) * t) * t + 1.0
    far = ((t * a - 5 * a) * t + 8 * a) * t - 4 * a
    return (t <= 1.0).select(near, far)


def _weighted(flat: Value, taps: list[list[_Tap]], sizes: list[int], padding: str, *, aligned: bool) -> Value:
    """The sum over all combinations of taps, one a spatial dim, of elements times their weights."""
    partial: list[tuple[Value | None, Value | None, Value | None]] = [(None, None, None)]
    for axis, choices in enumerate(taps):
        stride = math.prod(sizes[axis + 1 :])
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
        at = (place if place.dtype.is_integer else place.cast(INT64)).unsqueeze(1)
        if inside is not None:  # one number says where, and whether at all
            at = inside.unsqueeze(1).select(at, -1)
        seen = flat.gather_elements(at.maximum(0).broadcast_to((*flat.shape[:2], at.shape[-1])), 2)
        seen = seen if weight is None else seen * weight.cast(flat.dtype).unsqueeze(1)
        seen = seen if inside is None else (at >= 0).select(seen, 0)
        total = seen if total is None else total + seen
    assert total is not None
    return total


def _inside(at: Value, size: int, padding: str, *, aligned: bool) -> tuple[Value, Value | None]:
    """A place that there is for each whole place, and whether it was one (None: always)."""
    last = size - 1
    if padding == "zeros":
        return at.clamp(0, last), (at >= 0) & (at <= last)
    if padding == "border":
        return at.clamp(0, last), None
    low, high = (0.0, float(last)) if aligned else (-0.5, size - 0.5)
    span = high - low
    if span == 0.0:
        return at.clamp(0.0, 0.0), None
    folded = (at - low).binary("mod", 2 * span)
    mirrored = (folded > span).select(2 * span - folded, folded) + low
    return mirrored.unary("round").clamp(0, last), None
