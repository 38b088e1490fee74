# ruff: noqa: D103
"""Views and copies: reshape, permute, expand, slice, concatenate, pad, flip, roll, repeat."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from kernels_hub.compiler.importers.aten_ops.call import AtenCall, Scalar, UnsupportedArgumentsError, aten
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.dims import Dim, Expr
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.proofs import proves_le


@aten(
    "view.default", "_unsafe_view.default", "reshape.default", "unsqueeze.default", "flatten.using_ints",
    "squeeze.dim", "squeeze.dims", "squeeze.default", "unflatten.int", "reshape_as.default", "view_as.default",
)  # fmt: skip
def reshape(call: AtenCall, x: Value, *_: object) -> Value:
    return x.reshape(call.shape)


@aten(
    "alias.default", "clone.default", "contiguous.default", "lift_fresh_copy.default",
)  # fmt: skip
def identity(_: AtenCall, x: Value, **__: object) -> Value:
    return x


@aten("detach.default", "detach_.default")
def detach(_: AtenCall, x: Value, **__: object) -> Value:
    return x.unary("stop_gradient") if x.dtype.is_float or x.dtype.is_complex else x


@aten("as_strided.default")
def as_strided(
    call: AtenCall, x: Value, sizes: Sequence[Scalar], strides: Sequence[Scalar], offset: Scalar
) -> Value:
    """Elements of x by where they lie in its memory, which x has to fill without gaps."""
    if call.layout is None:
        raise UnsupportedArgumentsError("memory is read by strides, and arguments may have others at a call")
    own, start = call.layout
    first = start if offset is None else offset
    shape: list[Any] = list(x.shape)
    if not all(isinstance(one, int) for one in (*shape, *sizes, *strides, *own, start, first)):
        raise UnsupportedArgumentsError("memory is read by strides that are no numbers", of_sizes=True)
    order, count = _dense(shape, own), math.prod(shape)
    begin = first - start
    end = begin + sum((size - 1) * step for size, step in zip(sizes, strides, strict=True))
    if order is None or begin < 0 or (0 not in sizes and end >= count):
        raise UnsupportedArgumentsError("memory is read by strides beyond its operand's elements")
    flat = x.permute(*order).reshape(count)
    wanted = _dense(sizes, strides)
    if wanted is not None and math.prod(sizes) == count:
        sorted_ = flat.reshape([sizes[axis] for axis in wanted])
        return sorted_.permute(*(wanted.index(axis) for axis in range(len(wanted))))
    places = call.graph.constant(begin, types.INT64).broadcast_to(sizes)
    for axis, (size, step) in enumerate(zip(sizes, strides, strict=True)):
        along = [size if one == axis else 1 for one in range(len(sizes))]
        places = places + (call.graph.iota(size) * step).reshape(along)
    return flat.gather(places)


def _dense(sizes: Sequence[Scalar], strides: Sequence[Scalar]) -> list[int] | None:
    """Axes from the slowest to the fastest; None where there are gaps between elements, or several at a place."""
    order = sorted(range(len(sizes)), key=lambda axis: (-strides[axis], axis))
    expected = 1
    for axis in reversed(order):
        if sizes[axis] != 1 and strides[axis] != expected:
            return None
        expected *= sizes[axis]
    return order


@aten("copy.default")
def copy(call: AtenCall, _: Value, source: Value, *__: object) -> Value:
    return source.cast(call.dtype).broadcast_to(call.shape)


@aten("view.dtype")
def view_dtype(call: AtenCall, x: Value, _: object) -> Value:
    """The same bits as another dtype. One of another width splits the last axis, or joins it, lowest bits first."""
    before, after = x.dtype.bits, call.dtype.bits
    if before == after:
        return x.bitcast(call.dtype)
    call.refuse_unless(types.BOOL not in {x.dtype, call.dtype}, "a view of bools as another dtype")
    count = max(before, after) // min(before, after)
    if before > after:
        bits = x.bitcast(f"uint{before}")
        parts = [
            bits.binary("shr", bits.like(after * i)).cast(f"uint{after}").unsqueeze(x.rank)
            for i in range(count)
        ]
        return call.graph.apply("concat", *parts, axis=x.rank).reshape(call.shape).bitcast(call.dtype)
    groups = x.bitcast(f"uint{before}").reshape((*call.shape, count)).cast(f"uint{after}")
    shifts = call.graph.iota(count).cast(f"uint{after}") * before
    return groups.binary("shl", shifts).reduce("sum", -1).cast(f"uint{after}").bitcast(call.dtype)


@aten("permute.default")
def permute(_: AtenCall, x: Value, order: Sequence[int]) -> Value:
    return x.permute(*order)


@aten("transpose.int", "swapaxes.default", "swapdims.default")
def transpose(_: AtenCall, x: Value, a: int, b: int) -> Value:
    return x.transpose(a, b) if x.rank else x


@aten("mT.default")
def transposed_matrices(_: AtenCall, x: Value) -> Value:
    return x.transpose()


@aten("movedim.int")
def movedim(_: AtenCall, x: Value, source: int, destination: int) -> Value:
    if not x.rank:
        return x
    start = x.axis(source)
    order = [axis for axis in range(x.rank) if axis != start]
    order.insert(x.axis(destination), start)
    return x.permute(*order)


@aten("t.default", "numpy_T.default")
def transposed(_: AtenCall, x: Value) -> Value:
    return x.permute(*reversed(range(x.rank)))


@aten("expand.default", "expand_as.default")
def expand(call: AtenCall, x: Value, _: object, **__: object) -> Value:
    return x.broadcast_to(call.shape)


@aten("slice.Tensor")
def slice_tensor(
    call: AtenCall, x: Value, axis: int, start: Dim | None, stop: Dim | None, step: int
) -> Value:
    place = x.axis(axis)
    low, high = _place(x, place, start), _place(x, place, stop)
    result = x.slice(place, low, high, step)
    return result if result.shape == call.shape else result.reshape(call.shape)


def _place(x: Value, axis: int, place: Dim | None) -> Dim:
    """A symbolic place that counts from the end, made one from the start.

    Raises UnsupportedArgumentsError where it is open.
    """
    if isinstance(place, int) and place >= 1 << 62:
        return None
    if not isinstance(place, Expr) or proves_le(0, place):
        return place
    if proves_le(place, -1):
        return x.shape[axis] + place
    raise UnsupportedArgumentsError(
        f"a slice at {place}: whether that counts from the end is not known", of_sizes=True
    )


@aten("narrow.default", "narrow_copy.default")
def narrow(_: AtenCall, x: Value, axis: int, start: Dim, length: Dim) -> Value:
    place = x.axis(axis)
    low = _place(x, place, start)
    assert low is not None
    if isinstance(low, int) and low < 0:
        low = x.shape[place] + low
    return x.slice(place, low, low + length)


@aten("diff.default")
def diff(call: AtenCall, x: Value, count: int, axis: int, before: Value | None, after: Value | None) -> Value:
    """x[1:] - x[:-1] along an axis, `count` times, of what comes before x, x, and what comes after it."""
    call.refuse_unless(call.dtype is not types.BOOL, "differences of truth values")
    place = x.axis(axis)
    parts = [call.tensor(one) for one in (before, x, after) if one is not None]
    x = parts[0] if len(parts) == 1 else call.graph.apply("concat", *parts, axis=place)
    for _ in range(count):
        size = x.shape[place]
        x = x.slice(place, 1, size) - x.slice(place, 0, size - 1)
    return x.reshape(call.shape)


@aten("select.int")
def select(_: AtenCall, x: Value, axis: int, index: Dim) -> Value:
    place = x.axis(axis)
    start = _place(x, place, index)
    if isinstance(start, int) and start < 0:
        start = start + x.shape[place]
    if not (proves_le(0, start) and proves_le(start + 1, x.shape[place])):
        # Whether the place exists is only known when the graph runs: a gather refuses it, a slice would clamp.
        return x.gather(x.graph.size(start), place)
    return x.slice(place, start, start + 1).squeeze(place)


@aten("split_with_sizes.default", "split_with_sizes_copy.default")
def split_with_sizes(_: AtenCall, x: Value, sizes: Sequence[Dim], axis: int) -> tuple[Value, ...]:
    return tuple(x.split(sizes, axis))


@aten("split.Tensor", "chunk.default", "unbind.int")
def split(call: AtenCall, x: Value, *rest: Any) -> tuple[Value, ...]:
    axis = x.axis(rest[-1])
    shapes = [result.shape for result in call.results if result is not None]
    if call.name.startswith("unbind"):
        return tuple(x.slice(axis, i, i + 1).squeeze(axis) for i in range(len(shapes)))
    return tuple(x.split([shape[axis] for shape in shapes], axis))


@aten("cat.default")
def cat(call: AtenCall, tensors: Sequence[Value], axis: int) -> Value:
    # ATen skips tensors of shape (0,), whatever the rank of the others.
    parts = [
        tensor
        for tensor in tensors
        if tensor.rank == len(call.shape) and (tensor.shape != (0,) or tensor.rank > 1)
    ]
    parts = [call.tensor(part) for part in parts or tensors]
    place = parts[0].axis(axis)
    return parts[0] if len(parts) == 1 else call.graph.apply("concat", *parts, axis=place)


@aten("stack.default")
def stack(call: AtenCall, tensors: Sequence[Value], axis: int) -> Value:
    parts = [call.tensor(tensor).unsqueeze(axis) for tensor in tensors]
    return parts[0] if len(parts) == 1 else call.graph.apply("concat", *parts, axis=parts[0].axis(axis))


@aten("constant_pad_nd.default")
def constant_pad_nd(call: AtenCall, x: Value, padding: Sequence[Dim], number: Scalar) -> Value:
    pairs = pad_pairs(x, padding)
    crops = [tuple(-one if isinstance(one, int) and one < 0 else 0 for one in pair) for pair in pairs]
    for axis, (low, high) in enumerate(crops):
        if low or high:
            x = x.slice(axis, low, x.shape[axis] - high)
    positive = [tuple(0 if isinstance(one, int) and one < 0 else one for one in pair) for pair in pairs]
    return x.pad([(low, high) for low, high in positive], call.tensor(number))


def pad_pairs(x: Value, padding: Sequence[Dim]) -> list[tuple[Dim, Dim]]:
    """ATen's list, last dim first, as (before, after) of every dim."""
    given = [(padding[i], padding[i + 1]) for i in range(0, len(padding), 2)]
    return [(0, 0)] * (x.rank - len(given)) + given[::-1]


