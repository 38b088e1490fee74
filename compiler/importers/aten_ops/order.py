# ruff: noqa: D103
"""Medians, modes, running extrema, binary search, counts, sets: what sorting or counting decides."""

from __future__ import annotations

import math

from kernels_hub.compiler.importers.aten_ops.call import AtenCall, Handler, Scalar, aten
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.dims import Dim
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.proofs import proves_le

_FEW = 16
"""Elements up to which a set is searched by comparing with each."""


def _picked(x: Value, op: str, axis: int, keepdim: bool, **attrs: object) -> tuple[Value, Value]:
    """(element, place) of each row, where an op says the place."""
    rows = x if x.rank else x.reshape(1)
    axis = rows.axis(axis)
    places = rows.along(op, axis, **attrs)
    at = places.unsqueeze(axis)
    found = rows.gather_elements(at, axis)
    if keepdim and x.rank:
        return found, at
    return found.reshape(places.shape), places


@aten("kthvalue.default")
def kthvalue(_: AtenCall, x: Value, k: Dim, axis: int, keepdim: bool) -> tuple[Value, Value]:
    return _picked(x, "argkth", axis, keepdim, k=k)


@aten("mode.default")
def mode(_: AtenCall, x: Value, axis: int, keepdim: bool) -> tuple[Value, Value]:
    return _picked(x, "argmode", axis, keepdim)


def _median(*, ignore_nan: bool) -> Handler:
    def handler(_: AtenCall, x: Value, axis: int, keepdim: bool) -> tuple[Value, Value]:
        return _picked(x, "argmedian", axis, keepdim, ignore_nan=ignore_nan)

    return handler


def _median_of_all(*, ignore_nan: bool) -> Handler:
    def handler(call: AtenCall, x: Value) -> Value:
        if x.type.size == 0:
            return call.graph.constant(math.nan if x.dtype.is_float else int(x.dtype.limits[0]), x.dtype)
        flat = x.reshape((-1,))
        if not x.dtype.is_float:
            return _picked(flat, "argmedian", 0, False, ignore_nan=ignore_nan)[0]
        if proves_le(1, flat.shape[0]):
            found, _places = _picked(flat, "argmedian", 0, False, ignore_nan=ignore_nan)
        else:  # NaN of nothing: one that is ignored comes last
            found, _places = _picked(flat.pad([(0, 1)], math.nan), "argmedian", 0, False, ignore_nan=True)
            if not ignore_nan:
                found = flat.unary("isnan").reduce("any").select(math.nan, found)
        # Equal elements share the gradient.
        met = found.unary("isnan").select(flat.unary("isnan"), flat.eq(found))
        shared = met.select(flat, 0.0).sum() / met.cast(x.dtype.compute).sum().cast(x.dtype)
        return found.apply("with_derivative", found, shared, call.graph.constant(1, x.dtype))

    return handler


for _name, _ignored in (("median", False), ("nanmedian", True)):
    aten(f"{_name}.dim")(_median(ignore_nan=_ignored))
    aten(f"{_name}.default")(_median_of_all(ignore_nan=_ignored))


def _running_extremum(kind: str) -> Handler:
    def handler(call: AtenCall, x: Value, axis: int) -> tuple[Value, Value]:
        """Places are those of the last element that met the extremum so far; of the last NaN, from the first one on."""
        if not x.rank:
            return x, call.graph.constant(0)
        axis = x.axis(axis)
        wide = x.cast(types.UINT8) if x.dtype is types.BOOL else x
        found = wide.along(f"cum{kind}", axis)
        met = wide.eq(found)
        if x.dtype.is_float:
            met = met | wide.unary("isnan")
        places = call.graph.iota(x.shape[axis]).broadcast(x.shape, (axis,))
        return found.cast(x.dtype), met.select(places, 0).along("cummax", axis)

    return handler


aten("cummax.default")(_running_extremum("max"))
aten("cummin.default")(_running_extremum("min"))


def _searched(
    call: AtenCall, ordered: Value, values: Value | Scalar, *, right: bool, side: str | None
) -> Value:
    values = values if isinstance(values, Value) else call.tensor(values, call.promoted(ordered, values))
    row = call.promoted(ordered, values) if ordered.dtype is not values.dtype else ordered.dtype
    return (
        ordered.cast(row)
        .apply("searchsorted", ordered.cast(row), values.cast(row), right=right or side == "right")
        .cast(call.dtype)
    )


