"""Writes where a mask holds: `x[mask] = values`, masked_scatter.

The n-th place that holds gets the n-th value: a running sum of the mask numbers the places, and values are gathered by
it. How many places hold only the data tell, and nothing here needs to know it. What is pointwise of elements at the
same places (`x[mask] = y[mask] * 2`) is computed at all places, and chosen.
"""

from __future__ import annotations

from kernels_hub.compiler.importers.aten_ops.call import AtenCall, aten
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.dims import Dim, Expr, divide_exactly, product
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.op import Trait
from kernels_hub.compiler.ir.proofs import proves_equal, proves_le


@aten("masked_scatter.default")
def masked_scatter(_: AtenCall, x: Value, mask: Value, source: Value) -> Value:
    """Places in row-major order get the elements of a source; whole rows, where the mask says the same of a row."""
    if not x.rank:
        return mask.select(source.reshape((-1,)).slice(0, 0, 1).reshape(()), x)
    mask = mask.broadcast_to(x.shape)
    rows = _without_repeats(mask)
    inner = x.shape[rows.rank :]
    if not inner or divide_exactly(source.type.size, product(inner)) is None:
        rows, inner = mask, ()
    return mask.select(numbered(rows, source.reshape((-1, *inner))), x)


@aten("masked_scatter_backward.default")
def masked_scatter_backward(call: AtenCall, gradient: Value, mask: Value, _: object) -> Value:
    """The gradient of the source: that of the places that hold, in their order; 0 of what no place has taken."""
    mask = mask.broadcast_to(gradient.shape)
    rows, size = _without_repeats(mask), product(call.shape)
    inner = gradient.shape[rows.rank :]
    count = divide_exactly(size, product(inner)) if inner else None
    if count is None:
        rows, inner, count = mask, (), size
    return packed(rows, gradient.reshape((-1, *inner)), count).reshape(call.shape)


def _without_repeats(mask: Value) -> Value:
    """A mask without the last dims along which it is broadcast."""
    if mask.op_name != "broadcast":
        return mask
    kept = mask.attrs["axes"]
    rank = max(kept, default=-1) + 1
    source = mask.operands[0]
    if kept != tuple(range(rank)) or not rank:
        return mask
    return source


def numbered(mask: Value, values: Value) -> Value:
    """values (n, …) as (mask's dims, …): the first at the first place that holds, and so on. Others get any."""
    counts = mask.reshape((-1,)).cast(types.INT64).along("cumsum", 0)
    if proves_le(1, values.shape[0]):
        counts = counts - 1
    else:  # one to read where no place holds, before the others: who has too few of them is still told
        before = [(1, 0), *[(0, 0)] * (values.rank - 1)]
        values = values.pad(before, False if values.dtype is types.BOOL else 0)
    places = mask.reshape((-1,)).select(counts, 0).reshape(mask.shape)
    return values.gather(places, 0)


_MOST_OPS = 64
"""Of what is computed at all places instead of at those of a mask."""


def _everywhere(values: Value, mask: Value) -> Value | None:
    """values (n, …) of the n places of a mask as (mask's dims, …): of elements there, computed at all places.

    None where something else than pointwise ops makes them, or what other places have might be divided by.
    """
    found: dict[Value, Value | None] = {}

    def computed(value: Value) -> Value | None:
        if value not in found:
            found[value] = None if len(found) >= _MOST_OPS else made(value)
        return found[value]

    def made(value: Value) -> Value | None:
        if value.op_name in {"gather", "gather_nd"}:
            return _read_whole(value, mask)
        if value.op_name == "broadcast" and 0 not in value.attrs["axes"]:
            axes = tuple(axis + mask.rank - 1 for axis in value.attrs["axes"])
            return value.operands[0].broadcast((*mask.shape, *value.shape[1:]), axes)
        divides = value.op_name in {"div", "floordiv", "mod", "fmod"} and not value.dtype.is_float
        if Trait.POINTWISE not in value.op.traits or divides or not value.operands:
            return None
        operands = [computed(operand) for operand in value.operands]
        given = [operand for operand in operands if operand is not None]
        return (
            value.graph.apply(value.op_name, *given, **value.attrs) if len(given) == len(operands) else None
        )

    return computed(values) if values.rank else None


