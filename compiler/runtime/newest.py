"""A bounded mapping that drops its oldest entries, for caches by shape, size or layout."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Newest(OrderedDict[K, V], Generic[K, V]):
    """At most `most` entries: adding one beyond that drops the oldest. `move_to_end` makes an entry the newest.

    dropped: called with the key and the value of each that is dropped. Callers hold their own lock.
    """

    def __init__(self, most: int, dropped: Callable[[K, V], object] | None = None) -> None:
        super().__init__()
        self._most, self._dropped = most, dropped

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        while len(self) > max(1, self._most):
            oldest = self.popitem(last=False)
            if self._dropped is not None:
                self._dropped(*oldest)
