"""The least sizes of inputs for which every pooling window of a graph finds something to see."""

from __future__ import annotations

from collections.abc import Iterator

from kernels_hub.compiler.ir.dims import Dim, Expr, Symbol, dim_symbols, symbol
from kernels_hub.compiler.ir.extrema import substitute
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.ir.ops.contract import spatial_attrs

_POOLS = frozenset({"max_pool", "argmax_pool", "sum_pool", "avg_pool"})
_LARGEST = 4096
"""So far a size is looked for."""
_MORE = 8
"""So many sizes above it have to do as well."""


def with_whole_windows(graph: Graph) -> Graph:
    """The graph with symbols as large as its pooling windows need them.

    A window larger than what it pools gives an empty result, of which a mean is NaN: a call of such a size is refused
    as one of a size out of bounds is.
    """
    needed: dict[str, Symbol] = {}
    for room in _rooms(graph):
        symbols = [needed.get(one.name, one) for one in dim_symbols([room])]
        if len(symbols) == 1 and (least := _least(room, symbols[0])) is not None:
            needed[symbols[0].name] = Symbol(symbols[0].name, least, symbols[0].max)
    return (
        graph.bind({name: symbol(name, of.min, of.max) for name, of in needed.items()}) if needed else graph
    )


def _rooms(graph: Graph) -> Iterator[Dim]:
    """How much wider each pooled dim is, with its padding, than the windows over it."""
    for node in graph.nodes:
        if node.op.name in _POOLS and not node.attrs["ceil"]:
            shape = node.operands[0].shape
            for axis, (_, dilation, (low, high)) in enumerate(spatial_attrs(node.attrs, len(shape) - 2), 2):
                room = shape[axis] + low + high - dilation * (node.attrs["kernel"][axis - 2] - 1) - 1
                if isinstance(room, Expr):
                    yield room


def _least(room: Dim, one: Symbol) -> int | None:
    """The least size for which there is room; None where any will do, or none is known."""

    def fits(size: int) -> bool:
        return bool(substitute(room, {one.name: size}) >= 0)

    if fits(one.min):
        return None
    most = _LARGEST if one.max is None else min(one.max, _LARGEST)
    found = next((size for size in range(one.min + 1, most + 1) if fits(size)), None)
    return found if found is not None and all(map(fits, range(found, found + _MORE))) else None
