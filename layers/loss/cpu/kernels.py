"""The CPU backend: `cross_entropy.cpp` through ctypes, on the memory of the tensors themselves.

Where the C++ cannot be built, or for dtypes that it does not take, `reference` runs.
"""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path

import torch
from torch import Tensor

from . import reference
from .forms import LossForm
from .native import load, when_built

DISPATCH_KEYS = ("CPU",)

_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}

# The record of cross_entropy.cpp, field for field.
_LOSS = struct.Struct("=6Q 4q 3d")


@when_built
def _library() -> ctypes.CDLL | None:
    library = load(Path(__file__).with_name("cross_entropy.cpp"))
    if library is not None:
        library.cross_entropy.argtypes, library.cross_entropy.restype = (ctypes.c_char_p,), ctypes.c_int64
    return library


def forward(logits: Tensor, target: Tensor, form: LossForm) -> tuple[Tensor, Tensor]:
    """See `reference.forward`; the log-sum-exp of ignored rows is 0."""
    library = _library()
    if library is None or not _fits(logits):
        return reference.forward(logits, target, form)
    loss, lse = (torch.empty(logits.shape[0], dtype=torch.float32, device="cpu") for _ in range(2))
    _run(library, logits.contiguous(), target, form, loss=loss, lse=lse)
    return loss, lse


def backward(grad: Tensor, logits: Tensor, target: Tensor, lse: Tensor, form: LossForm) -> Tensor:
    """See `reference.backward`."""
    library = _library()
    if library is None or not _fits(logits):
        return reference.backward(grad, logits, target, form)
    logits = logits.contiguous()
    gradient = torch.empty_like(logits)
    grad = grad.to(torch.float32).contiguous()
    _run(library, logits, target, form, grad=grad, gradient=gradient, lse=lse)
    return gradient


def replace_by_gradient(logits: Tensor, target: Tensor, form: LossForm) -> Tensor:
    """See `reference.replace_by_gradient`; logits are contiguous."""
    library = _library()
    if library is None or not _fits(logits):
        return reference.replace_by_gradient(logits, target, form)
    loss = torch.empty(logits.shape[0], dtype=torch.float32, device="cpu")
    _run(library, logits, target, form, gradient=logits, loss=loss)
    return loss


def _fits(logits: Tensor) -> bool:
    return logits.dtype in _TYPES and logits.shape[1] > 0


def _run(
    library: ctypes.CDLL,
    logits: Tensor,
    target: Tensor,
    form: LossForm,
    *,
    grad: Tensor | None = None,
    gradient: Tensor | None = None,
    loss: Tensor | None = None,
    lse: Tensor | None = None,
) -> None:
    target = target.contiguous()
    rows, width = logits.shape
    wrong = library.cross_entropy(
        _LOSS.pack(
            logits.data_ptr(),
            target.data_ptr(),
            *(0 if tensor is None else tensor.data_ptr() for tensor in (grad, gradient, loss, lse)),
            rows,
            width,
            _TYPES[logits.dtype],
            *form,
        )
    )
    if wrong >= 0:
        raise IndexError(f"Target {int(target[wrong])} is out of bounds: expected [0, {width})")
