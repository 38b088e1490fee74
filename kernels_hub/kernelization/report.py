"""Reports of `kernelize`: a row for each module, as a table for people and as data for programs."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kernels_hub.calibration.gain_table import Gain
from kernels_hub.escaping import HtmlText
from kernels_hub.kernelization.bind import KernelForward, KernelFunction, weights_protocol
from kernels_hub.kernelization.mode import Mode
from kernels_hub.kernelization.native_builds import original_runs
from kernels_hub.kernelization.outcome import ModuleRecord, SwapDecision, record_of
from kernels_hub.tables import html_table, terminal_width, text_table

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Row:
    """What was decided for one module, or for one function that a module calls."""

    path: str
    """As in `model.named_modules()`; a function is "path:function"; the model itself is ""."""
    class_name: str
    layer_name: str | None
    """The tag; None for a class without one."""
    swapped: bool
    repository: str | None = None
    revision: str | None = None
    variant: str | None = None
    device: str | None = None
    mode: Mode | None = None
    reason: str | None = None
    """Why the original forward was kept; None when swapped."""
    packed_nbytes: int = 0
    """Bytes of packed weights that the kernel holds for this module beside the originals."""
    details: str | None = None
    """All that is known of why calls keep the original forward, where `reason` has only its beginning."""
    original_ms: float | None = None
    compiled_ms: float | None = None
    """What a call took when a compiled layer was tried, each way; None where none was."""
    gain: float | None = None
    """The time of PyTorch over the kernel's as measured, the best over all numbers of rows; None where not known."""
    gain_source: str | None = None
    """Where that was measured: "this machine", "shipped table", "other processors" or "pinned file"."""
    gain_rows: tuple[tuple[int, float], ...] = ()
    """Ranges, first and last, of the numbers of rows for which the kernel runs; none: for all."""
    served_by: str | None = None
    """The addresses that the kernel was fetched from, where a mirror of the Hub was one of them."""
    followers: tuple[str, ...] = ()
    """The names of the modules that get its result one after the other and that its kernel computes as well."""

    @property
    def kernel(self) -> str | None:
        """What runs instead of the original, as "repository@revision/variant"; None where nothing does."""
        if not self.swapped or self.repository is None:
            return None
        revision = f"@{self.revision}" if self.revision else ""
        return self.repository + revision + (f"/{self.variant}" if self.variant else "")

    def to_dict(self) -> dict[str, Any]:
        """The row as JSON-ready data; a range of rows without an end has None for its last."""
        rows = [[first, None if last == math.inf else int(last)] for first, last in self.gain_rows]
        mode = None if self.mode is None else str(self.mode)
        return {**self.__dict__, "mode": mode, "gain_rows": rows}


