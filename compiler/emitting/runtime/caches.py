"""Key-value caches: objects among a call's arguments that hold tensors, and hold longer ones after it.

They are DynamicCaches of transformers whose layers do nothing but grow: of each, keys and values (batch, heads, length,
size).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import torch

_MODULE = "transformers.cache_utils"
KIND = f"{_MODULE}:DynamicCache"

Pair = tuple[torch.Tensor, torch.Tensor]
"""Keys and values of a layer."""


def is_cache(value: Any) -> bool:
    """Whether a value is such a cache, of whatever layers."""
    kind = type(value)
    return kind.__name__ == "DynamicCache" and kind.__module__ == _MODULE


def pairs_of(cache: Any) -> list[Pair] | None:
    """What each layer holds, but those that hold nothing yet; None of a cache that does more than grow."""
    layers = getattr(cache, "layers", None)
    if layers is None or getattr(cache, "offloading", False):
        return None
    kinds = {(type(one).__module__, type(one).__name__) for one in layers}
    if not kinds <= {(_MODULE, "DynamicLayer")}:
        return None
    filled = [one for one in layers if one.keys is not None]
    if any(one is not other for one, other in zip(filled, layers, strict=False)):
        return None
    return [(one.keys, one.values) for one in filled]


def leave(cache: Any, pairs: Mapping[int, Pair]) -> None:
    """Have layers of a cache, by their numbers, hold these."""
    for place, (keys, values) in sorted(pairs.items()):
        while len(cache.layers) <= place:
            cache.layers.append(cache.layer_class_to_replicate())
        layer = cache.layers[place]
        if layer.keys is None:
            layer.lazy_initialization(keys, values)
        layer.keys, layer.values = keys, values


def new_cache(pairs: Mapping[int, Pair]) -> Any:
    """A cache that holds these. Raises ImportError without transformers."""
    cache = importlib.import_module(_MODULE).DynamicCache()
    leave(cache, pairs)
    return cache
