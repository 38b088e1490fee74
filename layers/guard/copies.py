"""Copies made from weights, kept until a weight changes or dies.

The idea of layers/packing, for copies that are made from several tensors (a weight and the norm that
is folded into it) under a key (a geometry). Before every use, a weight guard compares the tensors with
what they were (see weight_guard.py). Copies die with the first of their tensors.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from .guard import WeightGuard, guard, is_strict

T = TypeVar("T")


class _Entry(NamedTuple, Generic[T]):
    guard: WeightGuard
    value: T
    references: tuple[weakref.ref[Tensor], ...]  # their callbacks remove the entry


class Copies(Generic[T]):
    """Values made from tensors, by the tensors' identity and a key.

    Threads may share one: at worst two make the same value, and one of them is kept.
    """

    def __init__(self) -> None:
        self._entries: dict[tuple[Hashable, ...], _Entry[T]] = {}

    def find(self, sources: Sequence[Tensor], key: Hashable) -> T | None:
        """The value for `sources` and `key`; None if there is none or the sources have changed."""
        entry = self._entries.get((key, *map(id, sources)))
        return None if entry is None or not entry.guard.holds(sources) else entry.value

    def get(self, sources: Sequence[Tensor], key: Hashable, make: Callable[[], T]) -> T:
        """The value for `sources` and `key`, made now if there is none or the sources have changed."""
        found = self.find(sources, key)
        if found is not None:
            return found
        # Copies made under inference_mode serve later calls outside it as well.
        with torch.inference_mode(False), torch.no_grad():
            watch = guard(sources)  # before `make`: an edit in between must be noticed later
            watch.be_strict(any(map(is_strict, sources)))
            value = make()
        index = (key, *map(id, sources))
        self._entries[index] = _Entry(
            watch, value, tuple(self._reference(source, index) for source in sources)
        )
        return value

    def of(self, source: Tensor) -> Iterator[T]:
        """Every value made from `source`, whatever the key and the other tensors."""
        for _, entry in self._entries_of(source):
            yield entry.value

    def forget(self, source: Tensor) -> None:
        """Drop every value made from `source`."""
        for index, _ in self._entries_of(source):
            self._entries.pop(index, None)

    def refresh(self, source: Tensor) -> None:
        """Drop every value made from `source` whose tensors have changed, all of them compared."""
        for index, entry in self._entries_of(source):
            tensors = [reference() for reference in entry.references]
            alive = [tensor for tensor in tensors if tensor is not None]
            if len(alive) < len(tensors) or not entry.guard.holds(alive, whole=True):
                self._entries.pop(index, None)

    def strict(self, source: Tensor, on: bool) -> None:
        """Compare all of the tensors that values of `source` are made from at every use, or no more."""
        for _, entry in self._entries_of(source):
            entry.guard.be_strict(on)

    def _entries_of(self, source: Tensor) -> list[tuple[tuple[Hashable, ...], _Entry[T]]]:
        return [(index, entry) for index, entry in tuple(self._entries.items()) if id(source) in index[1:]]

    def _reference(self, source: Tensor, index: tuple[Hashable, ...]) -> weakref.ref[Tensor]:
        forget = self._entries.pop
        return weakref.ref(source, lambda _: forget(index, None))
