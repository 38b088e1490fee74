# ruff: noqa: D103
"""Embedding bags: rows of a table, added up, averaged or compared bag by bag.

Bags of equal length (a matrix of indices) are a reduction. Others are told by their offsets: the bag of an index is the
number of offsets up to its place, less one, and bags are what a scatter adds up.
"""

from __future__ import annotations

from kernels_hub.compiler.importers.aten_ops.call import AtenCall, aten, unfollowed
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.dims import Dim
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.proofs import proves_equal

SUM, MEAN, MAX = range(3)


@aten(
    "embedding_bag.padding_idx",
    "embedding_bag.default",
    "_embedding_bag.default",
    "_embedding_bag_forward_only.default",
)
def embedding_bag(
    call: AtenCall,
    table: Value,
    indices: Value,
    offsets: Value,
    by_frequency: bool = False,
    mode: int = SUM,
    sparse: bool = False,
    weights: Value | None = None,
    last_offset: bool = False,
    padding: int | None = None,
) -> list[Value]:
    call.refuse_unless(not by_frequency, "an embedding bag with gradients scaled by frequency")
    count, (rows, _) = indices.shape[0], table.shape
    wide = table.dtype.compute
    taken = table.gather(indices, 0)
    if sparse:
        taken = taken.unary("stop_gradient", reason="sparse=True makes its gradient a sparse tensor")
    taken = taken.cast(wide)
    if weights is not None:
        taken = taken * weights.cast(wide).unsqueeze(1).broadcast_to(taken.shape)
    kept: Value | None = None
    if padding is not None and (padding >= 0 or call.name.startswith("embedding_bag.padding")):
        number = call.tensor(padding, types.INT64)
        kept = indices.cast(types.INT64).ne(number + rows if padding < 0 else number)
        taken = unfollowed(taken, (~kept).unsqueeze(1).broadcast_to(taken.shape))
    bags = _Bags(call, offsets, count, last_offset=last_offset)
    result = bags.reduced(taken, kept, mode).cast(call.dtype)
    others = [call.graph.full(one.shape, 0, one.dtype) for one in call.results[1:] if one is not None]
    return [result, *others]


class _Bags:
    """The bags that offsets divide `count` indices into."""

    def __init__(self, call: AtenCall, offsets: Value, count: Dim, *, last_offset: bool) -> None:
        self.graph, self.count = call.graph, count
        self.number = offsets.shape[0] - 1 if last_offset else offsets.shape[0]
        self.length = None if last_offset else _step(offsets, count)
        self.marks = offsets.shape[0]
        if self.length is None:
            none = self.graph.full((count + 1,), 0, types.INT64)
            ones = self.graph.full((self.marks,), 1, types.INT64)
            places = offsets.cast(types.INT64).unsqueeze(1)
            begun = none.apply("scatter_nd", none, places, ones, reduction="add").cumulate("sum", 0)
            self.places = begun.slice(0, 0, count) - self.graph.constant(1, types.INT64)

    def reduced(self, taken: Value, kept: Value | None, mode: int) -> Value:
        """One row for each bag: 0 where it is empty."""
        row = taken.dtype
        if mode == MAX:
            number = self.graph.constant(float("-inf"), row)
            if kept is not None:
                taken = kept.unsqueeze(1).broadcast_to(taken.shape).select(taken, number)
            best = self._of("max", taken, number)
            return (
                self._sizes(kept)
                .eq(0)
                .unsqueeze(1)
                .broadcast_to(best.shape)
                .select(self.graph.constant(0, row), best)
            )
        if kept is not None:
            taken = kept.unsqueeze(1).broadcast_to(taken.shape).select(taken, self.graph.constant(0, row))
        total = self._of("add", taken, self.graph.constant(0, row))
        if mode == SUM:
            return total
        sizes = self._sizes(kept).binary("maximum", self.graph.constant(1, types.INT64)).cast(row)
        return total / sizes.unsqueeze(1).broadcast_to(total.shape)

    def _sizes(self, kept: Value | None) -> Value:
        """How many indices of each bag count."""
        ones = self.graph.full((self.count,), 1, types.INT64) if kept is None else kept.cast(types.INT64)
        return self._of("add", ones, self.graph.constant(0, types.INT64))

    def _of(self, reduction: str, x: Value, start: Value) -> Value:
        rest = x.shape[1:]
        if self.length is not None:
            bags = x.reshape((self.number, self.length, *rest))
            return bags.reduce("max" if reduction == "max" else "sum", [1])
        first = start.broadcast_to((self.marks, *rest))
        found = first.apply("scatter_nd", first, self.places.unsqueeze(1), x, reduction=reduction)
        return found.slice(0, 0, self.number)


def _step(offsets: Value, count: Dim) -> Dim | None:
    """The length of all bags, where offsets are 0, length, 2 * length, … up to `count`."""
    while offsets.op_name == "cast":
        offsets = offsets.operands[0]
    if offsets.op_name == "iota" and proves_equal(offsets.shape[0], count):
        return 1
    if offsets.op_name != "mul" or offsets.operands[0].op_name != "iota":
        return None
    step = offsets.operands[1]
    while step.op_name in {"cast", "broadcast", "reshape"}:
        step = step.operands[0]
    length: Dim | None = step.attrs["value"] if step.op_name == "size" else step.scalar
    if length is None or not proves_equal(offsets.shape[0] * length, count):
        return None
    return length
