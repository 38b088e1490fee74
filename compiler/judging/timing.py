"""Times programs, in one way: warm, in turn, with a control, and twice where a gain is to be believed.

    seconds = measure([call, other], device)             of a call each, for choosing what to look at
    found = gain(original, candidate, device)            what may be stored, or stated
    if found.holds: ...                                  found.ratio times faster, the least that was seen

`gain` times the original, the candidate, and the original again as a control, in turn, many times; and then all of it
once more. It holds where both times, by the median, by the lower quartile and by the fastest call, say the same within
`REPEATS`, and more than the control says of the original against itself. First calls never count. The fastest calls
tell a gain from what others take away all the time: threads that wait for one whose core is busy.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from kernels_hub.compiler.engines.devices import synchronize
from kernels_hub.compiler.engines.engine import Device

REPEATS = 0.1
"""Share by which measurements of one gain may differ."""
LEAST_GAIN = 0.01
"""A smaller gain is none, however quiet the machine is."""
ATTEMPTS = 4
"""Further measurements until two, one after the other, say the same."""

_WARM_CALLS = 2
_WARM_S = 5e-3
_MOST_WARM = 50
_LONG_ENOUGH = 1e-3
_ROUNDS = 7
_HOPELESS = 3.0
_PAIRED_S = 0.25
_LEAST_PAIRS = 5
_MOST_PAIRS = 60

Call = Callable[[], object]
Clock = Callable[[], float]


def measure(calls: Sequence[Call], device: Device, *, clock: Clock = time.perf_counter) -> list[float]:
    """Median seconds of each call, in alternating rounds after a warm-up; the first of them is what others are against.

    What is hopelessly slow in two rounds is not timed further, but for the first.
    """
    place = _place(device)
    repeats = [_warm(call, place, clock) for call in calls]
    times = [
        [_timed(call, count, place, clock) for call, count in zip(calls, repeats, strict=True)]
        for _ in range(2)
    ]
    best = min((min(two) for two in zip(*times, strict=True)), default=0.0)
    rows = [list(two) for two in zip(*times, strict=True)]
    kept = [at for at, row in enumerate(rows) if not at or min(row) <= _HOPELESS * best + 1e-4]
    for turn in range(_ROUNDS - 2 if len(kept) > 1 else 0):
        for at in kept if turn % 2 else reversed(kept):
            rows[at].append(_timed(calls[at], repeats[at], place, clock))
    return [statistics.median(row) for row in rows]


@dataclass(frozen=True)
class Paired:
    """Seconds of a call, medians. ratio: of the original over the candidate in turn, by the median; least: by the lower
    quartiles; fastest: by the fastest call of each, which others that are busy all the time disturb least. control: how
    far the original was off from itself, as a share."""

    original: float
    candidate: float
    ratio: float
    least: float
    fastest: float
    control: float


@dataclass(frozen=True)
class Gain:
    """Two measurements of an original against a candidate, one after the other."""

    first: Paired
    second: Paired

    @property
    def ratio(self) -> float:
        """Times that the candidate is faster: the least of all that was seen."""
        return min(self.seen)

    @property
    def seen(self) -> tuple[float, ...]:
        """What both measurements say: by the median, by the lower quartile, and by the fastest calls."""
        return tuple(
            found for one in (self.first, self.second) for found in (one.ratio, one.least, one.fastest)
        )

    @property
    def repeats(self) -> bool:
        """Whether all of it is the same within `REPEATS`."""
        return min(self.seen) > 0 and max(self.seen) <= (1 + REPEATS) * min(self.seen)

    @property
    def lasts(self) -> bool:
        """Whether who is faster may be kept: it repeats, or by all that was seen it is so by more than `REPEATS`."""
        return self.repeats or (self.faster and self.ratio > 1 + REPEATS)

    @property
    def control(self) -> float:
        """The larger of both controls."""
        return max(self.first.control, self.second.control)

    @property
    def faster(self) -> bool:
        """Whether the candidate is faster by all that was seen, repeated or not."""
        return self.ratio - 1 > max(LEAST_GAIN, self.control)

    @property
    def holds(self) -> bool:
        """Whether it repeats, and is more than the original is off from itself."""
        return self.repeats and self.faster

    @property
    def original(self) -> float:
        """Seconds of a call of the original."""
        return (self.first.original + self.second.original) / 2

    @property
    def candidate(self) -> float:
        """Seconds of a call of the candidate, as `ratio` has it."""
        return self.original / self.ratio if self.ratio else math.inf

    def __str__(self) -> str:
        seen = f"{self.first.ratio:.2f}, then {self.second.ratio:.2f} times faster"
        if self.holds:
            return f"timed again on its own: {seen}"
        why = "which is no more than" if self.repeats else "which does not repeat, with"
        return f"timed again on its own: {seen}, {why} {self.control:.0%} between the original and itself"


def gain(
    original: Call,
    candidate: Call,
    device: Device,
    *,
    clock: Clock = time.perf_counter,
    attempts: int = ATTEMPTS,
    seconds: float = _PAIRED_S,
) -> Gain:
    """What a candidate gains over an original; measured until two measurements repeat, `attempts` + 1 times at most.

    seconds: of each measurement; slower calls are made `3 * 5` times.
    """
    place = _place(device)
    repeats = max(_warm(one, place, clock) for one in (original, candidate))
    before = _paired(original, candidate, place, clock, repeats, seconds)
    found = None
    for _ in range(max(1, attempts)):
        after = _paired(original, candidate, place, clock, repeats, seconds)
        found = Gain(before, after)
        if found.repeats:
            break
        before = after
    assert found is not None
    return found


def _paired(
    original: Call, candidate: Call, place: torch.device, clock: Clock, repeats: int, seconds: float
) -> Paired:
    """Original, candidate and control in turn, each of them first at times."""
    calls = (original, candidate, original)
    rows: list[list[float]] = []
    fastest = [math.inf, math.inf, math.inf]
    end = clock() + seconds
    while len(rows) < _LEAST_PAIRS or (clock() < end and len(rows) < _MOST_PAIRS):
        row = [0.0, 0.0, 0.0]
        start = len(rows) % 3
        for at in (start, (start + 1) % 3, (start + 2) % 3):
            row[at], least = _timed_each(calls[at], repeats, place, clock)
            fastest[at] = min(fastest[at], least)
        rows.append(row)
    first, other, control = (sorted(column) for column in zip(*rows, strict=True))
    quarter = len(rows) // 4
    off = [
        _ratio(statistics.median(first), statistics.median(control)),
        _ratio(first[quarter], control[quarter]),
        statistics.median(_ratio(row[0], row[2]) for row in rows),
    ]
    return Paired(
        statistics.median(first), statistics.median(other),
        statistics.median(_ratio(row[0], row[1]) for row in rows),
        _ratio(first[quarter], other[quarter]),
        _ratio(min(fastest[0], fastest[2]), fastest[1]),
        max(abs(one - 1) for one in off),
    )  # fmt: skip


def _ratio(one: float, other: float) -> float:
    return max(one, 1e-12) / max(other, 1e-12)


def _warm(call: Call, place: torch.device, clock: Clock) -> int:
    """Call it until it is warm; how many calls are long enough to be timed."""
    least, started = math.inf, clock()
    for count in range(_MOST_WARM):
        if count >= _WARM_CALLS and clock() - started > _WARM_S:
            break
        took = _timed(call, 1, place, clock)
        if count:
            least = min(least, took)
    return max(1, int(_LONG_ENOUGH / max(least, 1e-7)))


def _timed(call: Call, repeats: int, place: torch.device, clock: Clock) -> float:
    synchronize(place)
    start = clock()
    for _ in range(repeats):
        call()
    synchronize(place)
    return (clock() - start) / repeats


def _timed_each(call: Call, repeats: int, place: torch.device, clock: Clock) -> tuple[float, float]:
    """Seconds of a call: the mean, and the least of any. On a GPU, calls are not told apart."""
    if place.type != "cpu":
        mean = _timed(call, repeats, place, clock)
        return mean, mean
    least, begun = math.inf, clock()
    before = begun
    for _ in range(repeats):
        call()
        now = clock()
        least = min(least, now - before)
        before = now
    return (before - begun) / repeats, least


def _place(device: Device) -> torch.device:
    return torch.device("cpu") if device.type == "cpu" else torch.device("cuda", device.index)
