"""Tables for people: text that fits the terminal it is printed to, and HTML for notebooks.

Cells are foreign text: each is escaped for where it goes.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Final

from kernels_hub.escaping import HtmlText, TerminalText

_LONGEST_RULE: Final = 40
"""Of the dashes under the last column, which is often a sentence."""
_INDENT: Final = "    "


def terminal_width() -> int | None:
    """Columns of the terminal that is printed to; None where output goes into a file, a pipe or a notebook."""
    return shutil.get_terminal_size().columns if sys.stdout is not None and sys.stdout.isatty() else None


def text_table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    width: int | None = None,
    *,
    numbers: Sequence[str] = (),
) -> str:
    """Aligned columns with a rule under their names; where `width` has no room for them, a paragraph for each row.

    A paragraph begins with the first cell; under it are the others that say something, each behind its column's name.
    numbers: names of the columns that are aligned on the right.
    """
    cells = [tuple(map(TerminalText, row)) for row in rows]
    names = tuple(map(TerminalText, head))
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    if width is not None and sum(widths) + 2 * len(widths) - 2 > width:
        return "\n".join(_paragraph(names, row, width) for row in cells)
    rule = tuple("-" * length for length in (*widths[:-1], min(widths[-1], _LONGEST_RULE)))
    justify = [str.rjust if name in numbers else str.ljust for name in head]
    return "\n".join(
        "  ".join(to(cell, length) for to, cell, length in zip(justify, row, widths, strict=True)).rstrip()
        for row in (names, rule, *cells)
    )


def html_table(head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[str] = ()) -> str:
    """A `<table>` of the same cells."""
    right = [' style="text-align:right"' if name in numbers else "" for name in head]

    def line(tag: str, cells: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{style}>{HtmlText(cell)}</{tag}>" for style, cell in zip(right, cells, strict=True)
        )

    body = "".join(f"<tr>{line('td', row)}</tr>" for row in rows)
    return f"<table><thead><tr>{line('th', head)}</tr></thead><tbody>{body}</tbody></table>"


def _paragraph(names: Sequence[str], row: Sequence[str], width: int) -> str:
    told = (f"{name}: {cell}" for name, cell in zip(names[1:], row[1:], strict=True) if cell not in ("", "-"))
    lines = textwrap.wrap(
        "; ".join(told),
        max(width, 20),
        initial_indent=_INDENT,
        subsequent_indent=_INDENT,
        break_on_hyphens=False,
    )
    return "\n".join((row[0], *lines))
