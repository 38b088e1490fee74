"""Times a compiled forward against the one that it is to replace, on the arguments of a real call, in turn.

A pair in which a thread of this process waited for a core does not count, unless too few others can be had: the
decision is then of a disturbed machine, and is made again later.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kernels_hub.calibration.waiting import is_undisturbed, waiting

GAIN = 1.03
"""How much faster what was compiled must be to be used."""

_PAIRS = 7
_LEAST_PAIRS = 3
_MOST_PAIRS = 60
_SECONDS = 2.0
"""For all pairs, once there are `_LEAST_PAIRS` or one takes longer than this."""
_SAMPLE_S = 1e-3
_MOST_CALLS = 20
"""Calls of a sample: calls that are shorter than the clock's noise are timed together."""
_NAP_S = 0.004
"""After a disturbed pair: who has slept gets a core at once, and keeps it for a while."""


@dataclass(frozen=True)
class Timing:
    """Seconds a call, medians; ratio: the median of original / compiled over the pairs.

    disturbed: whether something else kept the cores busy in nearly all pairs.
    """

    original: float
    compiled: float
    ratio: float
    disturbed: bool = False

    @property
    def gains(self) -> bool:
        """Whether what was compiled is worth using."""
        return self.ratio >= GAIN


Call = tuple[tuple[Any, ...], dict[str, Any]]
Forward = Callable[..., Any]


def time_in_turn(original: Forward, compiled: Forward, arguments: Callable[[], Call]) -> Timing:
    """Time both. arguments: makes those of one call, which may change them. Raises what a forward raises."""
    from statistics import median  # which imports a lot, and a start that times nothing needs none of it

    first = max(_once(compiled, [arguments()]), 1e-9)  # makes what the first call makes
    first = min(first, max(_once(compiled, [arguments()]), 1e-9))
    _once(original, [arguments()])
    calls = int(min(max(_SAMPLE_S / first, 1), _MOST_CALLS))
    undisturbed: list[tuple[float, float]] = []
    disturbed: list[tuple[float, float]] = []
    started = time.perf_counter()
    with waiting() as waited_s:  # all threads that calls need are there by now
        while len(undisturbed) < _PAIRS and (taken := len(undisturbed) + len(disturbed)) < _MOST_PAIRS:
            spent = time.perf_counter() - started
            enough = len(undisturbed) >= _LEAST_PAIRS or taken >= _PAIRS
            if spent > _SECONDS and (enough or spent > taken * _SECONDS > 0):
                break
            before = waited_s()
            sides = (original, compiled) if taken % 2 else (compiled, original)
            found = {side: _once(side, [arguments() for _ in range(calls)]) for side in sides}
            counts = is_undisturbed(waited_s() - before, sum(found.values()))
            (undisturbed if counts else disturbed).append((found[original] / calls, found[compiled] / calls))
            if not counts:
                time.sleep(_NAP_S)
    is_known = len(undisturbed) >= min(_LEAST_PAIRS, len(disturbed))
    times = undisturbed if is_known else undisturbed + disturbed
    return Timing(
        median(one for one, _ in times),
        median(one for _, one in times),
        median(one / other for one, other in times),
        disturbed=not is_known,
    )


def _once(forward: Forward, calls: list[Call]) -> float:
    started = time.perf_counter()
    for args, kwargs in calls:
        forward(*args, **kwargs)
    return time.perf_counter() - started
