"""Builds and measures candidates on many workers through any executor; retries lost ones, repeats none.

    fan_out(candidates, partial(evaluator, build_only=True), executor, journal=journal)      many at a time
    measure_together(candidates, evaluator, executor, journal=journal)                       alone on the machine

executor: threads, processes, Ray, `Workers`. A worker that dies or does not come to an end costs one attempt of the
candidate that it ran; what other tasks were lost with it (a process pool breaks as a whole) is run again, each where
its own end is told from that of others. A candidate that ends its workers again and again is "failed", and in the
journal as such. Whatever ends the driver, what it found is in the journal, and the next one goes on from there.
"""

from __future__ import annotations

import logging
import math
import pickle
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from dataclasses import dataclass, field
from typing import Any

from kernels_hub.compiler.engines.guard import one_line
from kernels_hub.compiler.runtime.toolchain import usable_cpus
from kernels_hub.compiler.search.candidate import Evaluator, Measured, SearchCandidate
from kernels_hub.compiler.search.journal import Journal, Stage
from kernels_hub.compiler.search.quiet import PATIENCE_S, BusyError, Lock, building, measuring, under
from kernels_hub.compiler.search.sending import Sender
from kernels_hub.compiler.search.workers import WorkerLostError, Workers

_LOGGER = logging.getLogger(__name__)

RETRIES = 2
"""Times that a candidate is tried again after its worker was lost."""
TIMEOUT_S = 900.0
"""Seconds that a candidate may take before its worker is ended: a compiler is given as long."""
_TICK_S = 0.1

Evaluate = Callable[[SearchCandidate], Measured]


@dataclass(frozen=True)
class Progress:
    """How far it is: `done` of `total` candidates; `latest`: what came in, None where something else happened.

    known: `latest` is of the journal. note: what happened to a worker, empty where nothing did.
    """

    done: int
    total: int
    latest: Measured | None = None
    known: bool = False
    note: str = ""


OnProgress = Callable[[Progress], object]


def fan_out(
    candidates: Iterable[SearchCandidate],
    evaluate: Evaluate,
    executor: Executor,
    *,
    journal: Journal | None = None,
    stage: Stage = "built",
    retries: int = RETRIES,
    timeout: float | None = TIMEOUT_S,
    until: float | None = None,
    on_progress: OnProgress | None = None,
) -> list[Measured]:
    """What became of each candidate, in their order; equal ones are evaluated once.

    evaluate: picklable where the executor wants that. timeout: seconds that one may run. until: of time.monotonic();
    what has not begun by then is left out. An exception of `evaluate` makes a candidate "failed". KeyboardInterrupt
    passes through after the workers of what is under way were ended.
    """
    wanted = list(candidates)
    alone = measuring if stage == "timed" else building
    tasks = [_Task((one.digest,), evaluate, one, alone) for one in {c.digest: c for c in wanted}.values()]
    fan = _Fan(executor, journal, stage, retries, timeout, until, on_progress)
    found = fan.run(tasks)
    return [found[one.digest] for one in wanted if one.digest in found]


def measure_together(
    candidates: Iterable[SearchCandidate],
    evaluator: Evaluator,
    executor: Executor,
    *,
    journal: Journal | None = None,
    retries: int = RETRIES,
    timeout: float | None = TIMEOUT_S,
    on_progress: OnProgress | None = None,
) -> list[Measured]:
    """Time candidates in turn, in one worker, while nothing else runs on its machine; see `Evaluator.measure_many`.

    The journal knows them together or not at all, since times compare only with those of the same minutes. Asked for
    the same ones a second time, it gives what was measured the second time. Where the worker is lost, they are timed
    one by one. timeout: seconds for each candidate. Returns as `fan_out` does.
    """
    wanted = list({candidate.digest: candidate for candidate in candidates}.values())
    digests = [one.digest for one in wanted]
    tell = on_progress or (lambda step: step)
    if journal is not None and (known := journal.next_together(digests)) is not None:
        for index, one in enumerate(digests, 1):
            tell(Progress(index, len(digests), known[one], known=True))
        return [known[digest] for digest in digests]
    apart = [_Task((one.digest,), evaluator, one, measuring) for one in wanted]
    task = _Task(tuple(digests), evaluator.measure_many, wanted, measuring, apart)
    whole = None if timeout is None else timeout * len(wanted)
    found = _Fan(executor, None, "timed", retries, whole, None, on_progress).run([task])
    rows = [found[digest] for digest in digests if digest in found]
    if journal is not None and len(rows) == len(digests):
        journal.add_together(rows)
    return rows


