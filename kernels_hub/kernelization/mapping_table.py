"""Reading TOML tables with errors that a person can act on: file, line, key, expected, got.

A `Table` is a view of one table of a file. Every read checks the type and remembers the key; what
is never read is an unknown key, and `done()` says so, with the nearest known one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernels_hub.errors import MappingError

Key = str | int
"""A step into a file: a key, or the index of a table in an array of tables."""

_HEADER = re.compile(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?")
_ASSIGNMENT = re.compile(r"""\s*["']?([\w.:-]+)["']?\s*=""")
_PLAIN = {bool: "true or false", int: "an integer", str: "a string", dict: "a table", list: "an array"}


@dataclass(frozen=True)
class SourceText:
    """A mapping file's text, kept to find lines in when something is wrong."""

    path: Path
    text: str

    def error(self, keys: tuple[Key, ...], message: str) -> MappingError:
        """A MappingError that names file, line and key."""
        line = find_line(self.text, keys)
        where = f"{self.path}, line {line}" if line else str(self.path)
        return MappingError(f"{where}: {key_path(keys)}: {message}" if keys else f"{where}: {message}")


def key_path(keys: tuple[Key, ...]) -> str:
    """("map", 0, "device") as "map[0].device"."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).lstrip(".")


def find_line(text: str, keys: tuple[Key, ...]) -> int | None:
    """The line that sets a key, or that of the innermost table or key around it; 1-based."""
    found: int | None = None
    current: tuple[Key, ...] = ()
    counts: dict[str, int] = {}
    depth = 0
    quoted: str | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        if quoted is not None:  # inside a multi-line string, such as the source of a contract
            quoted = None if quoted in line else quoted
            continue
        if header := _HEADER.fullmatch(line):
            current = _keys_of_header(header[2], counts, is_array=header[1] == "[[")
            here = current
        elif assignment := _ASSIGNMENT.match(line):
            here = (*current, *assignment[1].split("."))
            if keys[: len(current) + 1] == (*current, assignment[1]):  # a quoted key with dots in it
                here = (*current, assignment[1])
            for mark in ("'''", '"""'):
                if line.count(mark) == 1:
                    quoted = mark
        else:
            continue
        if len(here) > depth and keys[: len(here)] == here:
            found, depth = number, len(here)
    return found


def _keys_of_header(text: str, counts: dict[str, int], *, is_array: bool) -> tuple[Key, ...]:
    """[map.where] as ("map", 2, "where"): tables below an array belong to its latest element."""
    if is_array:
        counts[text] = counts.get(text, 0) + 1
    keys: list[Key] = []
    parts = text.split(".")
    for index, part in enumerate(parts, start=1):
        keys.append(part.strip().strip("\"'"))
        if (count := counts.get(".".join(parts[:index]))) is not None:
            keys.append(count - 1)
    return tuple(keys)


@dataclass
class Table:
    """One table of a mapping file, at `keys`."""

    source: SourceText
    keys: tuple[Key, ...]
    values: dict[str, Any]
    _known: list[str] = field(default_factory=list)

    def error(self, key: str | tuple[Key, ...], message: str) -> MappingError:
        """A MappingError about a key of this table."""
        return self.source.error((*self.keys, *((key,) if isinstance(key, str) else key)), message)

    def has(self, key: str) -> bool:
        """Whether the key is set; counts as reading it."""
        self._known.append(key)
        return key in self.values

    def get(self, key: str, kind: type, expected: str | None = None) -> Any:
        """The value of a key, None when it is not set. Raises when it is of another type."""
        if not self.has(key):
            return None
        value = self.values[key]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool) or value == "":
            raise self.error(key, f"expected {expected or _PLAIN[kind]}, got {_short(value)}")
        return value

    def required(self, key: str, kind: type, expected: str | None = None) -> Any:
        """As `get`, and it must be there."""
        if not self.has(key):
            what = expected or _PLAIN[kind]
            raise self.source.error(self.keys, f"the key {key!r} is missing: expected {what}")
        return self.get(key, kind, expected)

    def strings(self, key: str, expected: str = "a list of strings") -> list[str]:
        """A list of non-empty strings, at least one; empty when the key is not set."""
        values = self.get(key, list, expected)
        if values is None:
            return []
        if not values:
            raise self.error(key, f"expected {expected}, got an empty list")
        for index, value in enumerate(values):
            if not isinstance(value, str) or not value:
                raise self.error((key, index), f"expected {expected}, got {_short(value)} in it")
        return list(values)

    def tables(self, key: str) -> Iterator[Table]:
        """The tables of an array of tables, `[[key]]`."""
        values = self.get(key, list, f"tables, each begun by [[{key}]]")
        for index, value in enumerate(values or ()):
            if not isinstance(value, dict):
                raise self.error((key, index), f"expected a table, begun by [[{key}]], got {_short(value)}")
            yield Table(self.source, (*self.keys, key, index), value)

    def named_tables(self, key: str) -> Iterator[tuple[str, Table]]:
        """The tables `[key.<name>]`."""
        for name, value in (self.get(key, dict, f"tables, each begun by [{key}.<name>]") or {}).items():
            if not isinstance(value, dict):
                raise self.error(
                    (key, name), f"expected a table, begun by [{key}.{name}], got {_short(value)}"
                )
            yield name, Table(self.source, (*self.keys, key, name), value)

    def done(self) -> None:
        """Refuse keys that were never asked for."""
        for key in self.values:
            if key not in self._known:
                raise self.error(key, unknown(key, self._known, "key"))


def unknown(name: str, known: list[str], what: str) -> str:
    """ "unknown key 'layer_nmae'; did you mean 'layer_name'?" """
    from difflib import get_close_matches  # only where something is wrong

    nearest = get_close_matches(name, known, n=1, cutoff=0.6)
    hint = (
        f"did you mean {nearest[0]!r}?" if nearest else f"known: {', '.join(dict.fromkeys(known)) or 'none'}"
    )
    return f"unknown {what} {name!r}; {hint}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"
