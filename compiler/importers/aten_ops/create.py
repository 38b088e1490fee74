# ruff: noqa: D103
"""Tensors made of numbers: full, zeros, ones, arange, scalar_tensor; sizes that the data tell; assertions."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels_hub.compiler.importers.aten_ops.call import AtenCall, Scalar, aten
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.graph import Value


@aten("full.default", "full_like.default", "new_full.default")
def full(call: AtenCall, *args: object, **_: object) -> Value:
    return call.tensor(_as_stored(call, args[-1])).broadcast_to(call.shape)


def _as_stored(call: AtenCall, number: Value | Scalar) -> Value | Scalar:
    """A number as a tensor of the result's dtype stores it: floats in integers are cut."""
    return int(number) if isinstance(number, float) and call.dtype.is_integer else number


@aten("zeros.default", "zeros_like.default", "new_zeros.default")
def zeros(call: AtenCall, *_: object, **__: object) -> Value:
    return call.tensor(0).broadcast_to(call.shape)


@aten("ones.default", "ones_like.default", "new_ones.default")
def ones(call: AtenCall, *_: object, **__: object) -> Value:
    return call.tensor(1).broadcast_to(call.shape)


# What was never written may hold anything; zeros are as good, and the same every time.
aten(
    "empty.memory_format", "empty_like.default", "new_empty.default", "empty_permuted.default",
    "empty_strided.default", "new_empty_strided.default",
)(zeros)  # fmt: skip


@aten("fill.Scalar", "fill.Tensor")
def fill(call: AtenCall, _: Value, number: Value | Scalar) -> Value:
    return call.tensor(number).broadcast_to(call.shape)


@aten("scalar_tensor.default", "prims.scalar_tensor.default")
def scalar_tensor(call: AtenCall, number: Scalar, **_: object) -> Value:
    return call.tensor(number)


@aten("arange.start_step")
def arange(call: AtenCall, start: Scalar, _: Scalar, step: Scalar, **__: object) -> Value:
    row = call.dtype
    if row.is_integer:
        count = call.graph.iota(call.shape[0], row)
        start, step = _as_stored(call, start), _as_stored(call, step)
        scaled = count if step == 1 else count * call.tensor(step)
        return scaled if start == 0 else scaled + call.tensor(start)
    wide = types.FLOAT64
    count = call.graph.iota(call.shape[0], types.INT64).cast(wide)
    return (count * call.tensor(step, wide) + call.tensor(start, wide)).cast(row)


@aten("prims.iota.default")
def iota(call: AtenCall, _: Scalar, *, start: Scalar, step: Scalar, **__: object) -> Value:
    return arange(call, start, 0, step)


@aten("arange.default")
def arange_end(call: AtenCall, end: Scalar, **_: object) -> Value:
    return arange(call, 0, end, 1)


@aten("arange.start")
def arange_start(call: AtenCall, start: Scalar, end: Scalar, **_: object) -> Value:
    return arange(call, start, end, 1)


@aten("linspace.default")
def linspace(call: AtenCall, start: Scalar, end: Scalar, steps: int, **_: object) -> Value:
    wide = types.FLOAT64
    count = call.graph.iota(steps, types.INT64).cast(wide)
    step = (end - start) / max(steps - 1, 1)
    return (count * float(step) + float(start)).cast(call.dtype)


@aten("eye.default", "eye.m")
def eye(call: AtenCall, *_: object, **__: object) -> Value:
    rows, columns = call.shape
    same = call.graph.iota(rows).unsqueeze(1).eq(call.graph.iota(columns))
    return same.cast(call.dtype)


@aten("tril_indices.default", "triu_indices.default")
def triangle_indices(call: AtenCall, rows: int, columns: int, offset: int = 0, **_: object) -> Value:
    """Where the elements of a triangle are, in order: rows, then columns."""
    call.refuse_unless(
        all(isinstance(one, int) for one in (rows, columns, offset)), f"{call.name} of a size that may differ"
    )
    inside = np.tri(rows, columns, offset if call.name.startswith("tril") else offset - 1, dtype=bool)
    places = np.argwhere(inside if call.name.startswith("tril") else ~inside)
    return call.graph.constant(places.T, call.dtype)


@aten(
    "_assert_tensor_metadata.default", "_assert_scalar.default",
    "sym_constrain_range_for_size.default", "sym_constrain_range.default",
)  # fmt: skip
def assertion(_: AtenCall, *__: object, **___: object) -> None:
    """What torch.export has checked, or states of sizes: the facts are in the symbols."""


@aten("_local_scalar_dense.default", "item.default")
def item(call: AtenCall, x: Value) -> Value | Any:
    """A number of the data as a size."""
    call.refuse_unless(bool(call.sizes) and x.dtype.is_integer, "a number read from the data that is no size")
    call.graph.apply("define_size", x.reshape(()).cast("int64"), symbol=call.sizes[0])
    return call.sizes[0]
