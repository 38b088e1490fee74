"""Typed parsing of documents that come from outside: JSON and TOML into records, or one clear error.

A document's type is a msgspec `Struct` (or any type that msgspec converts to), whose fields use the annotated
types below, so that a digest is 64 hexadecimal digits and a path stays inside its folder before any code sees
it. Structs ignore keys that they do not name; with `forbid_unknown_fields=True` they refuse them.

>>> class Row(Struct, frozen=True):
...     path: RelativePath
...     sha256: Sha256
>>> parse_json(b'{"path": "../x", "sha256": ""}', Row, where="index.json", error=MetadataError)
Traceback (most recent call last):
kernels_hub.errors.MetadataError: index.json: Expected `str` of length >= 64 - at `$.sha256`

msgspec (https://jcristharif.com/msgspec) is imported when this module is, so import this module where it is used.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Self, TypeVar

import msgspec
from msgspec import Meta, Struct

from kernels_hub.contained_paths import relative_path_problem
from kernels_hub.errors import KernelsHubError, MetadataError

__all__ = [
    "Base64",
    "CommitId",
    "Name",
    "RelativePath",
    "RepositoryId",
    "Sha256",
    "Struct",
    "Text",
    "convert",
    "parse_json",
    "parse_toml",
]

T = TypeVar("T")

MOST_BYTES = 8 << 20
"""The default limit for a document; callers that read larger ones say so."""

Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z", min_length=64, max_length=64)]
CommitId = Annotated[str, Meta(pattern=r"^[0-9a-f]{40}\Z", min_length=40, max_length=40)]
Base64 = Annotated[str, Meta(pattern=r"^[A-Za-z0-9+/]*={0,2}\Z", max_length=1 << 16)]
RepositoryId = Annotated[
    str,
    Meta(
        pattern=r"^(?!.*(--|\.\.))[A-Za-z0-9_][A-Za-z0-9_.-]*/[A-Za-z0-9_][A-Za-z0-9_.-]*\Z", max_length=200
    ),
]
"""Without "--" and "..", as on every Hub: "--" stands for the slash in the names of cache folders."""
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.+-]*\Z", max_length=200)]
Text = Annotated[str, Meta(max_length=1 << 16)]


class RelativePath(str):
    """A path inside a folder: relative, with forward slashes, no `.`, `..`, empty part or NUL, at most 1,024 bytes."""

    __slots__ = ()

    def __new__(cls, text: str) -> Self:
        """Raise ValueError, saying what is wrong, for text that is no such path."""
        if problem := relative_path_problem(text):
            raise ValueError(f"{text[:100]!r} is no path inside a folder: {problem}")
        return super().__new__(cls, text)


def parse_json(
    data: bytes,
    kind: type[T],
    *,
    where: str,
    error: type[KernelsHubError] = MetadataError,
    most_bytes: int = MOST_BYTES,
    advice: str = "",
    unique_keys: bool = False,
) -> T:
    """Parse a JSON document as `kind`.

    where: the file or address, for the message. error: the class that is raised. most_bytes: a longer document
    is refused unread. advice: the next step, at the end of the message. unique_keys: also refuse an object that
    names a key twice (of which the last counts otherwise).

    Raises `error` for what is too long, is not JSON, is nested too deeply, or is not of that type; the message
    names the place inside the document.
    """
    with _explained(where, error, advice):
        _check_size(data, most_bytes)
        if unique_keys:
            document = json.loads(data.decode(), object_pairs_hook=_unique, parse_constant=_refuse_constant)
            if b"\\u" in data:  # half of a pair is no text: it could be neither written nor shown
                json.dumps(document, ensure_ascii=False).encode()
            return msgspec.convert(document, kind, dec_hook=_decode)
        return msgspec.json.decode(data, type=kind, dec_hook=_decode)


def parse_toml(
    data: bytes,
    kind: type[T],
    *,
    where: str,
    error: type[KernelsHubError] = MetadataError,
    most_bytes: int = MOST_BYTES,
    advice: str = "",
) -> T:
    """Parse a TOML document as `kind`; arguments and errors are those of `parse_json`."""
    with _explained(where, error, advice):
        _check_size(data, most_bytes)
        return msgspec.convert(tomllib.loads(data.decode()), kind, dec_hook=_decode)


def convert(
    document: object,
    kind: type[T],
    *,
    where: str,
    error: type[KernelsHubError] = MetadataError,
    advice: str = "",
) -> T:
    """A document that is parsed already (dicts, lists, strings, numbers) as `kind`; raises `error` otherwise."""
    with _explained(where, error, advice):
        return msgspec.convert(document, kind, dec_hook=_decode)


@contextmanager
def _explained(where: str, error: type[KernelsHubError], advice: str) -> Iterator[None]:
    """Turns whatever is wrong with a document into `error`, on one line that says where and what to do."""
    try:
        yield
    except (msgspec.MsgspecError, ValueError, RecursionError) as problem:
        text = f"{where}: {_shortened(problem)}"
        raise error(f"{text}; {advice}" if advice else text) from problem


def _check_size(data: bytes, most_bytes: int) -> None:
    if len(data) > most_bytes:
        raise ValueError(f"{len(data):,} bytes; at most {most_bytes:,} are read")


def _decode(kind: type[Any], value: object) -> object:
    """Make the types that msgspec does not know; its ValidationError names the place of a ValueError raised here."""
    if kind is RelativePath:
        if not isinstance(value, str):
            raise ValueError(f"Expected `str`, got `{type(value).__name__}`")
        return RelativePath(value)
    raise NotImplementedError(f"no way to make a {kind.__name__} of a document's value")


def _unique(pairs: list[tuple[str, Any]]) -> Mapping[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {repeated[:100]!r} stands twice in one object")
    return document


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is no JSON number")


_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def _shortened(problem: BaseException) -> str:
    """The problem on one line of bounded length, with whatever is not printable escaped."""
    text = _ADDRESS.sub("", str(problem)) or type(problem).__name__
    text = text.encode("unicode_escape").decode()
    return text if len(text) <= 300 else text[:297] + "..."
