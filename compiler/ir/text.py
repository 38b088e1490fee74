"""Tokens of the printed form, and the dims in it: "2*batch + 1", "(n + 1)//2", "min(a, b)"."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kernels_hub.compiler.errors import DimError, ParseError
from kernels_hub.compiler.ir.dims import Dim, Expr, floordiv, mod
from kernels_hub.compiler.ir.extrema import dim_max, dim_min

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r]+|\#[^\n]*)|(?P<line>\n)|(?P<value>%\d+)
    |(?P<digest>@[0-9a-f]{32})|(?P<string>"(?:[^"\\\n]|\\.)*")
    |(?P<number>-?(?:0x[0-9a-fA-F]+|(?:\d+\.(?!\.)\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\d+)))
    |(?P<word>[A-Za-z_][A-Za-z0-9_]*)|(?P<sign>//|\.\.|->|>=|[-+*%()\[\]{},:=<>@])""",
    re.VERBOSE | re.ASCII,
)


DEEPEST = 50
"""Brackets in brackets, and graphs in graphs."""
LONGEST_NUMBER = 40
"""Digits of a whole number."""
MOST_TERMS = 256
"""Terms of a dim, factors of each, and arguments of min and max."""
LONGEST_DIM = 4096
"""Characters of a dim that stands alone."""


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of text. kind: value (%3), string, number, word, sign, or end."""

    kind: str
    text: str
    line: int


def tokens(text: str) -> list[Token]:
    """Every token, and one of kind "end". Raises ParseError."""
    found: list[Token] = []
    line, position = 1, 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ParseError(
                f"line {line}: {text[position : position + 20]!r} is nothing that a graph is written with"
            )
        kind = match.lastgroup or ""
        position = match.end()
        if kind == "line":
            line += 1
        elif kind == "number" and match.group().startswith("-") and _binary_minus(found):
            found.append(Token("sign", "-", line))
            found.append(Token("number", match.group()[1:], line))
        elif kind != "space":
            found.append(Token(kind, match.group(), line))
    found.append(Token("end", "the end", line))
    return found


def _binary_minus(tokens: list[Token]) -> bool:
    """Whether a minus after these subtracts, as in "n -1"."""
    return bool(tokens) and (tokens[-1].kind in {"number", "word", "string"} or tokens[-1].text == ")")


class Reader:
    """Tokens read one after the other."""

    def __init__(self, text: str) -> None:
        self._tokens = tokens(text)
        self._next = 0
        self._depth = 0

    @property
    def now(self) -> Token:
        """The token that comes next."""
        return self._tokens[self._next]

    def take(self) -> Token:
        """The next token, read."""
        token = self.now
        self._next += token.kind != "end"
        return token

    def accept(self, text: str) -> bool:
        """Read the next token if it is this sign or word."""
        if self.now.text == text and self.now.kind in {"sign", "word"}:
            self.take()
            return True
        return False

    def expect(self, text: str) -> Token:
        """Read this sign or word. Raises ParseError."""
        if self.now.text != text or self.now.kind == "string":
            raise self.error(f"expected {text!r}")
        return self.take()

    def kind(self, kind: str) -> str:
        """Read a token of a kind; its text. Raises ParseError."""
        if self.now.kind != kind:
            raise self.error(f"expected a {kind}")
        return self.take().text

    def string(self) -> str:
        """Read a quoted string."""
        token = self.now
        try:
            return str(json.loads(self.kind("string"), strict=False))
        except ValueError as error:
            raise ParseError(f"line {token.line}: {token.text[:100]} is no string: {error}") from error

    def whole(self) -> int:
        """Read a whole number. Raises ParseError."""
        text = self.now.text
        if self.now.kind != "number" or not text.removeprefix("-").isdigit() or len(text) > LONGEST_NUMBER:
            raise self.error(f"expected a whole number of at most {LONGEST_NUMBER} digits")
        self.take()
        return int(text)

    @contextmanager
    def deeper(self) -> Iterator[None]:
        """Read what stands inside brackets. Raises ParseError where these are too deep."""
        if self._depth >= DEEPEST:
            raise self.error(f"expected brackets at most {DEEPEST} deep")
        self._depth += 1
        yield
        self._depth -= 1

    def name(self) -> str:
        """Read a name: a word or a quoted string."""
        return self.string() if self.now.kind == "string" else self.kind("word")

    def follow(self, word: str, kind: str) -> dict[str, str]:
        """Wherever a word stands before a token of a kind and a string: the token, less its sign -> the string."""
        three = zip(self._tokens, self._tokens[1:], self._tokens[2:], strict=False)
        return {
            b.text[1:]: c.text[1:-1]
            for a, b, c in three
            if a.text == word and b.kind == kind and c.kind == "string"
        }

    def error(self, expected: str) -> ParseError:
        """What to raise at the next token."""
        return ParseError(f"line {self.now.line}: {expected}, got {self.now.text[:100]!r}")

    def dim(self, symbol: Callable[[str], Dim]) -> Dim:
        """Read a dim. symbol: from the name of a symbol to the dim that it is."""
        total = self._term(symbol)
        while self.now.text in {"+", "-"} and self.now.kind == "sign":
            total = total + self._term(symbol) if self.take().text == "+" else total - self._term(symbol)
            self._check_terms(total)
        return total

    def _check_terms(self, dim: Dim) -> None:
        """Arithmetic of dims takes time by the square of their terms and digits."""
        if isinstance(dim, Expr) and (
            len(dim.terms) > MOST_TERMS
            or any(sum(power for _, power in one) > MOST_TERMS for one, _ in dim.terms)
        ):
            raise self.error(f"expected a dim of at most {MOST_TERMS} terms and factors")
        if any(abs(coefficient) >= 10**LONGEST_NUMBER for coefficient in _coefficients(dim)):
            raise self.error(f"expected numbers of at most {LONGEST_NUMBER} digits")

    def _term(self, symbol: Callable[[str], Dim]) -> Dim:
        if self.accept("-"):
            with self.deeper():
                return -self._term(symbol)
        result = self._factor(symbol)
        while self.now.text in {"*", "//", "%"} and self.now.kind == "sign":
            sign = self.take().text
            right = self._factor(symbol)
            result = (
                result * right
                if sign == "*"
                else floordiv(result, right)
                if sign == "//"
                else mod(result, right)
            )
            self._check_terms(result)
        return result

    def _factor(self, symbol: Callable[[str], Dim]) -> Dim:
        if self.now.kind == "number":
            return self.whole()
        if self.accept("("):
            with self.deeper():
                inner = self.dim(symbol)
            self.expect(")")
            return inner
        if self.now.kind == "word" and self.now.text in {"min", "max"}:
            build = dim_min if self.take().text == "min" else dim_max
            self.expect("(")
            with self.deeper():
                args = [self.dim(symbol)]
                while self.accept(",") and len(args) < MOST_TERMS:
                    args.append(self.dim(symbol))
            self.expect(")")
            return build(*args)
        return symbol(self.name())


def _coefficients(dim: Dim) -> Iterable[int]:
    return (one for _, one in dim.terms) if isinstance(dim, Expr) else (dim,)


def parse_dim(text: str, symbol: Callable[[str], Dim]) -> Dim:
    """The dim that a text states. Raises DimError where it states none."""
    if len(text) > LONGEST_DIM:
        raise DimError(f"{text[:60]!r}… has {len(text)} characters; a dim has at most {LONGEST_DIM}")
    try:
        reader = Reader(text)
        found = reader.dim(symbol)
        if reader.now.kind != "end":
            raise reader.error("expected the end")
    except ParseError as error:
        raise DimError(f"{text!r} is no dim: {error}") from error
    return found
