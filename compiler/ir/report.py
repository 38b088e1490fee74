"""Report of an evaluation with `debug=True`: a row for each op, totals by kind of op."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from kernels_hub.compiler.ir.ops.conversion import widened
from kernels_hub.compiler.ir.types import Array


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


@dataclass
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
        lines = [
            f"{'value':>8}  {'op':<16} {'ms':>9}  {'type':<28} {'min':>11} {'max':>11} {'mean':>11}  NaN/inf"
        ]
        for row in self.rows:
            stats = row.statistics
            numbers = " ".join(f"{_number(one):>11}" for one in (stats.least, stats.greatest, stats.mean))
            of = f"{row.dtype}[{', '.join(map(str, row.shape))}]"
            bad = f"{stats.nans}/{stats.infinities}" if stats.nans or stats.infinities else ""
            lines.append(
                f"{row.value:>8}  {row.op:<16} {row.seconds * 1e3:9.3f}  {of:<28} {numbers}  {bad}".rstrip()
            )
        lines.append(f"{'total':>8}  {len(self.rows)} values      {self.seconds * 1e3:9.3f} ms")
        for op, (count, seconds) in self.totals.items():
            lines.append(f"{count:>8}  {op:<16} {seconds * 1e3:9.3f}  {seconds / (self.seconds or 1):6.1%}")
        if self.first_non_finite is not None:
            lines.append(f"first NaN or infinity: {self.first_non_finite}")
        return "\n".join(lines)


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
