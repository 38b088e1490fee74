"""Notes what code of one thread calls, by functions that stand in for what is called while anybody notes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Generic, TypeVar

_T = TypeVar("_T")


class Noting(Generic[_T]):
    """put, take: put the functions there that note, and take them away again.

    Threads may have it open at once, and end in any order.
    """

    def __init__(self, put: Callable[[], None], take: Callable[[], None]) -> None:
        self._put, self._take = put, take
        self._open: list[tuple[int, _T]] = []
        self._lock = threading.Lock()

    @contextmanager
    def into(self, found: _T) -> Iterator[None]:
        """While it is open, what this thread calls is noted in `found`."""
        with self._lock:
            if not self._open:
                self._put()
            self._open.append((threading.get_ident(), found))
        try:
            yield
        finally:
            with self._lock:
                self._open[:] = [one for one in self._open if one[1] is not found]
                if not self._open:
                    self._take()

    def here(self) -> Iterator[_T]:
        """Where what this thread calls is noted."""
        return (found for thread, found in tuple(self._open) if thread == threading.get_ident())


def outside_of(frame: FrameType | None, modules: frozenset[str]) -> FrameType | None:
    """The nearest caller that is not of these modules."""
    while frame is not None and frame.f_globals.get("__name__") in modules:
        frame = frame.f_back
    return frame
