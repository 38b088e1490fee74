"""Locks that a forked process has anew: the thread that held one is not in it, and nobody would release it.

    _LOCK = renewed_lock(sys.modules[__name__], "_LOCK", threading.Lock)     of a module
    self._lock = renewed_lock(self, "_lock", threading.RLock)                of an object

What such a lock guards must be right, or made anew, whenever a fork happens: the child may find it half changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakKeyDictionary

LockT = TypeVar("LockT")

_LOCKS: WeakKeyDictionary[object, list[tuple[str, Callable[[], object]]]] = WeakKeyDictionary()


def renewed_lock(owner: object, name: str, make: Callable[[], LockT]) -> LockT:
    """A lock that `owner` is to keep as its attribute `name`: in a forked process, that is another one."""
    _LOCKS.setdefault(owner, []).append((name, make))
    return make()


def _after_fork() -> None:
    for owner, locks in list(_LOCKS.items()):
        for name, make in locks:
            setattr(owner, name, make())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
