"""Tuned layers: the graph and the schedule choices that a search found, in place of the default ones.

A repository keeps it in tuned.json, so that another search, for another device, adds to it. A row of the table of knobs
says what was chosen for an architecture, and what came of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kernels_hub.compiler.errors import CompilerError
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.ir.parser import parse_graph
from kernels_hub.parsing import Struct, parse_json

FILE = "tuned.json"
_FORMAT = 1


@dataclass(frozen=True)
class Tuned:
    """Of one dtype, "" of an ONNX file, and one architecture ("avx512", "sm_90").

    graph: as printed. choices: of its loops. sizes: of its symbols, seconds, default_seconds: of a call when it was
    measured, and of what the compiler makes by itself, 0 where that is not known; on `machine`. origin: how it was
    found, in words.
    """

    dtype: str
    arch: str
    graph: str
    choices: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    default_seconds: float = 0.0
    machine: str = ""
    origin: str = ""

    @property
    def on_gpu(self) -> bool:
        """Whether it is for Triton's kernels, and not for C++."""
        return self.arch.startswith(("sm_", "gfx"))

    @property
    def times_faster(self) -> float | None:
        """Than what the compiler makes by itself."""
        return (
            round(self.default_seconds / self.seconds, 3) if self.seconds and self.default_seconds else None
        )

    def graph_for(self, usual: Graph) -> Graph:
        """The graph, in the place of the usual one. Raises CompilerError where it is one of another layer."""
        graph = parse_graph(self.graph)
        for what, ours, theirs in (
            ("inputs", usual.inputs, graph.inputs),
            ("outputs", usual.outputs, graph.outputs),
        ):
            types = [{name: str(one.type) for name, one in some.items()} for some in (ours, theirs)]
            if list(types[0].items()) != list(types[1].items()):
                raise CompilerError(
                    f"what was tuned for {usual.name} has the {what} {types[1]}, and the layer now {types[0]}: "
                    "tune it again"
                )
        if unknown := [name for name in graph.parameters if name not in usual.parameters]:
            raise CompilerError(
                f"what was tuned for {usual.name} reads {', '.join(unknown)}, which it has not: tune it again"
            )
        return graph


def chosen(tuned: Iterable[Tuned], dtype: str, *, gpu: bool) -> Tuned | None:
    """The one for a program."""
    return next((one for one in tuned if one.dtype == dtype and one.on_gpu == gpu), None)


def with_tuned(knobs: Mapping[str, Mapping[str, Any]], tuned: Iterable[Tuned]) -> dict[str, dict[str, Any]]:
    """The table of knobs with what was found."""
    table = {arch: dict(row) for arch, row in knobs.items()}
    for one in tuned:
        row = table.setdefault(one.arch, {})
        if one.on_gpu:
            row |= _launched(one.choices)
        found = {
            "choices": dict(one.choices),
            "sizes": dict(one.sizes),
            "times_faster": one.times_faster,
            "origin": one.origin,
        }
        row["tuned"] = {**row.get("tuned", {}), one.dtype or "all": found}
    return table


def _launched(choices: Mapping[str, Any]) -> dict[str, Any]:
    """Choices of Triton's engine as knobs of the launcher."""
    row: dict[str, Any] = {}
    if "block" in choices:
        row["block"] = int(choices["block"])
    if choices.get("tile"):
        row["product"] = [int(one) for one in str(choices["tile"]).split("x")]
    return row


def merged(before: Iterable[Tuned], new: Iterable[Tuned]) -> tuple[Tuned, ...]:
    """Those of before and the new ones; of two for one program the new one, if it is another, or says more."""
    found = {(tuned.dtype, tuned.on_gpu): tuned for tuned in before}
    for one in new:
        known = found.get((one.dtype, one.on_gpu))
        same = known is not None and (known.arch, known.graph, known.choices) == (
            one.arch,
            one.graph,
            one.choices,
        )
        if not same or one.default_seconds:
            found[one.dtype, one.on_gpu] = one
    return tuple(found.values())


def write_tuned(folder: Path, tuned: Sequence[Tuned]) -> None:
    """Into a repository; nothing where there is nothing."""
    if tuned:
        document = {"format": _FORMAT, "tuned": [asdict(one) for one in tuned]}
        (folder / FILE).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8", newline="\n")


def read_tuned(folder: Path) -> tuple[Tuned, ...]:
    """Of a repository; () where it has none. Raises CompilerError for a file that makes no sense."""
    path = folder / FILE
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise CompilerError(f"{path} cannot be read ({error}): delete it, and tune again") from error
    document = parse_json(
        data, _Document, where=str(path), error=CompilerError, most_bytes=_MOST_BYTES, advice=_ADVICE
    )
    if document.format != _FORMAT:
        raise CompilerError(f"{path}: its format is {document.format}, not {_FORMAT}; {_ADVICE}")
    return document.tuned


_MOST_BYTES = 64 << 20
_ADVICE = "delete it, and tune again"


class _Document(Struct, frozen=True):
    format: int
    tuned: tuple[Tuned, ...]
