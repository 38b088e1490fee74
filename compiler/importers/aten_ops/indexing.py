# ruff: noqa: D103
"""Reads and writes where indices say: embedding, index, gather, scatter, index_put; pad by reflection and its kin."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kernels_hub.compiler.importers.aten_ops.call import (
    AtenCall,
    Handler,
    Scalar,
    UnsupportedArgumentsError,
    aten,
    unfollowed,
)
from kernels_hub.compiler.importers.aten_ops.masks import packed, put_at_mask
from kernels_hub.compiler.importers.aten_ops.views import constant_pad_nd, pad_pairs
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.dims import Dim, Expr
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.op import Shape
from kernels_hub.compiler.ir.operators import broadcast_shapes, same_shapes
from kernels_hub.compiler.ir.proofs import proves_le

Indices = Sequence[Value | None]


@aten("embedding.default")
def embedding(
    _: AtenCall,
    weight: Value,
    indices: Value,
    padding: int = -1,
    by_frequency: bool = False,
    sparse: bool = False,
) -> Value:
    rows = weight.gather(_from_start(indices, weight.shape[0]), 0)
    if by_frequency:
        rows = rows.apply(
            "with_derivative",
            rows,
            rows,
            _shares(weight, indices).broadcast(rows.shape, tuple(range(indices.rank))),
        )
    if sparse:
        rows = rows.unary("stop_gradient", reason="sparse=True makes its gradient a sparse tensor")
    if padding < 0:
        return rows
    return unfollowed(rows, indices.eq(padding).broadcast(rows.shape, tuple(range(indices.rank))))


def _from_start(indices: Value, extent: Dim) -> Value:
    """Indices of an op that refuses negative ones: those are out of range, where other ops count from the end."""
    if indices.array is not None and indices.array.size and indices.array.min() >= 0:
        return indices
    return (indices < 0).select(indices.graph.size(extent, indices.dtype), indices)


def _shares(weight: Value, indices: Value) -> Value:
    """1 / the number of times that each index is there."""
    graph = weight.graph
    flat = indices.reshape(-1, 1)
    none = graph.full((weight.shape[0],), 0, weight.dtype)
    ones = graph.full((flat.shape[0],), 1, weight.dtype)
    counts = graph.apply("scatter_nd", none, flat, ones, reduction="add")
    return 1 / counts.gather(indices, 0)


@aten("index_select.default")
def index_select(_: AtenCall, x: Value, axis: int, indices: Value) -> Value:
    if not x.rank:
        return x.reshape(1).gather(_from_start(indices.reshape(1), 1), 0).reshape(())
    return x.gather(_from_start(indices.reshape(indices.shape or (1,)), x.shape[axis]), axis)


@aten("gather.default")
def gather(_: AtenCall, x: Value, axis: int, indices: Value, **__: object) -> Value:
    if not x.rank:
        return x.reshape(1).gather_elements(_from_start(indices.reshape(1), 1), 0).reshape(())
    return x.gather_elements(_from_start(indices, x.shape[axis]), axis)


def _unmasked(x: Value, indices: Indices, call: AtenCall) -> list[Value | None]:
    """Masks made indices: constants of none, or the places that hold. Sizes come from the result's shape."""
    plain: list[Value | None] = []
    for index in indices:
        if index is None or index.dtype is not types.BOOL:
            plain.append(index)
            continue
        counts = [dim for dim in call.shape if not isinstance(dim, int) and _counts(dim, index)]
        if len(counts) != 1:
            raise UnsupportedArgumentsError(
                "a mask as an index, whose number of places is no size of its own"
            )
        places = x.graph.apply("nonzero", index, count=counts[0])
        plain += [places.slice(0, axis, axis + 1).squeeze(0) for axis in range(index.rank)]
    return plain


def _counts(dim: Expr, mask: Value) -> bool:
    """Whether a dim is the number of a mask's places: a symbol of no tensor so far, or defined by this very mask."""
    if dim.only_symbol is None:
        return False
    name = dim.only_symbol.name
    definer = mask.graph.definers.get(name)
    if definer is None:
        return not mask.graph.has_size(name)
    return definer.op.name == "nonzero" and definer.operands[0] is mask


