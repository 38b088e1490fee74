"""Cost of an op: floating-point operations, and bytes read and written.

Operations are counted by the rows of the op table. Views move nothing, and what is read through a view is no more than
what lies behind it: adding a broadcast bias reads the bias once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernels_hub.compiler.errors import DimError
from kernels_hub.compiler.ir.dims import Dim, dim_symbols
from kernels_hub.compiler.ir.extrema import substitute
from kernels_hub.compiler.ir.flops import call_flops
from kernels_hub.compiler.ir.graph import Graph, Node, Value
from kernels_hub.compiler.ir.op import TensorType, Trait


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one run. flops, bytes: None where only the data tell. formula: the operations in symbols, "" without any."""

    flops: int | None
    bytes: int | None
    formula: str = ""


FREE = Cost(0, 0)
_UNBOUNDED = (1 << 63) - 1
"""The trip count of a loop that its condition alone ends."""


def default_sizes(graph: Graph, sizes: Mapping[str, int] | None = None) -> dict[str, int]:
    """A number for each symbol of a graph: the given one, or the smallest that is allowed and not 0.

    Raises DimError for a size of a symbol that the graph does not have, or that its bounds refuse.
    """
    sizes = sizes or {}
    for name in sizes:
        if name not in graph.symbols:
            known = ", ".join(sorted(graph.symbols)) or "none"
            raise DimError(f"graph {graph.name} has no symbol {name!r} to give a size to; it has {known}")
    chosen: dict[str, int] = {}
    for name, expr in sorted(graph.symbols.items()):
        one = expr.only_symbol
        smallest = max(one.min, 1) if one else 1
        chosen[name] = sizes.get(name, 0 if one and one.max == 0 else smallest)
        substitute(expr, {name: chosen[name]})
    return chosen


class Costs:
    """The costs of nodes of one graph, at one size for each symbol."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._sizes = sizes
        self._bits: dict[TensorType, int | None] = {}

    def of(self, node: Node) -> Cost:
        """The cost of a node. A call does what is in it, but moves operands and results alone, as one kernel."""
        if Trait.REGION in node.op.traits:
            return self._region(node)
        if node.op.traits & (Trait.LEAF | Trait.VIEW) or node.op.name == "define_size":
            return FREE
        flops = call_flops(
            node.op,
            [operand.type for operand in node.operands],
            [result.type for result in node.results],
            node.attrs,
        )
        formula = str(flops) if not isinstance(flops, int) else ""
        return Cost(self._number(flops), self._moved(node), formula)

    def total(self, graph: Graph) -> Cost:
        """All that the outputs of a graph need."""
        costs = [self.of(node) for node in graph.live()]
        return Cost(_sum(cost.flops for cost in costs), _sum(cost.bytes for cost in costs))

    def _number(self, dim: Dim) -> int | None:
        if isinstance(dim, int):
            return dim
        try:
            bound = substitute(dim, {k: v for k, v in self._sizes.items() if _mentions(dim, k)})
        except DimError:
            return None
        return bound if isinstance(bound, int) else None

    def _size(self, of: TensorType) -> int | None:
        """In bits."""
        if of not in self._bits:
            count = self._number(of.size)
            self._bits[of] = None if count is None else count * of.dtype.bits
        return self._bits[of]

    def _moved(self, node: Node) -> int | None:
        written = [self._size(result.type) for result in node.results]
        if Trait.INDEXING in node.op.traits and node.op.name.startswith("gather"):
            read = [*written, self._size(node.operands[1].type)]
        else:
            read = [self._behind(operand) for operand in dict.fromkeys(node.operands)]
        total = _sum([*read, *written])
        return None if total is None else -(-total // 8)

    def _behind(self, value: Value) -> int | None:
        smallest = self._size(value.type)
        while Trait.VIEW in value.op.traits and value.operands:
            value = value.operands[0]
            size = self._size(value.type)
            if size is not None and (smallest is None or size < smallest):
                smallest = size
        return smallest

    def _region(self, node: Node) -> Cost:
        parts = [self.total(part) for part in node.attrs.values() if isinstance(part, Graph)]
        if node.op.name == "call":
            return Cost(parts[0].flops, self._moved(node))
        if node.op.name == "if":
            return max(parts, key=lambda cost: (cost.flops or 0, cost.bytes or 0))
        trips: int | None = None
        if node.op.name == "scan":
            trips = self._number(node.operands[node.attrs["states"]].shape[0])
        elif (array := node.operands[0].array) is not None and array != _UNBOUNDED:
            trips = int(array)
        flops, moved = parts[0].flops, parts[0].bytes
        if trips is None or flops is None or moved is None:
            return Cost(None, None)
        return Cost(trips * flops, trips * moved)


def _mentions(dim: Any, name: str) -> bool:
    return any(symbol.name == name for symbol in dim_symbols((dim,)))


def _sum(numbers: Any) -> int | None:
    total = 0
    for number in numbers:
        if number is None:
            return None
        total += number
    return total
