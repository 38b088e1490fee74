"""Key-value caches: objects among a call's arguments that hold tensors, and hold longer ones after it.

They are DynamicCaches of transformers whose layers have done nothing but grow: of each, keys and values (batch, heads,
length, size). One with a sliding window is such a cache as long as it holds every token that it was given: until then
the window is but a mask. It forgets when a call leaves more in it.

An encoder-decoder model has a cache of two: of its own tokens, and of the encoder's, for cross attention, which holds
nothing or what all calls after the first one only read. Layers of the second are numbered ~0, ~1, … here.

A layer of a model with linear attention holds two states, of its convolution and of its recurrence, whose sizes stay:
they stand for keys and values here.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch

_MODULE = "transformers.cache_utils"
_NAME, _NAME_OF_TWO = "DynamicCache", "EncoderDecoderCache"
KIND, KIND_OF_TWO = f"{_MODULE}:{_NAME}", f"{_MODULE}:{_NAME_OF_TWO}"
_PLAIN, _WINDOW = (_MODULE, "DynamicLayer"), (_MODULE, "DynamicSlidingWindowLayer")
_STATE = (_MODULE, "LinearAttentionLayer")
"""Layers of caches, by `_kind`."""
_LENGTH_AXIS = 2
"""Of keys and values."""

KeyValueCache: TypeAlias = Any
"""A DynamicCache or an EncoderDecoderCache of transformers, which need not be here."""
CacheLayer: TypeAlias = Any
"""A layer of one."""
Pair = tuple[torch.Tensor, torch.Tensor]
"""Keys and values of a layer."""
STATE = "state"
Kind = int | str | None
"""Of a layer of a cache: None, it grows; how many tokens it holds at most; STATE."""


def is_cache(value: Any) -> bool:
    """Whether a value is such a cache, of whatever layers."""
    kind = type(value)
    return kind.__name__ in (_NAME, _NAME_OF_TWO) and kind.__module__ == _MODULE


def is_of_two(cache: KeyValueCache) -> bool:
    """Whether a cache is that of an encoder-decoder model."""
    return type(cache).__name__ == _NAME_OF_TWO


def parts_of(cache: KeyValueCache) -> tuple[KeyValueCache, ...]:
    """The caches that a cache of two is made of, its own tokens' first; of another, itself."""
    return (cache.self_attention_cache, cache.cross_attention_cache) if is_of_two(cache) else (cache,)


def pairs_of(cache: KeyValueCache) -> list[Pair] | None:
    """What each layer holds, but those that hold nothing yet; None of a cache that has done more than grow.

    Of a cache of two: what the layers of both hold.
    """
    if is_of_two(cache):
        own, cross = (pairs_of(part) if is_cache(part) else None for part in parts_of(cache))
        if own is None or cross is None or not _agrees(cache.is_updated, len(cross)):
            return None
        return own + cross
    layers = getattr(cache, "layers", None)
    if layers is None or getattr(cache, "offloading", False):
        return None
    if all(_kind(kind) == _PLAIN for kind in set(map(type, layers))):
        filled = [layer for layer in layers if layer.keys is not None]
        if any(layer_filled is not each for layer_filled, each in zip(filled, layers, strict=False)):
            return None
        return [(each_layer.keys, each_layer.values) for each_layer in filled]
    if not all(is_plain(layer) or _has_only_grown(layer) or _is_whole(layer) for layer in layers):
        return None
    layer_pairs = list(map(_held, layers))
    pairs = [pair for pair in layer_pairs if pair is not None]
    return pairs if all(pair is not None for pair in layer_pairs[: len(pairs)]) else None


def _held(layer: CacheLayer) -> Pair | None:
    if _has_state(layer):
        return (layer.conv_states[0], layer.recurrent_states[0]) if layer.has_previous_state[0] else None
    return None if layer.keys is None else (layer.keys, layer.values)


def _agrees(updated: Mapping[int, bool], filled: int) -> bool:
    """Whether the layers of cross attention that are said to hold the encoder's tokens are those that do."""
    return {layer for layer, is_filled in updated.items() if is_filled} == set(range(filled))


def numbered(cache: KeyValueCache) -> dict[int, Pair]:
    """`pairs_of` by the numbers of layers; nothing of a cache that it does not take."""
    if pairs_of(cache) is None:
        return {}
    own, *cross = (dict(enumerate(pairs_of(part) or ())) for part in parts_of(cache))
    return own | {~layer: pair for layer, pair in cross[0].items()} if cross else own


def has_forgotten(cache: KeyValueCache) -> bool:
    """Whether a cache was one that `pairs_of` takes, until it had more tokens than its windows hold."""
    if is_of_two(cache):
        return any(map(has_forgotten, parts_of(cache)))
    layers = getattr(cache, "layers", None) or ()
    others = [layer for layer in layers if not is_plain(layer) and not _has_only_grown(layer)]
    return bool(others) and all(
        _has_window(each_layer) and not getattr(each_layer, "record_past", False) for each_layer in others
    )


