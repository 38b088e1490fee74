"""The block on the CPU: `convnext.cpp` through ctypes, on weights of the linear layers that were packed once."""

from __future__ import annotations

import ctypes
import math
import struct
import sys
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.compiler import is_compiling

from .activation_numbers import ACTIVATION_NUMBERS
from .copies import Copies
from .direct import is_unwatched
from .guard import finished, mark_strict
from .native import load, when_built
from .parts import Parts, fused_activation

if TYPE_CHECKING:
    from collections.abc import Sequence

_RECORD = struct.Struct("=13Q8qd")
_NO_ADDRESSES = (0,) * 13

_MOST_LANES = 16
"""Floats of a vector, at most."""

_PACKED: Copies[Tensor] = Copies()


@when_built
def _library() -> ctypes.CDLL | None:
    folders = [Path(folder) for folder in sys.modules[__package__ or ""].__path__]
    headers = next(folder for folder in folders if (folder / "gemm.h").exists())
    library = load(Path(__file__).with_name("convnext.cpp"), headers)
    if library is not None:
        number, address = ctypes.c_int64, ctypes.c_void_p
        library.convnext_packed_size.argtypes, library.convnext_packed_size.restype = (number, number), number
        library.convnext_pack.argtypes, library.convnext_pack.restype = (
            (address, number, number, address),
            None,
        )
        library.convnext_scratch.argtypes = (ctypes.c_char_p, ctypes.POINTER(number))
        library.convnext_scratch.restype = None
        library.convnext_block.argtypes, library.convnext_block.restype = (ctypes.c_char_p,), None
    return library


def block(features: Tensor, parts: Parts) -> Tensor | None:
    """The block's result, channels_last; None where its children are to be called one after the other."""
    if is_compiling() or not isinstance(features, Tensor) or features.dtype is not torch.float32:
        return None
    library = _library()
    if library is None:
        return None
    convolution, norm, first, _, second, scale, _ = parts
    activation = ACTIVATION_NUMBERS.get(fused_activation(parts) or "")
    if activation is None:
        return None
    held = [module._parameters for module in (convolution, norm, first, second)]
    filters, norms, firsts, seconds = [(one.get("weight"), one.get("bias")) for one in held]
    tensors = (*filters, *norms, *firsts, *seconds, scale)
    if not is_unwatched(("CPU",), features, *tensors) or not _fits(features, parts, tensors):
        return None
    # All but the weights of the linear layers are read as they lie.
    packed_first, packed_second = _packed(library, firsts[0]), _packed(library, seconds[0])  # type: ignore[arg-type]  # they fit
    images, channels, height, width = features.shape
    rows, columns = convolution.kernel_size
    sizes = (images, channels, height, width, rows, columns, first.out_features, activation)
    normed, hidden = (torch.empty(floats, dtype=torch.float32, device="cpu") for floats in _scratch(sizes))
    pixels = features.contiguous(memory_format=torch.channels_last)
    output = torch.empty_like(pixels)
    read = (pixels, *filters, *norms, packed_first, firsts[1], packed_second, seconds[1], scale)
    addresses = [0 if one is None else one.data_ptr() for one in (*read, normed, hidden, output)]
    library.convnext_block(_RECORD.pack(*addresses, *sizes, norm.eps))
    finished()
    return output


def _fits(features: Tensor, parts: Parts, tensors: Sequence[Tensor | None]) -> bool:
    """Whether the sizes are those of a block, and all of it lies as the C++ reads it."""
    convolution, norm, first, _, second, scale, _ = parts
    rows, columns = convolution.kernel_size
    channels = first.in_features
    filters, first_weight, second_weight = tensors[0], tensors[4], tensors[6]
    return (
        features.dim() == 4
        and features.shape[1] == channels
        and features.numel() > 0
        and filters is not None
        and first_weight is not None
        and second_weight is not None
        and filters.shape == (channels, 1, rows, columns)
        and convolution.groups == channels
        and convolution.padding_mode == "zeros"
        and convolution.padding == (rows // 2, columns // 2)
        and rows % 2 == columns % 2 == 1
        and convolution.stride == convolution.dilation == (1, 1)
        and norm.normalized_shape == (channels,)
        and second.in_features == first.out_features
        and first_weight.shape == second_weight.shape[::-1] == (first.out_features, channels)
        and (scale is None or scale.shape == (channels,))
        and all(one is None or (one.dtype is torch.float32 and one.is_contiguous()) for one in tensors)
        and all(one is None or one.numel() == channels for one in (*tensors[1:4], tensors[7]))
        and (tensors[5] is None or tensors[5].numel() == first.out_features)
    )


@lru_cache(maxsize=256)
def _scratch(sizes: tuple[int, ...]) -> tuple[int, int]:
    """Floats of memory that a block of these sizes needs for what is made in it."""
    library, floats = _library(), (ctypes.c_int64 * 2)()
    assert library is not None
    library.convnext_scratch(_RECORD.pack(*_NO_ADDRESSES, *sizes, 0.0), floats)
    return floats[0], floats[1]


def _packed(library: ctypes.CDLL, weight: Tensor) -> Tensor:
    """The packed copy of a linear layer's weight, which a guard compares with it."""

    def pack() -> Tensor:
        columns, depth = weight.shape
        packed = torch.empty(library.convnext_packed_size(depth, columns), dtype=torch.float32, device="cpu")
        library.convnext_pack(weight.data_ptr(), depth, columns, packed.data_ptr())
        return packed

    return _PACKED.get((weight,), (), pack)


def prepare(weight: Tensor) -> None:
    """Pack a weight now, if the C++ is there."""
    library = _library()
    if library is not None and weight.dtype is torch.float32 and weight.is_contiguous():
        _packed(library, weight)


def packed_nbytes(weight: Tensor) -> int:
    """Bytes of the packed copy of a weight."""
    return sum(one.nbytes for one in _PACKED.of(weight))


def most_nbytes(weight: Tensor) -> int:
    """Bytes of the packed copy that a weight has, or would have: its columns fill vectors."""
    columns, depth = weight.shape
    return math.ceil(columns / _MOST_LANES) * _MOST_LANES * depth * weight.element_size()


def forget(weight: Tensor) -> None:
    """Drop the packed copy of a weight."""
    _PACKED.forget(weight)


def refresh(weight: Tensor) -> None:
    """Drop the packed copy of a weight that has changed, all of it compared."""
    _PACKED.refresh(weight)


def strict(weight: Tensor, on: bool) -> None:
    """Compare all of a weight at every use of its copy, or no more."""
    mark_strict(weight, on)
    _PACKED.strict(weight, on)
