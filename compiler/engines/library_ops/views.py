"""Views as PyTorch's views; flip, pad and concat, which copy. Any dtype: elements are only moved."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernels_hub.compiler.engines.library_ops.pointwise import moves
from kernels_hub.compiler.engines.library_ops.site import EVERY, LibraryKernel, Run, Site
from kernels_hub.compiler.errors import EngineError


def _make_reshape(site: Site) -> Run:
    shape = site.shape
    return lambda x: x.reshape(shape)


def _make_broadcast(site: Site) -> Run:
    shape, axes = site.shape, site["axes"]
    if axes == tuple(range(len(shape) - len(axes), len(shape))):
        return lambda x: x.expand(shape)
    added = [axis for axis in range(len(shape)) if axis not in axes]

    def run(x: Tensor) -> Tensor:
        for axis in added:
            x = x.unsqueeze(axis)
        return x.expand(shape)

    return run


def _make_permute(site: Site) -> Run:
    order = site["order"]
    if order == (1, 0):
        return lambda x: x.t()
    return lambda x: x.permute(order)


def _make_slice(site: Site) -> Run:
    dims, starts, stops, steps = site.operand_shape(0), site["starts"], site["stops"], site["steps"]
    for start, stop, dim in zip(starts, stops, dims, strict=True):
        if not 0 <= start <= stop <= dim:
            raise EngineError(f"{start}:{stop} is no slice of a dim of {dim}")
    cuts = [
        (axis, start, stop, step)
        for axis, (start, stop, step, dim) in enumerate(zip(starts, stops, steps, dims, strict=True))
        if (start, stop, step) != (0, dim, 1)
    ]
    if len(cuts) == 1 and cuts[0][3] == 1:
        axis, start, stop, _ = cuts[0]
        return lambda x: x.narrow(axis, start, stop - start)
    places = tuple(map(slice, starts, stops, steps))
    return lambda x: x[places]


def _make_flip(site: Site) -> Run:
    axes = site["axes"]
    return moves(lambda x: torch.flip(x, axes), site)


def _make_strided(site: Site) -> Run:
    """PyTorch has no negative strides: such a dim is read forwards, then flipped."""
    shape, strides, offset = site.shape, site["strides"], site["offset"]
    count = math.prod(site.operand_shape(0))
    if 0 in shape:
        return lambda x: x.new_empty(shape)
    reach = [stride * (dim - 1) for stride, dim in zip(strides, shape, strict=True)]
    first, last = offset + sum(min(one, 0) for one in reach), offset + sum(max(one, 0) for one in reach)
    if not 0 <= first <= last < count:
        raise EngineError(f"strides {strides} from {offset} reach {first}..{last} of {count} elements")
    backwards = [axis for axis, stride in enumerate(strides) if stride < 0]
    forwards = [abs(stride) for stride in strides]

    def run(x: Tensor) -> Tensor:
        x = x.contiguous()
        view = x.as_strided(shape, forwards, x.storage_offset() + first)
        return view.flip(backwards) if backwards else view

    return moves(run, site)


def _make_pad(site: Site) -> Run:
    padding, mode, dims = site["padding"], site["mode"], site.operand_shape(0)
    if mode == "constant":
        return _make_pad_constant(site)
    places = [
        (axis, torch.from_numpy(_source_places(low, high, dim, mode)).to(site.device))
        for axis, ((low, high), dim) in enumerate(zip(padding, dims, strict=True))
        if (low, high) != (0, 0)
    ]

    def run(x: Tensor) -> Tensor:
        for axis, one in places:
            x = x.index_select(axis, one)
        return x

    return moves(run, site)


def _make_pad_constant(site: Site) -> Run:
    shape, dims = site.shape, site.operand_shape(0)
    inside = [
        (axis, low, dim) for axis, ((low, _), dim) in enumerate(zip(site["padding"], dims, strict=True))
    ]
    inside = [(axis, low, dim) for axis, low, dim in inside if dim != shape[axis]]
    number = site.node.operands[1].scalar
    if isinstance(number, float) and site.row.name in {"float32", "float64"}:
        flat = [one for pair in reversed(site["padding"]) for one in pair]
        return lambda x, _: torch.constant_pad_nd(x, flat, number)

    def run(x: Tensor, value: Tensor) -> Tensor:
        result = value.expand(shape).clone(memory_format=torch.contiguous_format)
        view = result
        for axis, low, dim in inside:
            view = view.narrow(axis, low, dim)
        view.copy_(x)
        return result

    return moves(run, site)


def _source_places(low: int, high: int, size: int, mode: str) -> Any:
    """Where along an axis of a size each padded place takes its element from."""
    places = np.arange(-low, size + high)
    if mode == "edge":
        return np.clip(places, 0, size - 1)
    if mode == "wrap":
        return places % size
    period = max(2 * (size - 1), 1)
    folded = places % period
    return np.where(folded < size, folded, period - folded)


def _make_concat(site: Site) -> Run:
    axis = site["axis"]
    return moves(lambda *parts: torch.cat(parts, axis), site)


KERNELS = {
    "reshape": LibraryKernel(_make_reshape, EVERY),
    "broadcast": LibraryKernel(_make_broadcast, EVERY),
    "permute": LibraryKernel(_make_permute, EVERY),
    "slice": LibraryKernel(_make_slice, EVERY),
    "flip": LibraryKernel(_make_flip, EVERY),
    "strided": LibraryKernel(_make_strided, EVERY),
    "pad": LibraryKernel(_make_pad, EVERY),
    "concat": LibraryKernel(_make_concat, EVERY),
}
