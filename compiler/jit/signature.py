"""The signature of a call, made in microseconds: calls of one signature may run on one program.

Of a tensor: its dtype and which of its sizes are 1, as these are fixed in the program; of an image, all sizes but the
batch's, as convolutions of a known size are planned better, and make sizes that are no simple terms of it. Of a
key-value cache: how many of its layers hold something. Of everything else: literals, and classes. Sizes, where none may
change.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import nn

from kernels_hub.compiler.runtime.caches import (
    KeyValueCache,
    begun_layers,
    has_forgotten,
    held_by,
    is_cache,
    kinds_of,
    lengths_of,
    parts_of,
)
from kernels_hub.kernelization.compiled_layer import Arguments, Keywords

LEAST = 2
"""torch.export takes 0 and 1 for special: an example has at least this size in a dim that may change."""

_LITERALS = (bool, int, float, str)
_WITH_IMAGES = "images"
"""In the place of `CompiledLayer.dynamic`: True, of a module that takes images."""


class _Untaken(Exception):
    """A call that is not to be compiled, and decides nothing."""


_CONVOLUTIONS = (nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_TAKES_IMAGES: weakref.WeakKeyDictionary[nn.Module, bool] = weakref.WeakKeyDictionary()
_IMAGE_RANK = 4
_COLOURS = 3


def takes_images(module: nn.Module) -> bool:
    """Whether a module has convolutions over a plane or a space."""
    found = _TAKES_IMAGES.get(module)
    if found is None:
        found = _TAKES_IMAGES[module] = any(isinstance(one, _CONVOLUTIONS) for one in module.modules())
    return found


def is_image(tensor: torch.Tensor, images: bool) -> bool:
    """Whether a tensor is an image, or a video: of a module that takes images, or of three channels.

    A module without convolutions cuts images into patches, whose number is no simple term of an image's sizes either.
    """
    is_one = tensor.dim() >= _IMAGE_RANK and tensor.is_floating_point()
    return is_one and (images or tensor.shape[1] == _COLOURS)


def call_signature(dims: Any, args: Arguments, kwargs: Keywords, *, images: bool = False) -> Hashable | None:
    """The signature; None of a call with nested tensors, or a cache that holds one token, or less than it was given.

    dims: `CompiledLayer.dynamic`. images: whether tensors of rank 4 are images.
    """
    dims = _WITH_IMAGES if dims is True and images else dims
    try:
        found = [_of(argument, dims) for argument in args]
        for name in sorted(kwargs) if len(kwargs) > 1 else kwargs:
            value = kwargs[name]
            if value is not None:
                found.append((name, _of(value, dims)))
    except _Untaken:
        return None
    return tuple(found)


def call_form(dims: object, args: Arguments, kwargs: Keywords) -> Hashable | None:
    """What of a call's signature a quick look tells, at a third of its cost; None of a call with nested tensors.

    Of tensors how many of their sizes are 1, not which; of caches which layers hold something; of outputs of other
    models their class. Calls of one form may differ in the rest.
    """
    try:
        return (
            *kwargs,
            *[None if value is None else _form_of(value, dims) for value in (*args, *kwargs.values())],
        )
    except RuntimeError:
        return None


def _form_of(value: object, dims: object) -> Hashable:
    kind = type(value)
    if isinstance(value, _LITERALS) and kind in _LITERALS:
        return (kind, value)
    if isinstance(value, torch.Tensor):
        shape = value.shape  # a nested tensor has none
        if dims is False:
            return (value.dtype, tuple(shape))
        if len(shape) >= _IMAGE_RANK and value.is_floating_point():
            return (value.dtype, shape[0] == 1, tuple(shape[1:]))
        return (value.dtype, len(shape), shape.count(1))
    if type(value) is tuple or type(value) is list:
        return (kind, *[_form_of(one, dims) for one in value])
    if type(value) is dict:
        return (kind, *[(str(name), _form_of(one, dims)) for name, one in value.items()])
    return (kind, begun_layers(value)) if is_cache(value) else (kind,)


def _of(value: Any, dims: Any) -> Hashable:
    if value is None:
        return None
    kind = type(value)
    if isinstance(value, torch.Tensor):
        return _of_tensor(value, dims)
    if kind in _LITERALS:  # 1, 1.0 and True are equal, as 0.0 and -0.0 are
        return value if kind is int or kind is str else (kind, repr(value))
    if kind is tuple or kind is list:
        return (kind, *[_of(one, dims) for one in value])
    if kind is dict:
        return (kind, *[(str(name), _of(one, dims)) for name, one in value.items()])
    if is_cache(value):
        return _of_cache(value)
    if is_dataclass(value):  # the output of another model
        return (kind, *[(field.name, _of(getattr(value, field.name, None), dims)) for field in fields(value)])
    return (kind,)


def _of_cache(cache: KeyValueCache) -> Hashable:
    held = held_by(cache)
    if held is None:
        if has_forgotten(cache):
            raise _Untaken
        return (type(cache), None)
    if min(lengths_of(cache), default=LEAST) < LEAST:
        raise _Untaken
    parts = parts_of(cache)
    counts = [len(held)] if len(parts) == 1 else [len(held_by(part) or ()) for part in parts]
    states = kinds_of(cache, states_alone=True)
    if states or () in held:
        missing = [tuple([tensor is None for tensor in layer]) for layer in held]
        return (type(cache), states, *counts, tuple(missing))
    return (type(cache), states, *counts)


def _of_tensor(value: torch.Tensor, dims: Any) -> Hashable:
    if value.is_nested:  # has no shape
        raise _Untaken
    shape = value.shape
    if dims is False:
        return (value.dtype, tuple(shape))
    if (dims is True or dims is _WITH_IMAGES) and is_image(value, dims is _WITH_IMAGES):
        return (value.dtype, shape[0] == 1, tuple(shape[1:]))
    if dims not in (True, _WITH_IMAGES) or 1 not in shape:
        return (value.dtype, len(shape))
    return (value.dtype, len(shape), sum([1 << axis for axis, size in enumerate(shape) if size == 1]))
