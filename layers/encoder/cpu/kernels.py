"""The layer on the CPU: `encoder.cpp` through ctypes, on weights that were packed once."""

from __future__ import annotations

import ctypes
import math
import struct
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from .activation_numbers import ACTIVATION_NUMBERS
from .copies import Copies
from .direct import is_unwatched
from .families import parts_of
from .guard import finished, mark_strict
from .native import load, when_built
from .parts import Parts, fused_activation, weight_and_bias
from .sdpa_of_transformers import OTHER_ARGUMENTS

_MASKS = {torch.bool: 1, torch.float32: 2}  # of attention_mask.h
_RECORD = struct.Struct("=20Q16q3d")
_NO_ADDRESSES = (0,) * 20
_NO_MASK = (0, 0, 0, 0, 0)

_FLOAT = 4
"""Bytes."""
_JOINED = 4
"""Weights of a layer whose queries, keys and values are one projection."""
_MOST_LANES = 16
"""Floats of a vector, at most."""


class Packed(NamedTuple):
    """The weights of a layer as the native code reads them, and their sizes."""

    projections: Tensor
    """Of queries, keys and values, side by side."""
    joined: Tensor
    first: Tensor
    second: Tensor
    width: int
    inner: int
    """Of all heads together."""
    wide: int
    """Between the two linear layers of the feed-forward block."""


_PACKED: Copies[Packed | None] = Copies()


@when_built
def _library() -> ctypes.CDLL | None:
    folders = [Path(folder) for folder in sys.modules[__package__ or ""].__path__]
    headers = next(folder for folder in folders if (folder / "gemm.h").exists())
    library = load(Path(__file__).with_name("encoder.cpp"), headers)
    if library is not None:
        number, address = ctypes.c_int64, ctypes.c_void_p
        library.encoder_packed_size.argtypes, library.encoder_packed_size.restype = (number, number), number
        library.encoder_pack.argtypes, library.encoder_pack.restype = (address, number, number, address), None
        library.encoder_scratch.argtypes, library.encoder_scratch.restype = (ctypes.c_char_p,), number
        library.encoder_layer.argtypes, library.encoder_layer.restype = (ctypes.c_char_p,), None
    return library


def encode(
    layer: nn.Module,
    hidden: Tensor,
    mask: Tensor | None,
    kwargs: dict[str, Any],
    *,
    norms_first: bool,
    batch_first: bool = True,
) -> Tensor | None:
    """The result of a layer of an encoder; None where its own forward is to run.

    hidden: (B, L, width); (L, B, width) where the batch is not first.
    kwargs: what else it was called with.
    """
    if (
        is_compiling()
        or layer.training
        or not isinstance(hidden, Tensor)
        or hidden.dtype is not torch.float32
    ):
        return None
    library = _library()
    if library is None:
        return None
    try:
        parts = parts_of(layer)
    except (AttributeError, KeyError, ValueError):  # it is not what it was
        return None
    activation = ACTIVATION_NUMBERS.get(fused_activation(layer, parts) or "")
    if activation is None or not _asks_for_no_more(kwargs):
        return None
    projections = parts.projections()
    held = [*projections, *map(weight_and_bias, parts.linears)]
    weights = [weight for weight, _ in held]
    biases = [bias for _, bias in held]
    norms = [*weight_and_bias(parts.norms[0]), *weight_and_bias(parts.norms[1])]
    if not is_unwatched(("CPU",), hidden, mask, *weights, *biases, *norms, *parts.scales):
        return None
    packed = _packed(library, weights)
    if packed is None or not _fits(hidden, parts, packed, biases, norms):
        return None
    _, _, _, _, width, inner, wide = packed
    batch, length = hidden.shape[:2] if batch_first else hidden.shape[1::-1]
    heads = inner // parts.head_width
    masked = _mask_of(mask, (batch, heads, length, length))
    if masked is None:
        return None
    causal = length > 1 and mask is None and _is_causal(parts.attention, kwargs)
    steps = (length, 1) if batch_first else (1, batch)
    sizes = (
        batch,
        length,
        *steps,
        width,
        heads,
        parts.head_width,
        wide,
        activation,
        norms_first,
        causal,
        *masked,
    )
    made = torch.empty(_scratch(sizes), dtype=torch.float32, device="cpu")
    hidden = hidden.contiguous()
    output = torch.empty_like(hidden)
    *projected, joined, first, second = (0 if bias is None else bias.data_ptr() for bias in biases)
    if len(projected) == 1:  # of all three, side by side
        start = projected[0]
        projected = [start and start + part * inner * _FLOAT for part in range(3)]
    attended, fed = (0 if scale is None else scale.data_ptr() for scale in parts.scales)
    addresses = (
        hidden.data_ptr(), *(0 if one is None else one.data_ptr() for one in norms),
        packed.projections.data_ptr(), *projected,
        packed.joined.data_ptr(), joined, attended,
        packed.first.data_ptr(), first, packed.second.data_ptr(), second, fed,
        0 if mask is None else mask.data_ptr(), made.data_ptr(), output.data_ptr(),
    )  # fmt: skip
    first_norm, second_norm = parts.norms
    library.encoder_layer(_RECORD.pack(*addresses, *sizes, first_norm.eps, second_norm.eps, parts.scale))
    finished()
    return output


