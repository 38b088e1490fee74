"""How commands print what they found."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def print_json(document: Any) -> None:
    """JSON on stdout, and nothing else there."""
    print(json.dumps(document, indent=2, ensure_ascii=False))


def print_fields(fields: Mapping[str, object]) -> None:
    """One "name  value" line for each field that has a value."""
    known = {name: value for name, value in fields.items() if value not in (None, "", ())}
    width = max(map(len, known), default=0)
    for name, value in known.items():
        text = ", ".join(map(str, value)) if isinstance(value, tuple) else value
        print(f"{name.ljust(width)}  {text}")


def print_columns(rows: Iterable[tuple[str, ...]], indent: str = "  ") -> None:
    """Rows of equal length, aligned."""
    table = list(rows)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        print(
            (indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))).rstrip()
        )
