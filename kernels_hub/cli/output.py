"""Output of commands: all of it goes through these functions, as what is printed comes from files and Hubs.

Nothing in it reaches a terminal as a control character: see `kernels_hub.escaping.TerminalText`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Annotated

import typer

from kernels_hub.escaping import TerminalText, json_text, terminal_lines

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def print_json(document: object) -> None:
    """JSON on stdout, and nothing else there."""
    print(json_text(document, indent=2))


def echo(text: object = "", *, err: bool = False, flush: bool = False) -> None:
    """One line on stdout, or on stderr. Line ends in it are shown, as no name may make lines of its own."""
    print(TerminalText(str(text)), file=sys.stderr if err else sys.stdout, flush=flush)


def echo_lines(text: object, *, err: bool = False) -> None:
    """A text of several lines."""
    print(terminal_lines(str(text)), file=sys.stderr if err else sys.stdout)


def print_fields(fields: Mapping[str, object]) -> None:
    """One "name  value" line for each field that has a value."""
    known = {name: value for name, value in fields.items() if value not in (None, "", ())}
    width = max(map(len, known), default=0)
    for name, value in known.items():
        text = ", ".join(map(str, value)) if isinstance(value, tuple) else value
        echo(f"{name.ljust(width)}  {text}")


def print_columns(rows: Iterable[tuple[str, ...]], indent: str = "  ") -> None:
    """Rows of equal length, aligned."""
    table = [tuple(map(TerminalText, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        print(
            (indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))).rstrip()
        )
