"""Engine ranking: an order by device, and a cost estimate of dividing a graph among engines.

A heuristic is a function `(graph, device, answers) -> names of engines, the preferred one first`; answers: engine ->
Support or Decline. Plugins register theirs under the entry points "kernels_hub.heuristics"; `default` is built in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kernels_hub.compiler.engines.engine import Decline, Device, Note, Support
from kernels_hub.compiler.errors import EngineError
from kernels_hub.compiler.ir.cost import Costs
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.plan.partition import Partition
from kernels_hub.entry_points import entry_points

GROUP = "kernels_hub.heuristics"

Answers = Mapping[str, Support | Decline]


class Heuristic(Protocol):
    """Orders engines by preference. It may leave some out, and is asked again when one of them failed."""

    def __call__(self, graph: Graph, device: Device, answers: Answers) -> Sequence[str]:
        """Names out of `answers`, the preferred first."""


@dataclass(frozen=True)
class Rate:
    """What an engine takes: seconds for each node and for each piece, bytes and FLOPs a second."""

    node: float
    piece: float
    bytes: float
    flops: float


_RATES: Mapping[str, Rate] = {
    "cpp": Rate(0.2e-6, 4e-6, 20e9, 100e9),
    "bytecode": Rate(0.3e-6, 4e-6, 15e9, 100e9),
    "triton": Rate(1e-6, 10e-6, 1000e9, 20e12),
    "library": Rate(4e-6, 4e-6, 8e9, 80e9),
    "reference": Rate(40e-6, 10e-6, 1e9, 1e9),
}
"""Rough figures: they decide whether cutting a graph up is worth it, not which of two close ones is faster."""

_OTHER = Rate(4e-6, 10e-6, 8e9, 80e9)
_SLOW = _RATES["reference"]

_SIZE = 32
"""What a size that is not known is taken for."""


def default(graph: Graph, device: Device, answers: Answers) -> Sequence[str]:  # noqa: ARG001  (the protocol's)
    """Generated code first (C++ on a CPU, Triton on a GPU), then plugins, then libraries; what is slow comes last."""
    first = ("cpp", "bytecode") if device.type == "cpu" else ("triton",)
    order = {name: index for index, name in enumerate(first)}
    order |= {"library": 50, "reference": 100}

    def rank(name: str) -> tuple[bool, int]:
        answer = answers[name]
        slow = isinstance(answer, Support) and Note.SLOW in answer.notes
        return slow, order.get(name, 20)

    return sorted(answers, key=rank)


def heuristic(name: str) -> Heuristic:
    """The heuristic of that name: "default", or a plugin's. Raises EngineError."""
    if name == "default":
        return default
    points = {point.name: point for point in entry_points(GROUP)}
    if name not in points:
        there = ", ".join(("default", "benchmark", *sorted(points)))
        raise EngineError(f"no heuristic is called {name!r}; there are {there}")
    try:
        found: Heuristic = points[name].load()
    except Exception as error:
        raise EngineError(f"the heuristic {name!r} ({points[name].value}) does not load: {error}") from error
    return found


def estimate(divided: Partition) -> float:
    """Seconds that a division of a graph may take, symbols being middling: for comparing divisions of one graph."""
    costs = Costs(middling(divided.graph))
    total = 0.0
    for piece in divided.pieces:
        rate = _RATES.get(piece.engine, _SLOW if Note.SLOW in piece.support.notes else _OTHER)
        total += rate.piece
        for node in piece.nodes:
            cost = costs.of(node)
            total += rate.node + max((cost.bytes or 0) / rate.bytes, (cost.flops or 0) / rate.flops)
    return total


def middling(graph: Graph) -> dict[str, int]:
    """A size for each symbol: 32, or what its bounds allow that is nearest to it."""
    facts = ((name, expr.only_symbol) for name, expr in graph.symbols.items())
    return {
        name: max(one.min, _SIZE if one.max is None else min(_SIZE, one.max))
        for name, one in facts
        if one is not None
    }
