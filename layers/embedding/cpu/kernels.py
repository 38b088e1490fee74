"""The CPU backend: `embedding.cpp` through ctypes; where it cannot be built, `reference` runs."""

from __future__ import annotations

import ctypes
import struct
import sys
from pathlib import Path

import torch
from torch import Tensor

from . import reference
from .native import load, when_built

DISPATCH_KEYS = ("CPU",)

_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}

# The record of embedding.cpp, field for field.
_ARGUMENTS = struct.Struct("=3Q 8q d")


@when_built
def _library() -> ctypes.CDLL | None:
    folders = [Path(folder) for folder in sys.modules[__package__ or ""].__path__]
    headers = next(folder for folder in folders if (folder / "parallel.h").exists())
    library = load(Path(__file__).with_name("embedding.cpp"), headers)
    if library is not None:
        for function in (library.embedding_forward, library.embedding_backward):
            function.argtypes, function.restype = (ctypes.c_char_p,), ctypes.c_int64
    return library


def forward(indices: Tensor, weight: Tensor, scale: Tensor | None) -> Tensor:
    """See `reference.forward`."""
    library = _library()
    if library is None or weight.dtype not in _TYPES or weight.stride(1) != 1:
        return reference.forward(indices, weight, scale)
    flat = indices.contiguous()
    rows = weight.new_empty((*indices.shape, weight.shape[1]))
    if library.embedding_forward(_record(rows, flat, weight, weight.stride(0), -1, scale)) >= 0:
        raise IndexError("index out of range in self")  # PyTorch's words
    return rows


def backward(grad: Tensor, indices: Tensor, rows: int, padding: int, scale: Tensor | None) -> Tensor:
    """See `reference.backward`."""
    library = _library()
    if library is None or grad.dtype not in _TYPES:
        return reference.backward(grad, indices, rows, padding, scale)
    grad, flat = grad.contiguous(), indices.contiguous()
    table = grad.new_empty((rows, grad.shape[-1]))
    if library.embedding_backward(_record(grad, flat, table, table.shape[1], padding, scale)) >= 0:
        raise IndexError("index out of range in self")
    return table


def _record(
    rows: Tensor, indices: Tensor, table: Tensor, stride: int, padding: int, scale: Tensor | None
) -> bytes:
    return _ARGUMENTS.pack(
        *(rows.data_ptr(), indices.data_ptr(), table.data_ptr()),
        *(indices.numel(), table.shape[1], table.shape[0], stride, _TYPES[table.dtype]),
        *(indices.dtype == torch.int64, padding, scale is not None),
        0.0 if scale is None else float(scale.to(table.dtype)),
    )
