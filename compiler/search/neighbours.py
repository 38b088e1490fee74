"""Neighbours of a candidate: the same graph with one other schedule choice, or with other loops for one nest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kernels_hub.compiler.engines.engine import Device
from kernels_hub.compiler.errors import CompilerError, EngineError, MissingDependencyError
from kernels_hub.compiler.ir.dims import Dim
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.ir.types import Array
from kernels_hub.compiler.schedule.choices import CHOICES, PLACES, Choices
from kernels_hub.compiler.schedule.kernel import Convolution, Nest, Product, Schedule
from kernels_hub.compiler.schedule.memory import number
from kernels_hub.compiler.schedule.partial import may_be_long
from kernels_hub.compiler.schedule.schedule import schedule
from kernels_hub.compiler.search.candidate import Choice, SearchCandidate
from kernels_hub.compiler.search.cost import RATES, predict, predict_kernel
from kernels_hub.compiler.search.evaluator import materialise
from kernels_hub.compiler.search.nests.nests import nest_choices

MOST_PLACES = 6
"""Places in a schedule that are tried, of each kind."""
MOST_PLANS = 3
"""Plans of loops that are tried for a nest."""
SMALL_PRODUCT = 1 << 15
"""Multiplications of a product up to which it is tried as loops."""


def neighbours(
    candidate: SearchCandidate, weights: Mapping[str, Array], device: Device, sizes: Mapping[str, int]
) -> list[SearchCandidate]:
    """Candidates that differ in one choice, those that are predicted to be faster first; none that runs the same."""
    graph = materialise(candidate, weights)
    if device.type != "cpu":
        return [
            _with(candidate, graph, device, sizes, name, value)
            for name, value in _knobs_of_gpu(candidate.choices)
        ]
    now = Choices.of(candidate.choices)
    try:
        usual = schedule(graph, choices=now)
    except EngineError:
        return []  # some of it runs on another engine, which has no such choices
    tried = [*_settings(graph, usual), *_places(usual, sizes)]
    candidates: dict[str, SearchCandidate] = {}
    for name, value in tried:
        if getattr(now, name) != value:
            one = _with(candidate, graph, device, sizes, name, value)
            candidates.setdefault(one.digest, one)
    for one in _planned(candidate, graph, now, sizes):
        candidates.setdefault(one.digest, one)
    return sorted(candidates.values(), key=lambda candidate: candidate.predicted)


def predicted(
    graph: Graph, device: Device, sizes: Mapping[str, int], choices: Mapping[str, Choice] | None = None
) -> float:
    """Seconds by the cost model; 0.0 of a graph that cannot be scheduled, of which nothing is known."""
    try:
        given = Choices.of(choices or {}) if device.type == "cpu" else Choices()
        made = schedule(graph, choices=given)
    except CompilerError:
        return 0.0
    return predict(made, sizes, RATES[device.type])


def _with(
    candidate: SearchCandidate,
    graph: Graph,
    device: Device,
    sizes: Mapping[str, int],
    name: str,
    value: Choice,
) -> SearchCandidate:
    choices = {**candidate.choices, name: value}
    if device.type == "cpu":
        if name in PLACES:  # which plans of loops belong to which nests is not known behind it
            choices.pop("nests", None)
        choices = dict(Choices.of(choices).given())
    shown = "" if value == "" else f" {value}"
    return SearchCandidate(
        candidate.graph,
        choices,
        f"{candidate.origin}; {name}{shown}",
        predicted(graph, device, sizes, choices),
    )


def _planned(
    candidate: SearchCandidate, graph: Graph, now: Choices, sizes: Mapping[str, int]
) -> Iterator[SearchCandidate]:
    """Other loops for nests that reduce, and for products that become loops; none where egglog is not installed."""
    try:
        for one in nest_choices(graph, now, MOST_PLANS):
            made = schedule(graph, choices=Choices.of(one.choices))
            rates = RATES["cpu"]
            seconds = predict(made, sizes, rates) - predict_kernel(one.kernel, sizes, rates)
            seconds += rates.launch + one.priced.seconds
            yield SearchCandidate(candidate.graph, one.choices, f"{candidate.origin}; {one}", seconds)
    except (EngineError, MissingDependencyError):
        return


def _settings(graph: Graph, made: Schedule) -> Iterator[tuple[str, Choice]]:
    """Values of the choices that may matter to a graph."""
    nests = [nest for kernel in made.kernels for nest in kernel.nests]
    matters = {
        "split": any(may_be_long(node) for node in graph.live()),
        "layout": any(isinstance(nest.anchor, Convolution) for nest in nests),
        "grain": any(nest.anchor is None for nest in nests),
        "tile": any(node.op.name == "permute" for node in graph.live()),
    }
    for name, values in CHOICES.items():
        if matters[name]:
            yield from ((name, value) for value in values)


def _places(made: Schedule, sizes: Mapping[str, int]) -> Iterator[tuple[str, Choice]]:
    """Places of a schedule added to those that are chosen already, one at a time; and taken back."""
    small = _small_products(made, sizes)
    offered = {
        "apart": made.joined,
        "again": made.shared,
        "loops": made.products if small else (),
    }
    for name in PLACES:
        chosen = made.choices.places(name)
        for place in [*offered[name][:MOST_PLACES], *sorted(chosen)]:
            yield name, ",".join(map(str, sorted(chosen ^ {place})))


def _small_products(made: Schedule, sizes: Mapping[str, int]) -> bool:
    return any(
        _multiplications(nest, sizes) <= SMALL_PRODUCT
        for kernel in made.kernels
        for nest in kernel.nests
        if isinstance(nest.anchor, Product)
    )


def _multiplications(nest: Nest, sizes: Mapping[str, int]) -> int:
    assert isinstance(nest.anchor, Product)
    total: Dim = nest.anchor.a.shape[-1]
    for loop in nest.outer:
        total = total * loop.extent
    return number(total, sizes)


def _knobs_of_gpu(chosen: Mapping[str, Choice]) -> Iterator[tuple[str, Choice]]:
    from kernels_hub.compiler.engines.triton import KNOBS

    for knob in KNOBS:
        for value in knob.values:
            if isinstance(value, (str, int)) and chosen.get(knob.name, knob.values[0]) != value:
                yield knob.name, value
