"""Engine selection: asks the engines, partitions the graph, and compiles the pieces; leaves out engines that fail.

answers = check_support(graph, "cpu")                 {engine: Support or Decline}
candidates = create_plans(graph, "cpu")               ways to run it, the preferred first
plan = candidates[0].build()
plan.execute({"x": x})
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from kernels_hub.compiler.engines import registry
from kernels_hub.compiler.engines.devices import find_device
from kernels_hub.compiler.engines.engine import (
    CompiledPlan,
    Decline,
    Device,
    Engine,
    KnobValue,
    Note,
    Outcome,
    Signature,
    Support,
)
from kernels_hub.compiler.engines.guard import checked, compiled
from kernels_hub.compiler.errors import CompilerError, EngineError
from kernels_hub.compiler.ir.dims import dim_symbols
from kernels_hub.compiler.ir.graph import Graph, Value
from kernels_hub.compiler.ir.op import TensorType, Trait
from kernels_hub.compiler.ir.types import BOOL
from kernels_hub.compiler.plan.heuristics import Heuristic, default, estimate, heuristic
from kernels_hub.compiler.plan.partition import Partition, Piece, partition
from kernels_hub.compiler.plan.plan import Plan
from kernels_hub.compiler.plan.program import PrintedGraph, Program, Segment, SegmentError

LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class Filter:
    """Which engines may be used: all, or these names; none with such a note, or that wants a larger workspace.

    exclude_engines: names of those that may not. knobs: of engines by name, for whatever they compile. isolated:
    plugins run in child processes, at every call.
    """

    engines: tuple[str, ...] | None = None
    exclude_notes: frozenset[Note] = frozenset()
    workspace_limit: int | None = None
    exclude_engines: frozenset[str] = frozenset()
    knobs: Mapping[str, Mapping[str, KnobValue]] = field(default_factory=dict, hash=False)
    isolated: bool = False

    def there(self) -> dict[str, Engine]:
        """Name -> engine, of those that may be used. Raises EngineError for a name that there is not."""
        if self.engines is None:
            engines = {engine.name: engine for engine in registry.engines(isolated=self.isolated)}
        else:
            engines = {name: registry.engine(name, isolated=self.isolated) for name in self.engines}
        return {name: registered for name, registered in engines.items() if name not in self.exclude_engines}

    def leaves_out(self, engine: Engine, device: Device) -> bool:
        """Whether an engine can or may not be used on a device, whatever the graph is."""
        refuses: Callable[[Device], str | None] | None = getattr(engine, "refuses", None)
        return bool(self._always_unwanted(engine)) or (refuses is not None and refuses(device) is not None)

    def _always_unwanted(self, engine: Engine) -> frozenset[Note]:
        always: frozenset[Note] = getattr(engine, "always", frozenset())
        return always & self.exclude_notes

    def check(self, engine: Engine, graph: Graph, device: Device) -> Support | Decline:
        """What the engine says, or why it may not be used. One that is left out for whatever it takes is not asked."""
        if unwanted := self._always_unwanted(engine):
            return _unwanted(unwanted)
        answer = checked(engine, graph, device)
        if isinstance(answer, Support):
            if unwanted := answer.notes & self.exclude_notes:
                return _unwanted(unwanted)
            limit = self.workspace_limit
            if limit is not None and answer.workspace is not None and answer.workspace > limit:
                return Decline(f"it wants a workspace of {answer.workspace} bytes, more than {limit}")
        return answer


def _unwanted(notes: frozenset[Note]) -> Decline:
    return Decline(f"it {' and '.join(sorted(note.value for note in notes))}, which is excluded")


@dataclass(frozen=True)
class Candidate:
    """A way to run a graph: divided among engines, with knobs for each engine. `build` makes the plan."""

    partition: Partition
    device: Device
    knobs: Mapping[str, Mapping[str, KnobValue]] = field(default_factory=dict)
    preferred: bool = False
    """Whether the engine that the heuristic likes best takes part."""
    first: str = ""
    """The engine that comes first in this way of dividing."""
    isolated: bool = False
    """Whether plugins run in child processes, at every call."""

    @property
    def engines(self) -> tuple[str, ...]:
        """Of the pieces, in order."""
        return self.partition.engines

    @cached_property
    def seconds(self) -> float:
        """An estimate, for comparing."""
        return estimate(self.partition)

    def build(self) -> Plan:
        """The plan. Raises EngineError, which names engine and graph, where an engine fails."""
        return Plan(_program(self), self.device)


def check_support(
    graph: Graph, device: str | Device | torch.device = "best", *, only: Filter | None = None
) -> dict[str, Support | Decline]:
    """Each engine's answer to the whole graph: Support (truthy), or Decline with the reason.

    >>> graph = Graph("double")
    >>> x = graph.input("x", ("n", 4))
    >>> y = graph.output("y", x * 2.0)
    >>> answers = check_support(graph, "cpu")
    >>> bool(answers["library"]), answers["triton"].reason
    (True, 'it runs on GPUs, not on cpu ...')
    """
    target, only = find_device(device), only or Filter()
    return {name: only.check(engine, graph, target) for name, engine in only.there().items()}


def create_plans(
    graph: Graph,
    device: str | Device | torch.device = "best",
    *,
    only: Filter | None = None,
    rank: Heuristic | str = "default",
    without: Iterable[str] = (),
) -> list[Candidate]:
    """Ways to run a graph, the preferred first. Raises EngineError, with every engine's reason, if there is none.

    A way is a division of the graph among engines: whole on the one that the heuristic prefers, if that takes it; else
    that which takes the shortest by `heuristics.estimate` is the first. without: names of engines to leave out.

    >>> graph = Graph("double")
    >>> x = graph.input("x", ("n", 4))
    >>> y = graph.output("y", x * 2.0)
    >>> len(create_plans(graph, "cpu", without=["cpp"])) > 0
    True
    """
    return survey(graph, find_device(device), only or Filter(), rank, without).candidates


@dataclass(frozen=True)
class Survey:
    """What engines say to a graph, the heuristic's order of them, and the ways to run it."""

    graph: Graph
    answers: Mapping[str, Support | Decline]
    order: Sequence[str]
    candidates: list[Candidate]


