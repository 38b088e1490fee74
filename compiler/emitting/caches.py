"""Key-value caches while a call is traced and checked: trees of tensors, so that all that takes trees takes them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _pytree as pytree

from kernels_hub.compiler.emitting.runtime.caches import KIND, new_cache, pairs_of
from kernels_hub.compiler.errors import ImportFailure

LENGTH_AXIS = 2
"""Of keys and values."""


class _Registration:
    """Our rows in pytree's table, for as long as somebody needs them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before: Any = None

    def begin(self, kind: type) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._before = pytree.SUPPORTED_NODES.get(kind)
                pytree.SUPPORTED_NODES[kind] = pytree.NodeDef(kind, _flatten, _unflatten, _flatten_with_keys)

    def end(self, kind: type) -> None:
        with self._lock:
            self._users -= 1
            if self._users:
                return
            if self._before is None:
                del pytree.SUPPORTED_NODES[kind]
            else:
                pytree.SUPPORTED_NODES[kind] = self._before


_REGISTRATION = _Registration()


@contextmanager
def caches_as_trees() -> Iterator[None]:
    """While it is open, a cache is a tree for torch's pytree: [[keys, values], ...] of its layers.

    What others registered for the class is set aside, and comes back.
    """
    module, _, name = KIND.partition(":")
    kind = getattr(sys.modules.get(module), name, None)
    if kind is None:  # without the module, no value is one
        yield
        return
    _REGISTRATION.begin(kind)
    try:
        yield
    finally:
        _REGISTRATION.end(kind)


def length_hint() -> Any:
    """torch.export's AUTO for the lengths of caches. It does not see that they are equal: their name says so."""
    hint = torch.export.Dim.AUTO()
    hint.__name__ = "cache_length"
    return hint


def fresh(tree: Any) -> Any:
    """The tree with caches of its own, for a call that changes them."""
    return pytree.tree_map(lambda leaf: leaf, tree)


def _flatten(cache: Any) -> tuple[list[list[torch.Tensor]], None]:
    pairs = pairs_of(cache)
    if pairs is None:
        kinds = ", ".join(sorted({type(one).__name__ for one in cache.layers}))
        raise ImportFailure(
            f"a cache of {kinds} is among the arguments; only one whose layers have just grown is taken"
        )
    return [list(one) for one in pairs], None


def _flatten_with_keys(cache: Any) -> tuple[list[tuple[Any, list[torch.Tensor]]], None]:
    pairs, context = _flatten(cache)
    return [(pytree.SequenceKey(place), one) for place, one in enumerate(pairs)], context


def _unflatten(children: Iterable[Any], _: Any) -> Any:
    """A cache of tensors; lists of anything else that has taken their places."""
    pairs = list(children)
    if all(isinstance(one, torch.Tensor) for pair in pairs for one in pair):
        return new_cache({place: (keys, values) for place, (keys, values) in enumerate(pairs)})
    return [list(one) for one in pairs]
