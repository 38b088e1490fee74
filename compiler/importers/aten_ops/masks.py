"""Writes where a mask holds: `x[mask] = values`, masked_scatter.

The n-th place that holds gets the n-th value: a running sum of the mask numbers the places, and values are gathered by
it. How many places hold only the data tell, and nothing here needs to know it.
"""

from __future__ import annotations

from kernels_hub.compiler.importers.aten_ops.call import AtenCall, aten
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.dims import Dim, Expr, divide_exactly, product
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.proofs import proves_le


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
    if place >= 0 and values.shape[place] != 1:
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