def survey(
    graph: Graph, device: Device, only: Filter, rank: Heuristic | str, without: Iterable[str] = ()
) -> Survey:
    """See `create_plans`."""
    if untold := untold_symbols(graph):
        raise EngineError(
            f"graph {graph.name}: no input's shape tells the size of {', '.join(untold)}: bind them to numbers first"
        )
    left_out = set(without)
    engines = {name: engine for name, engine in only.there().items() if name not in left_out}
    known: dict[tuple[str, int], Support | Decline] = {}
    kept: list[Graph] = []

    def check(name: str, part: Graph) -> Support | Decline:
        key = (name, id(part))
        if key not in known:
            kept.append(part)  # an id is of this graph as long as it lives
            known[key] = only.check(engines[name], part, device)
        return known[key]

    answers = {name: check(name, graph) for name in engines}
    order = _order(rank, graph, device, answers)
    liked = [name for name in order if not only.leaves_out(engines[name], device)][:1]
    candidates: list[Candidate] = []
    refusal: EngineError | None = None
    for start, name in enumerate(order):
        answer = answers[name]
        if isinstance(answer, Decline) and not answer.values:
            continue
        try:
            divided = partition(graph, order[start:], check)
        except EngineError as error:
            refusal = refusal or error
            continue
        if name in divided.engines:
            preferred = liked[0] in divided.engines
            candidates.append(
                Candidate(
                    divided, device, only.knobs, preferred=preferred, first=name, isolated=only.isolated
                )
            )
    if not candidates:
        raise EngineError(_nobody(graph, device, answers, order)) from refusal
    if len(candidates[0].engines) > 1:
        candidates.sort(key=lambda candidate: candidate.seconds)
    return Survey(graph, answers, order, candidates)


def choose(
    graph: Graph,
    device: Device,
    only: Filter,
    rank: Heuristic | str,
    outcomes: list[Outcome],
    without: set[str],
) -> Plan:
    """The plan of the first candidate that builds; `outcomes` gets a row for each engine: what it does, or why not.

    An engine that fails at what it took joins `without`, and the next way is tried, unless engines were named: then
    its error is raised.
    """
    while True:
        ranking = survey(graph, device, only, rank, without)
        try:
            plan = within_limit(ranking.candidates[0].build(), only)
        except SegmentError as error:
            if only.engines is not None:
                raise
            report_failure(error, graph, outcomes)
            without.add(error.engine)
            continue
        outcomes += outcomes_of(ranking, plan)
        return plan


def within_limit(plan: Plan, only: Filter) -> Plan:
    """The plan, unless its workspace is larger than allowed: SegmentError then. Sizes have to be numbers."""
    if only.workspace_limit is None or untold_sizes(plan.signature):
        return plan
    needed = plan.workspace_size()
    if needed <= only.workspace_limit:
        return plan
    first = max(plan.segments, key=lambda segment: segment.plan.workspace_size({}))
    raise SegmentError(
        f"graph {plan.name}: engine {first.engine} wants a workspace of {needed} bytes, "
        f"more than {only.workspace_limit}",
        first.engine,
    )


def untold_sizes(signature: Signature) -> bool:
    """Whether sizes of inputs are symbols."""
    return bool(dim_symbols(dim for of in signature.inputs.values() for dim in of.shape))


def outcomes_of(found: Survey, plan: Plan) -> list[Outcome]:
    """A row for each engine that was asked: what it does in the plan, or why nothing."""
    total = sum(segment.ops for segment in plan.segments)
    used = ", ".join(dict.fromkeys(plan.engines))
    rows = []
    for name, answer in found.answers.items():
        if name in plan.engines:
            ops = sum(segment.ops for segment in plan.segments if segment.engine == name)
            reason = f"runs {ops} of {total} ops"
            if isinstance(answer, Decline):
                reason += f"; not all: {answer.reason}"
        elif isinstance(answer, Decline):
            reason = answer.reason
        elif name not in found.order:
            reason = "takes the graph; the heuristic leaves it out"
        else:
            reason = f"takes the graph; preferred is {used}"
        rows.append(Outcome(name, reason=reason))
    return rows


