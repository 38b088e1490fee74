"""The CPU backend: `rotary.cpp` through ctypes, on the memory of the tensors themselves.

Where the C++ cannot be built, or for dtypes and ranks that it does not take, `reference` runs.
"""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path

import torch
from torch import Tensor

from . import rotation_reference as reference
from .native import load, when_built
from .rotation_shapes import contiguous_rows, fits

DISPATCH_KEYS = ("CPU",)

SMALL_PART = 16384
"""Elements of the queries below which PyTorch is faster where a part of each head is rotated, and joined again."""

_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}

# The record of rotary.cpp, field for field: six tensors (address and three strides), nine numbers.
_ARGUMENTS = struct.Struct("=" + 6 * "Q3q" + "9q")


@when_built
def _library() -> ctypes.CDLL | None:
    library = load(Path(__file__).with_name("rotary.cpp"))
    if library is not None:
        library.rotary_rotate.argtypes, library.rotary_rotate.restype = (ctypes.c_char_p,), None
    return library


def rotate_pair(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, inverse: bool
) -> tuple[Tensor, Tensor]:
    """See `reference.rotate_pair`; returns q's and k's dtypes."""
    library = _library()
    if library is None or not fits(q, k, cos, sin):
        dtype = q.dtype
        q, k = reference.rotate_pair(q, k, cos, sin, interleaved, inverse)
        return q.to(dtype), k.to(dtype)
    batches, q_heads, positions, width = q.shape
    q, k, cos, sin = map(contiguous_rows, (q, k, cos, sin))
    q_out, k_out = torch.empty_like(q), torch.empty_like(k)
    library.rotary_rotate(
        _ARGUMENTS.pack(
            *_strided(q),
            *_strided(k),
            *_strided(q_out),
            *_strided(k_out),
            *_angles(cos),
            *_angles(sin),
            *(batches, q_heads, k.shape[1], positions, width),
            *(_TYPES[q.dtype], _TYPES[cos.dtype], interleaved, inverse),
        )
    )
    return q_out, k_out


def _strided(x: Tensor) -> tuple[int, int, int, int]:
    batch, head, position, _ = x.stride()
    return x.data_ptr(), batch, head, position


def _angles(x: Tensor) -> tuple[int, int, int, int]:
    batch, _, position, _ = x.stride()
    return x.data_ptr(), batch if x.shape[0] > 1 else 0, 0, position
