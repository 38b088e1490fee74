"""Foreign text made harmless for where it goes: sources, terminals, HTML, Markdown, and data formats.

Foreign is whatever a file, a Hub or a model brings: names in an ONNX file, classes and parameters of a module, fields
of metadata, reasons of yanks. What writes a source, a page or a line of output takes one of the types below and no
plain `str`, so that mypy refuses text that was not escaped. To construct one of these types is to escape:

    CommentText(name)      one line in a comment of C++ or Python
    DocstringText(name)    one line in a Python docstring
    Identifier(name)       letters, digits and underscores of ASCII
    TerminalText(name)     one line on a terminal, of printable characters
    HtmlText(name)         text and double- or single-quoted attributes of HTML, SVG and XML
    MarkdownText(name)     one line of Markdown, also in a cell of a table, without any markup

and functions write literals: `json_text`, `toml_string`, `yaml_text`, `python_string`, `code_span`, `code_block`.

Not printable are control characters (C0, DEL, C1), line and paragraph separators, marks of text direction and other
invisible characters, lone surrogates, and what Unicode has not assigned: `str.isprintable`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Self

LONGEST: Final = 200
"""Characters of a name that comments and docstrings show; the rest is cut."""
LONGEST_SHOWN: Final = 2000
"""Characters of a text that a line of Markdown shows."""


class CommentText(str):
    """One line in a comment of C++ (`//` or `/* */`) or Python (`#`): it neither ends the comment nor joins lines.

    Without characters that are not printable, backslashes (which splice lines of C++), trigraphs, and the marks that
    begin and end comments.
    """

    __slots__ = ()

    def __new__(cls, text: str = "") -> Self:
        """Escape a text."""
        return super().__new__(cls, _comment(text))


class DocstringText(str):
    """One line in a Python docstring: as `CommentText`, and without double quotes."""

    __slots__ = ()

    def __new__(cls, text: str = "") -> Self:
        """Escape a text."""
        return super().__new__(cls, _comment(text).replace('"', "'"))


class Identifier(str):
    """ASCII letters, digits and underscores, at least one and at most 64; alone or within a longer identifier.

    Of two texts that differ in other characters, or behind the 64th, it may be the same: whoever needs them told apart
    numbers them, as for `Names` of generated code.
    """

    __slots__ = ()

    def __new__(cls, text: str = "") -> Self:
        """Replace what is none of these by underscores."""
        return super().__new__(
            cls, re.sub(r"[^A-Za-z0-9_]", "_", text[:_LONGEST_IDENTIFIER]).strip("_") or "x"
        )


_LONGEST_IDENTIFIER: Final = 64


class TerminalText(str):
    r"""One line on a terminal: what is not printable is shown as Python escapes it (`\x1b`, `\n`, `\u202e`)."""

    __slots__ = ()

    def __new__(cls, text: str = "") -> Self:
        """Escape a text."""
        return super().__new__(cls, _each_unprintable(text, _as_python))


class HtmlText(str):
    """Text, or the value of a quoted attribute, of HTML, SVG and XML. Unprintable characters become U+FFFD."""

    __slots__ = ()

    def __new__(cls, text: str = "") -> Self:
        """Escape a text; one that is escaped already stays as it is."""
        if isinstance(text, cls):
            return text
        visible = _each_unprintable(text, lambda _: "\ufffd")
        for one, other in _ENTITIES:
            visible = visible.replace(one, other)
        return super().__new__(cls, visible)


_ENTITIES: Final = (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;"), ("'", "&#39;"))


class MarkdownText(str):
    """One line of Markdown that shows a text as it is: no markup, no HTML, no end of a table's cell."""

    __slots__ = ()

    def __new__(cls, text: str = "") -> Self:
        """Escape a text; one that is escaped already stays as it is."""
        if isinstance(text, cls):
            return text
        return super().__new__(cls, _entities(_shortened(text, LONGEST_SHOWN)))


def terminal_lines(text: str) -> str:
    """Lines for a terminal, each as `TerminalText`: for text that is meant to have several, such as a report."""
    return "\n".join(map(TerminalText, text.split("\n")))


def one_line(text: str) -> str:
    """A text with each run of white space, line ends included, as one space."""
    return " ".join(text.split())


def json_text(value: object, *, indent: int | None = None) -> str:
    r"""JSON in which whatever is not printable is escaped (`\u001b`): safe on a terminal and in UTF-8.

    Compact without an indent. Raises TypeError and ValueError as `json.dumps` does.
    """
    separators = None if indent is not None else (",", ":")
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators)
    return "\n".join(_each_unprintable(line, _as_json) for line in text.split("\n"))


