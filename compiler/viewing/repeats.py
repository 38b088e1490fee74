"""Repeated blocks: stretches of a sequence that do the same several times in a row, as transformer layers do.

Items are compared by a label; a stretch repeats with period p where label[k] == label[k + p] all along. Of the ways
to cut it into blocks the one is taken that cuts the fewest edges, which is between layers, not through them. Blocks
whose inner edges differ are not the same. Linear in the items: periods that are tried are the few most frequent
distances between equal stretches of four.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

_TRIED = 24
_LEAST_PERIOD = 3
_LEAST_COVER = 8
_TIGHT = 6
"""Blocks shorter than this must follow one another: parallel ones are read more easily unfolded."""


@dataclass(frozen=True, slots=True)
class Run:
    """count blocks of period items each, from start on."""

    start: int
    period: int
    count: int

    @property
    def stop(self) -> int:
        """One past the last item."""
        return self.start + self.period * self.count


def find_runs(labels: Sequence[int], links: Sequence[Sequence[int]]) -> list[Run]:
    """Disjoint runs in order. links: for each item the places of the items that it reads, all before it."""
    cuts = _cuts(links)
    found = [
        run
        for period in _periods(labels)
        for start, stop in _stretches(labels, period)
        if (run := _best_run(start, stop, period, links, cuts)) is not None
    ]
    found.sort(key=lambda run: (-_score(run), run.period, run.start))
    taken = [False] * len(labels)
    chosen: list[Run] = []
    for run in found:
        places = range(run.start, run.stop)
        if not any(taken[place] for place in places):
            chosen.append(run)
            for place in places:
                taken[place] = True
    return sorted(chosen, key=lambda run: run.start)


def _score(run: Run) -> int:
    """What it covers, in coarse steps: of two that cover nearly the same, the shorter period wins."""
    covered = run.period * run.count
    return covered >> max(covered.bit_length() - 3, 0) << max(covered.bit_length() - 3, 0)


def _periods(labels: Sequence[int]) -> list[int]:
    last: dict[tuple[int, ...], int] = {}
    gaps: Counter[int] = Counter()
    for index in range(len(labels) - 3):
        key = tuple(labels[index : index + 4])
        if key in last:
            gaps[index - last[key]] += 1
        last[key] = index
    ranked = sorted(gaps.items(), key=lambda item: (-item[1] * min(item[0], 64), item[0]))
    return [period for period, _ in ranked if period >= _LEAST_PERIOD][:_TRIED]


def _stretches(labels: Sequence[int], period: int) -> list[tuple[int, int]]:
    """Maximal start..stop in which each item equals the one a period before it."""
    stretches = []
    start = None
    for index in range(len(labels) - period + 1):
        same = index + period < len(labels) and labels[index] == labels[index + period]
        if same and start is None:
            start = index
        elif not same and start is not None:
            if index - start >= period:
                stretches.append((start, index + period))
            start = None
    return stretches


def _cuts(links: Sequence[Sequence[int]]) -> list[int]:
    """For each place, how many values made before it are read at it or later."""
    furthest: dict[int, int] = {}
    for index, sources in enumerate(links):
        for source in sources:
            furthest[source] = index
    steps = [0] * (len(links) + 2)
    for source, place in furthest.items():
        steps[source + 1] += 1
        steps[place + 1] -= 1
    return list(accumulate(steps))


def _best_run(
    start: int, stop: int, period: int, links: Sequence[Sequence[int]], cuts: Sequence[int]
) -> Run | None:
    count, slack = divmod(stop - start, period)

    def cost(shift: int) -> tuple[int, int]:
        return sum(cuts[start + shift + block * period] for block in range(count + 1)), shift

    shift = min(range(slack + 1), key=cost)
    run = _same_inside(Run(start + shift, period, count), links)
    if run.count < 2 or run.period * run.count < _LEAST_COVER or (run.period < 4 and run.count < 3):
        return None
    return run if period >= _TIGHT or _follow(run, links) else None


def _same_inside(run: Run, links: Sequence[Sequence[int]]) -> Run:
    """The longest row of blocks whose inner edges are the same."""
    best, first, before = Run(run.start, run.period, 0), 0, None
    for block in range(run.count + 1):
        shape = None
        if block < run.count:
            base = run.start + block * run.period
            shape = [[one - base for one in links[base + k] if one >= base] for k in range(run.period)]
        if block == run.count or (before is not None and shape != before):
            if block - first > best.count:
                best = Run(run.start + first * run.period, run.period, block - first)
            first = block
        before = shape
    return best


def _follow(run: Run, links: Sequence[Sequence[int]]) -> bool:
    """Whether each block reads of the one before it."""
    return all(
        any(base - run.period <= one < base for k in range(run.period) for one in links[base + k])
        for base in range(run.start + run.period, run.stop, run.period)
    )
