"""The result of a search: everything that was tried, ranked, and the winner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernels_hub.compiler.engines.engine import Device
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.ir.parser import parse_graph
from kernels_hub.compiler.ir.types import Array
from kernels_hub.compiler.search.candidate import Measured, SearchCandidate

if TYPE_CHECKING:
    from kernels_hub.compiler.plan.plan import Plan


@dataclass(frozen=True)
class Tried:
    """A candidate and what became of it."""

    candidate: SearchCandidate
    measured: Measured


@dataclass(frozen=True)
class Standing:
    """How far a search is, for whoever shows it. best: seconds of the fastest so far; elapsed: of the search."""

    stage: str
    tried: int
    latest: Tried | None = None
    best: float | None = None
    elapsed: float = 0.0


@dataclass(frozen=True)
class SearchResult:
    """See the module.

    rows: the winner first, then who ran by seconds, then the others as they came. default: what the pipeline makes by
    itself, which is always among them. remembered: whether the winner is one of an earlier search, not measured again.
    interrupted: why it ended before it was done, "" where it was not. log: what was done, line by line.
    """

    rows: tuple[Tried, ...]
    default: Tried
    weights: Mapping[str, Array]
    device: Device
    elapsed: float
    remembered: bool = False
    interrupted: str = ""
    log: tuple[str, ...] = ()

    @property
    def winner(self) -> Tried:
        """The fastest."""
        return self.rows[0]

    def plan(self) -> Plan:
        """The winner's plan: `found.plan()(x)`. Raises EngineError where it cannot be built here."""
        from kernels_hub.compiler.search.evaluator import materialise, plan_of

        return plan_of(materialise(self.winner.candidate, self.weights), self.device, self.choices)

    @property
    def graph(self) -> Graph:
        """The winner's, with its weights. Compile it as it is (`rewrite=False`): rewriting may undo what was found."""
        graph = parse_graph(self.winner.candidate.graph)
        graph.weights = {name: self.weights[name] for name in graph.parameters if name in self.weights}
        return graph

    @property
    def choices(self) -> Mapping[str, Any]:
        """The winner's choices: knobs of the engine."""
        return self.winner.candidate.choices

    @property
    def speedup(self) -> float | None:
        """Of the winner over the default; None where one of them was not timed."""
        before, after = self.default.measured.seconds, self.winner.measured.seconds
        return before / after if before is not None and after else None

    def __str__(self) -> str:
        lines = [f"{'':<9}{'us':>10}  {'predicted':>10}  origin"]
        for row in self.rows:
            seconds = row.measured.seconds
            shown = f"{seconds * 1e6:.1f}" if seconds is not None else "-"
            guess = f"{row.candidate.predicted * 1e6:.1f}"
            why = "" if row.measured.ran else f" ({row.measured.reason})"
            lines.append(f"{row.measured.status:<9}{shown:>10}  {guess:>10}  {row.candidate.origin}{why}")
        return "\n".join(lines)
