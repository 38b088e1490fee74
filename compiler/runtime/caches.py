"""Key-value caches: objects among a call's arguments that hold tensors, and hold longer ones after it.

They are DynamicCaches of transformers whose layers have done nothing but grow: of each, keys and values (batch, heads,
length, size). One with a sliding window is such a cache as long as it holds every token that it was given: until then
the window is but a mask. It forgets when a call leaves more in it.

An encoder-decoder model has a cache of two: of its own tokens, and of the encoder's, for cross attention, which holds
nothing or what all calls after the first one only read. Layers of the second are numbered ~0, ~1, … here.

A layer of a model with linear attention holds states of convolutions and of recurrences, whose sizes stay; one that has
attention, too, holds keys and values before them. A layer without attention, or that reads another's, holds nothing.
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
_STATES = ((_MODULE, "LinearAttentionLayer"), (_MODULE, "LinearAttentionAndFullAttentionLayer"))
_NOTHING = (_MODULE, "DummyLayer")
_GROWING = {_PLAIN, _WINDOW}
"""Layers of caches, by `_kind`."""
_LENGTH_AXIS = 2
"""Of keys and values."""

KeyValueCache: TypeAlias = Any
"""A DynamicCache or an EncoderDecoderCache of transformers, which need not be here."""
CacheLayer: TypeAlias = Any
"""A layer of one."""
Held = tuple[torch.Tensor | None, ...]
"""What a layer holds: keys and values, where it is one of attention; then states of its convolutions, and of its
recurrences; each None where there is none yet. (): nothing."""
Kind = int | tuple[str, int] | None
"""Of a layer of a cache: None, it grows; how many tokens it holds at most; the class of one that has states, or never
holds anything, and how many convolutions it has."""


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


def held_by(cache: KeyValueCache) -> list[Held] | None:
    """What each layer holds, up to the last one that holds something; None of a cache that has done more than grow.

    Of a cache of two: what the layers of both hold.
    """
    if is_of_two(cache):
        own, cross = (held_by(part) if is_cache(part) else None for part in parts_of(cache))
        if own is None or cross is None or not _agrees(cache.is_updated, cross):
            return None
        return own + cross
    layers = getattr(cache, "layers", None)
    if layers is None or getattr(cache, "offloading", False):
        return None
    held: list[Held]
    if all(_kind(kind) == _PLAIN for kind in set(map(type, layers))):
        held = [() if layer.keys is None else (layer.keys, layer.values) for layer in layers]
    elif all(is_plain(layer) or _has_only_grown(layer) or _is_whole(layer) for layer in layers):
        held = list(map(_held, layers))
    else:
        return None
    while held and not held[-1]:
        held.pop()
    return held


def _held(layer: CacheLayer) -> Held:
    if not _has_state(layer):
        return () if layer.keys is None else (layer.keys, layer.values)
    states = (*layer.conv_states.values(), *layer.recurrent_states.values())
    found = (layer.keys, layer.values, *states) if _has_attention(layer) else states
    return () if all(tensor is None for tensor in found) else found


def _agrees(updated: Mapping[int, bool], cross: Sequence[Held]) -> bool:
    """Whether the layers of cross attention that are said to hold the encoder's tokens are those that do."""
    filled = {layer for layer, held in enumerate(cross) if held}
    return {layer for layer, is_filled in updated.items() if is_filled} == filled


def numbered(cache: KeyValueCache) -> dict[int, Held]:
    """`held_by` by the numbers of layers that hold something; nothing of a cache that it does not take."""
    if held_by(cache) is None:
        return {}
    own, *cross = (
        {layer: held for layer, held in enumerate(held_by(part) or ()) if held} for part in parts_of(cache)
    )
    return own | {~layer: held for layer, held in cross[0].items()} if cross else own


def attention_of(cache: KeyValueCache) -> list[bool]:
    """Of each layer: whether it holds keys and values, or will."""
    return list(map(_has_attention, cache.layers))


def lengths_of(cache: KeyValueCache) -> list[int]:
    """Of each layer that holds keys: how many."""
    layers = [layer for part in parts_of(cache) for layer in part.layers if _has_attention(layer)]
    return [layer.keys.size(_LENGTH_AXIS) for layer in layers if layer.keys is not None]


def begun_layers(cache: KeyValueCache) -> tuple[bool, ...]:
    """Of each layer of a cache, of whatever layers: whether it holds anything yet."""
    return tuple([_is_begun(layer) for part in parts_of(cache) for layer in getattr(part, "layers", ())])


def _is_begun(layer: CacheLayer) -> bool:
    if getattr(layer, "keys", None) is not None:
        return True
    return _has_state(layer) and any(layer.is_conv_states_initialized.values())