def measure_again(
    candidates: Iterable[SearchCandidate],
    evaluator: Evaluator,
    executor: Executor,
    *,
    retries: int = RETRIES,
    timeout: float | None = TIMEOUT_S,
) -> list[Measured]:
    """Time a candidate against the original once more, alone on a machine; see `Evaluator.measure_again`.

    What another driver measured does not count. Both are "failed" where the worker is lost.
    """
    wanted = list(candidates)
    task = _Task(tuple(one.digest for one in wanted), evaluator.measure_again, wanted, measuring)
    whole = None if timeout is None else timeout * len(wanted)
    found = _Fan(executor, None, "timed", retries, whole, None, None).run([task])
    return [found[one.digest] for one in wanted if one.digest in found]


@dataclass
class _Task:
    """What one worker does at a time. digests: of whom it tells; apart: what to do instead of again if it is lost."""

    digests: tuple[str, ...]
    evaluate: Callable[[Any], Any]
    what: Any
    lock: Lock
    apart: Sequence[_Task] = ()
    lost: int = 0

    @property
    def name(self) -> str:
        """For people."""
        more = len(self.digests) - 1
        return f"candidate {self.digests[0][:8]}" + (f" with {more} others" if more else "")


@dataclass
class _Flight:
    """A task that a crew has. started: None until its clock runs; overdue: it is being ended."""

    task: _Task
    crew: Executor
    started: float | None = None
    overdue: bool = False


