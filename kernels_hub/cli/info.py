"""`kernels-hub info PATH`: what a repository on disk is, and where it comes from. Nothing of it is imported."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernels_hub.cli.output import AsJson, echo, print_columns, print_fields, print_json

if TYPE_CHECKING:
    from kernels_hub.repository.describe import Description


def info(
    path: Annotated[Path, typer.Argument(help="A repository, its build/ folder, or one variant.")],
    as_json: AsJson = False,
) -> None:
    """What a repository on disk is: version, layers, provenance."""
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

    _print_provenance(found)


def _print_provenance(found: Description) -> None:
    """Once for variants that come from the same, which are all of them as a rule."""
    from kernels_hub.repository.provenance import parse_provenance

    of: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for variant in found.variants:
        rows = tuple(parse_provenance(variant.provenance, Path(found.path)).rows())
        of.setdefault(rows, []).append(variant.name)
    for rows, names in of.items():
        if rows:
            echo("provenance" if len(of) == 1 else f"provenance of {', '.join(names)}")
            print_columns(rows[:_SHOWN])
        if len(rows) > _SHOWN:
            echo(f"  and {len(rows) - _SHOWN} lines more: see --json")


_SHOWN = 40


def _flags(flags: dict[str, bool | str]) -> str:
    shown = ", ".join(name if value is True else f"{name}={value}" for name, value in flags.items())
    return f"  [{shown}]" if shown else ""


def _needs(packages: tuple[str, ...]) -> str:
    return f"needs {', '.join(packages)}" if packages else ""