@aten("searchsorted.Tensor", "searchsorted.Scalar")
def searchsorted(
    call: AtenCall, ordered: Value, values: Value | Scalar, *, right: bool, side: str | None, sorter: Value | None,
    **_: object,
) -> Value:  # fmt: skip
    if sorter is not None:
        ordered = ordered.gather_elements(sorter, -1)
    return _searched(call, ordered, values, right=right, side=side)


@aten("bucketize.Tensor", "bucketize.Scalar")
def bucketize(call: AtenCall, values: Value | Scalar, bounds: Value, *, right: bool, **_: object) -> Value:
    return _searched(call, bounds, values, right=right, side=None)


@aten("bincount.default")
def bincount(call: AtenCall, x: Value, weights: Value | None, least: int) -> Value:
    count = call.shape[0]
    if x.type.size == 0:
        return call.graph.full(call.shape, 0, call.dtype)
    call.refuse_unless(not isinstance(count, int), "counts, whose number was made a constant")
    given = [x] if weights is None else [x, weights]
    counted = x.apply("bincount", *given, count=count, least=least)
    call.refuse_unless(
        counted.dtype is call.dtype, "sums of weights, which this release of PyTorch traces as whole numbers"
    )
    return counted


@aten("repeat_interleave.Tensor")
def repeat_interleave(call: AtenCall, repeats: Value, **_: object) -> Value:
    count = call.shape[0]
    if not isinstance(count, int) and count.only_symbol is not None and not call.graph.has_size(str(count)):
        return repeats.apply("repeat_places", repeats, count=count)
    places = call.graph.iota(count, repeats.dtype)
    ends = repeats.along("cumsum", 0)
    return repeats.apply("searchsorted", ends, places, right=True).cast(call.dtype)


@aten("isin.Tensor_Tensor")
def isin(call: AtenCall, x: Value, of: Value, *, invert: bool, **_: object) -> Value:
    row = call.promoted(x, of)
    x, of = x.cast(row), of.cast(row).reshape((-1,))
    size = of.shape[0]
    if isinstance(size, int) and size <= _FEW:
        found = x.unsqueeze(x.rank).eq(of).reduce("any", x.rank)
    else:
        found = x.apply("isin", x, of)
    return found.unary("bitnot") if invert else found


@aten("_unique2.default")
def unique(call: AtenCall, x: Value, _: bool, inverse: bool, counts: bool) -> tuple[Value, Value, Value]:
    call.refuse_unless(not x.dtype.is_float, "a set of floats: each NaN is one of its own")
    flat = x.cast(types.UINT8) if x.dtype is types.BOOL else x
    flat = flat.reshape((-1,))
    first, which, times = call.graph.add("unique", [flat], {"count": call.shape[0], "axis": 0}).results
    found = flat.gather(first, 0).cast(x.dtype)
    return (
        found,
        which.reshape(x.shape) if inverse else _nothing(call, 1),
        times if counts else _nothing(call, 2),
    )


def _nothing(call: AtenCall, index: int) -> Value:
    """A result that was not asked for, of the dtype that the release of PyTorch gives it."""
    declared = call.results[index]
    return call.graph.full((0,), 0, types.INT64 if declared is None else declared.dtype)


@aten("unique_consecutive.default")
def unique_consecutive(
    call: AtenCall, x: Value, inverse: bool, counts: bool, axis: int | None
) -> tuple[Value, Value, Value]:
    call.refuse_unless(axis is None or x.rank == 1, "slices along an axis that differ from those before")
    flat = x.reshape((-1,))
    size = flat.shape[0]
    which, times = _nothing(call, 1), _nothing(call, 2)
    if size == 0:
        return flat, which, times
    before = flat.pad([(1, 0)], False if flat.dtype is types.BOOL else 0).slice(0, 0, size)
    starts = flat.ne(before) | call.graph.iota(size).eq(0)
    places = call.graph.apply("nonzero", starts, count=call.shape[0]).reshape((call.shape[0],))
    if inverse:
        which = (starts.cast(types.INT64).along("cumsum", 0) - 1).reshape(x.shape)
    if counts:
        ends = call.graph.apply("concat", places, call.graph.size(size).reshape(1), axis=0)
        times = ends.slice(0, 1, ends.shape[0]) - places
    return flat.gather(places, 0), which, times