@dataclass
class _Fan:
    """One call of `fan_out`."""

    executor: Executor
    journal: Journal | None
    stage: Stage
    retries: int
    timeout: float | None
    until: float | None
    on_progress: OnProgress | None
    found: dict[str, Measured] = field(default_factory=dict)
    flights: dict[Future[Any], _Flight] = field(default_factory=dict)
    waiting: deque[_Task] = field(default_factory=deque)
    own: Workers | None = None
    sender: Sender | None = None

    def run(self, tasks: Sequence[_Task]) -> dict[str, Measured]:
        self.total = sum(len(task.digests) for task in tasks)
        self.waiting.extend(tasks)
        self.jobs = _jobs(self.executor)
        try:
            while self.waiting or self.flights:
                self._launch()
                if self.flights:
                    done, _ = wait(self.flights, timeout=_TICK_S, return_when=FIRST_COMPLETED)
                    for future in done:
                        self._land(future, self.flights.pop(future))
                    self._end_overdue()
        except BaseException:
            self._give_up()
            raise
        finally:
            if self.own is not None:
                self.own.shutdown(wait=False, cancel_futures=True)
            if self.sender is not None:
                self.sender.close()
        return self.found

    @property
    def limit(self) -> float:
        """Seconds that a task may take, waiting for others included."""
        return math.inf if self.timeout is None else self.timeout + PATIENCE_S

    @property
    def crew(self) -> Executor:
        return self.own or self.executor

    def _launch(self) -> None:
        """Begin as many as there are workers; what waits longer has not begun, and no clock runs for it."""
        if self.until is not None and time.monotonic() >= self.until:
            self.waiting.clear()
        while self.waiting and len(self.flights) < self.jobs:
            task = self.waiting.popleft()
            if self._is_known(task):
                continue
            try:
                self.flights[self.crew.submit(*self._call(task))] = _Flight(task, self.crew)
            except BrokenExecutor as error:
                self.waiting.appendleft(task)
                self._replace(f"broke ({error})")
            except (pickle.PicklingError, TypeError, AttributeError) as error:
                self._fail(task, f"it cannot be sent to a worker: {error}")

    def _call(self, task: _Task) -> tuple[Any, ...]:
        """What is submitted. Threads share the evaluator; other workers get one each, which they keep."""
        if isinstance(self.crew, ThreadPoolExecutor):
            return under, task.lock, task.evaluate, task.what
        if self.sender is None:
            self.sender = Sender(
                local=isinstance(self.executor, (Workers, ProcessPoolExecutor, ThreadPoolExecutor))
            )
        return under, task.lock, self.sender.sent(task.evaluate), task.what

    def _is_known(self, task: _Task) -> bool:
        """Whether the journal, in which other drivers write as well, has all of it."""
        if self.journal is None:
            return False
        known = self.journal.known(self.stage)
        if not all(digest in known for digest in task.digests):
            return False
        for one in task.digests:
            self.found[one] = known[one]
            self._say(known[one], known=True)
        return True

    def _land(self, future: Future[Any], flight: _Flight) -> None:
        task = flight.task
        try:
            result = future.result()
        except BusyError as error:
            _LOGGER.info("%s waits: %s", task.name, error)
            self.waiting.append(task)
        except (WorkerLostError, BrokenExecutor, CancelledError) as error:
            self._lost(flight, error)
        except Exception as error:  # noqa: BLE001  (code of the evaluator's; the others go on)
            self._fail(task, one_line(error))
        else:
            told = result if isinstance(result, list) else [result]
            if sorted(one.digest for one in told) != sorted(task.digests):
                self._fail(task, "the evaluator told of other candidates than it was asked of")
                return
            for one in told:
                self._keep(one)

    def _lost(self, flight: _Flight, error: BaseException) -> None:
        """Try again, or give it up."""
        task = flight.task
        if isinstance(error, (BrokenExecutor, CancelledError)) and not flight.overdue:
            self._replace(f"broke ({error})")
            self.waiting.appendleft(task)  # which of them broke it shows where each has its own worker
            return
        reason = f"it took more than {self.timeout:g} s" if flight.overdue else str(error)
        if task.apart:
            self._say(note=f"{len(task.digests)} candidates are timed one by one: {reason}")
            self.waiting.extendleft(reversed(task.apart))
            return
        task.lost += 1
        if task.lost <= self.retries:
            self._say(note=f"{task.name} is tried again: {reason}")
            self.waiting.append(task)
        else:
            times = "once" if task.lost == 1 else f"{task.lost} times"
            self._fail(task, f"given up after it was tried {times}: {reason}")

    def _end_overdue(self) -> None:
        """Clocks start when tasks do."""
        now = time.monotonic()
        for future, flight in list(self.flights.items()):
            if flight.started is None:
                flight.started = now if future.running() else None
            elif not flight.overdue and now - flight.started > self.limit:
                flight.overdue = True
                self._abandon(future, flight)

    def _abandon(self, future: Future[Any], flight: _Flight) -> None:
        crew = flight.crew
        if hasattr(crew, "abandon"):
            crew.abandon(future)  # the future says so when the worker is gone
            return
        del self.flights[future]
        if isinstance(crew, ProcessPoolExecutor):
            for process in list((crew._processes or {}).values()):  # kill_workers() of Python 3.14
                process.kill()
            self._replace("has a worker that does not come to an end")
        elif self.own is None:
            self.jobs -= 1  # a thread cannot be ended
            if not self.jobs:
                self._replace("has no worker left that comes to an end")
        self._lost(flight, WorkerLostError(""))

    def _replace(self, why: str) -> None:
        """Go on in processes of our own."""
        if self.own is None:
            self.jobs = _jobs(self.executor)
            self._say(
                note=f"the {type(self.executor).__name__} {why}: the rest runs in {self.jobs} processes of their own"
            )
            self.own = Workers(self.jobs)

    def _give_up(self) -> None:
        for future, flight in self.flights.items():
            future.cancel()
            if hasattr(flight.crew, "abandon"):
                flight.crew.abandon(future)

    def _fail(self, task: _Task, reason: str) -> None:
        for digest in task.digests:
            self._keep(Measured(digest, "failed", reason=reason))

    def _keep(self, measured: Measured) -> None:
        self.found[measured.digest] = measured
        if self.journal is not None:
            self.journal.add(self.stage, measured)
        self._say(measured)

    def _say(self, latest: Measured | None = None, *, known: bool = False, note: str = "") -> None:
        if note:
            _LOGGER.warning("%s", note)
        if self.on_progress is not None:
            self.on_progress(Progress(len(self.found), self.total, latest, known, note))


def _jobs(executor: Executor) -> int:
    """How many it runs at a time."""
    for name in ("max_workers", "_max_workers"):
        if isinstance(count := getattr(executor, name, None), int) and count > 0:
            return count
    return usable_cpus()
