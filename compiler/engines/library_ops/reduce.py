"""Reductions, softmax and running reductions.

Narrow floats and integers are summed in wider ones, and rounded (or wrapped) once. Over no axes nothing is reduced,
where PyTorch would reduce all of them; over nothing the result is the identity, where PyTorch throws.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from kernels_hub.compiler.engines.library_ops.site import (
    BOOL,
    COMPLEX,
    FLOATS,
    INTS,
    NATIVE_FLOATS,
    NUMBERS,
    REALS,
    LibraryKernel,
    Run,
    Site,
    computed_in,
    narrowed,
    widened,
)
from kernels_hub.compiler.errors import EngineError


def _reduced_size(site: Site) -> int:
    dims = site.operand_shape(0)
    return math.prod(dims[axis] for axis in site["axes"])


def _make_sum(function: Callable[..., Tensor]) -> Callable[[Site], Run]:
    def make(site: Site) -> Run:
        axes, dtype = site["axes"], site.dtype
        if not axes:
            return lambda x: x
        if site.row.is_integer:
            return lambda x: function(x, axes, dtype=torch.int64).to(dtype)
        return widened(site, lambda x: function(x, axes))

    return make


def _make_prod(site: Site) -> Run:
    axes, dtype, finish = site["axes"], site.dtype, narrowed(site.row)
    wide = torch.int64 if site.row.is_integer else torch.float32 if site.row.bits < 32 else dtype

    def run(x: Tensor) -> Tensor:
        x = x.to(wide)
        for axis in reversed(axes):
            x = torch.prod(x, axis)
        return finish(x)

    return run


def _make_extremum(function: Callable[..., Tensor], *, greatest: bool) -> Callable[[Site], Run]:
    def make(site: Site) -> Run:
        axes, row = site["axes"], site.row
        if not axes:
            return lambda x: x
        if _reduced_size(site) == 0:
            shape, finish = site.shape, narrowed(row)
            limit = row.limits[0 if greatest else 1]
            number = (-math.inf if greatest else math.inf) if row.is_float else limit
            wide = computed_in(row) or site.dtype
            return lambda x: finish(torch.full(shape, number, dtype=wide, device=x.device))
        return widened(site, lambda x: function(x, axes))

    return make


def _make_bool(function: Callable[..., Tensor]) -> Callable[[Site], Run]:
    def make(site: Site) -> Run:
        axes = site["axes"]
        return (lambda x: function(x, axes)) if axes else (lambda x: x)

    return make


def _make_place(function: Callable[..., Tensor]) -> Callable[[Site], Run]:
    def make(site: Site) -> Run:
        axis, dims = site["axis"], site.operand_shape(0)
        if dims[axis] == 0:
            raise EngineError(f"argmax or argmin over axis {axis} of shape {list(dims)}: there is no element")
        return widened(site, lambda x: function(x, axis))

    return make


def _make_softmax(function: Callable[..., Tensor]) -> Callable[[Site], Run]:
    def make(site: Site) -> Run:
        axis = site["axis"]
        return widened(site, lambda x: function(x, axis))

    return make


def _make_running(function: Callable[..., Tensor]) -> Callable[[Site], Run]:
    def make(site: Site) -> Run:
        axis, row, dtype = site["axis"], site.row, site.dtype
        wide = torch.int64 if row.is_integer else torch.float32 if row.is_float and row.bits < 32 else dtype
        return lambda x: function(x.to(wide), axis).to(dtype)

    return make


def _cummax(x: Tensor, axis: int) -> Tensor:
    return torch.cummax(x, axis).values


def _cummin(x: Tensor, axis: int) -> Tensor:
    return torch.cummin(x, axis).values


KERNELS = {
    "reduce_sum": LibraryKernel(_make_sum(torch.sum), NUMBERS),
    "reduce_mean": LibraryKernel(_make_sum(torch.mean), FLOATS | COMPLEX),
    "reduce_prod": LibraryKernel(_make_prod, REALS | COMPLEX),
    "reduce_max": LibraryKernel(_make_extremum(torch.amax, greatest=True), REALS),
    "reduce_min": LibraryKernel(_make_extremum(torch.amin, greatest=False), REALS),
    "reduce_any": LibraryKernel(_make_bool(torch.any), BOOL),
    "reduce_all": LibraryKernel(_make_bool(torch.all), BOOL),
    "argmax": LibraryKernel(_make_place(torch.argmax), REALS),
    "argmin": LibraryKernel(_make_place(torch.argmin), REALS),
    "softmax": LibraryKernel(_make_softmax(torch.softmax), FLOATS),
    "log_softmax": LibraryKernel(_make_softmax(torch.log_softmax), FLOATS),
    "cumsum": LibraryKernel(_make_running(torch.cumsum), NATIVE_FLOATS | INTS | COMPLEX),
    "cumprod": LibraryKernel(_make_running(torch.cumprod), NATIVE_FLOATS | INTS | COMPLEX),
    "cummax": LibraryKernel(_make_running(_cummax), NATIVE_FLOATS | INTS),
    "cummin": LibraryKernel(_make_running(_cummin), NATIVE_FLOATS | INTS),
}
