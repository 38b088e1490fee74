"""What `kernelize` asks of a kernel that keeps packed weights; see kernels_hub/kernelization/bind.py.

A module is a `torch.nn.Linear`, a `Conv1D` of transformers, or a block whose Linear children its kernel
computes. Each function does nothing for modules and weights that are not packed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from torch import Tensor, nn

from .blocks import is_conv1d, is_plain_linear
from .guard import mark_strict
from .many_rows import serves
from .packing import cache, held

# Smaller weights are packed at the first call with so many rows that it pays, if there is one.
_LEAST_NUMEL = 65_536


def prepare(module: nn.Module) -> None:
    """Pack a module's weights now, so that the first call does not take longer."""
    for linear in _linears(module):
        if type(linear.weight) is nn.Parameter and linear.weight.numel() >= _LEAST_NUMEL:
            cache.packed_copy(linear.weight, is_conv1d(linear))


def packed_nbytes(module: nn.Module) -> int:
    """Bytes held for a module's packed weights beyond its own weights'.

    Of freed originals that is the padding only. A weight that several modules share is counted for
    each of them, though it is packed once.
    """
    total = 0
    for linear in _linears(module):
        weight = linear.weight
        if isinstance(weight, held.PackedWeight):
            total += weight.holder.extra_nbytes if weight.holder is not None else 0
        elif (entry := cache.entry_of(weight)) is not None:
            total += entry.nbytes
    return total


def free_originals(module: nn.Module) -> None:
    """Let go of a module's dense weights where packed ones have the same bits.

    `module.weight` becomes a PackedWeight: same shape and dtype, requires no gradient, and any
    operation on it (state_dict, copy_, deepcopy, saving) gives right numbers, unpacking as needed.
    A parameter that several modules share becomes one PackedWeight that they share; its memory is
    free once the last of them has let go. A Conv1D keeps its weight: what stands for it is packed transposed.
    """
    for linear in _linears(module):
        weight = linear.weight
        if is_conv1d(linear):
            continue
        if isinstance(weight, held.PackedWeight) and weight.holder is not None:
            weight.holder.settle()
        elif type(weight) is nn.Parameter and (packed := held.free(weight)) is not None:
            linear._parameters["weight"] = packed


def restore_originals(module: nn.Module) -> None:
    """Put dense parameters back, the very bits, with the `requires_grad` that they had."""
    for linear in _linears(module):
        weight = linear.weight
        if isinstance(weight, held.PackedWeight) and weight.holder is not None:
            linear._parameters["weight"] = weight.holder.restored()


def release(module: nn.Module) -> None:
    """Drop the packed copies of a module's weights, for a model that goes back to its original forwards."""
    restore_originals(module)
    keep_copies(module, True)
    for linear in _linears(module):
        cache.forget(linear.weight)


def works_without_copies(module: nn.Module) -> bool:
    """Whether a module's kernel is faster than PyTorch on weights as they are, too."""
    linears = [*_linears(module)]
    return bool(linears) and all(serves(cast("Tensor", linear.weight)) for linear in linears)


def keep_copies(module: nn.Module, on: bool) -> None:
    """Have a module's calls make copies of its weights where those pay, or none."""
    for linear in _linears(module):
        (cache.allow if on else cache.refuse)(linear.weight)


def refresh(module: nn.Module) -> None:
    """Compare all of a module's weights with what was packed, and pack those again that are others."""
    for linear in _linears(module):
        cache.current(linear.weight)


def strict(module: nn.Module, on: bool) -> None:
    """Compare all of a module's weights at every use of their copies, or no more."""
    mark_strict(None, on)
    if "_modules" not in vars(module):  # it is being unpickled
        return
    for linear in _linears(module):
        cache.strict(linear.weight, on)


def _linears(module: nn.Module) -> Iterator[nn.Module]:
    if isinstance(module, nn.Linear) or is_conv1d(module):
        yield module
        return
    for child in module.children():
        if is_plain_linear(child):
            yield child
