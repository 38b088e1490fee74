"""Engines out of what a plugin gives: an engine, a sequence of them, or a function that returns one of these."""

from __future__ import annotations

import re
from collections.abc import Iterable
from types import ModuleType
from typing import TypeGuard

from kernels_hub.compiler.engines.engine import Engine

_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,63}")
_METHODS = ("check", "compile", "load")


def engines_of(given: object) -> tuple[Engine, ...]:
    """Engines out of what a plugin gives. Raises TypeError or ValueError, which say what is wrong with which."""
    if isinstance(given, ModuleType):
        given = offered(given)
    if callable(given) and (isinstance(given, type) or not _is_engine(given)):
        given = given()
    listed = (given,) if _is_engine(given) else given
    if isinstance(listed, (str, bytes)) or not isinstance(listed, Iterable):
        raise TypeError(f"it gives {_shown(given)}, no engine: {_lacking(given)}")
    engines: list[Engine] = []
    for one in listed:
        if not _is_engine(one):
            raise TypeError(f"it gives {_shown(one)}, no engine: {_lacking(one)}")
        if not _NAME.fullmatch(one.name):
            raise ValueError(
                f"the name {one.name!r} is none: small letters, digits, '_', '.', '-', a letter first, 64 at most"
            )
        engines.append(one)
    if not engines:
        raise ValueError("it gives no engines")
    names = [engine.name for engine in engines]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(
            f"it gives the name {', '.join(map(repr, twice))} more than once; none of it is taken"
        )
    return tuple(engines)


def offered(module: ModuleType) -> object:
    """What a module gives: its `engines`, or its `ENGINE`. Raises TypeError where it defines neither."""
    for name in ("engines", "ENGINE"):
        if hasattr(module, name):
            found: object = getattr(module, name)
            return found
    raise TypeError("the module defines neither engines() nor ENGINE")


def _is_engine(given: object) -> TypeGuard[Engine]:
    return (
        not isinstance(given, type)
        and isinstance(getattr(given, "name", None), str)
        and all(callable(getattr(given, method, None)) for method in _METHODS)
    )


def _lacking(given: object) -> str:
    if isinstance(given, type):
        return "a class; give an instance of it"
    lacking = [f"{method}()" for method in _METHODS if not callable(getattr(given, method, None))]
    if not isinstance(getattr(given, "name", None), str):
        lacking.insert(0, "name")
    return f"it lacks {', '.join(lacking)}"


def _shown(given: object) -> str:
    return f"the class {given.__name__}" if isinstance(given, type) else f"a {type(given).__name__}"