def _asks_for_no_more(kwargs: dict[str, Any]) -> bool:
    """Whether a call computes nothing by arguments that only the layer's own forward knows."""
    for name in OTHER_ARGUMENTS:
        if name != "is_causal" and kwargs.get(name) is not None:
            return False
    return not kwargs.get("output_attentions")


def _is_causal(attention: Any, kwargs: dict[str, Any]) -> bool:
    """As transformers' function for "sdpa"; attention in Python is not."""
    asked = kwargs.get("is_causal")
    if asked is None:
        asked = getattr(attention, "is_causal", "config" in attention.__dict__)
    return bool(asked)


def _fits(
    hidden: Tensor,
    parts: Parts,
    packed: Packed,
    biases: Sequence[Tensor | None],
    norms: Sequence[Tensor | None],
) -> bool:
    """Whether all of a layer lies as the C++ reads it, and its sizes go with the input's."""
    width, inner, wide = packed[4:]
    if hidden.dim() != 3 or hidden.shape[2] != width or hidden.numel() == 0 or inner % parts.head_width:
        return False
    if any(norm.normalized_shape != (width,) for norm in parts.norms):
        return False
    projected = (3 * inner,) if len(biases) == _JOINED else (inner, inner, inner)
    sizes = (*projected, width, wide, width, width, width, width, width, width, width)
    for vector, size in zip((*biases, *norms, *parts.scales), sizes, strict=True):
        if vector is not None and not (
            vector.dtype is torch.float32 and vector.numel() == size and vector.is_contiguous()
        ):
            return False
    return True


def _mask_of(mask: Tensor | None, sizes: tuple[int, ...]) -> tuple[int, ...] | None:
    """The kind of a mask and its strides as one of these sizes; None for a mask that the C++ does not read."""
    if mask is None:
        return _NO_MASK
    kind = _MASKS.get(mask.dtype)
    if kind is None or mask.dim() != 4:
        return None
    strides = []
    for size, stride, wanted in zip(mask.shape, mask.stride(), sizes, strict=True):
        if size not in (1, wanted):
            return None
        strides.append(0 if size == 1 else stride)
    return kind, *strides


@lru_cache(maxsize=256)
def _scratch(sizes: tuple[int, ...]) -> int:
    """Floats of memory that a layer of these sizes needs for what is made in it."""
    library = _library()
    assert library is not None
    return int(library.encoder_scratch(_RECORD.pack(*_NO_ADDRESSES, *sizes, 0.0, 0.0, 0.0)))


def _packed(library: ctypes.CDLL, weights: Sequence[Tensor | None]) -> Packed | None:
    """The packed copies of a layer's weights, which a guard compares with them; None for weights of other sizes.

    weights: of queries, keys and values, or of all three side by side; of what is attended to; of the feed-forward
        block, two.
    """
    if any(weight is None for weight in weights):
        return None
    sources: tuple[Tensor, ...] = tuple(weights)  # type: ignore[arg-type]  # none is None

    def pack() -> Packed | None:
        *projected, joined, first, second = sources
        if not all(one.dtype is torch.float32 and one.dim() == 2 for one in sources):
            return None
        width = projected[0].shape[1]
        inner, wide = joined.shape[1], first.shape[0]
        side_by_side = 3 * inner if len(sources) == _JOINED else inner
        shapes = (*((side_by_side, width),) * len(projected), (width, inner), (wide, width), (width, wide))
        if any(one.shape != shape for one, shape in zip(sources, shapes, strict=True)):
            return None
        matrices = torch.cat(projected) if len(projected) > 1 else projected[0], joined, first, second
        copies = [_pack(library, matrix.contiguous()) for matrix in matrices]
        return Packed(copies[0], copies[1], copies[2], copies[3], width, inner, wide)

    return _PACKED.get(sources, (), pack)


def _pack(library: ctypes.CDLL, weight: Tensor) -> Tensor:
    columns, depth = weight.shape
    packed = torch.empty(library.encoder_packed_size(depth, columns), dtype=torch.float32, device="cpu")
    library.encoder_pack(weight.data_ptr(), depth, columns, packed.data_ptr())
    return packed


def prepare(weights: Sequence[Tensor]) -> None:
    """Pack a layer's weights now, if the C++ is there."""
    library = _library()
    if library is not None:
        _packed(library, weights)


def packed_nbytes(weights: Sequence[Tensor]) -> int:
    """Bytes of the packed copies of a layer's weights."""
    found = [one for one in _PACKED.of(weights[0]) if one is not None]
    return sum(copy.nbytes for packed in found for copy in packed[:4])


def most_nbytes(weights: Sequence[Tensor]) -> int:
    """Bytes of the packed copies that a layer's weights have, or would have: their columns fill vectors."""
    return sum(
        math.ceil(weight.shape[0] / _MOST_LANES) * _MOST_LANES * weight.shape[1] * weight.element_size()
        for weight in weights
    )


def forget(weights: Sequence[Tensor]) -> None:
    """Drop the packed copies of a layer's weights."""
    _PACKED.forget(weights[0])


def refresh(weights: Sequence[Tensor]) -> None:
    """Drop the packed copies of a layer's weights that have changed, all of them compared."""
    _PACKED.refresh(weights[0])


def strict(weights: Sequence[Tensor], on: bool) -> None:
    """Compare all of a layer's weights at every use of their copies, or no more."""
    for weight in weights:
        mark_strict(weight, on)
    _PACKED.strict(weights[0], on)