def _front(x: Value, indices: Indices) -> tuple[list[int], Value, Shape]:
    """(axes indexed, places (…, axes), the shape that indices broadcast to)."""
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    given = [index.cast("int64") for index in indices if index is not None]
    shape: Shape = ()
    for one in given:
        shape = broadcast_shapes(shape, one.shape)
    parts = [one.broadcast_to(shape).unsqueeze(len(shape)) for one in given]
    places = parts[0] if len(parts) == 1 else x.graph.apply("concat", *parts, axis=len(shape))
    return axes, places, shape


@aten("index.Tensor", "_unsafe_index.Tensor")
def index(call: AtenCall, x: Value, indices: Indices) -> Value:
    """NumPy's advanced indexing: the indexed dims come where they were if adjacent, else first."""
    indices = _unmasked(x, indices, call)
    axes, places, shape = _front(x, indices)
    if len(axes) == 1:
        only = indices[axes[0]]
        assert only is not None
        return x.gather(only, axes[0])
    others = [axis for axis in range(x.rank) if axis not in axes]
    result = x.permute(*axes, *others).apply("gather_nd", x.permute(*axes, *others), places)
    if axes != list(range(axes[0], axes[0] + len(axes))):
        return result
    count, before = len(shape), axes[0]
    order = [*range(count, count + before), *range(count), *range(count + before, result.rank)]
    return result.permute(*order)


@aten("pad.default")
def pad(call: AtenCall, x: Value, padding: Sequence[Dim], mode: str, number: Scalar | None) -> Value:
    if mode == "constant":
        return constant_pad_nd(call, x, padding, 0 if number is None else number)
    call.refuse_unless(mode in _BEYOND, f"padding by {mode}")
    pairs = pad_pairs(x, padding)[x.rank - len(padding) // 2 :]
    reach = {"reflect": 1, "replicate": None, "circular": 0}[mode]
    if all(
        proves_le(0, one) and (reach is None or proves_le(one, size - reach))
        for size, pair in zip(x.shape[x.rank - len(pairs) :], pairs, strict=True)
        for one in pair
    ):  # else PyTorch refuses some sizes: an index out of range tells which
        return x.pad(pad_pairs(x, padding), mode=_MODES[mode])
    indices: list[Value | None] = [None] * (x.rank - len(pairs))
    for axis, (low, high) in enumerate(pairs):
        circle = mode != "circular" or (proves_le(0, low) and proves_le(0, high))
        call.refuse_unless(circle, "a cut to a circle")
        size = x.shape[x.rank - len(pairs) + axis]
        places = call.graph.iota(low + size + high) - call.tensor(low, types.INT64)
        places = _BEYOND[mode](places, call.tensor(size, types.INT64))
        indices.append(places.reshape((-1, *[1] * (len(pairs) - axis - 1))))
    return index(call, x, indices)


def _reflected(places: Value, size: Value) -> Value:
    last = size - 1
    return last - (last - places.unary("abs")).unary("abs")


def _nearest(places: Value, size: Value) -> Value:
    return places.binary("maximum", 0).binary("minimum", size - 1)


_BEYOND: Mapping[str, Callable[[Value, Value], Value]] = {
    "reflect": _reflected,
    "replicate": _nearest,
    "circular": lambda places, size: places.binary("mod", size),
}
"""Mode of padding -> where the elements are that stand at places beyond the ends."""
_MODES = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}
"""Mode of padding -> that of the IR's `pad`."""


@aten("index_put.default", "_unsafe_index_put.default")
def index_put(call: AtenCall, x: Value, indices: Indices, values: Value, accumulate: bool) -> Value:
    masks = [index for index in indices if index is not None and index.dtype is types.BOOL]
    if masks:
        given = [index for index in indices if index is not None]
        call.refuse_unless(len(given) == 1, "index_put with a mask beside other indices")
        return put_at_mask(x, masks[0], indices.index(masks[0]), values, accumulate=accumulate)
    axes, places, shape = _front(x, indices)
    others = [axis for axis in range(x.rank) if axis not in axes]
    order = [*axes, *others]
    target = (*shape, *(x.shape[axis] for axis in others))
    adjacent = axes == list(range(axes[0], axes[0] + len(axes)))
    if adjacent and axes[0]:
        before = axes[0]
        spread = (*x.shape[:before], *shape, *x.shape[before + len(axes) :])
        updates = values.broadcast_to(spread)
        count = len(shape)
        updates = updates.permute(
            *range(before, before + count), *range(before), *range(before + count, updates.rank)
        )
    else:
        updates = values.broadcast_to(target)
    moved = x.permute(*order)
    written = moved.apply("scatter_nd", moved, places, updates, reduction="add" if accumulate else "none")
    return written.permute(*(order.index(axis) for axis in range(x.rank)))


