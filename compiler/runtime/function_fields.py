"""Where CPython has the code and the defaults of a function, for native code that asks whether they are the same.

Nothing is taken for granted: the places are looked for in functions whose parts are known, once a process, and have to
follow when a part is replaced.
"""

from __future__ import annotations

import ctypes
import sys
import types
from functools import cache

from .facts import OF_FUNCTIONS

_WORD = ctypes.sizeof(ctypes.c_void_p)


@cache
def offsets_of_functions() -> tuple[int, ...]:
    """Bytes from the start of a function to each of OF_FUNCTIONS, where None is a null pointer; () where unknown."""
    if sys.implementation.name != "cpython":
        return ()

    def first(a: object = "a", *, b: object = "b") -> object:
        return a, b

    def second(a: object = "c", *, b: object = "d") -> object:
        return [a, b]

    size = types.FunctionType.__basicsize__
    places = [
        [offset for offset in range(0, size, _WORD) if _at(first, offset) == id(part(first))]
        for part in OF_FUNCTIONS
    ]
    if any(len(found) != 1 for found in places):
        return ()
    offsets = tuple(found[0] for found in places)
    first.__code__, first.__defaults__, first.__kwdefaults__ = second.__code__, second.__defaults__, None
    follows = [id(second.__code__), id(second.__defaults__), None]
    return offsets if [_at(first, offset) for offset in offsets] == follows else ()


def _at(function: object, offset: int) -> int | None:
    return ctypes.c_void_p.from_address(id(function) + offset).value