def is_plain(layer: CacheLayer) -> bool:
    """Whether a layer of a cache never does more than grow."""
    return _kind(type(layer)) == _PLAIN


def _kind(layer: type) -> tuple[str, str]:
    return layer.__module__, layer.__name__


def _has_window(layer: CacheLayer) -> bool:
    return _kind(type(layer)) == _WINDOW


def _has_only_grown(layer: CacheLayer) -> bool:
    """Of a layer with a window: whether it still holds all that it was given, and forgets as soon as it may."""
    if not _has_window(layer) or getattr(layer, "record_past", False):
        return False
    return layer.keys is None or layer.cumulative_length == layer.keys.shape[_LENGTH_AXIS]


def leave(cache: KeyValueCache, pairs: Mapping[int, Pair]) -> None:
    """Have layers of a cache, by their numbers, hold these."""
    if is_of_two(cache):
        own, cross = parts_of(cache)
        leave(own, {position: pair for position, pair in pairs.items() if position >= 0})
        leave(cross, {~position: pair for position, pair in pairs.items() if position < 0})
        cache.is_updated.update((~pair, True) for pair in pairs if pair < 0)
        return
    for position, (keys, values) in sorted(pairs.items()):
        while len(cache.layers) <= position:
            cache.layers.append(cache.layer_class_to_replicate())
        layer = cache.layers[position]
        if _has_state(layer):
            _leave_states(layer, keys, values)
            continue
        if layer.keys is None:
            layer.lazy_initialization(keys, values)
        layer.keys, layer.values = keys, values
        if _has_window(layer):
            layer.cumulative_length = keys.shape[_LENGTH_AXIS]
            layer.keys, layer.values = (tensor[:, :, 1 - layer.sliding_window :] for tensor in (keys, values))


def _leave_states(layer: CacheLayer, convolution: torch.Tensor, recurrence: torch.Tensor) -> None:
    layer.dtype, layer.device = convolution.dtype, convolution.device
    layer.conv_kernel_size[0] = convolution.shape[-1]
    layer.conv_states[0], layer.recurrent_states[0] = convolution, recurrence
    for flags in (
        layer.is_conv_states_initialized,
        layer.is_recurrent_states_initialized,
        layer.has_previous_state,
    ):
        flags[0] = True


def _has_state(layer: CacheLayer) -> bool:
    return _kind(type(layer)) == _STATE


def _is_whole(layer: CacheLayer) -> bool:
    """Of a layer with states: whether it has one of each, or nothing yet."""
    if not _has_state(layer) or layer.number_of_states != 1 or layer.record_past:
        return False
    filled = layer.has_previous_state[0]
    return bool(layer.is_conv_states_initialized[0] == layer.is_recurrent_states_initialized[0] == filled)


def kinds_of(cache: KeyValueCache, *, states_alone: bool = False) -> tuple[Kind, ...]:
    """The kind of each layer; () where all do nothing but grow. states_alone: windows do not count."""
    kinds: list[Kind] = []
    for layer in parts_of(cache)[0].layers:
        window = None if states_alone or not _has_window(layer) else layer.sliding_window
        kinds.append(STATE if _has_state(layer) else window)
    return tuple(kinds) if any(kinds) else ()


def own_states(cache: KeyValueCache) -> None:
    """Give the layers that have states copies of them."""
    for layer in filter(_has_state, parts_of(cache)[0].layers):
        for states in (layer.conv_states, layer.recurrent_states):
            states.update(
                {position: state.clone() for position, state in states.items() if state is not None}
            )


def window_class() -> type | None:
    """The class of layers that forget; None without transformers."""
    window: type | None = getattr(sys.modules.get(_MODULE), _WINDOW[1], None)
    return window


def new_cache(
    pairs: Mapping[int, Pair], *, of_two: bool = False, kinds: Sequence[Kind] = ()
) -> KeyValueCache:
    """A cache that holds these. kinds: as `kinds_of` gives them. Raises ImportError without transformers."""
    module = importlib.import_module(_MODULE)
    cache = module.DynamicCache()
    if kinds:
        layer_classes = {None: module.DynamicLayer, STATE: getattr(module, _STATE[1], None)}
        cache.layers = [
            layer_classes[kind]() if kind in layer_classes else module.DynamicSlidingWindowLayer(kind)
            for kind in kinds
        ]
        cache.layer_class_to_replicate = None
    if of_two:
        cache = module.EncoderDecoderCache(cache, module.DynamicCache())
    leave(cache, pairs)
    return cache
