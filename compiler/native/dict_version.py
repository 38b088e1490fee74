"""Version of a dict in CPython: where the number lies that every change of the dict makes another (PEP 509).

Native code (module_guard.h) that finds a dict's version unchanged need not look up what it holds, which takes three
accesses to memory a name when nothing of the dict is in a cache.

CPython 3.11 and 3.12 count versions; later releases do so no longer. Nothing is taken for granted in these: whether all
ways to change a dict change the number that lies there, and nothing else does, is tried once a process.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

_OFFSET, _SIZE = 24, 48
"""Bytes, after the counts of references and of entries and the type; and of a dict in all."""
_WARM = 200
"""Times that an attribute is written at one place, after which the interpreter has specialized it."""


class _Holder:
    """Something with attributes."""

    name: int


@cache
def offset_of_version() -> int:
    """Bytes from the start of a dict to its version; 0 where this Python has none that can be relied on."""
    if sys.implementation.name != "cpython" or not (3, 11) <= sys.version_info < (3, 13):
        return 0
    if dict.__basicsize__ != _SIZE or object.__basicsize__ != 16:  # a build of another kind, for debugging
        return 0
    return _OFFSET if _counts() else 0


def _counts() -> bool:
    table: dict[str, Any] = {"a": 1, "b": 2, "c": 3}
    holder = _Holder()
    holder.name = 0
    seen = {_version(table), _version(holder.__dict__), _version({})}
    if len(seen) < 3 or 0 in seen:
        return False
    changes: list[Callable[[], object]] = [
        lambda: table.__setitem__("a", 10),
        lambda: table.__setitem__("d", 4),
        lambda: table.__delitem__("d"),
        lambda: table.update(a=11, e=5),
        lambda: table.setdefault("f", 6),
        lambda: table.pop("f"),
        table.popitem,
        lambda: table.__ior__({"a": 12}),
        table.clear,
        lambda: dict.__setitem__(table, "a", 13),
    ]
    for change in changes:
        change()
        if _version(table) in seen:
            return False
        seen.add(_version(table))
    attributes = holder.__dict__
    for value in range(1, _WARM + 1):  # another object each time: writing the same one is no change
        holder.name = value
        if _version(attributes) in seen:
            return False
        seen.add(_version(attributes))
    setattr(holder, "other", 1)  # noqa: B010  (another way of the interpreter's)
    before = _version(attributes)
    if before in seen:
        return False
    del holder.name
    if _version(attributes) in {before, *seen}:
        return False
    versions = _version(table), _version(attributes)
    _ = (
        table.get("a"),
        list(table.items()),
        dict(table),
        table == {},
        "x" in table,
        vars(holder),
        repr(attributes),
    )
    return versions == (_version(table), _version(attributes))


def _version(table: dict[str, Any]) -> int:
    return ctypes.c_uint64.from_address(id(table) + _OFFSET).value
