"""Version of a dict: a number that every change of the dict makes another (PEP 509), and where it lies.

Native code (module_guard.h) that finds a dict's version unchanged need not look up what it holds, which takes three
accesses to memory a name when nothing of the dict is in a cache.

    CPython 3.11, 3.12    counts versions, in a private field of each dict
    CPython 3.13 on       tells a dict watcher of each change of a watched dict, which counts (dict_version.h);
                          3.13.0 does not tell it of attributes that an object holds itself: no version of their dicts
    others, a build without the GIL or for debugging, no watcher left of the 8 that an interpreter has: no version

An interpreter has one watcher for all guards, those of exported layers with libraries of their own included. A dict is
watched until it dies, which makes each of its changes some 20 ns slower.

Nothing is taken for granted: whether all ways to change a dict make its version another, and nothing else does, is
tried once a process.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any

_VERSION, _VALUES, _SIZE = 24, 40, 48
"""Bytes from the start of a dict to its version, to the address of values that an object holds, and to its end."""
_WARM = 200
"""Times that an attribute is written at one place, after which the interpreter has specialized it."""
_KEY = "kernels_hub.dict_version"
"""Of the interpreter's dict for extensions, under which all copies of this module have the `Place` of its watcher."""

Place = Callable[[dict[str, object]], int]
"""Gives the address of a dict's version, 0 where it has none. The version is 0 once the dict died."""


class _Holder:
    """Something with attributes."""

    name: int


def place_of_versions(library: ctypes.CDLL) -> Place | None:
    """Where versions of dicts lie; None where there are none that can be relied on.

    library: with the functions of dict_version.h. It stays loaded while the process lives, as all of ctypes do.
    """
    if sys.implementation.name != "cpython" or (object.__basicsize__, dict.__basicsize__) != (16, _SIZE):
        return None
    return _place_in_dicts() if sys.version_info < (3, 13) else _place_of_watcher(library)


@cache
def _place_in_dicts() -> Place | None:
    return _in_dict if _counts_items(_in_dict) and _counts_attributes(_in_dict) else None


def _in_dict(table: dict[str, object]) -> int:
    return id(table) + _VERSION


def _place_of_watcher(library: ctypes.CDLL) -> Place | None:
    shared = _interpreter_dict()
    if _KEY not in shared:
        try:
            watcher = _Watcher(library)
        except RuntimeError:  # others have all watchers
            return None
        shared[_KEY] = _relied_on(watcher)
    return shared[_KEY]


def _relied_on(place: Place) -> Place | None:
    if not _counts_items(place):
        return None
    if _counts_attributes(place):
        return place
    is_told_apart = _is_of_object(vars(_Holder())) and not _is_of_object({}) and not _is_of_object({"a": 1})
    return (lambda table: 0 if _is_of_object(table) else place(table)) if is_told_apart else None


def _is_of_object(table: dict[str, object]) -> bool:
    """Whether an object holds the values of the dict, which are its attributes."""
    return ctypes.c_void_p.from_address(id(table) + _VALUES).value is not None


def _interpreter_dict() -> dict[str, Place | None]:
    get = ctypes.PYFUNCTYPE(ctypes.c_void_p)(("PyInterpreterState_Get", ctypes.pythonapi))
    prototype = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
    borrowed = prototype(("PyInterpreterState_GetDict", ctypes.pythonapi))(get())
    found: dict[str, Place | None] = ctypes.cast(borrowed, ctypes.py_object).value
    return found


class _Watcher:
    """A dict watcher that counts changes. Raises RuntimeError where Python has none left."""

    def __init__(self, library: ctypes.CDLL) -> None:
        # Unlike those of CDLL, functions of PYFUNCTYPE are called with the GIL held, and raise what Python raises.
        add = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(("PyDict_AddWatcher", ctypes.pythonapi))
        watch = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.py_object)
        self._watch = watch(("PyDict_Watch", ctypes.pythonapi))
        self._at = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(("kh_dict_version_at", library))
        self._id = add(ctypes.cast(library.kh_dict_changed, ctypes.c_void_p))

    def __call__(self, table: dict[str, object]) -> int:
        """See `Place`. The dict is watched from here on."""
        self._watch(self._id, table)
        address: int = self._at(id(table))
        return address


def _counts_items(place: Place) -> bool:
    table: dict[Any, Any] = {"a": 1, "b": 2, "c": 3}
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
        lambda: table.update({"a": 1, "b": 2}),
        lambda: dict.__setitem__(table, "a", 13),
    ]
    holder = _Holder()
    combined: dict[Any, Any] = vars(holder)
    combined[1] = "a key that is no name: no dict shares its keys, nor does the holder have the values"
    return _counts(place, table, changes) and _counts(place, combined, _writes(holder))


def _counts_attributes(place: Place) -> bool:
    holder = _Holder()
    return _counts(place, vars(holder), _writes(holder))


def _writes(holder: _Holder) -> list[Callable[[], object]]:
    # Another object each time: writing the same one is no change.
    writes: list[Callable[[], object]] = [partial(_write, holder, value) for value in range(_WARM)]
    return [*writes, lambda: vars(holder).update(other=1), lambda: delattr(holder, "name")]


def _write(holder: _Holder, value: int) -> None:
    holder.name = value  # the one place that the interpreter specializes


def _counts(place: Place, table: dict[str, object], changes: Iterable[Callable[[], object]]) -> bool:
    """Whether each of these changes of a dict makes its version another, and nothing else does."""
    others = {_version(place, {}), _version(place, {"a": 1})}
    seen = {0, _version(place, table), *others}
    if len(seen) < 4:
        return False
    for change in changes:
        change()
        if _version(place, table) in seen:
            return False
        seen.add(_version(place, table))
    before = _version(place, table)
    _ = (table.get("a"), list(table.items()), dict(table), table == {}, "x" in table, repr(table))
    return before == _version(place, table)


def _version(place: Place, table: dict[str, object]) -> int:
    return ctypes.c_uint64.from_address(place(table)).value
