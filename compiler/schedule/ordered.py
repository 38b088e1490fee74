"""What sorting decides, written out: a median, binary search, one of a few, logcumsumexp.

argmedian           the element in the middle, or the first NaN; where NaN are ignored, the order of the row
searchsorted        a step of the search for each bit of the length: an element, a comparison, a choice
isin                whether any of the vector's elements is equal
logcumsumexp        logsumexp over a triangle, of rows that are short: what comes later may be far greater
"""

from __future__ import annotations

import math

from kernels_hub.compiler.ir.graph import Node, Value
from kernels_hub.compiler.ir.proofs import interval
from kernels_hub.compiler.ir.types import INT64

SORTED = frozenset({"argmedian"})
"""Those that take an order, which has no form in the language of GPU kernels."""
OF_LENGTHS = frozenset({"logcumsumexp"})
"""Those that are written out for lengths that are numbers alone."""
_LONGEST = 128
"""Of rows that a triangle is taken of."""
_MOST_BITS = 40


def is_ordered(node: Node) -> bool:
    """Whether `in_order` writes an op out."""
    if node.op.name == "logcumsumexp":
        size = node.operands[0].shape[node.attrs["axis"]]
        return isinstance(size, int) and 0 < size <= _LONGEST and node.operands[0].dtype.is_float
    return node.op.name in SORTED or node.op.name in {"searchsorted", "isin"}


def in_order(node: Node, operands: tuple[Value, ...]) -> Value:
    """The op of a node in others. operands: the node's, in the new graph."""
    name, attrs = node.op.name, node.attrs
    if name == "argmedian":
        return _median(operands[0], attrs["axis"], ignore_nan=attrs["ignore_nan"])
    if name == "searchsorted":
        return _searched(*operands, right=attrs["right"])
    if name == "isin":
        return _is_one_of(*operands)
    return _logcumsumexp(operands[0], attrs["axis"])


def _median(x: Value, axis: int, *, ignore_nan: bool) -> Value:
    if not x.dtype.is_float or not ignore_nan:
        middle = x.along("argkth", axis, k=(x.shape[axis] + 1) // 2)
        if not x.dtype.is_float:
            return middle
        missing = x.unary("isnan")
        return missing.reduce("any", axis).select(missing.cast(INT64).along("argmax", axis), middle)
    missing = x.unary("isnan").cast(INT64)
    count = x.graph.size(x.shape[axis]).broadcast_to(
        tuple(1 if one == axis else dim for one, dim in enumerate(x.shape))
    ) - missing.sum(axis, keepdims=True)
    order = x.along("argsort", axis)
    return order.gather_elements((count - 1).maximum(0) // 2, axis).squeeze(axis)


def _searched(ordered: Value, values: Value, *, right: bool) -> Value:
    """See `ir.ops.order`: the same steps, so that rows that are not in order give what they give there."""
    graph, size = ordered.graph, ordered.shape[-1]
    rows = ordered if ordered.rank > 1 else ordered.broadcast_to((*values.shape[:-1], size))
    if not values.rank:
        rows, values = ordered.unsqueeze(0), values.reshape((1, 1))
        return _steps(rows, values, right=right).reshape(())
    if isinstance(size, int) and size == 0:
        return graph.full(values.shape, 0, INT64)
    return _steps(rows, values, right=right)


def _steps(rows: Value, values: Value, *, right: bool) -> Value:
    graph, size = rows.graph, rows.shape[-1]
    length = graph.size(size).broadcast_to(values.shape)
    low, high = graph.full(values.shape, 0, INT64), length
    most = interval(size)[1]
    for _ in range(_MOST_BITS if most is None else most.bit_length()):
        middle = (low + high) // 2
        at = rows.gather_elements(middle.minimum(length - 1), rows.rank - 1)
        stays = values.binary("lt", at) if right else values.binary("le", at)
        behind = stays.eq(False) & low.binary("lt", high)
        low, high = (
            behind.select(middle + 1, low),
            behind.select(high, low.binary("lt", high).select(middle, high)),
        )
    return low


def _is_one_of(x: Value, of: Value) -> Value:
    pairs = (*x.shape, of.shape[0])
    same = x.unsqueeze(x.rank).broadcast_to(pairs).eq(of.broadcast(pairs, (x.rank,)))
    return same.reduce("any", x.rank)


def _logcumsumexp(x: Value, axis: int) -> Value:
    size = x.shape[axis]
    last = x.permute(*(one for one in range(x.rank) if one != axis), axis).cast(x.dtype.compute)
    square = (*last.shape, size)
    row, column = x.graph.iota(size).unsqueeze(1), x.graph.iota(size)
    seen = column.binary("le", row).broadcast_to(square)
    wide = seen.select(last.unsqueeze(-2).broadcast_to(square), -math.inf)
    most = wide.max(-1, keepdims=True)
    finite = most.unary("isinf").select(0.0, most)
    total = (wide - finite.broadcast_to(square)).exp().sum(-1)
    found = (total.log() + finite.squeeze(-1)).cast(x.dtype)
    order = list(range(x.rank - 1))
    order.insert(axis, x.rank - 1)
    return found.permute(*order)