def quoted(text: str) -> str:
    """A JSON string, escaped as by `json_text`; C++ and JavaScript read the same."""
    return json_text(text)


def yaml_text(value: object) -> str:
    r"""A value of JSON's kinds on one line of YAML. Lone surrogates, which YAML cannot say, become U+FFFD."""
    return _each_unprintable(_without_surrogates(json.dumps(value, ensure_ascii=False)), _as_toml)


def toml_string(text: str) -> str:
    r"""A basic string of TOML. Lone surrogates, which TOML cannot say, become U+FFFD."""
    return _each_unprintable(_without_surrogates(json.dumps(text, ensure_ascii=False)), _as_toml)


def python_string(text: str) -> str:
    """A Python literal of a text, in double quotes where that takes no escapes."""
    literal = str.__repr__(text)  # escapes what is not printable
    return f'"{literal[1:-1]}"' if literal[0] == "'" and '"' not in literal else literal


def code_span(text: str) -> MarkdownText:
    """A text in the type of code within a line of Markdown, also in a cell of a table."""
    shown = _shortened(text, LONGEST_SHOWN)
    if not re.search(r"[`|<>&\\]|^\s|\s$|^$", shown):
        return _trusted_markdown(f"`{shown}`")
    return _trusted_markdown(f"<code>{_entities(shown)}</code>")


def code_block(text: str, language: str = "") -> str:
    """Lines of a text as a fenced block of Markdown, whose fence no line of the text can close."""
    visible = "\n".join(_each_unprintable(line, _as_code_point) for line in text.split("\n"))
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", visible)), default=0))
    return f"{fence}{Identifier(language) if language else ''}\n{visible}\n{fence}"


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown. Cells that are no `MarkdownText` are escaped."""
    lines = ["| " + " | ".join(map(MarkdownText, line)) + " |" for line in (head, *rows)]
    lines.insert(1, "| " + " | ".join(["---"] * len(head)) + " |")
    return "\n".join(lines)


def _trusted_markdown(text: str) -> MarkdownText:
    """Text that is Markdown already."""
    return str.__new__(MarkdownText, text)


def _comment(text: str) -> str:
    text = _shortened(text, LONGEST)
    if "\\" in text:
        text = text.replace("\\", "/")
    if "??" in text:
        text = re.sub(r"\?(?=\?)", "? ", text)
    if "*" in text or "//" in text:
        text = text.replace("*/", "* /").replace("/*", "/ *")
    return text


def _shortened(text: str, longest: int) -> str:
    """At most so many characters, all printable."""
    if len(text) > longest:
        text = f"{text[: longest - 1]}…"
    text = _each_unprintable(text, _as_code_point)
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def _entities(text: str) -> str:
    """Printable text with all that means something in Markdown or HTML as numbers of characters."""
    return _MARKUP.sub(lambda found: f"&#{ord(found[0])};", text)


_MARKUP: Final = re.compile(
    r"[$&*<>@\[\\\]`|~]|:(?=//)|(?<![^\W_])_|_(?![^\W_])|^[-+](?=\s)|^[-=](?=[-=])|^[#\s]|^\d(?=\d{0,8}[.)](?:\s|$))|\s$"
)


def _without_surrogates(text: str) -> str:
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


def _each_unprintable(text: str, replaced: Callable[[str], str]) -> str:
    """A text with its unprintable characters replaced."""
    if text.isprintable():
        return str(text)
    return "".join(one if one.isprintable() else replaced(one) for one in text)


def _as_code_point(one: str) -> str:
    return " " if one in "\t\n\r" else f"<U+{ord(one):04X}>"


def _as_python(one: str) -> str:
    return repr(one)[1:-1]


def _as_json(one: str) -> str:
    return json.dumps(one)[1:-1]


def _as_toml(one: str) -> str:
    return f"\\u{ord(one):04x}" if ord(one) < 0x10000 else f"\\U{ord(one):08x}"


__all__ = [
    "CommentText",
    "DocstringText",
    "HtmlText",
    "Identifier",
    "MarkdownText",
    "TerminalText",
    "code_block",
    "code_span",
    "json_text",
    "markdown_table",
    "one_line",
    "python_string",
    "quoted",
    "terminal_lines",
    "toml_string",
    "yaml_text",
]
