"""The heuristic "benchmark": every applicable engine and knob set, judged by the oracle, then measured.

Each candidate is built; judged on inputs made for the graph (`judging`); and timed on the device in rounds that
alternate between candidates, so that what disturbs the machine disturbs all of them. The fastest is timed again on its
own against what the default heuristic takes; it is kept in the tuning database, as an engine with knobs, where its gain
repeats, and is then not measured again for this graph, device and versions.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from kernels_hub.compiler.engines.engine import Decline, Device, Knob, KnobValue, Outcome
from kernels_hub.compiler.engines.guard import one_line
from kernels_hub.compiler.engines.registry import engines
from kernels_hub.compiler.engines.tensors import to_tensor
from kernels_hub.compiler.errors import CompilerError, EngineError
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.ir.printer import print_graph
from kernels_hub.compiler.judging import Judge
from kernels_hub.compiler.judging.timing import Gain, Paired, gain, measure
from kernels_hub.compiler.plan.benchmarks import Benchmark
from kernels_hub.compiler.plan.file import versions
from kernels_hub.compiler.plan.heuristics import default
from kernels_hub.compiler.plan.plan import Plan
from kernels_hub.compiler.plan.program import SegmentError, digest_of
from kernels_hub.compiler.plan.selection import (
    LOGGER,
    Candidate,
    Filter,
    choose,
    survey,
    within_limit,
)
from kernels_hub.compiler.plan.tuning_database import TuningDatabase, Winner

MOST_KNOBS = 48
"""Knob sets of one engine that are tried; those near its best guesses come first."""

PATIENCE_S = 10.0
"""Seconds of the oracle for what candidates are judged by."""


@dataclass
class _Built:
    candidate: Candidate
    plan: Plan
    outcome: Outcome


def tune(
    graph: Graph,
    device: Device,
    only: Filter,
    outcomes: list[Outcome],
    without: set[str],
    *,
    by: Benchmark = measure,
    database: TuningDatabase | None = None,
) -> Plan:
    """The plan of the fastest candidate that gives the oracle's numbers. All sizes are numbers.

    `outcomes` gets a row for each candidate: an engine with knobs, its seconds, or the reason why not. Raises
    EngineError where none is left.
    """
    database = database or TuningDatabase()
    key = _key(graph, device, only, without)
    if (winner := database.get(key)) is not None:
        plan = _remembered(graph, device, only, winner, without, outcomes)
        if plan is not None:
            return plan
    judge = Judge(graph, patience=PATIENCE_S)
    try:
        inputs = judge.cases[0].inputs.arrays
    except CompilerError as error:
        reason = "graph %s cannot be run on made-up inputs, so the default heuristic decides: %s"
        LOGGER.warning(reason, graph.name, error)
        return choose(graph, device, only, "default", outcomes, without)
    found = _candidates(graph, device, only, without, outcomes)
    built = [one for candidate in found if (one := _build(candidate, only, outcomes)) is not None]
    right = _right(graph, built, judge, outcomes)
    if not right:
        reasons = "".join(
            f"\n  {outcome.engine} {dict(outcome.knobs) or ''}: {outcome.reason}" for outcome in outcomes
        )
        raise EngineError(
            f"graph {graph.name}: no engine on {device} gives the numbers of the oracle:{reasons}"
        )
    tensors = [to_tensor(inputs[name]).to(right[0].plan.torch_device) for name in graph.inputs]
    calls = [_call(one.plan, tensors) for one in right]
    seconds = _measured(by, calls, device)
    order = sorted(range(len(right)), key=lambda place: (seconds[place], place))
    best, lasting, why = order[0], True, "slower"
    if best:
        again = _gain_again(by, calls[0], calls[best], device)
        best, lasting = best if again.faster else 0, again.lasts
        why = f"slower; {again}"
    for place in [best, *(one for one in order if one != best)]:
        reason = "fastest" if place == best else why if place in {0, order[0]} else "slower"
        outcomes.append(replace(right[place].outcome, seconds=seconds[place], reason=reason))
    if lasting:
        database.put(key, Winner(right[best].outcome.engine, right[best].outcome.knobs, seconds[best]))
    return right[best].plan


def _gain_again(
    by: Benchmark, original: Callable[[], object], other: Callable[[], object], device: Device
) -> Gain:
    """The fastest against what the default heuristic takes, twice; by a plugin's benchmark where that is asked."""
    if by is measure:
        return gain(original, other, device)
    pairs = [_measured(by, [original, other], device) for _ in range(2)]
    first, second = (Paired(a, b, *_said(a, b), control=0.0) for a, b in pairs)
    return Gain(first, second)


def _said(original: float, other: float) -> tuple[float, float, float]:
    """One ratio, where a benchmark says one figure a call."""
    ratio = original / max(other, 1e-12)
    return ratio, ratio, ratio