@aten("flip.default")
def flip(_: AtenCall, x: Value, axes: Sequence[int]) -> Value:
    return x.flip(*axes) if axes and x.rank else x


@aten("roll.default")
def roll(_: AtenCall, x: Value, shifts: Sequence[int], axes: Sequence[int]) -> Value:
    if not x.rank:
        return x
    if not axes:
        return _rolled(x.flatten(), shifts[0], 0).reshape(x.shape)
    for shift, axis in zip(shifts, axes, strict=True):
        x = _rolled(x, shift, x.axis(axis))
    return x


def _rolled(x: Value, shift: int, axis: int) -> Value:
    size = x.shape[axis]
    if isinstance(size, int):
        if not size or not shift % size:
            return x
        shift %= size
    cut = size - shift if shift > 0 else -shift
    return x.graph.apply("concat", x.slice(axis, cut), x.slice(axis, 0, cut), axis=axis)


@aten("repeat.default")
def repeat(call: AtenCall, x: Value, counts: Sequence[Dim]) -> Value:
    shape = [*[1] * (len(counts) - x.rank), *x.shape]
    apart = x.reshape([dim for one in shape for dim in (1, one)])
    spread = [dim for count, one in zip(counts, shape, strict=True) for dim in (count, one)]
    return apart.broadcast_to(spread).reshape(call.shape)


