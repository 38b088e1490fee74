"""Report of an evaluation with `debug=True`: a row for each op, totals by kind of op."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from kernels_hub.compiler.ir.ops.conversion import widened
from kernels_hub.compiler.ir.types import Array
from kernels_hub.escaping import HtmlText
from kernels_hub.tables import html_table, terminal_width, text_table


@dataclass(frozen=True, slots=True)
class Statistics:
    """Of the finite elements of an array: least, greatest, mean (None where there are none); counts of the others."""

    least: float | None
    greatest: float | None
    mean: float | None
    nans: int
    infinities: int


@dataclass(frozen=True, slots=True)
class OpRow:
    """One result of one op: how long the op took, and what came out."""

    value: str
    op: str
    origin: str
    seconds: float
    dtype: str
    shape: tuple[int, ...]
    statistics: Statistics


@dataclass(repr=False)
class Report:
    """Rows in the order of evaluation. Prints as a table."""

    graph: str
    rows: list[OpRow] = field(default_factory=list)
    first_non_finite: str | None = None
    """The first op that made a NaN or an infinity of finite operands."""

    def add(self, row: OpRow) -> None:
        """One more row."""
        self.rows.append(row)

    @property
    def seconds(self) -> float:
        """All ops together."""
        return sum(row.seconds for row in self.rows)

    @property
    def totals(self) -> dict[str, tuple[int, float]]:
        """Op -> (how many, seconds), the longest first."""
        totals: dict[str, tuple[int, float]] = {}
        for row in self.rows:
            count, seconds = totals.get(row.op, (0, 0.0))
            totals[row.op] = count + 1, seconds + row.seconds
        return dict(sorted(totals.items(), key=lambda item: -item[1][1]))

    def __str__(self) -> str:
        width = terminal_width()
        lines = [
            text_table(_HEAD, map(_cells, self.rows), width, numbers=_NUMBERS),
            "",
            text_table(_TOTALS, self._totals(), width, numbers=_NUMBERS),
            self._last(),
        ]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<Report of {self.graph}: {self._last()}>"

    def _repr_html_(self) -> str:
        rows = html_table(_HEAD, map(_cells, self.rows), numbers=_NUMBERS)
        totals = html_table(_TOTALS, self._totals(), numbers=_NUMBERS)
        return (
            f'<div style="max-height:32em; overflow:auto">{rows}</div>{totals}<p>{HtmlText(self._last())}</p>'
        )

    def _totals(self) -> Iterator[tuple[str, ...]]:
        for op, (count, seconds) in self.totals.items():
            yield op, str(count), f"{seconds * 1e3:.3f}", f"{seconds / (self.seconds or 1):.1%}"

    def _last(self) -> str:
        text = f"{len(self.rows)} values, {self.seconds * 1e3:.3f} ms"
        bad = self.first_non_finite
        return text if bad is None else f"{text}; first NaN or infinity: {bad}"


_HEAD = ("value", "op", "ms", "type", "min", "max", "mean", "NaN/inf")
_TOTALS = ("op", "count", "ms", "share")
_NUMBERS = ("ms", "min", "max", "mean", "count", "share")


def _cells(row: OpRow) -> tuple[str, ...]:
    stats = row.statistics
    return (
        row.value,
        row.op,
        f"{row.seconds * 1e3:.3f}",
        f"{row.dtype}[{', '.join(map(str, row.shape))}]",
        *map(_number, (stats.least, stats.greatest, stats.mean)),
        f"{stats.nans}/{stats.infinities}" if stats.nans or stats.infinities else "",
    )


def statistics(array: Array) -> Statistics:
    """Of any array; of complex numbers, their magnitudes; of bool, how many hold."""
    array = widened(array)
    if array.dtype.kind == "c":
        array = np.abs(array)
    nans = infinities = 0
    if array.dtype.kind == "f":
        finite = np.isfinite(array)
        if not finite.all():
            nans = int(np.isnan(array).sum())
            infinities = array.size - nans - int(finite.sum())
            array = array[finite]
    if not array.size:
        return Statistics(None, None, None, nans, infinities)
    return Statistics(
        float(array.min()), float(array.max()), float(array.mean(dtype=np.float64)), nans, infinities
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
