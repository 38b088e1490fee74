"""`kernels-hub calibrate`: measure what the kernels of the default mapping gain on this processor."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernels_hub.cli.output import echo

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import nn

    from kernels_hub.calibration.database import Machine
    from kernels_hub.calibration.gain_table import GainTable, Shape

    Wanted = tuple[Shape, list[int]]
    """A class of shape, and the classes of rows to measure."""

_KEEP_EVERY_S = 0.5


def calibrate(
    kind: Annotated[
        list[str] | None,
        typer.Option(help="Measure this kind of layers alone, such as Linear; again for more."),
    ] = None,
    dtype: Annotated[
        list[str] | None, typer.Option(help="float32, bfloat16 or float16; again for more. Default: float32.")
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(min=0.1, metavar="SECONDS", help="End after so many of measuring. Default: when done."),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of PyTorch. Default: what PyTorch takes.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Measure what is known, too.")] = False,
    export: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json",
            help="Write all that is known into a file; KERNELS_HUB_CALIBRATION=FILE.json then pins it.",
        ),
    ] = None,
    wanted: Annotated[str | None, typer.Option(hidden=True, help="Shapes as JSON on stdin.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", hidden=True)] = False,
) -> None:
    """Measure what kernels gain on this processor.

    A layer gets its kernel only where that is known to be faster than PyTorch. What is measured is kept for this
    processor model, number of threads and versions; interrupted, go on by calling it again. With --export alone,
    nothing is measured.
    """
    import torch

    if threads is not None:
        if wanted is None:
            _refuse_more_than_there_are(threads)
        torch.set_num_threads(threads)
    from kernels_hub.calibration import database

    machine = database.this_machine()
    selective = bool(kind or dtype or budget or again)
    if wanted is not None or selective or export is None:
        shapes = _from_text(sys.stdin.read()) if wanted is not None else _all(kind, dtype or ["float32"])
        known = {} if again else database.load(machine).cells
        _measure(_missing(shapes, known), machine, budget, quiet=quiet)
    if export is not None:
        table = _everything(machine)
        try:
            database.write(export, machine, table)
        except OSError as error:
            raise typer.BadParameter(
                f"{export} cannot be written: {error.strerror}; name a file in a folder of yours",
                param_hint="--export",
            ) from error
        echo(f"{sum(1 for _ in table.rows()):,} ratios written to {export}")


def _refuse_more_than_there_are(threads: int) -> None:
    from kernels_hub.compiler.runtime.toolchain import usable_cpus

    if threads > (cores := usable_cpus()):
        raise typer.BadParameter(
            f"expected 1 to {cores}, which is how many cores this process may use, got {threads}: threads that"
            " wait for each other's cores say nothing of a kernel",
            param_hint="--threads",
        )


def _all(kinds: list[str] | None, dtypes: list[str]) -> list[Shape]:
    from kernels_hub.calibration.kinds import KINDS, from_memory, shapes

    for name in kinds or ():
        if name not in KINDS:
            raise typer.BadParameter(f"no kind {name!r}; there are {', '.join(KINDS)}", param_hint="--kind")
    for name in dtypes:
        if name not in ("float32", "bfloat16", "float16"):
            raise typer.BadParameter(
                f"expected float32, bfloat16 or float16, got {name!r}", param_hint="--dtype"
            )
    wanted = [shape for name in dtypes for kind in kinds or KINDS for shape in shapes(kind, name)]
    return wanted + [from_memory(shape) for shape in wanted]


def _from_text(text: str) -> list[Shape]:
    from kernels_hub.calibration.gain_table import Shape

    return [
        Shape(str(kind), str(dtype), int(depth), int(columns))
        for kind, dtype, depth, columns in json.loads(text)
    ]


def _missing(shapes: list[Shape], known: Mapping[Shape, Mapping[int, float]]) -> list[Wanted]:
    """The classes of rows that are not known, of each class of shape that lacks some."""
    from kernels_hub.calibration.kinds import rows_of

    wanted = [
        (shape, [rows for rows in rows_of(shape) if rows not in known.get(shape, ())])
        for shape in dict.fromkeys(shapes)
    ]
    return [(shape, rows) for shape, rows in wanted if rows]


def _measure(wanted: list[Wanted], machine: Machine, budget: float | None, *, quiet: bool) -> None:
    from kernels_hub.calibration import database
    from kernels_hub.calibration.gain_table import GainTable

    measured, kept_at = GainTable(), time.monotonic()
    last: Shape | None = None
    done = 0
    try:
        for shape, rows, ratio in _ratios(wanted, budget, quiet=quiet):
            if shape != last:
                if not quiet and (last is None or last.kind != shape.kind):
                    echo(f"{done}/{len(wanted)} {shape.kind}, {shape.dtype}", err=True, flush=True)
                last, done = shape, done + 1
            measured.put(shape, rows, ratio)
            if time.monotonic() > kept_at + _KEEP_EVERY_S:
                database.add(machine, measured)
                measured, kept_at = GainTable(), time.monotonic()
    finally:
        if measured.cells:
            database.add(machine, measured)
    if not quiet:
        echo(
            f"{done} of {len(wanted)} classes of shape measured; they are kept in {database.calibration_folder()}"
        )


def _ratios(wanted: list[Wanted], budget: float | None, *, quiet: bool) -> Iterator[tuple[Shape, int, float]]:
    from kernels_hub import Mode, kernelize, load_kernel_mapping, use_kernel_mapping
    from kernels_hub.calibration.measure import measure

    os.environ["KERNELS_HUB_CALIBRATION"] = "ignore"  # of this process alone

    def swap(module: nn.Module) -> None:
        with use_kernel_mapping(load_kernel_mapping("default"), inherit_mapping=False):
            kernelize(module, mode=Mode.INFERENCE, device="cpu", wait=True)  # C++ is built before it is timed

    def skipped(shape: Shape, reason: str) -> None:
        if not quiet:
            echo(f"{shape.kind} {shape.depth} x {shape.columns} is not measured: {reason}", err=True)

    seconds = float("inf") if budget is None else budget
    yield from measure(wanted, swap, skipped, seconds=seconds)


def _everything(machine: Machine) -> GainTable:
    """What holds for a machine: its own measurements, over the shipped table."""
    from kernels_hub.calibration import database
    from kernels_hub.calibration.gain_table import GainTable

    table = GainTable()
    table.merge(database.shipped(machine))
    table.merge(database.load(machine))
    return table
