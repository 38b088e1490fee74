"""Notes what a forward says while an example runs: prints, warnings, log records. A program would say none of it."""

from __future__ import annotations

import builtins
import functools
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import PurePath

from kernels_hub.compiler.export.noted_calls import Noting, outside_of
from kernels_hub.compiler.importers.known_code import is_of_known

_SPEAKING = (
    (builtins, "print", "prints"),
    (warnings, "warn", "warns"),
    (logging.Logger, "isEnabledFor", "logs"),
)
"""Where functions are by which code says something, their names, and how that is told. Of a logger what is asked before
each record: where a layer is compiled, none may be written."""
_OF_LOGGING = frozenset({"logging"})
_PLAIN: dict[str, Callable[..., object]] = {}


@contextmanager
def spoken() -> Iterator[list[str]]:
    """While it is open, what code of this thread says: "prints at model.py:12". Code of known packages apart."""
    found: list[str] = []
    with _WORDS.into(found):
        yield found


def _put() -> None:
    for holder, name, verb in _SPEAKING:
        _PLAIN[name] = getattr(holder, name)
        setattr(holder, name, _noted(_PLAIN[name], verb))


def _take() -> None:
    for holder, name, _ in _SPEAKING:
        setattr(holder, name, _PLAIN[name])


_WORDS: Noting[list[str]] = Noting(_put, _take)


def _noted(plain: Callable[..., object], verb: str) -> Callable[..., object]:
    @functools.wraps(plain)
    def noted(*args: object, **kwargs: object) -> object:
        frame = outside_of(sys._getframe(1), _OF_LOGGING)
        if verb == "logs" and not _is_logged(*args):
            return plain(*args, **kwargs)
        if frame is not None and not is_of_known(frame):
            for found in _WORDS.here():
                found.append(f"{verb} at {PurePath(frame.f_code.co_filename).name}:{frame.f_lineno}")
        if verb == "warns":
            args, kwargs = _one_level_up(args, kwargs)
        return plain(*args, **kwargs)

    return noted


def _is_logged(logger: object, level: object = 0, *_: object) -> bool:
    """Whether a logger has records of a level, in a process that has not switched all of them off."""
    return (
        isinstance(logger, logging.Logger) and isinstance(level, int) and level >= logger.getEffectiveLevel()
    )


def _one_level_up(
    args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[tuple[object, ...], dict[str, object]]:
    """Arguments of warnings.warn, called from one function further: the warning is of the same place as without."""
    level = args[2] if len(args) > 2 else kwargs.get("stacklevel", 1)
    if not isinstance(level, int):
        return args, kwargs
    if len(args) > 2:
        return (*args[:2], level + 1, *args[3:]), kwargs
    return args, {**kwargs, "stacklevel": level + 1}