@aten("put.default")
def put(call: AtenCall, x: Value, indices: Value, values: Value, accumulate: bool) -> Value:
    flat = index_put(call, x.reshape((-1,)), [indices.reshape((-1,))], values.reshape((-1,)), accumulate)
    return flat.reshape(x.shape)


@aten("masked_select.default")
def masked_select(call: AtenCall, x: Value, mask: Value) -> Value:
    shape = broadcast_shapes(x.shape, mask.shape)
    call.refuse_unless(
        same_shapes(shape, x.shape), "a mask of more elements: PyTorch's bound of them is too low"
    )
    if not shape:
        return index(call, x.reshape(1), [mask.reshape(1)])
    return index(call, x.broadcast_to(shape), [mask.broadcast_to(shape)])


_REDUCTIONS = {
    None: "none",
    "add": "add",
    "mul": "mul",
    "max": "max",
    "min": "min",
    "sum": "add",
    "multiply": "mul",
    "prod": "mul",
    "amax": "max",
    "amin": "min",
}


def _scattered(x: Value, axis: int, indices: Value, updates: Value, reduction: str | None) -> Value:
    for index, dim in enumerate(indices.shape):
        # ATen reads only as much of the source as there are indices.
        updates = updates.slice(index, 0, dim)
    return x.apply(
        "scatter_elements", x, indices, updates, axis=x.axis(axis), reduction=_REDUCTIONS[reduction]
    )


@aten("scatter.src", "scatter.reduce")
def scatter(
    _: AtenCall, x: Value, axis: int, indices: Value, source: Value, *, reduce: str | None = None
) -> Value:
    return _scattered(x, axis, indices, source, reduce)


@aten("scatter.value", "scatter.value_reduce")
def scatter_value(
    call: AtenCall, x: Value, axis: int, indices: Value, number: Scalar, *, reduce: str | None = None
) -> Value:
    return _scattered(x, axis, indices, call.tensor(number).broadcast_to(indices.shape), reduce)


@aten("scatter_add.default")
def scatter_add(_: AtenCall, x: Value, axis: int, indices: Value, source: Value) -> Value:
    return _scattered(x, axis, indices, source, "add")


@aten("scatter_reduce.two")
def scatter_reduce(
    call: AtenCall, x: Value, axis: int, indices: Value, source: Value, reduce: str, *, include_self: bool
) -> Value:
    return _met(call, x, x.axis(axis), indices, source, reduce, with_old=include_self)


@aten("index_reduce.default")
def index_reduce(
    call: AtenCall,
    x: Value,
    axis: int,
    indices: Value,
    source: Value,
    reduce: str,
    *,
    include_self: bool = True,
) -> Value:
    axis = x.axis(axis)
    places = indices.reshape((-1,)).broadcast(source.shape, (axis,))
    return _met(call, x, axis, places, source, reduce, with_old=include_self)


def _met(
    call: AtenCall, x: Value, axis: int, indices: Value, source: Value, reduce: str, *, with_old: bool
) -> Value:
    """What meets at each place; with_old: what is there, too. A mean is of all that meet, rounded down if whole."""
    row, graph = x.dtype, call.graph
    wide = row.compute if reduce == "mean" else row
    reduction = "add" if reduce == "mean" else _REDUCTIONS[reduce]

    def written(to: Value, number: float) -> Value:
        return _scattered(to, axis, indices, graph.full(indices.shape, number, to.dtype), None)

    base = x.cast(wide)
    if not with_old:
        base = written(base, _neutral(reduction, wide))
    total = _scattered(base, axis, indices, source.cast(wide), reduction)
    if reduce != "mean":
        return total
    counts = graph.full(x.shape, 1, wide)
    counts = counts if with_old else written(counts, 0)
    counts = _scattered(counts, axis, indices, graph.full(indices.shape, 1, wide), "add")
    return (total / counts if row.is_float else total.binary("floordiv", counts)).cast(row)


