"""The record of a rewrite rule: name, pattern, replacement, guard."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from kernels_hub.compiler.ir.graph import Graph, Value
from kernels_hub.compiler.rewrite.pattern import PartialMatch, Pattern, Scope


@dataclass(frozen=True)
class Match:
    """Where a pattern matches: `match["x"]` is the value that x stands for, `match.fact("axes")` an attribute."""

    root: Value
    found: PartialMatch
    scope: Scope

    def __getitem__(self, name: str) -> Value:
        return self.found.values[name]

    def __contains__(self, name: str) -> bool:
        return name in self.found.values

    def fact(self, name: str) -> Any:
        """An attribute or dim that a name stands for."""
        return self.found.facts[name]

    @property
    def graph(self) -> Graph:
        """The graph that a replacement is built in."""
        return self.root.graph


def always(_: Match) -> str | None:
    """The guard that never declines."""
    return None


@dataclass(frozen=True)
class Rule:
    """replace builds, in the match's graph, the value that stands for the root from then on: of the same type.

    guard: None where the rule applies, else the reason why it declines. exact: the numbers stay the same, bit for bit
    (any NaN is any other); others keep them up to rounding, and an option turns them off. follows: rules that find what
    the pattern begins with; where they find nothing, they tell why this one does not fire.
    """

    name: str
    pattern: Pattern
    replace: Callable[[Match], Value]
    guard: Callable[[Match], str | None] = always
    exact: bool = True
    doc: str = ""
    follows: tuple[Rule, ...] = ()


@dataclass(frozen=True)
class Options:
    """rounding: whether rules may change numbers by rounding. fold_limit: bytes that a folded constant may take.
    few_bits: whether weights of few bits stay packed, for which there are kernels on the CPU alone.
    """

    rounding: bool = True
    fold_limit: int = 1 << 16
    few_bits: bool = True


@dataclass(frozen=True)
class PassResult:
    """A graph after a pass, and how often each rule fired."""

    graph: Graph
    fired: Counter[str] = field(default_factory=Counter)


class Pass(Protocol):
    """A step of a pipeline: a graph in, another out."""

    @property
    def name(self) -> str:
        """What reports call it."""

    def run(self, graph: Graph, options: Options) -> PassResult:
        """The graph, rewritten; the given one stays as it is."""