@dataclass(frozen=True, repr=False)
class Report:
    """Rows of `report(model)` or `explain(model, …)`; shown as a table, also by a prompt or a notebook."""

    rows: tuple[Row, ...]
    parameters_nbytes: int = 0
    """Bytes of the model's parameters, each counted once."""

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def swapped(self) -> tuple[Row, ...]:
        """Rows that run on a kernel."""
        return tuple(row for row in self.rows if row.swapped)

    @property
    def kept(self) -> tuple[Row, ...]:
        """Tagged rows that keep their original forward, each with its reason."""
        return tuple(row for row in self.rows if not row.swapped and row.layer_name is not None)

    @property
    def packed_nbytes(self) -> int:
        """Bytes of packed weights beside the originals, over all modules."""
        return sum(row.packed_nbytes for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON-ready data: every row, and the totals."""
        return {
            "modules": len(self.rows),
            "swapped": len(self.swapped),
            "kept": len(self.kept),
            "packed_nbytes": self.packed_nbytes,
            "parameters_nbytes": self.parameters_nbytes,
            "rows": [row.to_dict() for row in self.rows],
        }

    def __str__(self) -> str:
        return f"{text_table(_HEADER, self._cells(), terminal_width())}\n{self._summary()}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"{html_table(_HEADER, self._cells())}<p>{HtmlText(self._summary())}</p>"

    def _cells(self) -> Iterator[tuple[str, ...]]:
        return map(_cells, _grouped(self.rows))

    def _summary(self) -> str:
        untagged = len(self.rows) - len(self.swapped) - len(self.kept)
        text = f"{len(self.swapped)} swapped, {len(self.kept)} kept with a reason, {untagged} without a tag"
        if self.packed_nbytes:
            text += f"; packed weights hold {self.packed_nbytes / 2**20:.1f} MiB"
            text += f" beside {self.parameters_nbytes / 2**20:.1f} MiB of parameters"
        if served := sorted({f"{row.repository} from {row.served_by}" for row in self.rows if row.served_by}):
            text += f"; with mirrors: {', '.join(served)}"
        return text


_HEADER = ("module", "class", "layer", "count", "kernel", "matched", "gain", "reason")


@dataclass(frozen=True)
class _Group:
    """Rows that differ in the numbers of their paths only: the blocks of a model."""

    path: str
    row: Row
    count: int


def _grouped(rows: Iterable[Row]) -> list[_Group]:
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if row.layer_name is None:
            continue
        key = (
            re.sub(r"\d+", "*", row.path),
            *(v for k, v in row.__dict__.items() if k not in ("path", "packed_nbytes")),
        )
        groups.setdefault(key, []).append(row)
    return [
        _Group(members[0].path if len(members) == 1 else key[0], members[0], len(members))
        for key, members in groups.items()
    ]


def _cells(group: _Group) -> tuple[str, ...]:
    row = group.row
    matched = f"{row.device} {row.mode}" if row.swapped else "-"
    path = group.path or "(model)"
    others = f"computes {', '.join(row.followers)} as well" if row.followers else None
    reason = "; ".join(filter(None, (_times(row), row.reason, others)))
    gain = "-" if row.gain is None or row.gain_source is None or not row.swapped else _gain(row)
    name = row.layer_name or "-"
    return (path, row.class_name, name, str(group.count), row.kernel or "-", matched, gain, reason)


def _times(row: Row) -> str | None:
    if row.original_ms is None or row.compiled_ms is None:
        return None
    return f"{row.original_ms:.3g} ms, compiled {row.compiled_ms:.3g} ms"


def _gain(row: Row) -> str:
    assert row.gain is not None and row.gain_source is not None
    return str(Gain(row.gain, row.gain_source, row.gain_rows))


def report(model: nn.Module) -> Report:
    """What the last `kernelize` did to a model: a row for every module, and for every function replaced.

    Reads the modules themselves, so it also tells of a model that was unpickled or deep-copied.

    >>> model = kernelize(nn.Sequential(nn.SiLU()), mode=Mode.INFERENCE, device="cpu")
    >>> [row.path for row in report(model).rows]
    ['', '0']
    """
    rows: list[Row] = []
    chains: Chains = {}
    for path, module in model.named_modules():
        rows.extend(_rows_of(path, module))
        record = record_of(module)
        if record is not None and isinstance(module.__dict__.get("forward"), KernelForward):
            note_chains(chains, path, record)
    return Report(
        told_of_parts(told_of_chains(rows, chains)), sum(parameter.nbytes for parameter in model.parameters())
    )


def _rows_of(path: str, module: nn.Module) -> Iterator[Row]:
    record = record_of(module)
    class_name = type(module).__qualname__
    if record is None or record.own is None:
        yield untagged_row(path, class_name)
    else:
        yield _own_row(path, class_name, module, record.own)
    for name, outcome in (*(record.functions if record else ()), *(record.attributes if record else ())):
        bound = module.__dict__.get(name)
        held = record is not None and (name, outcome) in record.attributes
        lost = "its kernel was replaced" if held and outcome.swapped else None
        yield row_of(f"{path}:{name}", name, outcome, lost if not isinstance(bound, KernelFunction) else None)


Chains = dict[str, tuple[str, ...]]
"""The path of a module -> the names of those that its kernel computes as well."""


def note_chains(chains: Chains, path: str, record: ModuleRecord) -> None:
    """Add the chains of the children of the module at a path."""
    chains.update((f"{path}.{names[0]}".lstrip("."), names[1:]) for names, _ in record.chains)


def told_of_chains(rows: Iterable[Row], chains: Chains) -> list[Row]:
    """The rows; those of modules that run a kernel say what else it computes."""
    return [
        replace(row, followers=followers) if row.swapped and (followers := chains.get(row.path)) else row
        for row in rows
    ]


def _own_row(path: str, class_name: str, module: nn.Module, own: SwapDecision) -> Row:
    if not own.swapped:
        return row_of(path, class_name, own)
    forward = module.__dict__.get("forward")
    if not isinstance(forward, KernelForward):
        return row_of(path, class_name, own, "its forward was replaced by someone else after kernelize")
    if forward.lost is not None:
        return row_of(path, class_name, own, forward.lost)
    if (reason := original_runs(forward.func)) is not None:
        return row_of(path, class_name, own, reason)
    weights = weights_protocol(forward.func)
    packed = weights.packed_nbytes(module) if weights is not None else 0
    return row_of(path, class_name, own, packed_nbytes=packed)


def untagged_row(path: str, class_name: str) -> Row:
    """The row of a module whose class has no tag."""
    return Row(path, class_name, None, False, reason=_NO_TAG)


_NO_TAG = "no tag: nothing maps this class"


def told_of_parts(rows: Iterable[Row]) -> tuple[Row, ...]:
    """All rows of a model; those of classes without a tag say how many modules and functions within are swapped."""
    rows = tuple(rows)
    swapped: Counter[str] = Counter()
    for row in rows:
        module, _, function = row.path.partition(":")
        names = module.split(".") if module else []
        if row.swapped:
            swapped.update(".".join(names[:depth]) for depth in range(len(names) + bool(function)))
    return tuple(
        replace(row, reason=f"{_NO_TAG}; within it {count} {'is' if count == 1 else 'are'} swapped")
        if row.reason == _NO_TAG and (count := swapped[row.path])
        else row
        for row in rows
    )


def _bounded(gain: Gain) -> tuple[tuple[int, float], ...]:
    return () if gain.for_all_rows else gain.rows


def row_of(
    path: str, class_name: str, outcome: SwapDecision, lost: str | None = None, packed_nbytes: int = 0
) -> Row:
    """An outcome as a row. lost: why a swapped one does not run on its kernel after all."""
    return Row(
        path=path,
        class_name=class_name,
        layer_name=outcome.layer_name,
        swapped=outcome.swapped and lost is None,
        repository=outcome.repository,
        revision=outcome.revision,
        variant=outcome.variant,
        device=outcome.device,
        mode=outcome.mode,
        reason=lost or outcome.reason,
        packed_nbytes=packed_nbytes,
        details=outcome.details,
        original_ms=outcome.original_ms,
        compiled_ms=outcome.compiled_ms,
        gain=None if outcome.gain is None else outcome.gain.ratio,
        gain_source=None if outcome.gain is None else outcome.gain.source,
        gain_rows=() if outcome.gain is None or not outcome.swapped else _bounded(outcome.gain),
        served_by=outcome.served_by,
    )
