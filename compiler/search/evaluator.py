"""Evaluates candidates on a device: builds, checks against the oracle, and times them.

What is compared is the graph that the search began with, as the oracle computes it, and what the candidate's plan
gives, element by element, on the inputs of `judging`; only who agrees is timed. For a GPU that is not here, candidates
are compiled, and what the hardware would be given is reported: one that spills registers, or takes more shared memory
than there is, is "pruned", and none is timed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from kernels_hub.compiler.engines.engine import Device, KnobValue
from kernels_hub.compiler.engines.guard import one_line
from kernels_hub.compiler.engines.tensors import to_tensor
from kernels_hub.compiler.errors import EngineError
from kernels_hub.compiler.ir.dummy import dummy_weights
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.ir.parser import parse_graph
from kernels_hub.compiler.ir.printer import print_graph
from kernels_hub.compiler.ir.types import Array
from kernels_hub.compiler.judging import Judge
from kernels_hub.compiler.judging.timing import Clock, Gain, gain, measure
from kernels_hub.compiler.plan.heuristics import middling
from kernels_hub.compiler.plan.plan import Plan
from kernels_hub.compiler.plan.selection import create_plans
from kernels_hub.compiler.rewrite.fold import FoldParameters
from kernels_hub.compiler.rewrite.rule import Options
from kernels_hub.compiler.search.candidate import Measured, SearchCandidate, Status

PATIENCE_S = 8.0
"""Seconds of the oracle for what a candidate is judged by."""
MOST_KEPT = 16
"""Built candidates that an evaluator keeps, so that what was checked needs not be built again to be timed."""
ROUNDS = 3
"""Times that `measure_many` asks the timer, which goes round for itself; fewer where it takes longer than `LONG_S`."""
LONG_S = 3.0

Timer = Callable[[Sequence[Callable[[], object]], Device], Sequence[float]]


def materialise(candidate: SearchCandidate, weights: Mapping[str, Array]) -> Graph:
    """The graph of a candidate with its weights, what is computed of these alone computed. Raises CompilerError."""
    graph = parse_graph(candidate.graph)
    graph.weights = {name: weights[name] for name in graph.parameters if name in weights}
    return FoldParameters().run(graph, Options()).graph


def plan_of(graph: Graph, device: Device, choices: Mapping[str, KnobValue]) -> Plan:
    """The plan of a graph, run as it is, with choices. Raises EngineError."""
    plans = create_plans(graph, device)
    if not choices:
        return plans[0].build()
    engine = engine_of(device)
    first = next((plan for plan in plans if plan.first == engine), None)
    if first is None:
        raise EngineError(f"engine {engine}, whose choices these are, takes no part of graph {graph.name}")
    return replace(first, knobs={engine: dict(choices)}).build()


def engine_of(device: Device) -> str:
    """The engine whose knobs choices are."""
    return "cpp" if device.type == "cpu" else "triton"


@dataclass(frozen=True, eq=False)
class GraphEvaluator:
    """See the module. Picklable: what it has built stays where it was built.

    text: the graph that candidates are to compute, as `print_graph(graph, data=True)`. weights: by name. sizes: of
    its symbols, middling ones where none is given. timer: seconds of each of several calls, by default
    `timing.measure`. clock: seconds that pass, for what is timed again.
    """

    text: str
    weights: Mapping[str, Array]
    device: Device
    sizes: Mapping[str, int] = field(default_factory=dict)
    seed: int = 0
    timer: Timer = measure
    clock: Clock = time.perf_counter

    @classmethod
    def of(
        cls, graph: Graph, device: Device, sizes: Mapping[str, int] | None = None, seed: int = 0
    ) -> GraphEvaluator:
        """Of a graph; weights that it lacks are made up from the seed."""
        known = {**middling(graph), **(sizes or {})}
        weights = {name: graph.weight(name) for name in graph.parameters if name in graph.weights}
        weights |= dummy_weights(graph, seed, known)
        return cls(print_graph(graph, data=True), weights, device, known, seed)

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    @property
    def is_here(self) -> bool:
        """Whether the device is on this machine, so that candidates can run."""
        return self.device.type == "cpu" or torch.cuda.is_available()

    def __call__(self, candidate: SearchCandidate, *, build_only: bool = False) -> Measured:
        """See `Evaluator`."""
        built = self._built(candidate)
        if isinstance(built, Measured):
            return built
        if build_only:
            return Measured(
                candidate.digest, "slower", None, "built, and gives the oracle's numbers", _facts(built)
            )
        (seconds,) = self.timer([self._call(built)], self.device)
        return Measured(candidate.digest, "slower", float(seconds), "timed alone", _facts(built))

    def measure_many(self, candidates: Sequence[SearchCandidate]) -> list[Measured]:
        """See `Evaluator`."""
        built = [self._built(candidate) for candidate in candidates]
        plans = [(index, one) for index, one in enumerate(built) if isinstance(one, Plan)]
        calls = [self._call(plan) for _, plan in plans]
        rounds: list[Sequence[float]] = []
        started = time.monotonic()
        while calls and len(rounds) < ROUNDS and (not rounds or time.monotonic() - started < LONG_S):
            rounds.append(self.timer(calls, self.device))
        seconds = {place: statistics.median(row[at] for row in rounds) for at, (place, _) in enumerate(plans)}
        fastest = min(seconds.values(), default=0.0)
        rows = []
        for position, (candidate, one) in enumerate(zip(candidates, built, strict=True)):
            if isinstance(one, Measured):
                rows.append(one)
                continue
            status: Status = "fastest" if seconds[position] == fastest else "slower"
            reason = f"timed in turn with {len(plans) - 1} others"
            rows.append(Measured(candidate.digest, status, seconds[position], reason, _facts(one)))
        return rows

    def measure_again(self, candidates: Sequence[SearchCandidate]) -> list[Measured]:
        """See `Evaluator`."""
        built = [self._built(candidate) for candidate in candidates]
        original, other = built
        if not isinstance(original, Plan) or not isinstance(other, Plan):
            return [
                one
                if isinstance(one, Measured)
                else Measured(candidate.digest, "slower", None, "not timed again")
                for candidate, one in zip(candidates, built, strict=True)
            ]
        found = gain(self._call(original), self._call(other), self.device, clock=self.clock)
        return told(found, candidates, [_facts(original), _facts(other)])

    # -- what is kept where it was made

    @cached_property
    def judge(self) -> Judge:
        """Of the graph."""
        graph = parse_graph(self.text)
        graph.weights = dict(self.weights)
        sizes = {name: size for name, size in self.sizes.items() if name in graph.symbols}
        return Judge(graph, sizes, self.seed, patience=PATIENCE_S)

    @cached_property
    def _kept(self) -> dict[str, Plan | Measured]:
        return {}

    @cached_property
    def _tensors(self) -> list[torch.Tensor]:
        inputs = self.judge.cases[0].inputs.arrays
        place = torch.device("cpu") if self.device.type == "cpu" else torch.device("cuda", self.device.index)
        return [to_tensor(one).to(place) for one in inputs.values()]

    def _call(self, plan: Plan) -> Callable[[], object]:
        tensors = self._tensors
        return lambda: plan(*tensors)

    def _built(self, candidate: SearchCandidate) -> Plan | Measured:
        """The plan of a candidate that gives the oracle's numbers, or why there is none."""
        digest = candidate.digest
        found = self._kept.get(digest)
        if found is None:
            found = self._build(candidate)
            while len(self._kept) >= MOST_KEPT:
                self._kept.pop(next(iter(self._kept)))
            self._kept[digest] = found
        return found

    def _build(self, candidate: SearchCandidate) -> Plan | Measured:
        try:
            graph = materialise(candidate, self.weights)
            if not self.is_here:
                return self._report(candidate, graph)
            plan = plan_of(graph, self.device, candidate.choices)
            if (reason := self.judge(plan.execute)) is not None:
                return Measured(candidate.digest, "wrong", None, reason)
        except Exception as error:  # noqa: BLE001  (whatever is wrong with it, others are tried)
            return Measured(candidate.digest, "failed", None, one_line(error))
        return plan

    def _report(self, candidate: SearchCandidate, graph: Graph) -> Measured:
        """What a GPU that is not here would be given."""
        from kernels_hub.compiler.search.gpu_report import fault, resources_of

        facts = resources_of(graph, self.device, candidate.choices, self.sizes)
        if (problem := fault(facts, self.device.arch)) is not None:
            return Measured(candidate.digest, "pruned", None, problem, facts)
        return Measured(candidate.digest, "slower", None, "compiled; no such GPU is here to time it", facts)


def told(
    found: Gain, candidates: Sequence[SearchCandidate], facts: Sequence[Mapping[str, int]]
) -> list[Measured]:
    """What became of an original and of a candidate that was timed against it again."""
    original, other = candidates
    status: Status = "fastest" if found.holds else "slower"
    return [
        Measured(original.digest, "slower", found.original, "timed in turn with one other", facts[0]),
        Measured(other.digest, status, found.candidate, str(found), facts[1]),
    ]


def _facts(plan: Plan) -> dict[str, int]:
    """How many kernels a call runs, where all of it runs as scheduled kernels."""
    made = [getattr(getattr(segment.plan, "plan", None), "schedule", None) for segment in plan.segments]
    return {"kernels": sum(len(one.kernels) for one in made if one is not None)} if None not in made else {}