_REPORTED: set[tuple[str, str]] = set()


def report_failure(error: SegmentError, graph: Graph, outcomes: list[Outcome]) -> None:
    """An engine broke its word: a row of the outcomes, and one warning for each engine and graph."""
    outcomes.append(Outcome(error.engine, reason=str(error), details=error))
    if (error.engine, graph.name) not in _REPORTED:
        _REPORTED.add((error.engine, graph.name))
        LOGGER.warning("%s; the next engine runs it instead", error)


def untold_symbols(graph: Graph) -> list[str]:
    """Symbols that the outputs need, and that neither a shape of an input nor the data tell."""
    known = dim_symbols(dim for value in graph.inputs.values() for dim in value.shape)
    used = {symbol for node in graph.live() for symbol in node.symbols()} - known
    return sorted(used_symbol.name for used_symbol in used if used_symbol.name not in graph.definers)


def signature_of(graph: Graph) -> Signature:
    """Names and types of what goes into a graph and out of it."""
    return Signature(
        {name: value.type for name, value in graph.inputs.items()},
        {name: value.type for name, value in graph.outputs.items()},
    )


def _order(
    rank: Heuristic | str, graph: Graph, device: Device, answers: Mapping[str, Support | Decline]
) -> list[str]:
    """The heuristic's order; one that fails is reported, and the default one decides."""
    if rank == "default" or isinstance(rank, str):
        rank = heuristic(rank)
    try:
        return [name for name in rank(graph, device, answers) if name in answers]
    except Exception as error:  # noqa: BLE001  (a plugin may raise anything)
        LOGGER.warning(
            "the heuristic %r failed, the default one decides: %s: %s", rank, type(error).__name__, error
        )
        return list(default(graph, device, answers))


def _nobody(
    graph: Graph, device: Device, answers: Mapping[str, Support | Decline], order: Sequence[str]
) -> str:
    reasons = [f"{name}: {answer.reason}" for name, answer in answers.items() if isinstance(answer, Decline)]
    reasons += [f"{name}: the heuristic leaves it out" for name in answers if name not in order]
    failures = registry.failures(discover=False)
    reasons += [f"{failure.source} is not loaded: {failure.reason}" for failure in failures]
    return f"no engine takes graph {graph.name} on {device}:" + "".join(f"\n  {reason}" for reason in reasons)


def _compile(piece: Piece, candidate: Candidate) -> CompiledPlan:
    graph, knobs = candidate.partition.graph, candidate.knobs.get(piece.engine, {})
    try:
        engine = registry.engine(piece.engine, isolated=candidate.isolated)
        plan = compiled(engine, piece.part, candidate.device, knobs)
    except CompilerError as error:
        raise SegmentError(f"graph {graph.name}: {error}", piece.engine) from error
    signature = signature_of(piece.part)
    if (list(plan.signature.inputs.items()), list(plan.signature.outputs.items())) != (
        list(signature.inputs.items()),
        list(signature.outputs.items()),
    ):
        got = f"the plan of engine {piece.engine} has the signature {plan.signature}"
        message = f"graph {graph.name}: {got}, expected {signature}"
        raise SegmentError(message, piece.engine)
    return plan


def _program(candidate: Candidate) -> Program:
    graph = candidate.partition.graph
    slots: list[TensorType] = [value.type for value in graph.inputs.values()]
    places: dict[Value | str, int] = {value: index for index, value in enumerate(graph.inputs.values())}
    segments: list[Segment] = []
    carriers: set[int] = set()
    outputs: dict[str, int] = {}
    for piece in candidate.partition.pieces:
        for one in piece.inputs:
            if one not in places:
                assert isinstance(one, str)
                places[one] = len(slots)
                carriers.add(len(slots))
                slots.append(TensorType(BOOL, (graph.symbols[one],)))
        filled: list[int] = []
        whole = piece.part is graph
        for name, value in zip(piece.part.outputs, piece.outputs, strict=True):
            filled.append(len(slots))
            slots.append(value.type)
            places.setdefault(value, filled[-1])
            if whole:
                outputs[name] = filled[-1]
        segments.append(
            Segment(
                piece.engine,
                _compile(piece, candidate),
                tuple(places[one] for one in piece.inputs),
                tuple(filled),
                dict(candidate.knobs.get(piece.engine, {})),
                sum(not node.op.traits & (Trait.LEAF | Trait.VIEW) for node in piece.nodes),
            )
        )
    return Program(
        name=graph.name,
        signature=signature_of(graph),
        segments=tuple(segments),
        slots=tuple(slots),
        outputs=tuple(outputs.get(name, places[value]) for name, value in graph.outputs.items()),
        carriers=frozenset(carriers),
        defined={
            name: places[node.results[0]]
            for name, node in graph.definers.items()
            if node.results[0] in places
        },
        facts=dict(graph.symbols),
        printed=PrintedGraph(graph),
    )