def _neutral(reduction: str, row: types.DType) -> float:
    """What changes nothing that it meets."""
    if reduction in {"add", "mul"}:
        return int(reduction == "mul")
    if row.is_float:
        return float("-inf" if reduction == "max" else "inf")
    return int(row.limits[0 if reduction == "max" else 1])


def _along_axis(reduction: str) -> Handler:
    """index_add and index_copy: whole slices written at an axis."""

    def handler(
        call: AtenCall, x: Value, axis: int, indices: Value, source: Value, alpha: Scalar = 1
    ) -> Value:
        if alpha != 1:
            source = source * call.tensor(alpha)
        place = x.axis(axis)
        if reduction == "add":
            return index_put(call, x, [*[None] * place, indices], source, True)
        return index_put(call, x, [*[None] * place, indices], source, False)

    return handler


aten("index_add.default")(_along_axis("add"))
aten("index_copy.default")(_along_axis("none"))


@aten("select_scatter.default")
def select_scatter(call: AtenCall, x: Value, source: Value, axis: int, place: Dim) -> Value:
    place = place + x.shape[x.axis(axis)] if isinstance(place, int) and place < 0 else place
    return slice_scatter(call, x, source.unsqueeze(x.axis(axis)), axis, place, place + 1, 1)


@aten("slice_scatter.default")
def slice_scatter(
    call: AtenCall, x: Value, source: Value, axis: int, start: Dim | None, stop: Dim | None, step: int
) -> Value:
    """x with x[start:stop:step] at an axis replaced: parts between, where the step is 1."""
    axis = x.axis(axis)
    if step != 1:
        places = call.graph.iota(x.shape[axis]).slice(axis=0, start=start, stop=stop, step=step)
        return index_put(call, x, [*[None] * axis, places], source, False)
    size = x.shape[axis]
    low = 0 if start is None else start
    if isinstance(low, int) and low < 0:
        low = max(low + size, 0) if isinstance(size, int) else low + size
    before, behind = x.slice(axis, 0, low), x.slice(axis, low + source.shape[axis])
    parts = [
        one
        for one in (
            before,
            source.broadcast_to((*x.shape[:axis], source.shape[axis], *x.shape[axis + 1 :])),
            behind,
        )
        if one.shape[axis] != 0
    ]
    return parts[0] if len(parts) == 1 else call.graph.apply("concat", *parts, axis=axis)


@aten("diagonal_scatter.default")
def diagonal_scatter(call: AtenCall, x: Value, source: Value, offset: int, row: int, column: int) -> Value:
    row, column = x.axis(row), x.axis(column)
    order = [row, column, *(axis for axis in range(x.rank) if axis not in {row, column})]
    along = call.graph.iota(source.shape[-1])
    indices = [along + max(-offset, 0), along + max(offset, 0)]
    source = source.permute(source.rank - 1, *range(source.rank - 1))
    written = index_put(call, x.permute(*order), indices, source, False)
    return written.permute(*(order.index(axis) for axis in range(x.rank)))


@aten("nonzero.default")
def nonzero(call: AtenCall, x: Value) -> Value:
    count = call.shape[0]
    call.refuse_unless(not isinstance(count, int), "the places of nonzero, whose number was made a constant")
    return call.graph.apply("nonzero", x, count=count).transpose()


@aten("nonzero_static.default")
def nonzero_static(call: AtenCall, x: Value, *, size: Dim, fill_value: int) -> Value:
    """The first places that are not zero, by their numbers among all; the number that fills, where there are less."""
    found = packed(x.cast(types.BOOL), call.graph.iota(x.type.size), size, -1)
    columns, rest = [], found
    for dim in reversed(x.shape):
        extent = call.tensor(dim, types.INT64)
        columns.append(rest.binary("mod", extent))
        rest = rest.binary("floordiv", extent)
    parts = [found.eq(-1).select(fill_value, one).unsqueeze(1) for one in reversed(columns)]
    return call.graph.apply("concat", *parts, axis=1) if parts else call.graph.full((size, 0), 0, types.INT64)


@aten("one_hot.default")
def one_hot(call: AtenCall, x: Value, _: object) -> Value:
    classes = call.graph.iota(call.shape[-1], x.dtype)
    return x.unsqueeze(x.rank).eq(classes).cast(call.dtype)
