"""How much faster kernels are than PyTorch, by layer kind, dtype and class of shape.

A class of shape is a cell of a table over depth (what is summed over), columns (what comes out) and rows, each to the
nearest power of two. A cell holds a ratio: the time of PyTorch's own over the kernel's, above 1 where the kernel is
faster.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

LEAST_GAIN = 1.05
"""The ratio from which a kernel runs: what was measured once is not known any closer."""


@dataclass(frozen=True)
class Shape:
    """What decides how fast a module's kernel is, apart from the number of rows. Exact, or a class of them."""

    kind: str
    """The layer's name, and what else tells its forms apart, such as "Conv2d 3x3/1"."""
    dtype: str
    depth: int
    columns: int

    @property
    def cell(self) -> Shape:
        """The class that it belongs to: the shape with the nearest powers of two."""
        return Shape(self.kind, self.dtype, 1 << _exponent(self.depth), 1 << _exponent(self.columns))


@dataclass(frozen=True)
class Gain:
    """What is known of a shape's kernel: where it runs, and how much faster it is."""

    ratio: float
    """The best that was measured, over all classes of rows."""
    source: str
    """Where it was measured: "this machine", "shipped table", "other processors", "pinned file"."""
    rows: tuple[tuple[int, float], ...] = ()
    """Ranges of rows, first and last, for which the kernel runs; none where it gains nowhere."""
    complete: bool = True
    """Whether all classes of rows were measured on this processor; those that were not are measured beside."""

    @property
    def for_all_rows(self) -> bool:
        """Whether the kernel runs for any number of rows."""
        return self.rows == ((1, math.inf),)

    def __str__(self) -> str:
        text = f"{self.ratio:.2f} ({self.source})"
        if self.rows and not self.for_all_rows:
            text += ", " + ", ".join(_in_words(*each) for each in self.rows)
        return text


def _in_words(first: int, last: float) -> str:
    if last == math.inf:
        return f"from {first} rows"
    return f"{first} to {int(last)} rows" if first < last else f"{first} rows"


@dataclass
class GainTable:
    """Ratios by class of shape and rows."""

    cells: dict[Shape, dict[int, float]] = field(default_factory=dict)

    def put(self, shape: Shape, rows: int, ratio: float) -> None:
        """Keep a ratio. shape: a class; rows: a power of two."""
        self.cells.setdefault(shape, {})[rows] = round(ratio, 3)

    def merge(self, other: GainTable) -> None:
        """Take over what another table knows."""
        for shape, ratios in other.cells.items():
            self.cells.setdefault(shape, {}).update(ratios)

    def rows(self) -> Iterator[tuple[Shape, int, float]]:
        """Everything that is known."""
        for shape, ratios in self.cells.items():
            for rows, ratio in ratios.items():
                yield shape, rows, ratio


def ranges(ratios: Mapping[int, float], *, complete: bool = True) -> tuple[tuple[int, float], ...]:
    """The ranges of rows in which a kernel gains, from ratios by classes of rows.

    Between two neighbours the ratio is interpolated, both it and the rows in logarithms: the kernel runs as far as it
    is at least `LEAST_GAIN`. Where classes between them were not measured, a class reaches half-way, in powers of two,
    to the next power; between two that both gain, the kernel runs. Beyond the last, what the last says holds.
    complete: whether all classes are there that there are to measure; else nothing is said beyond the last.

    >>> ranges({1: 1.5, 16: 1.2, 64: 0.9, 256: 1.3})
    ((1, 30), (115, inf))
    """
    known = sorted(ratios)
    found: list[tuple[int, float]] = []
    for index, rows in enumerate(known):
        if ratios[rows] < LEAST_GAIN:
            continue
        before = known[index - 1] if index else None
        after = known[index + 1] if index + 1 < len(known) else None
        if before is None:
            first = 1 if rows <= 2 else math.ceil(rows / math.sqrt(2))
        else:
            first = math.ceil(_crossing(ratios, before, rows))
        if after is not None:
            last: float = max(rows, math.floor(_crossing(ratios, rows, after)))
        else:
            last = math.inf if complete else max(rows, math.ceil(rows * math.sqrt(2)) - 1)
        if before is not None and ratios[before] >= LEAST_GAIN:
            found[-1] = (found[-1][0], last)
        else:
            found.append((first, last))
    return tuple(found)


_NEIGHBOURS = 4
"""How many times the rows of a class those of the next are, at most."""


def _crossing(ratios: Mapping[int, float], low: int, high: int) -> float:
    """The rows at which the ratio between two classes is LEAST_GAIN; `high` where both gain."""
    start, end = ratios[low], ratios[high]
    if min(start, end) >= LEAST_GAIN:
        return high
    if high > _NEIGHBOURS * low or min(start, end) <= 0:  # a pinned file may say anything
        return low * math.sqrt(2) if start >= LEAST_GAIN else high / math.sqrt(2)
    share = math.log(LEAST_GAIN / start) / math.log(end / start)
    return float(low * (high / low) ** share)


def _exponent(size: int) -> int:
    return max(0, round(math.log2(max(1, size))))
