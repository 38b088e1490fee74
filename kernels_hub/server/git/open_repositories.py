"""Repositories that a process has open: of more than a few, the one that was used least recently is closed."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

MOST_OPEN = 128


class OpenRepositories(Generic[T]):
    """What is open of each repository, for several threads.

    begin: opens one, by its id. end: closes its files; who still reads from it opens them again.
    is_idle: whether one may be closed to make room.
    """

    def __init__(
        self,
        begin: Callable[[str], T],
        end: Callable[[T], object],
        is_idle: Callable[[T], bool] = lambda _: True,
    ) -> None:
        self._begin, self._end, self._is_idle = begin, end, is_idle
        self._known: OrderedDict[str, T] = OrderedDict()
        self._guard = threading.Lock()

    def get(self, repository: str) -> T:
        """What is open of a repository, opened now where nothing is. Raises what opening raises."""
        with self._guard:
            if (known := self._known.get(repository)) is not None:
                self._known.move_to_end(repository)
                return known
            self._known[repository] = opened = self._begin(repository)
            if len(self._known) > MOST_OPEN:
                idle = (name for name, one in self._known.items() if self._is_idle(one))
                if (oldest := next(idle, repository)) != repository:
                    self._end(self._known.pop(oldest))
            return opened

    def keep(self, repository: str, opened: T) -> None:
        """Go on with this one, also if it was closed to make room meanwhile."""
        with self._guard:
            self._known[repository] = opened

    def close(self, repository: str) -> None:
        """Close a repository, if it is open."""
        with self._guard:
            if (known := self._known.pop(repository, None)) is not None:
                self._end(known)

    def close_all(self) -> None:
        """Close every one."""
        with self._guard:
            for known in self._known.values():
                self._end(known)
            self._known.clear()