def has_forgotten(cache: KeyValueCache) -> bool:
    """Whether a cache was one that `held_by` takes, until it had more tokens than its windows hold."""
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
    return layer.keys is None or layer.cumulative_length == layer.keys.size(_LENGTH_AXIS)


def leave(cache: KeyValueCache, held: Mapping[int, Held]) -> None:
    """Have layers of a cache, by their numbers, hold these."""
    if is_of_two(cache):
        own, cross = parts_of(cache)
        leave(own, {position: tensors for position, tensors in held.items() if position >= 0})
        leave(cross, {~position: tensors for position, tensors in held.items() if position < 0})
        cache.is_updated.update((~position, True) for position in held if position < 0)
        return
    for position, tensors in sorted(held.items()):
        while len(cache.layers) <= position:
            cache.layers.append(cache.layer_class_to_replicate())
        layer = cache.layers[position]
        keys, values = tensors[:2] if _has_attention(layer) else (None, None)
        if _has_state(layer):
            _leave_states(layer, tensors[2:] if _has_attention(layer) else tensors)
        if keys is None or values is None:
            continue
        if layer.keys is None:
            layer.lazy_initialization(keys, values)
        layer.keys, layer.values = keys, values
        if _has_window(layer):
            layer.cumulative_length = keys.shape[_LENGTH_AXIS]
            layer.keys, layer.values = (tensor[:, :, 1 - layer.sliding_window :] for tensor in (keys, values))


def _leave_states(layer: CacheLayer, states: Held) -> None:
    for number, state in enumerate(states[: layer.number_of_states]):
        if state is not None:
            layer.dtype, layer.device = state.dtype, state.device
            layer.conv_kernel_size[number] = state.shape[-1]
            layer.conv_states[number] = state
            layer.is_conv_states_initialized[number] = layer.has_previous_state[number] = True
    for number, state in enumerate(states[layer.number_of_states :]):
        if state is not None:
            layer.recurrent_states[number] = state
            layer.is_recurrent_states_initialized[number] = True


def _has_state(layer: CacheLayer) -> bool:
    return _kind(type(layer)) in _STATES


def _has_attention(layer: CacheLayer) -> bool:
    """Whether a layer holds keys and values, or will."""
    return _kind(type(layer)) not in (_STATES[0], _NOTHING)


def _is_whole(layer: CacheLayer) -> bool:
    """Of a layer with states: whether all that a call reads of it is what `leave` leaves. True of one without any."""
    if not _has_state(layer):
        return _kind(type(layer)) == _NOTHING
    numbers = list(range(layer.number_of_states))
    convolutions, recurrences = layer.conv_states, layer.recurrent_states
    if layer.record_past or list(convolutions) != numbers or list(recurrences) != numbers:
        return False
    if any(
        (recurrences[number] is not None) != layer.is_recurrent_states_initialized[number]
        for number in numbers
    ):
        return False
    return all(
        (state is not None) == layer.is_conv_states_initialized[number] == layer.has_previous_state[number]
        and (state is None or state.shape[-1] == layer.conv_kernel_size[number])
        for number, state in convolutions.items()
    )


def kinds_of(cache: KeyValueCache, *, states_alone: bool = False) -> tuple[Kind, ...]:
    """The kind of each layer; () where all do nothing but grow. states_alone: windows do not count."""
    kinds: list[Kind] = []
    layers = parts_of(cache)[0].layers
    if {_kind(kind) for kind in set(map(type, layers))} <= (_GROWING if states_alone else {_PLAIN}):
        return ()
    for layer in layers:
        if _has_state(layer) or _kind(type(layer)) == _NOTHING:
            kinds.append((type(layer).__name__, getattr(layer, "number_of_states", 0)))
        else:
            kinds.append(None if states_alone or not _has_window(layer) else layer.sliding_window)
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


def new_cache(held: Mapping[int, Held], *, of_two: bool = False, kinds: Sequence[Kind] = ()) -> KeyValueCache:
    """A cache that holds these. kinds: as `kinds_of` gives them. Raises ImportError without transformers."""
    module = importlib.import_module(_MODULE)
    cache = module.DynamicCache()
    if kinds:
        cache.layers = [_new_layer(module, kind) for kind in kinds]
        cache.layer_class_to_replicate = None
    if of_two:
        cache = module.EncoderDecoderCache(cache, module.DynamicCache())
    leave(cache, held)
    return cache


def _new_layer(module: Any, kind: Kind) -> CacheLayer:
    if kind is None:
        return module.DynamicLayer()
    if isinstance(kind, int):
        return module.DynamicSlidingWindowLayer(kind)
    return getattr(module, kind[0])(number_of_states=kind[1])
