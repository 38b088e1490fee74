"""Lines of generated code. What comes from a model (names, origins) reaches them as `CommentText` or `Identifier` only.

A line of code is printable ASCII, which is checked where it is added: a name that got into it by another way than
these two types is an error, and no code.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import ClassVar

from kernels_hub.compiler.errors import EngineError
from kernels_hub.escaping import CommentText

WIDTH = 116
"""Comments that would reach further are left out."""

NO_NOTE = CommentText()


class CodeLines:
    """Text that grows, indented by blocks; of C++ or of Python, as the subclass says."""

    indent: ClassVar[str]
    mark: ClassVar[str]
    """What begins a comment."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 0

    def add(self, code: str = "", note: CommentText = NO_NOTE) -> None:
        """One line; `note` becomes a comment behind it.

        Raises EngineError for code with characters that no generator writes.
        """
        if not (code.isascii() and code.isprintable()):
            raise EngineError(f"generated code is printable ASCII; a name got into it unescaped: {code!r}")
        line = self.indent * self.depth + code if code else ""
        if note and len(line) + len(note) + 3 + len(self.mark) <= WIDTH:
            line = f"{line}  {self.mark} {note}"
        self.lines.append(line)

    def comment(self, text: CommentText) -> None:
        """A line that is a comment."""
        self.lines.append(f"{self.indent * self.depth}{self.mark} {text}")

    @contextmanager
    def _inside(self) -> Iterator[None]:
        self.depth += 1
        yield
        self.depth -= 1

    def text(self) -> str:
        """All of it."""
        return "\n".join(self.lines) + "\n"


def origins(names: Iterable[str]) -> CommentText:
    """Where a kernel comes from, in a few words."""
    shown = list(dict.fromkeys(_short(name) for name in names if name))
    return CommentText(", ".join(map(CommentText, shown[:3])) + (", …" if len(shown) > 3 else ""))


def note_of(origin: str) -> CommentText:
    """An origin as a comment."""
    return CommentText(_short(origin)) if origin else NO_NOTE


def _short(origin: str) -> str:
    """An origin without the source file's path, which differs from machine to machine."""
    return origin.split(", /", 1)[0]
