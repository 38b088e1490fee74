"""Source files as lines of HTML with pygments' classes, and whether a file can be shown at all.

Only languages that kernels are written in are highlighted: a lexer is code that runs on what a
stranger wrote, and some of pygments' five hundred are slow on purpose-made input.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import PurePosixPath

from markupsafe import Markup, escape
from pygments import highlight  # type: ignore[import-untyped]
from pygments.formatters import HtmlFormatter  # type: ignore[import-untyped]
from pygments.lexers import get_lexer_by_name  # type: ignore[import-untyped]

HIGHLIGHT_LIMIT = 256 * 1024
"""Characters of a file that is highlighted; a longer one is shown plain."""
SHOWN_LIMIT = 1024 * 1024
"""Bytes of a file that is shown; a longer one can be downloaded."""

LINES_SHOWN = 20_000
"""Lines of a file that is shown."""

_LINE_LIMIT = 5000
_LEXERS = {
    "python": (".py", ".pyi"),
    "cpp": (".cpp", ".cc", ".cxx", ".hpp", ".hh"),
    "c": (".c", ".h"),
    "cuda": (".cu", ".cuh"),
    "objective-c": (".mm", ".m"),
    "toml": (".toml", ".lock"),
    "json": (".json", ".sigstore", ".ed25519"),
    "yaml": (".yaml", ".yml"),
    "bash": (".sh",),
    "cmake": (".cmake",),
    "ini": (".ini", ".cfg"),
    "diff": (".diff", ".patch"),
}
_BY_SUFFIX = {suffix: name for name, suffixes in _LEXERS.items() for suffix in suffixes}
_ALIASES = {
    "py": "python",
    "python3": "python",
    "c++": "cpp",
    "sh": "bash",
    "shell": "bash",
    "console": "bash",
}


def decode_text(content: bytes) -> str | None:
    """The text of a file, or None for one that is not text."""
    if b"\0" in content:
        return None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    return text.replace("\r\n", "\n")


@lru_cache(maxsize=8)
def highlight_file(path: str, text: str) -> tuple[Markup, ...]:
    """The file's lines, each a piece of HTML of its own."""
    language = _BY_SUFFIX.get(PurePosixPath(path).suffix.lower())
    if PurePosixPath(path).name == "CMakeLists.txt":
        language = "cmake"
    return tuple(_lines(text, language))


def highlight_block(code: str, language: str) -> Markup:
    """A fenced block of a card."""
    name = language.strip().lower().split(" ", 1)[0]
    return Markup("\n").join(_lines(code.rstrip("\n"), _ALIASES.get(name, name)))


def _lines(text: str, language: str | None) -> list[Markup]:
    lines = text.removesuffix("\n").split("\n")
    # One endless line is what lexers are slowest on.
    if language not in _LEXERS or len(text) > HIGHLIGHT_LIMIT or max(map(len, lines)) > _LINE_LIMIT:
        return [escape(line) for line in lines]
    lexer = get_lexer_by_name(language, stripnl=False, ensurenl=False)
    # Pygments escapes the text, and closes what is open at the end of every line.
    marked: str = highlight("\n".join(lines), lexer, HtmlFormatter(nowrap=True))
    return [Markup(line) for line in marked.removesuffix("\n").split("\n")]  # noqa: S704