def _measured(by: Benchmark, calls: Sequence[Callable[[], object]], device: Device) -> Sequence[float]:
    """What a benchmark says; where it fails, the one that is built in measures."""
    try:
        found = [float(one) for one in by(calls, device)]
        if len(found) != len(calls):
            raise ValueError(f"it measured {len(found)} of {len(calls)} calls")
    except Exception as error:  # noqa: BLE001  (a plugin may raise anything)
        LOGGER.warning("the benchmark %r failed, the built-in one measures: %s", by, one_line(error))
        return measure(calls, device)
    return found


def _call(plan: Plan, tensors: Sequence[torch.Tensor]) -> Callable[[], object]:
    return lambda: plan(*tensors)


def _key(graph: Graph, device: Device, only: Filter, without: set[str]) -> dict[str, Any]:
    """All that decides what is fastest; other engines, or other limits, are another question."""
    return {
        "graph": digest_of(print_graph(graph)),
        "device": [device.type, device.arch, _hardware(device)],
        "versions": versions(),
        "engines": sorted(engine.name for engine in engines() if engine.name not in without),
        "only": None if only.engines is None else sorted(only.engines),
        "exclude": sorted(note.name for note in only.exclude_notes),
        "workspace": only.workspace_limit,
        "isolated": only.isolated,
        "threads": torch.get_num_threads() if device.type == "cpu" else 0,
    }


def _hardware(device: Device) -> str:
    return "" if device.type == "cpu" else str(torch.cuda.get_device_name(device.index))


def _candidates(
    graph: Graph, device: Device, only: Filter, without: set[str], outcomes: list[Outcome]
) -> list[Candidate]:
    """Each division of the graph, with each knob set of the engine that comes first in it."""
    candidates = []
    asked = survey(graph, device, only, default, without)
    first = {candidate.first for candidate in asked.candidates}
    outcomes += [
        Outcome(name, reason=answer.reason)
        for name, answer in asked.answers.items()
        if isinstance(answer, Decline) and name not in first
    ]
    for one in asked.candidates:
        knobs = {
            knob.name: knob
            for piece in one.partition.pieces
            for knob in piece.support.knobs
            if piece.engine == one.first
        }
        candidates += [
            replace(one, knobs={one.first: chosen} if chosen else {})
            for chosen in knob_sets(list(knobs.values()))
        ]
    return candidates


def knob_sets(knobs: Sequence[Knob]) -> list[dict[str, KnobValue]]:
    """Choices of a value for each knob, `MOST_KNOBS` at most: by how far they are from the engine's best guesses."""
    places = itertools.product(*(range(len(knob.values)) for knob in knobs))
    chosen = sorted(itertools.islice(places, 100_000), key=lambda one: (sum(one), one))[:MOST_KNOBS]
    return [{knob.name: knob.values[place] for knob, place in zip(knobs, one, strict=True)} for one in chosen]


def _build(candidate: Candidate, only: Filter, outcomes: list[Outcome]) -> _Built | None:
    knobs = candidate.knobs.get(candidate.first, {})
    outcome = Outcome(candidate.first, knobs, details=candidate.engines)
    try:
        return _Built(candidate, within_limit(candidate.build(), only), outcome)
    except CompilerError as error:
        outcomes.append(replace(outcome, reason=f"not built: {error}"))
        return None


def _right(graph: Graph, built: Sequence[_Built], judge: Judge, outcomes: list[Outcome]) -> list[_Built]:
    """Those that give what the oracle gives."""
    right = []
    for one in built:
        try:
            reason = judge(one.plan.execute)
        except CompilerError as error:
            reason = f"not run: {one_line(error)}"
        if reason is None:
            right.append(one)
            continue
        outcomes.append(replace(one.outcome, reason=reason))
        LOGGER.warning("graph %s: engine %s is not used: %s", graph.name, one.outcome.engine, reason)
    return right


def _remembered(
    graph: Graph, device: Device, only: Filter, winner: Winner, without: set[str], outcomes: list[Outcome]
) -> Plan | None:
    """The plan of what won before; None where it is not to be had any more."""
    try:
        found = survey(graph, device, only, default, without).candidates
        for one in found:
            if one.first == winner.engine:
                plan = replace(one, knobs={one.first: winner.knobs} if winner.knobs else {}).build()
                outcomes.append(
                    Outcome(
                        winner.engine,
                        winner.knobs,
                        winner.seconds,
                        "fastest when it was measured before",
                        one.engines,
                    )
                )
                return plan
    except (SegmentError, EngineError) as error:
        LOGGER.warning(
            "graph %s: what was fastest before does not build, all is measured again: %s", graph.name, error
        )
    return None
