"""`kernels-hub info PATH`: what a repository on disk is. Nothing of it is imported."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from kernels_hub.cli.output import AsJson, echo, print_columns, print_fields, print_json


def info(
    path: Annotated[Path, typer.Argument(help="A repository, its build/ folder, or one variant.")],
    as_json: AsJson = False,
) -> None:
    """What a repository on disk is: version, layers, variants."""
    from kernels_hub.repository.describe import describe

    found = describe(path)
    if as_json:
        print_json(asdict(found))
        return
    print_fields(
        {
            "name": found.name,
            "version": found.version,
            "license": found.license,
            "summary": found.summary,
            "upstream": found.upstream,
            "form": found.form,
            "path": found.path,
        }
    )
    for title, group in (("layers", found.layers), ("functions", found.functions)):
        if group:
            echo(title)
        for member in group:
            echo(f"  {member.name}({member.signature}){_flags(member.flags)}")
            if member.summary:
                echo(f"      {member.summary}")
    echo("variants")
    print_columns(
        (
            variant.name,
            f"{variant.files} files",
            f"{variant.nbytes / 1024:.1f} KiB",
            _needs(variant.python_depends),
        )
        for variant in found.variants
    )


def _flags(flags: dict[str, bool | str]) -> str:
    shown = ", ".join(name if value is True else f"{name}={value}" for name, value in flags.items())
    return f"  [{shown}]" if shown else ""


def _needs(packages: tuple[str, ...]) -> str:
    return f"needs {', '.join(packages)}" if packages else ""
