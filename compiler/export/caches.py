"""Key-value caches while a call is traced and checked: trees of tensors, so that all that takes trees takes them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _pytree as pytree

from kernels_hub.compiler.errors import ImportFailure
from kernels_hub.compiler.runtime.caches import (
    KIND,
    KIND_OF_TWO,
    KeyValueCache,
    is_cache,
    is_of_two,
    kinds_of,
    new_cache,
    own_states,
    pairs_of,
    parts_of,
)

LENGTH_AXIS = 2
"""Of keys and values."""


class _Registration:
    """Our rows in pytree's table, for as long as somebody needs them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before: dict[type, Any] = {}

    def begin(self, kinds: Iterable[type]) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                for kind in kinds:
                    self._before[kind] = pytree.SUPPORTED_NODES.get(kind)
                    row = pytree.NodeDef(kind, _flatten, _unflatten, _flatten_with_keys)
                    pytree.SUPPORTED_NODES[kind] = row

    def end(self) -> None:
        with self._lock:
            self._users -= 1
            while not self._users and self._before:
                kind, before = self._before.popitem()
                if before is None:
                    del pytree.SUPPORTED_NODES[kind]
                else:
                    pytree.SUPPORTED_NODES[kind] = before


_REGISTRATION = _Registration()


@contextmanager
def caches_as_trees() -> Iterator[None]:
    """While it is open, a cache is a tree for torch's pytree: [[keys, values], ...] of its layers; two of them is one
    of two.

    What others registered for the classes is set aside, and comes back.
    """
    names = [kind.partition(":") for kind in (KIND, KIND_OF_TWO)]
    found = [getattr(sys.modules.get(module), name, None) for module, _, name in names]
    _REGISTRATION.begin([kind for kind in found if kind is not None])  # without the module, no value is one
    try:
        yield
    finally:
        _REGISTRATION.end()


def dims_of(cache: KeyValueCache, free: Callable[[torch.Tensor, Any], Any]) -> list[Any]:
    """The dynamic dims of a cache, as its tree. free: of a tensor, and a hint for the dim that its length is.

    The hints are torch.export's AUTO. It does not see that lengths are equal: their names say so.
    """
    found = []
    states = kinds_of(cache, states_alone=True)
    for one, name in zip(parts_of(cache), ("cache_length", "cross_length"), strict=False):
        hint = torch.export.Dim.AUTO()
        hint.__name__ = name
        rows = []
        for index, pair in enumerate(pairs_of(one) or ()):
            fixed = bool(states) and states[index] is not None
            rows.append([_batch_of(free(one, hint)) if fixed else free(one, hint) for one in pair])
        found.append(rows)
    return found if is_of_two(cache) else found[0]


def _batch_of(dims: dict[int, Any]) -> dict[int, Any]:
    """Of the dims of a state, all that may change."""
    return {axis: dim for axis, dim in dims.items() if axis == 0}


def fresh(tree: object) -> Any:
    """The tree with caches of its own, for a call that changes them."""
    found = pytree.tree_map(lambda leaf: leaf, tree)
    for one in filter(is_cache, pytree.tree_leaves(found, is_leaf=is_cache)):
        own_states(one)
    return found


_Context = tuple[bool, tuple[Any, ...]]
"""Of a cache as a tree: whether it is one of two, and which layers have states."""


def _flatten(cache: KeyValueCache) -> tuple[list[Any], _Context]:
    if pairs_of(cache) is None:
        layers = [layer for one in parts_of(cache) for layer in getattr(one, "layers", ())]
        kinds = ", ".join(sorted({type(layer).__name__ for layer in layers}))
        raise ImportFailure(
            f"a cache of {kinds} is among the arguments; only one whose layers have just grown, or hold one state of "
            "each kind, is taken"
        )
    context = (is_of_two(cache), kinds_of(cache, states_alone=True))
    trees = [[list(pair) for pair in pairs_of(one) or ()] for one in parts_of(cache)]
    return (trees if is_of_two(cache) else trees[0]), context


def _flatten_with_keys(cache: KeyValueCache) -> tuple[list[tuple[Any, Any]], _Context]:
    children, context = _flatten(cache)
    return [(pytree.SequenceKey(index), child) for index, child in enumerate(children)], context


def _unflatten(children: Iterable[Any], context: _Context) -> object:
    """A cache of tensors; lists of anything else that has taken their places."""
    of_two, kinds = context
    own, cross = [*children] if of_two else ([*children], [])
    if all(isinstance(one, torch.Tensor) for pair in (*own, *cross) for one in pair):
        pairs = {index: (keys, values) for index, (keys, values) in enumerate(own)}
        pairs |= {~index: (keys, values) for index, (keys, values) in enumerate(cross)}
        return new_cache(pairs, of_two=of_two, kinds=kinds)
    return [own, cross] if of_two else own
