"""The C++ of `attention.cpp` through ctypes, on the memory of the tensors themselves.

It computes in float32: narrower tensors are widened before it and rounded after it. Where it cannot be
built, `reference` runs.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from pathlib import Path

import torch
from torch import Tensor

from . import reference
from .form import Form, broadcast, result_like, takes
from .native import load, when_built

# The record of attention.cpp, field for field: nine tensors (address and four strides), then numbers.
_ARGUMENTS = struct.Struct("=" + 9 * "Q4q" + "Q 10q 2d")
_ABSENT = (0, 0, 0, 0, 0)
_KINDS = {torch.bool: 1, torch.float32: 2}


@when_built
def _library() -> ctypes.CDLL | None:
    library = load(Path(__file__).with_name("attention.cpp"), _headers())
    if library is not None:
        for function in (library.attention_forward, library.attention_backward):
            function.argtypes, function.restype = (ctypes.c_char_p,), None
    return library


def _headers() -> Path:
    """The folder of this package that holds the runtime's headers: another one while it is loaded in place."""
    folders = [Path(folder) for folder in sys.modules[__package__ or ""].__path__]
    return next(folder for folder in folders if (folder / "attention.h").exists())


def forward(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, form: Form, save: bool
) -> tuple[Tensor, Tensor | None]:
    """See `reference.forward`."""
    library = _library()
    if library is None or not takes(query, key, value):
        return reference.forward(query, key, value, mask, form, save)
    dtype, mask = query.dtype, broadcast(mask, query, key)
    query, key, value = query.float(), key.float(), value.float()
    result = result_like(query, value)
    statistics = query.new_empty((2, *query.shape[:3])) if save else None
    library.attention_forward(_record(query, key, value, mask, result, (), statistics, form))
    return result.to(dtype), statistics


def backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    result: Tensor,
    statistics: Tensor,
    form: Form,
) -> tuple[Tensor, Tensor, Tensor]:
    """See `reference.backward`."""
    library = _library()
    if library is None or not takes(query, key, value):
        return reference.backward(grad, query, key, value, mask, result, statistics, form)
    dtype, mask, statistics = query.dtype, broadcast(mask, query, key), statistics.contiguous()
    grad, query, key, value, result = (x.float() for x in (grad, query, key, value, result))
    gradients = [torch.empty_like(x) for x in (query, key, value)]
    library.attention_backward(_record(query, key, value, mask, result, (grad, *gradients), statistics, form))
    dquery, dkey, dvalue = (gradient.to(dtype) for gradient in gradients)
    return dquery, dkey, dvalue


def _record(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    result: Tensor,
    gradients: tuple[Tensor, ...],
    statistics: Tensor | None,
    form: Form,
) -> bytes:
    batch, heads, lq, width = query.shape
    return _ARGUMENTS.pack(
        *_strided(query),
        *_strided(key),
        *_strided(value),
        *_strided(result),
        *(_ABSENT if mask is None else _strided(mask)),
        *(number for gradient in gradients for number in _strided(gradient)),
        *(() if gradients else 4 * _ABSENT),
        0 if statistics is None else statistics.data_ptr(),
        *(batch, heads, key.shape[1], lq, key.shape[2], width, value.shape[3]),
        *(form.causal, form.offset, 0 if mask is None else _KINDS[mask.dtype]),
        form.scale,
        form.softcap,
    )


def _strided(x: Tensor) -> tuple[int, ...]:
    return x.data_ptr(), *x.stride()
