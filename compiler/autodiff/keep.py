"""Rematerialization: chooses which forward values are stored for the backward, and recomputes those that are cheap.

Values that gradients are made with, but that depend on no gradient, are either kept or computed again of others:

    constants, sizes                      always made again
    pointwise ops, views, pads, concats   made again where that keeps fewer bytes: they cost no pass over memory
    products, reductions, softmax, …      kept, where something behind them is not
    what a rule computes a second time    always made again (the scores of an attention)
    inputs, parameters, outputs           nearly free: they are there anyhow
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from kernels_hub.compiler.autodiff.flow import ENDLESS, Network
from kernels_hub.compiler.errors import DimError
from kernels_hub.compiler.ir.extrema import substitute
from kernels_hub.compiler.ir.graph import Graph, Node, Value
from kernels_hub.compiler.ir.op import Trait

_HERE_ALREADY = 8
"""Keeping an input or output costs this much less than keeping what nothing else holds."""
_LIKELY = 64
"""What a symbol is taken for, within its bounds, to compare sizes."""


def likely_sizes(graph: Graph, sizes: Mapping[str, int] | None = None) -> dict[str, int]:
    """A number for each symbol of a graph."""
    found = {}
    for name, expr in graph.symbols.items():
        one = expr.only_symbol
        low, high = (one.min, one.max) if one is not None else (0, None)
        found[name] = max(low, _LIKELY if high is None else min(_LIKELY, high))
    return found | dict(sizes or {})


def kept_values(
    nodes: Iterable[Node],
    needed: Iterable[Value],
    *,
    here: Collection[Value],
    again: Collection[Node],
    sizes: Mapping[str, int],
) -> list[Value]:
    """The values to keep, of which all that is needed can be made; inputs and parameters are among them.

    nodes: those that no gradient goes into, in order. here: values that are held anyhow. again: nodes that are always
    computed a second time.
    """
    values = [value for node in nodes for value in node.results]
    number = {value: 2 + 2 * index for index, value in enumerate(values)}
    source, sink = 0, 1
    network = Network(2 + 2 * len(values))
    for value in values:
        node, at = value.node, number[value]
        network.edge(at, at + 1, _cost(value, here, again, sizes))
        if node in again or _is_cheap(node):
            for operand in node.operands:
                network.edge(number[operand] + 1, at, ENDLESS)
        else:
            network.edge(source, at, ENDLESS)
    for value in needed:
        network.edge(number[value] + 1, sink, ENDLESS)
    network.fill(source, sink)
    behind = network.reaching(sink)
    return [value for value in values if number[value] not in behind and number[value] + 1 in behind]


def _is_cheap(node: Node) -> bool:
    if node.op.name in {"input", "parameter"}:
        return False
    return bool(node.op.traits & (Trait.POINTWISE | Trait.VIEW | Trait.COPY | Trait.LEAF))


def _cost(value: Value, here: Collection[Value], again: Collection[Node], sizes: Mapping[str, int]) -> int:
    if value.node in again or (Trait.LEAF in value.op.traits and value.op_name not in {"input", "parameter"}):
        return ENDLESS
    try:
        size = substitute(
            value.type.size, {symbol.name: sizes[symbol.name] for symbol in value.node.symbols()}
        )
    except (DimError, KeyError):
        size = ENDLESS >> 20
    bits = max(value.dtype.bits, 8) * (size if isinstance(size, int) else ENDLESS >> 20)
    if value.op_name == "parameter":
        return 1
    if value in here:
        return 2 + bits // _HERE_ALREADY
    return 3 + bits + bits // 64 * (Trait.VIEW in value.op.traits)