@aten("repeat_interleave.self_int")
def repeat_interleave(call: AtenCall, x: Value, count: Dim, axis: int | None, **_: object) -> Value:
    if axis is None:
        x, axis = x.flatten(), 0
    place = x.axis(axis)
    wide = x.unsqueeze(place + 1)
    shape = list(wide.shape)
    shape[place + 1] = count
    return wide.broadcast_to(shape).reshape(call.shape)


@aten("tril.default", "triu.default")
def triangle(call: AtenCall, x: Value, diagonal: Dim) -> Value:
    rows, columns = x.shape[-2:]
    row = call.graph.iota(rows).unsqueeze(1) + call.tensor(diagonal, types.INT64)
    column = call.graph.iota(columns)
    keep = column.binary("le", row) if call.name.startswith("tril") else row.binary("le", column)
    return keep.broadcast_to(x.shape).select(x, call.tensor(0))


@aten("unfold.default")
def unfold(_: AtenCall, x: Value, axis: int, size: int, step: int) -> Value:
    return x.windows(axis, size, step)


@aten("im2col.default")
def blocks_as_columns(
    call: AtenCall,
    x: Value,
    kernel: Sequence[int],
    dilations: Sequence[int],
    padding: Sequence[int],
    strides: Sequence[int],
) -> Value:
    """The blocks of an image side by side, as windows of the padded image in its memory."""
    if x.rank == 3:
        x = x.unsqueeze(0)
    x = x.pad([(0, 0), (0, 0), *((one, one) for one in padding)])
    batch, channels, *size = x.shape
    counts = [
        (dim - dilation * (taps - 1) - 1) // stride + 1
        for dim, taps, dilation, stride in zip(size, kernel, dilations, strides, strict=True)
    ]
    steps = [size[0] * size[1], size[1], 1]
    windows = x.graph.apply(
        "strided", x, shape=[batch, channels, *kernel, *counts],
        strides=[channels * steps[0], steps[0], dilations[0] * steps[1], dilations[1],
                 strides[0] * steps[1], strides[1]],
    )  # fmt: skip
    return windows.reshape(call.shape)


@aten("diagonal.default")
def diagonal(call: AtenCall, x: Value, offset: int, a: int, b: int) -> Value:
    a, b = x.axis(a), x.axis(b)
    moved = x.permute(*(axis for axis in range(x.rank) if axis not in {a, b}), a, b)
    count = call.shape[-1]
    rows = call.graph.iota(count) + max(0, -offset)
    columns = call.graph.iota(count) + max(0, offset)
    flat = moved.flatten(-2)
    return flat.gather(rows * call.tensor(moved.shape[-1], rows.dtype) + columns, -1)
