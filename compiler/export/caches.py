"""Key-value caches while a call is traced and checked: trees of tensors, so that all that takes trees takes them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch.utils import _pytree as pytree

from kernels_hub.compiler.errors import ImportFailure
from kernels_hub.compiler.runtime.caches import (
    KIND,
    KIND_OF_TWO,
    Held,
    KeyValueCache,
    Kind,
    attention_of,
    held_by,
    is_cache,
    is_of_two,
    kinds_of,
    new_cache,
    own_states,
    parts_of,
)

LENGTH_AXIS = 2
"""Of keys and values."""
_T = TypeVar("_T")


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
    """While it is open, a cache is a tree for torch's pytree: [[keys, values], ...] of its layers, states behind them.
    A cache of two is a list of two such trees.

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
    for part, name in zip(parts_of(cache), ("cache_length", "cross_length"), strict=False):
        hint = torch.export.Dim.AUTO()
        hint.__name__ = name
        found.append(
            [
                [
                    free(one, hint) if is_long and place < 2 else _batch_of(free(one, hint))
                    for place, one in enumerate(held)
                    if one is not None
                ]
                for held, is_long in zip(held_by(part) or (), attention_of(part), strict=False)
            ]
        )
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


Gaps = tuple[bool, ...]
"""Of what a layer of a cache holds: whether there is a tensor in each place."""
Context = tuple[bool, tuple[Kind, ...], tuple[tuple[Gaps, ...], ...]]
"""Of a cache as a tree: whether it is one of two, the kinds of its layers, and the gaps of each layer of its parts."""


def gaps_of(held: Held) -> Gaps:
    """Where a layer holds tensors."""
    return tuple(one is not None for one in held)


def tensors_of(held: Held) -> list[torch.Tensor]:
    """The tensors that a layer holds."""
    return [one for one in held if one is not None]


def spread(tensors: Iterable[_T], gaps: Gaps) -> tuple[_T | None, ...]:
    """These in the places of tensors, and None in the gaps."""
    rest = iter(tensors)
    return tuple(next(rest) if is_tensor else None for is_tensor in gaps)


def context_of(cache: KeyValueCache, *, states_alone: bool = True) -> Context:
    """What the tree of a cache does not tell. states_alone: as `kinds_of`."""
    gaps = tuple(tuple(map(gaps_of, held_by(part) or ())) for part in parts_of(cache))
    return is_of_two(cache), kinds_of(cache, states_alone=states_alone), gaps


def _flatten(cache: KeyValueCache) -> tuple[list[Any], Context]:
    if held_by(cache) is None:
        layers = [layer for one in parts_of(cache) for layer in getattr(one, "layers", ())]
        kinds = ", ".join(sorted({type(layer).__name__ for layer in layers}))
        raise ImportFailure(
            f"a cache of {kinds} is among the arguments; only one whose layers have just grown, or hold states of "
            "linear attention, is taken"
        )
    trees = [list(map(tensors_of, held_by(one) or ())) for one in parts_of(cache)]
    return (trees if is_of_two(cache) else trees[0]), context_of(cache)


def _flatten_with_keys(cache: KeyValueCache) -> tuple[list[tuple[Any, Any]], Context]:
    children, context = _flatten(cache)
    return [(pytree.SequenceKey(index), child) for index, child in enumerate(children)], context


def _unflatten(children: Iterable[Any], context: Context) -> object:
    """A cache of tensors; lists of anything else that has taken their places."""
    of_two, kinds, gaps = context
    own, cross = [*children] if of_two else ([*children], [])
    if all(isinstance(one, torch.Tensor) for tensors in (*own, *cross) for one in tensors):
        held = {layer: spread(tensors, gaps[0][layer]) for layer, tensors in enumerate(own) if tensors}
        held |= {~layer: spread(tensors, gaps[1][layer]) for layer, tensors in enumerate(cross) if tensors}
        return new_cache(held, of_two=of_two, kinds=kinds)
    return [own, cross] if of_two else own
