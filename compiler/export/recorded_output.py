"""Notes what a forward says while an example runs: prints, warnings, log records. A program would say none of it."""

from __future__ import annotations

import builtins
import functools
import logging
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import PurePath
from types import FrameType

from kernels_hub.compiler.export.outer_data import KNOWN

_SPEAKING = (
    (builtins, "print", "prints"),
    (warnings, "warn", "warns"),
    (logging.Logger, "isEnabledFor", "logs"),
)
"""Where functions are by which code says something, their names, and how that is told. Of a logger what is asked before
each record: where a layer is compiled, none may be written."""
_OPEN: list[tuple[int, list[str]]] = []
"""Threads whose words are noted, and where."""
_LOCK = threading.Lock()
_PLAIN: dict[str, Callable[..., object]] = {}


@contextmanager
def spoken() -> Iterator[list[str]]:
    """While it is open, what code of this thread says: "prints at model.py:12". Code of known packages apart."""
    found: list[str] = []
    with _LOCK:
        if not _OPEN:
            for holder, name, verb in _SPEAKING:
                _PLAIN[name] = getattr(holder, name)
                setattr(holder, name, _noted(_PLAIN[name], verb))
        _OPEN.append((threading.get_ident(), found))
    try:
        yield found
    finally:
        with _LOCK:
            _OPEN[:] = [one for one in _OPEN if one[1] is not found]
            if not _OPEN:
                for holder, name, _ in _SPEAKING:
                    setattr(holder, name, _PLAIN[name])


def _noted(plain: Callable[..., object], verb: str) -> Callable[..., object]:
    @functools.wraps(plain)
    def noted(*args: object, **kwargs: object) -> object:
        frame = _outside_of_logging(sys._getframe(1))
        if verb == "logs" and not _is_logged(*args):
            return plain(*args, **kwargs)
        if frame is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] not in KNOWN:
            for thread, found in tuple(_OPEN):
                if thread == threading.get_ident():
                    found.append(f"{verb} at {PurePath(frame.f_code.co_filename).name}:{frame.f_lineno}")
        if verb == "warns" and "stacklevel" not in kwargs and len(args) < 3:
            kwargs["stacklevel"] = 2  # of who called this
        return plain(*args, **kwargs)

    return noted


def _is_logged(logger: object, level: object = 0, *_: object) -> bool:
    """Whether a logger has records of a level, in a process that has not switched all of them off."""
    return (
        isinstance(logger, logging.Logger) and isinstance(level, int) and level >= logger.getEffectiveLevel()
    )


def _outside_of_logging(frame: FrameType | None) -> FrameType | None:
    while frame is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] == "logging":
        frame = frame.f_back
    return frame
