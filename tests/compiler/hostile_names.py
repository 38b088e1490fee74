"""Names that try to become code, and what shows that they did not: tokens of the generated text, and a canary."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Callable

from kernels_hub.compiler import Graph
from tests.fuzz.mutations import HOSTILE_TEXTS

Rename = Callable[[str], str]
"""A benign name -> the name that is used."""

BREAKS = (
    "\n", "\r", "\r\n", "\v", "\f", "\x85", "\u2028", "\u2029", "\0\n", "*/", "*/\n", "\\\n", "??/\n", '"', '"""', '"""\n',
    "'''\n", "\x1b[2J\n", "\u202e\n", "\u2066", "]]>", "-->", "</script>", "</style>", "</title>", "```\n", "\n---\n", "|",
)  # fmt: skip
"""What ends a line, a comment, a string, a fence or an element somewhere."""


def canaries() -> list[str]:
    """Texts that make the file `ran` where they are run, as C++ or as Python, behind each way to break out."""
    cpp = '#include <cstdio>\nint ran=std::fclose(std::fopen("ran","w")); // \\\n'
    python = "open('ran','w').close()\n"
    return [f"{one}{code}" for one in BREAKS for code in (cpp, python)]


def hostile_texts() -> list[str]:
    """Canaries, what has broken parsers elsewhere, and 1 MB."""
    markup = [f"{one}<img src=x onerror=alert(1)><b>[link=x]y[/link][bold](m, s, on):" for one in BREAKS]
    return [*canaries(), *markup, *HOSTILE_TEXTS, "".join(map(chr, range(256))), "x\n" * (1 << 19)]


def every_kind(rename: Rename, *, sort: bool = False) -> Graph:
    """A graph with nests and roots of many kinds, each node with an origin; all names by `rename`."""
    graph = Graph(rename("graph"))
    rows, length = (graph.symbol(rename(one)[:256]) for one in ("rows", "tokens"))
    x = graph.input(rename("x"), (rows, length, 16))
    table = graph.parameter(rename("table"), (40, 16))
    weight = graph.parameter(rename("weight"), (16, 24))
    ids = graph.input(rename("ids"), (rows, length), "int64")

    def named(one: str):
        return graph.origin(rename(one))

    with named("embed"):
        seen = table.gather(ids, 0) + x
    with named("product"):
        product = (seen @ weight).tanh()
    with named("soft"):
        soft = product.softmax(-1) * 2.0
    with named("norm"):
        centred = soft - soft.mean(-1, keepdims=True)
    with named("argmax"):
        graph.output(rename("best"), centred.along("argmax", 2))
    with named("scan"):
        graph.output(rename("scan"), centred.cumulate("sum", 1))
    if sort:  # no Triton
        with named("sort"):
            graph.output(rename("sorted"), seen.sort(-1)[0])
    with named("halves"):
        graph.output(rename("halves"), seen.cast("bfloat16").exp())
    return graph


def without_sizes(code: str) -> str:
    """Code with the variables of sizes by number, in the order of their use."""
    numbers: dict[str, str] = {}
    return re.sub(r"\bnx?_\w+", lambda found: numbers.setdefault(found[0], f"size{len(numbers)}"), code)


_TRIGRAPHS = {
    "??=": "#", "??/": "\\", "??'": "^", "??(": "[", "??)": "]", "??!": "|", "??<": "{", "??>": "}", "??-": "~",
}  # fmt: skip
_CPP = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<space>\s+)|(?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
    |(?P<word>[A-Za-z_]\w*|\.?\d[\w.]*)|(?P<sign>.)""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)


def cpp_tokens(source: str) -> list[str]:
    """Tokens of C++ without comments, in the order of the standard: trigraphs, then spliced lines, then comments.

    Every line end that some compiler takes for one ends a line, and a backslash before blanks splices, as in gcc.
    """
    text = re.sub("\r\n|[\r\v\f\x85\u2028\u2029]", "\n", source)
    text = re.sub(r"\?\?[=/'()!<>-]", lambda found: _TRIGRAPHS[found[0]], text)
    text = re.sub(r"\\[ \t]*\n", "", text)
    found = [(one.lastgroup, one[0]) for one in _CPP.finditer(text)]
    return [token for kind, token in found if kind not in {"comment", "space"}]


def python_tokens(source: str) -> list[str]:
    """Tokens of Python without comments and blank lines."""
    left_out = {tokenize.COMMENT, tokenize.NL}
    return [
        one.string
        for one in tokenize.generate_tokens(io.StringIO(source, newline="\n").readline)
        if one.type not in left_out
    ]
