"""In which order the dims of a unit lie in memory: row-major, or channels last around convolutions.

A convolution reads and writes channels last, where the channels of a pixel are one vector. What is made of such a
value element by element lies as it does; a conversion is a copy, and happens only where an input or an output of the
graph meets a convolution. One that stands alone between inputs and outputs, and is deep or small, converts what it
reads itself and writes its results where they belong: one kernel, and no copies. Of shallow and large ones the stores
of channels that lie far apart cost more than the copies (measured: 0.4 to 0.8 of the speed; from a depth of 128 on
0.9 to 1.2). So they do where the channels of a pixel lie a multiple of 1 KiB apart, as of images whose sides are powers
of two: then they share a few sets of the cache (0.35 to 0.75).
"""

from __future__ import annotations

from kernels_hub.compiler.ir.dims import product
from kernels_hub.compiler.ir.graph import Graph, Value
from kernels_hub.compiler.ir.op import Shape, Trait
from kernels_hub.compiler.ir.proofs import interval
from kernels_hub.compiler.schedule.expand import has_pixels, is_laid_out
from kernels_hub.compiler.schedule.index import permuted, row_major
from kernels_hub.compiler.schedule.inlining import Inlining, Kind
from kernels_hub.compiler.schedule.lower import reduction_axes

DEEP = 256
"""Multiplications an element from which a convolution's work hides that it writes its channels far apart."""
FEW = 1 << 14
"""Elements so few that a kernel more costs more than what it moves."""
CROWDED = 1024
"""Bytes: what lies a multiple of them apart shares four of the 64 sets of a core's first cache, in lines of 64."""


def stands_alone(graph: Graph) -> bool:
    """Whether nothing that a convolution gives is read by another one, a pool, a product or a reduction, no value is
    read by two, and none is both shallow and large: then all lies as the graph says, and nothing is copied.

    Convolutions of a single pixel count for nothing."""
    convolved: set[Value] = set()
    read: set[Value] = set()
    for node in graph.live():
        if node.op.name == "conv" and not has_pixels(node.operands[0]):
            continue
        if node.op.name == "conv":
            x = _source(node.operands[0])
            if x in read or pays_for_copies(node.results[0]):
                return False
            read.add(x)
        if any(operand in convolved for operand in node.operands):
            if not ((Trait.POINTWISE | Trait.VIEW) & node.op.traits or node.op.name in {"pad", "concat"}):
                return False
            convolved.update(node.results)
        if node.op.name == "conv":
            convolved.update(node.results)
    return True


def pays_for_copies(value: Value) -> bool:
    """Whether a product or convolution is better stored with its columns side by side, and copied where they belong:
    it gives much for little work, or columns that lie apart would crowd into a few sets of the cache."""
    shape = value.operands[1].shape
    depth = product(shape[1:]) if value.op_name == "conv" else shape[-2]
    apart = product(value.shape[2:]) if value.op_name == "conv" else value.shape[-2]
    _, most = interval(product(value.shape))
    shallow = isinstance(depth, int) and depth < DEEP
    crowded = isinstance(apart, int) and apart * value.dtype.bits // 8 % CROWDED == 0
    return (shallow or crowded) and (most is None or most > FEW)


def _source(value: Value) -> Value:
    """What a view is of."""
    while Trait.VIEW in value.op.traits:
        value = value.operands[0]
    return value


class StrideOrder:
    """The strides of the values that have memory. `rows`: those that must be row-major."""

    def __init__(self, inlining: Inlining, rows: frozenset[Value] = frozenset()) -> None:
        self.inlining = inlining
        self._last: set[Value] = set()
        read = {value.operands[0] for value, kind in inlining.kinds.items() if kind is Kind.CONVOLUTION}
        for value, kind in inlining.kinds.items():
            if value in inlining.orders or value in rows or value.rank < 3:
                continue
            like = kind in {Kind.POINTWISE, Kind.POOL} and any(
                source in self._last
                and source.rank == value.rank
                and (has_pixels(source) or not has_pixels(value))
                for source in self._sources(value)
            )
            summed = kind is Kind.REDUCTION and self._is_of_groups(value)
            if kind is Kind.CONVOLUTION or value in read or like or summed or is_laid_out(value):
                self._last.add(value)

    def strides(self, value: Value) -> Shape:
        """Of a value that lies in memory."""
        if (order := self.inlining.orders.get(value)) is not None:
            return permuted(value.shape, order)
        if value in self._last:
            return permuted(value.shape, (0, *range(2, value.rank), 1))
        return row_major(value.shape)

    def is_channels_last(self, value: Value) -> bool:
        """Whether it lies channels last."""
        return value in self._last

    def _is_of_groups(self, value: Value) -> bool:
        """Whether it reduces groups of channels, as split attention does: what lies channels last, reshaped so that its
        channels are two dims, along the first of these."""
        if reduction_axes(value) != (1,) or value.operands[0].rank != value.rank + 1 or not has_pixels(value):
            return False
        groups, channels = value.operands[0].shape[1:3]
        whole = (value.shape[0], groups * channels, *value.shape[2:])
        return any(one in self._last and one.shape == whole for one in self._sources(value, ("reshape",)))

    def _sources(self, value: Value, through: tuple[str, ...] = ("pad", "concat", "slice")) -> list[Value]:
        """Stored values that it is made of, element by element and through such ops; and what a pool reads."""
        if self.inlining.kinds[value] is Kind.POOL:
            return [value.operands[0]]
        values: list[Value] = []
        stack, seen = list(value.operands), set()
        while stack:
            one = stack.pop()
            if one in seen:
                continue
            seen.add(one)
            if self.inlining.is_stored(one):
                values.append(one)
            elif Trait.POINTWISE in one.op.traits or one.op_name in through:
                stack += one.operands
        return values
