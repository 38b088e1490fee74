"""Key-value caches: objects among a call's arguments that hold tensors, and hold longer ones after it.

They are DynamicCaches of transformers whose layers have done nothing but grow: of each, keys and values (batch, heads,
length, size). One with a sliding window is such a cache as long as it holds every token that it was given: until then
the window is but a mask. It forgets when a call leaves more in it.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import torch

_MODULE = "transformers.cache_utils"
KIND = f"{_MODULE}:DynamicCache"
_PLAIN, _WINDOW = (_MODULE, "DynamicLayer"), (_MODULE, "DynamicSlidingWindowLayer")
"""Layers of caches, by `_kind`."""
_LENGTH_AXIS = 2
"""Of keys and values."""

Pair = tuple[torch.Tensor, torch.Tensor]
"""Keys and values of a layer."""


def is_cache(value: Any) -> bool:
    """Whether a value is such a cache, of whatever layers."""
    kind = type(value)
    return kind.__name__ == "DynamicCache" and kind.__module__ == _MODULE


def pairs_of(cache: Any) -> list[Pair] | None:
    """What each layer holds, but those that hold nothing yet; None of a cache that has done more than grow."""
    layers = getattr(cache, "layers", None)
    if layers is None or getattr(cache, "offloading", False):
        return None
    if any(_kind(one) != _PLAIN for one in set(map(type, layers))) and not all(
        is_plain(one) or _has_only_grown(one) for one in layers
    ):
        return None
    filled = [one for one in layers if one.keys is not None]
    if any(one is not other for one, other in zip(filled, layers, strict=False)):
        return None
    return [(one.keys, one.values) for one in filled]


def has_forgotten(cache: Any) -> bool:
    """Whether a cache was one that `pairs_of` takes, until it had more tokens than its windows hold."""
    layers = getattr(cache, "layers", None) or ()
    others = [one for one in layers if not is_plain(one) and not _has_only_grown(one)]
    return bool(others) and all(_has_window(one) and not getattr(one, "record_past", False) for one in others)


def is_plain(layer: Any) -> bool:
    """Whether a layer of a cache never does more than grow."""
    return _kind(type(layer)) == _PLAIN


def _kind(layer: type) -> tuple[str, str]:
    return layer.__module__, layer.__name__


def _has_window(layer: Any) -> bool:
    return _kind(type(layer)) == _WINDOW


def _has_only_grown(layer: Any) -> bool:
    """Of a layer with a window: whether it still holds all that it was given, and forgets as soon as it may."""
    if not _has_window(layer) or getattr(layer, "record_past", False):
        return False
    return layer.keys is None or layer.cumulative_length == layer.keys.shape[_LENGTH_AXIS]


def leave(cache: Any, pairs: Mapping[int, Pair]) -> None:
    """Have layers of a cache, by their numbers, hold these."""
    for place, (keys, values) in sorted(pairs.items()):
        while len(cache.layers) <= place:
            cache.layers.append(cache.layer_class_to_replicate())
        layer = cache.layers[place]
        if layer.keys is None:
            layer.lazy_initialization(keys, values)
        layer.keys, layer.values = keys, values
        if _has_window(layer):
            layer.cumulative_length = keys.shape[_LENGTH_AXIS]
            layer.keys, layer.values = (one[:, :, 1 - layer.sliding_window :] for one in (keys, values))


def new_cache(pairs: Mapping[int, Pair]) -> Any:
    """A cache that holds these. Raises ImportError without transformers."""
    cache = importlib.import_module(_MODULE).DynamicCache()
    leave(cache, pairs)
    return cache
