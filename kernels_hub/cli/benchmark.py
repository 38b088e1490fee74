"""`kernels-hub benchmark REPO`: a repository's benchmarks against their own references; a table, and a saved result."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from kernels_hub.cli.output import AsJson, echo, print_columns, print_json


def benchmark(
    repository: Annotated[str, typer.Argument(metavar="REPO", help="A folder, or org/name of a Hub.")],
    version: Annotated[str | None, typer.Option(help="Of a Hub: a specifier, or N of the branch vN.")] = None,
    revision: Annotated[str | None, typer.Option(help="Of a Hub: a branch, tag or commit.")] = None,
    backend: Annotated[
        str | None, typer.Option(help="cpu, cuda, rocm … Default: what torch was built for.")
    ] = None,
    iterations: Annotated[int, typer.Option(min=1, help="Timed calls of each workload.")] = 100,
    warmup: Annotated[int, typer.Option(min=0, help="Calls before them.")] = 10,
    trust_remote_code: Annotated[
        bool,
        typer.Option("--trust-remote-code", help="Run the code of this repository, as in LayerRepository."),
    ] = False,
    output: Annotated[Path | None, typer.Option(help="Save the result, as JSON.", dir_okay=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Time a repository's benchmarks against their references.

    They are the files benchmarks/benchmark*.py. Exit status 1 where one fails, or computes other numbers.
    """
    from kernels_hub.escaping import json_text
    from kernels_hub.files import write_atomically
    from kernels_hub.hub.benchmarks import run_benchmarks

    wanted: str | int | None = int(version) if version is not None and version.isdecimal() else version
    result = run_benchmarks(
        repository, version=wanted, revision=revision, backend=backend, trust_remote_code=trust_remote_code,
        iterations=iterations, warmup=warmup,
    )  # fmt: skip
    document = asdict(result)
    if output is not None:
        write_atomically(output, json_text(document, indent=2) + "\n")
    if as_json:
        print_json(document)
    else:
        where = f"@{result.revision[:12]}" if result.revision else ""
        machine = ", ".join(f"{name} {value}" for name, value in result.machine.items())
        echo(f"{result.repository}{where} on {result.device}: {machine}")
        head = ("WORKLOAD", "CALLS", "MEDIAN MS", "LEAST", "REFERENCE MS", "SPEEDUP", "LARGEST ERROR", "")
        print_columns([head, *(_columns(row) for row in result.workloads)])
    if any(row.reason for row in result.workloads):
        raise typer.Exit(1)


def _columns(row: object) -> tuple[str, ...]:
    from kernels_hub.repository.benchmark import Workload

    assert isinstance(row, Workload)
    if row.reason:
        return row.name, "-", "-", "-", "-", "-", "-", row.reason
    return (
        row.name, str(row.iterations), f"{row.median_ms:.4f}", f"{row.least_ms:.4f}",
        "-" if row.reference_ms is None else f"{row.reference_ms:.4f}",
        "-" if row.speedup is None else f"{row.speedup:.2f}",
        "-" if row.error is None else f"{row.error:.3g}",
        "no reference" if row.verified is None else "right",
    )  # fmt: skip