def _is_same(a: Value, b: Value, depth: int = 4) -> bool:
    """Whether two values are computed alike: `x[x > 0] = x[x > 0] * 2` compares twice."""
    if a is b:
        return True
    if not depth or a.op_name != b.op_name or not a.operands or a.place != b.place:
        return False
    alike = a.attrs == b.attrs and a.type == b.type and len(a.operands) == len(b.operands)
    return alike and all(_is_same(x, y, depth - 1) for x, y in zip(a.operands, b.operands, strict=True))


def _read_whole(read: Value, mask: Value) -> Value | None:
    """What x[mask] is read from, where that is all that a gather reads."""
    x, places = read.operands
    if read.op_name == "gather" and (read.attrs["axis"] or mask.rank != 1):
        return None
    parts = places.operands if places.op_name == "concat" else (places,)
    if [_coordinate(part, mask) for part in parts] != list(range(mask.rank)):
        return None
    same = len(x.shape) >= mask.rank and all(map(proves_equal, x.shape[: mask.rank], mask.shape))
    return x if same else None


def _coordinate(value: Value, mask: Value) -> int | None:
    """Which coordinate of a mask's places, in their order, a vector is; None of another."""
    axis = None
    while value.op_name in {"reshape", "broadcast", "slice"}:
        (source,) = value.operands
        if value.op_name == "slice":
            if axis is not None or source.op_name != "nonzero" or value.type.size != source.shape[1]:
                return None
            axis = value.attrs["starts"][0]
        elif value.type.size != source.type.size:
            return None
        value = source
    is_of_mask = value.op_name == "nonzero" and _is_same(value.operands[0], mask)
    return (0 if axis is None and mask.rank == 1 else axis) if is_of_mask else None


def packed(mask: Value, values: Value, size: Dim, fill: int = 0) -> Value:
    """values (n, …) of the n places of a mask as (size, …): of the first ones that hold, then what fills."""
    graph = values.graph
    behind = graph.size(size) if isinstance(size, Expr) else graph.constant(size, types.INT64)
    holds = mask.reshape((-1,))
    order = holds.cast(types.INT64).along("cumsum", 0) - 1
    places = (holds & (order < behind)).select(order, behind)
    nothing = graph.full((size + 1, *values.shape[1:]), fill, values.dtype)  # the last for what is not wanted
    written = nothing.apply("scatter_nd", nothing, places.unsqueeze(1), values, reduction="none")
    return written.slice(0, 0, size)


def put_at_mask(x: Value, mask: Value, first: int, values: Value, *, accumulate: bool) -> Value:
    """x with values where a mask of its dims `first`, … holds; added to what is there if they accumulate.

    values: broadcast to x with one dim, of the places that hold, instead of those of the mask.
    """
    behind = x.rank - first - mask.rank
    order = [*range(first, first + mask.rank), *range(first), *range(x.rank - behind, x.rank)]
    moved = x.permute(*order)
    target = moved.shape[mask.rank :]
    place = values.rank - 1 - behind
    if not first and (everywhere := _everywhere(values, mask)) is not None:
        own = everywhere.broadcast_to(moved.shape)
    elif place >= 0 and values.shape[place] != 1:
        full = values.reshape((*[1] * (first - place), *values.shape))
        full = full.permute(first, *range(first), *range(first + 1, full.rank))
        own = numbered(mask, full.broadcast_to((full.shape[0], *target)))
    else:
        own = values if place < 0 else values.squeeze(place)
        own = own.broadcast_to(target).broadcast_to(moved.shape)
    if accumulate:
        own = moved | own if x.dtype is types.BOOL else moved + own
    wide = mask.reshape((*mask.shape, *[1] * len(target))).broadcast_to(moved.shape)
    return wide.select(own, moved).permute(*(order.index(axis) for axis in range(x.rank)))
