"""Which tensors the operators on packed weights take, and in what form."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import Parameter

from .direct import is_strided, is_transformed
from .few_or_many import pays
from .packing import held

PackedWeight = held.PackedWeight
is_tracing = torch._C._is_tracing


def applies(x: Tensor, weights: tuple[Tensor, ...], biases: tuple[Tensor | None, ...]) -> bool:
    """Whether the operators are for these operands.

    Not for tensor subclasses (DTensor, quantised weights), symbolic values and tensors without strides
    (nested ones), which only PyTorch's own functions know, nor for other devices, under autocast, or for
    products so small that PyTorch is faster.
    """
    if x.is_nested:  # has no shape
        return False
    first = weights[0]
    compiling = torch.compiler.is_compiling()
    # What is too small for a kernel is too small for many questions: this one is asked first. In a trace of torch.jit
    # sizes are tensors, and comparing them warns.
    if not compiling and type(first) is not PackedWeight and (is_tracing() or not pays(x, first)):
        return False
    if (
        not (_is_plain(x) and is_strided(x))
        or x.dim() == 0
        or x.device.type != "cpu"
        or torch.is_autocast_enabled("cpu")
    ):
        return False
    if is_transformed():
        return False
    is_packed = False
    for weight in weights:
        if type(weight) is PackedWeight:
            is_packed = True
        elif not _is_plain(weight) or weight.dim() != 2:
            return False
    for bias in biases:
        if bias is not None and not _is_plain(bias):
            return False
    return is_packed or compiling or pays(x, first)


def operand(weight: Tensor) -> Tensor:
    """What stands for a weight in an operator: itself, or the ticket of a PackedWeight."""
    ticket: Tensor = weight.ticket if type(weight) is PackedWeight else weight  # type: ignore[attr-defined]
    return ticket


def dense(weight: Tensor) -> Tensor:
    """The weight for PyTorch's own functions; a PackedWeight is unpacked for one call and its backward."""
    return weight.clone() if type(weight) is PackedWeight else weight


def _is_plain(tensor: Tensor) -> bool:
    return type(tensor) is Parameter or type(tensor) is Tensor
