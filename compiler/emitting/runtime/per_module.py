"""What is kept of modules for as long as they live."""

from __future__ import annotations

import weakref
from typing import Generic, TypeVar

from torch import nn

T = TypeVar("T")


class PerModule(Generic[T]):
    """A module -> what is kept of it, by identity: what a class says of equality does not count.

    Every call asks it, with nothing of it in a cache: a third of what a WeakKeyDictionary takes. What is kept must not
    hold the module.
    """

    def __init__(self) -> None:
        self._found: dict[int, tuple[weakref.ref[nn.Module], T]] = {}

    def get(self, module: nn.Module) -> T | None:
        """What is kept of a module; None where there is nothing."""
        found = self._found.get(id(module))
        return None if found is None else found[1]

    def keep(self, module: nn.Module, value: T) -> T:
        """Keep this of a module, in the place of what was kept. Returns it."""
        number, found = id(module), self._found

        # Called before the module's memory is freed, so its number is no other's yet.
        def forget(_: weakref.ref[nn.Module]) -> None:
            found.pop(number, None)

        found[number] = weakref.ref(module, forget), value
        return value

    def forget(self, module: nn.Module) -> None:
        """Keep nothing of a module."""
        self._found.pop(id(module), None)
