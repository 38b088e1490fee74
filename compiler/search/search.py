"""Measured search: graphs that compute the same, and other loops for them, checked, timed, and the fastest chosen.

    found = search(graph, "cpu", budget=60, seed=0)
    print(found)                        everything that was tried
    y = found.plan()(x)

1. What the default pipeline makes is candidate 0: nothing that is slower is ever chosen.
2. Of a graph with repeated blocks one block is searched, and what is found is put in the place of each.
3. Equality saturation gives other graphs; the cost model says which are worth building.
4. Around the best few, one choice for the loops is changed at a time, for as long as that helps and the budget lasts.
5. Those who are left are timed in turn, once more. Within the noise the earlier candidate wins.
6. The winner is timed again on its own against candidate 0, beside a control, twice: a gain that does not repeat within
   10% is none, and the next one is asked.

Every candidate is judged by the oracle, on inputs made for the graph (`judging`), before it is timed. The order in
which they are tried is a function of graph, device and seed; a winner is kept in the tuning database and chosen again
without a measurement.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from kernels_hub.compiler.engines.devices import find_device
from kernels_hub.compiler.engines.engine import Device
from kernels_hub.compiler.errors import CompilerError
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.ir.printer import print_graph
from kernels_hub.compiler.plan.file import versions
from kernels_hub.compiler.plan.tuning_database import TuningDatabase, Winner
from kernels_hub.compiler.rewrite.pipeline import PIPELINE, rewrite
from kernels_hub.compiler.schedule.choices import Choices
from kernels_hub.compiler.search.blocks import Block, repeated
from kernels_hub.compiler.search.candidate import Measured, SearchCandidate, SearchError
from kernels_hub.compiler.search.cost import RATES
from kernels_hub.compiler.search.equations import EQUATIONS, Equation
from kernels_hub.compiler.search.evaluator import GraphEvaluator
from kernels_hub.compiler.search.extract import best
from kernels_hub.compiler.search.neighbours import neighbours, predicted
from kernels_hub.compiler.search.nests.nests import rewrites_taken
from kernels_hub.compiler.search.quiet import BusyError, measuring
from kernels_hub.compiler.search.result import SearchResult, Standing, Tried
from kernels_hub.compiler.search.saturate import Limits, saturate

if TYPE_CHECKING:
    from kernels_hub.compiler.search.journal import Journal

LOGGER = logging.getLogger(__name__)

GRAPHS = 10
"""Different graphs that are taken out of a space."""
HOPELESS = 3.0
"""A candidate that is predicted to take so many times the least is not built, but for the first few."""
AT_LEAST = 3
BEAM = 2
"""Candidates whose neighbours are tried, in each round."""
FINALISTS = 4
FINAL_ROUNDS = 3
TOGETHER = 8
"""Candidates that are timed in turn at once."""
TIE = 0.03
"""Share of the time within which two candidates are equally fast."""
MOST_NODES = 800
"""Larger graphs are not saturated as a whole."""
COVERED = 0.5
"""Share of the nodes that repeated blocks have to be for one of them to be searched instead of all."""
_FOR_BLOCKS = 0.6
"""Of the budget."""

Progress = Callable[[Standing], object]


def search(
    graph: Graph,
    device: str | Device | torch.device = "best",
    *,
    budget: float = 60.0,
    seed: int = 0,
    sizes: Mapping[str, int] | None = None,
    executor: Executor | None = None,
    journal: Journal | None = None,
    database: TuningDatabase | None = None,
    progress: Progress | None = None,
    limits: Limits | None = None,
    equations: Sequence[Equation] = EQUATIONS,
    evaluator: Callable[..., GraphEvaluator] = GraphEvaluator.of,
    again: bool = False,
) -> SearchResult:
    """The fastest way that is found to run a graph, as it was imported, within `budget` seconds.

    sizes: of its symbols, those that it is to be fast for; middling ones by default. executor: where candidates are
    built and timed, by default here, one after the other. journal: what is known of candidates, for a search that goes
    on where another ended. database: where winners are kept; one is chosen again, unless `again`, or its search ran
    out of a smaller budget: then it is a candidate like others. limits: of equality saturation; no equations: other
    loops only, without egglog. evaluator: makes that of a graph, from (graph, device, sizes, seed). A KeyboardInterrupt
    ends the search with what it has.

    Raises MissingDependencyError where egglog is not installed, SearchError where what the default pipeline makes does
    not run, or does not give the oracle's numbers.
    """
    if budget <= 0:
        raise SearchError(f"a search takes some seconds, not {budget}")
    place = device if isinstance(device, Device) and device.arch else find_device(device)
    usual = rewrite(graph, PIPELINE[:-1]).graph  # weights are folded when a candidate is built
    with ExitStack() as stack:
        if executor is None and journal is not None:
            executor = stack.enter_context(ThreadPoolExecutor(1))
        settings = _Settings(place, seed, dict(sizes or {}), executor, journal, progress, limits or Limits())
        driver = _Driver(usual, settings, tuple(equations), evaluator, budget)
        return driver.run(database or TuningDatabase(), again=again)


class _Settings:
    """What holds for a search and for those of its blocks."""

    def __init__(
        self,
        device: Device,
        seed: int,
        sizes: dict[str, int],
        executor: Executor | None,
        journal: Journal | None,
        progress: Progress | None,
        limits: Limits,
    ) -> None:
        self.device, self.seed, self.sizes = device, seed, sizes
        self.executor, self.journal, self.progress, self.limits = executor, journal, progress, limits


class _Driver:
    """One search. Times are kept as shares of what candidate 0 took in the same round."""

    def __init__(
        self,
        graph: Graph,
        settings: _Settings,
        equations: tuple[Equation, ...],
        evaluator: Callable[..., GraphEvaluator],
        budget: float,
        stage: str = "",
    ) -> None:
        self.graph, self.settings, self.equations, self.budget = graph, settings, equations, budget
        self.stage = stage
        self.make_evaluator = evaluator
        sizes = {name: size for name, size in settings.sizes.items() if name in graph.symbols}
        self.evaluator = evaluator(graph, settings.device, sizes, settings.seed)
        self.sizes = self.evaluator.sizes
        self.started = time.monotonic()
        self.log: list[str] = []
        self.tried: dict[str, Tried] = {}
        self.shares: dict[str, float] = {}
        text = print_graph(graph, data=True)
        self.first = SearchCandidate(
            text, {}, "the default pipeline", predicted(graph, settings.device, self.sizes)
        )
        self.base_seconds: float | None = None
        self.bases: list[float] = []
        self.confirmed: set[str] = set()

    # -- the whole way

    def run(self, database: TuningDatabase, *, again: bool = False) -> SearchResult:
        """See `search`."""
        key = self._key()
        kept = database.get(key)
        former = _candidate_of(kept, self.graph.name) if kept is not None else None
        if former is not None and kept is not None and not again and self._settles(kept):
            found = self._remembered(former, kept.seconds)
            if found is not None:
                return found
        interrupted = ""
        try:
            self._begin(former)
            self._explore()
            if self._is_here:
                self._confirm()
        except KeyboardInterrupt:
            if self.first.digest not in self.shares and self._is_here:
                raise
            interrupted = "it was interrupted"
            self.log.append(interrupted)
        if not interrupted and self._left <= 0:
            interrupted = f"the {self.budget:g} seconds were over"
            self.log.append(interrupted)
        self._say_rewrites()
        result = self._result(interrupted)
        if interrupted != "it was interrupted" and (row := result.winner).measured.status != "pruned":
            seconds = row.measured.seconds or row.candidate.predicted
            known = former is not None and kept is not None and row.candidate.digest == former.digest
            done = {
                "complete": not interrupted or (known and bool(kept and kept.knobs.get("complete"))),
                "budget": self.budget,
            }
            database.put(key, Winner("search", {"candidate": row.candidate.to_dict(), **done}, seconds))
        return result

    def _say_rewrites(self) -> None:
        """In the log, how the winner's loops came about, where they were searched."""
        winner = self._ranked()[0] if self._ranked() else self.first
        if winner.choices.get("nests"):
            self.log += rewrites_taken(_parsed(winner), Choices.of(winner.choices))

    def _begin(self, former: SearchCandidate | None = None) -> None:
        """Candidate 0, what everything else is measured against, and what won before."""
        self._evaluate([self.first] if former is None else [self.first, former])
        row = self.tried[self.first.digest]
        if row.measured.status in {"wrong", "failed"}:
            raise SearchError(
                f"graph {self.graph.name}: what the default pipeline makes of it cannot be the first candidate: "
                f"{row.measured.reason}"
            )

    def _explore(self) -> None:
        blocks = repeated(self.graph) if self.equations else []
        if blocks and self._covers(blocks[0]):
            self._evaluate(self._from_block(blocks[0]))
        elif self.equations:
            self._evaluate(self._graphs())
        around: set[str] = set()
        while self._left > 0:
            centres = [one for one in self._ranked()[:BEAM] if one.digest not in around]
            before = self._ranked()[:1]
            if not centres:
                break
            for centre in centres:
                around.add(centre.digest)
                self._evaluate(neighbours(centre, self.evaluator.weights, self.settings.device, self.sizes))
            if self._ranked()[:1] == before and all(one.digest in around for one in self._ranked()[:BEAM]):
                break
        if self._is_here and self._left > 0:
            self._final()

    # -- candidates

    def _covers(self, block: Block) -> bool:
        inside = sum(bool(node.operands) for node in block.graph.live()) * len(block.instances)
        return inside >= COVERED * sum(bool(node.operands) for node in self.graph.live())

    def _from_block(self, block: Block) -> list[SearchCandidate]:
        """What a search of one of the blocks finds, in the place of all of them."""
        self.log.append(f"{len(block.instances)} blocks of {len(block.graph.live())} nodes: one is searched")
        block.graph.weights = {name: self.evaluator.weights[name] for name in block.graph.parameters}
        inner = _Driver(
            block.graph,
            self.settings,
            self.equations,
            self.make_evaluator,
            self.budget * _FOR_BLOCKS,
            "block: ",
        )
        try:
            inner._begin()
        except SearchError as error:
            self.log.append(f"the block cannot be searched alone: {error}")
            return self._graphs()
        inner._explore()
        self.log += [f"  {line}" for line in inner.log]
        candidates: dict[str, SearchCandidate] = {}
        for one in inner._ranked()[:FINALISTS]:
            if one.digest == inner.first.digest:
                continue
            whole = block.apply(_parsed(one))
            choices = {name: value for name, value in one.choices.items() if name not in _OF_PLACES}
            made = self._candidate(whole, f"in each block: {one.origin}", choices)
            candidates.setdefault(made.digest, made)
        return list(candidates.values())

    def _graphs(self) -> list[SearchCandidate]:
        """Graphs that equations make of it, by predicted time; what is hopeless is not among them."""
        count = len(self.graph.live())
        if count > MOST_NODES:
            self.log.append(f"{count} nodes are more than the {MOST_NODES} that are saturated as a whole")
            return []
        space = saturate(self.graph, self.settings.limits, self.equations)
        state = "complete" if space.complete else "not complete"
        self.log.append(
            f"saturated: {space.size} terms in {len(space.classes)} classes after {space.rounds} rounds, {state}"
        )
        fired = ", ".join(f"{name} {count}" for name, count in space.fired.items() if count)
        self.log.append(f"  equations that matched: {fired or 'none'}")
        rates = RATES[self.settings.device.type]
        found = best(space, GRAPHS, rates, sizes=self.sizes, seed=self.settings.seed)
        made = [self._candidate(one.graph, f"equal graph {index}") for index, one in enumerate(found)]
        made = sorted((one for one in made if one.digest != self.first.digest), key=lambda one: one.predicted)
        least = min((one.predicted for one in (self.first, *made)), default=0.0)
        kept = []
        for position, one in enumerate(made):
            if position >= AT_LEAST and one.predicted > HOPELESS * least:
                reason = f"predicted to take {one.predicted / least:.1f} times the least"
                self._note(one, Measured(one.digest, "pruned", None, reason))
            else:
                kept.append(one)
        return kept

    def _candidate(
        self, graph: Graph, origin: str, choices: Mapping[str, Any] | None = None
    ) -> SearchCandidate:
        guess = predicted(graph, self.settings.device, self.sizes, choices)
        return SearchCandidate(print_graph(graph, data=True), dict(choices or {}), origin, guess)

    # -- measurements

    @property
    def _left(self) -> float:
        return self.started + self.budget - time.monotonic()

    @property
    def _is_here(self) -> bool:
        return self.evaluator.is_here

    def _evaluate(self, candidates: Iterable[SearchCandidate]) -> None:
        """Build and check, then time those who are right, each batch in turn with candidate 0."""
        new = [candidate for candidate in candidates if candidate.digest not in self.tried]
        right = self._built(list({one.digest: one for one in new}.values()))
        if not self._is_here:
            return
        for start in range(0, len(right), TOGETHER):
            if start and self._left <= 0:
                return
            self._time(right[start : start + TOGETHER], "timed")

    def _built(self, candidates: Sequence[SearchCandidate]) -> list[SearchCandidate]:
        """Those that give the oracle's numbers; the others are noted."""
        by_digest = {candidate.digest: candidate for candidate in candidates}
        settings, rows = self.settings, []
        if settings.executor is not None:
            from kernels_hub.compiler.search.fanout import fan_out

            rows = fan_out(
                candidates,
                partial(self.evaluator, build_only=True),
                settings.executor,
                journal=settings.journal,
                until=None if self.base_seconds is None else self.started + self.budget,
            )
            for one in rows:
                self._note(by_digest[one.digest], one)
        else:
            for candidate in candidates:
                if self._left <= 0 and self.base_seconds is not None:
                    break
                rows.append(self.evaluator(candidate, build_only=True))
                self._note(candidate, rows[-1])
        return [by_digest[row.digest] for row in rows if row.status == "slower"]

    def _time(self, candidates: Sequence[SearchCandidate], stage: str) -> None:
        """Seconds of candidates, as shares of candidate 0's."""
        if not candidates:
            return
        together = [
            self.first,
            *(candidate for candidate in candidates if candidate.digest != self.first.digest),
        ]
        settings = self.settings
        if settings.executor is not None:
            from kernels_hub.compiler.search.fanout import measure_together

            rows = measure_together(together, self.evaluator, settings.executor, journal=settings.journal)
        else:
            with _quiet():
                rows = self.evaluator.measure_many(together)
        found = {row.digest: row for row in rows}
        base = found.get(self.first.digest)
        if base is None or base.seconds is None:
            return
        self.bases.append(base.seconds)
        self.base_seconds = statistics.median(self.bases)
        for candidate in together:
            row = found.get(candidate.digest)
            if row is not None and row.seconds is not None:
                self.shares[candidate.digest] = row.seconds / base.seconds
            if row is not None:
                self._note(candidate, row, stage)

    def _final(self) -> None:
        """Those who are left, in turn, several times: what only one round says does not count."""
        left = self._ranked()[:FINALISTS]
        found: dict[str, list[float]] = {one.digest: [] for one in left}
        for _ in range(FINAL_ROUNDS):
            self._time(left, "final")
            for one in left:
                found[one.digest].append(self.shares[one.digest])
        self.shares.update({digest: statistics.median(shares) for digest, shares in found.items()})

    def _confirm(self) -> None:
        """The winner timed again on its own; one whose gain does not repeat has none, and the next is asked."""
        asked = 0
        while (ranked := self._ranked()) and ranked[0].digest not in {self.first.digest, *self.confirmed}:
            if asked == FINALISTS:
                for digest in set(self.shares) - self.confirmed:
                    self.shares[digest] = max(self.shares[digest], 1.0)
                return
            asked += 1
            self._confirm_one(ranked[0])

    def _confirm_one(self, candidate: SearchCandidate) -> None:
        settings = self.settings
        if settings.executor is not None:
            from kernels_hub.compiler.search.fanout import measure_again

            rows = measure_again([self.first, candidate], self.evaluator, settings.executor)
        else:
            with _quiet():
                rows = self.evaluator.measure_again([self.first, candidate])
        found = {row.digest: row for row in rows}
        base, row = found.get(self.first.digest), found.get(candidate.digest)
        share = 1.0
        if row is not None and row.status == "fastest" and row.seconds and base is not None and base.seconds:
            share = row.seconds / base.seconds
            self.base_seconds = base.seconds
            self.confirmed.add(candidate.digest)
        else:
            share = max(share, self.shares[candidate.digest])
        self.shares[candidate.digest] = share
        if row is not None:
            self._note(candidate, row, "again")

    def _note(self, candidate: SearchCandidate, measured: Measured, stage: str = "built") -> None:
        self.tried[candidate.digest] = row = Tried(candidate, measured)
        took = f", {measured.seconds * 1e6:.1f} us" if measured.seconds is not None else ""
        self.log.append(f"{stage}: {candidate.origin}: {measured.status}{took}: {measured.reason}")
        if self.settings.progress is not None:
            ranked = self._ranked()
            share = self.shares.get(ranked[0].digest) if ranked else None
            fastest = share * self.base_seconds if share is not None and self.base_seconds else None
            elapsed = time.monotonic() - self.started
            self.settings.progress(Standing(self.stage + stage, len(self.tried), row, fastest, elapsed))

    def _ranked(self) -> list[SearchCandidate]:
        """Who ran, the fastest first; within the noise of the fastest, the one that was found first."""
        order = {digest: index for index, digest in enumerate(self.tried)}
        if self._is_here:
            score = dict(self.shares)
        else:
            score = {
                digest: row.candidate.predicted
                for digest, row in self.tried.items()
                if row.measured.status == "slower"
            }
        if not score:
            return []
        least = min(score.values())
        tied = sorted((one for one in score if score[one] <= least * (1 + TIE)), key=order.__getitem__)
        others = sorted((one for one in score if one not in set(tied)), key=score.__getitem__)
        return [self.tried[one].candidate for one in (*tied, *others)]

    # -- results

    def _result(self, interrupted: str, *, remembered: bool = False) -> SearchResult:
        ranked = [one.digest for one in self._ranked()]
        base = self.base_seconds
        rows = []
        for index, digest in enumerate([*ranked, *(name for name in self.tried if name not in set(ranked))]):
            row = self.tried[digest]
            if digest in self.shares and base is not None:
                status = "fastest" if index == 0 else "slower"
                seconds = self.shares[digest] * base
                reason = row.measured.reason
                row = Tried(
                    row.candidate,
                    Measured(digest, status, seconds, reason, row.measured.facts),  # type: ignore[arg-type]
                )
            rows.append(row)
        default = next(row for row in rows if row.candidate.digest == self.first.digest)
        elapsed = time.monotonic() - self.started
        return SearchResult(
            tuple(rows),
            default,
            self.evaluator.weights,
            self.settings.device,
            elapsed,
            remembered,
            interrupted,
            tuple(self.log),
        )

    def _key(self) -> dict[str, Any]:
        """All that decides who wins."""
        device = self.settings.device
        return {
            "search": self.first.digest,
            "device": [device.type, device.arch, _hardware(device)],
            "versions": versions(),
            "threads": torch.get_num_threads() if device.type == "cpu" else 0,
            "sizes": dict(sorted(self.sizes.items())),
            "seed": self.settings.seed,
            "equations": [equation.name for equation in self.equations],
        }

    def _settles(self, kept: Winner) -> bool:
        """Whether the search that found a winner came to its end, or had as much time as this one has."""
        spent = kept.knobs.get("budget")
        return bool(kept.knobs.get("complete")) or (isinstance(spent, (int, float)) and self.budget <= spent)

    def _remembered(self, candidate: SearchCandidate, seconds: float) -> SearchResult | None:
        """The winner of an earlier search, if it still is right; None where it is not to be had any more."""
        measured = self.evaluator(candidate, build_only=True)
        if measured.status != "slower":
            LOGGER.warning(
                "graph %s: what won before is %s (%s), it is searched again",
                self.graph.name, measured.status, measured.reason,
            )  # fmt: skip
            return None
        reason = "fastest when it was measured before"
        self.tried[candidate.digest] = Tried(
            candidate, Measured(candidate.digest, "fastest", seconds, reason, measured.facts)
        )
        self.tried.setdefault(
            self.first.digest,
            Tried(self.first, Measured(self.first.digest, "slower", None, "not measured again")),
        )
        self.log.append(reason)
        rows = tuple(self.tried.values())
        default = self.tried[self.first.digest]
        elapsed = time.monotonic() - self.started
        return SearchResult(
            rows,
            default,
            self.evaluator.weights,
            self.settings.device,
            elapsed,
            remembered=True,
            log=tuple(self.log),
        )


def _candidate_of(kept: Winner, graph: str) -> SearchCandidate | None:
    """The candidate that won before; None where what was kept makes no sense."""
    try:
        return SearchCandidate.from_dict(kept.knobs["candidate"])
    except (KeyError, CompilerError) as error:
        LOGGER.warning("graph %s: what won before cannot be read (%s), it is searched again", graph, error)
        return None


@contextmanager
def _quiet() -> Iterator[None]:
    """Nothing else is built or measured meanwhile; where others do not end, it is measured beside them."""
    with ExitStack() as held:
        try:
            held.enter_context(measuring())
        except BusyError as error:
            LOGGER.warning("what is measured may be disturbed: %s", error)
        yield


_OF_PLACES = frozenset({"apart", "again", "loops", "nests"})


def _parsed(candidate: SearchCandidate) -> Graph:
    from kernels_hub.compiler.ir.parser import parse_graph

    return parse_graph(candidate.graph)


def _hardware(device: Device) -> str:
    here = device.type != "cpu" and torch.cuda.is_available()
    return str(torch.cuda.get_device_name(device.index)) if here else ""
