"""What `kernelize` asks of a kernel that keeps packed weights; see kernels_hub/kernelization/bind.py.

The layout of a packed convolution weight depends on the input's size, so it is packed at the first
call and not before; and the originals stay, because another input size packs from them again, and a
weight with a norm folded in does not give its original back bit by bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import nn

from . import layers
from .guard import mark_strict
from .kernels import forget, is_computed_as_it_is
from .kernels import packed_nbytes as _packed_nbytes
from .kernels import refresh as _refresh
from .kernels import strict as _strict


def prepare(module: nn.Module) -> None:
    """Nothing: the layout is known with the first input."""


def packed_nbytes(module: nn.Module) -> int:
    """Bytes of the packed copies that a module's kernel has made so far.

    A block counts the convolutions that it computes itself, not those of children that have a
    kernel of this repository and count their own.
    """
    folded = not isinstance(module, nn.Conv2d)
    return sum(_packed_nbytes(convolution.weight, folded=folded) for convolution in _convolutions(module))


def most_nbytes(module: nn.Module) -> int:
    """Bytes that the packed copies of a module's kernel take at most, for inputs of one size.

    oneDNN packs blocks of up to 64 x 64 channels; minimal filtering holds 16 numbers for 9; what a norm is folded
    into is a weight of its own beside. Of groups without a norm, only what is widened is copied.
    """
    total = 0
    for convolution in _convolutions(module):
        if (
            convolution is module
            and convolution.groups > 1
            and is_computed_as_it_is(convolution.weight.dtype)
        ):
            continue
        filters, channels, rows, columns = convolution.weight.shape
        padded = math.ceil(filters / 64) * math.ceil(channels / 64) * 64 * 64 * rows * columns
        numel = filters * channels * rows * columns
        packed = min(padded, 4 * numel) * (16 / 9 if rows == columns == 3 else 1)
        folded = 0 if convolution is module else numel
        total += math.ceil((packed + folded) * convolution.weight.element_size())
    return total


def free_originals(module: nn.Module) -> None:
    """Nothing: the originals are needed for further input sizes."""


def restore_originals(module: nn.Module) -> None:
    """Nothing: the originals were kept."""


def release(module: nn.Module) -> None:
    """Drop the packed copies of a module's weights, for a model that goes back to its original forwards."""
    for convolution in _convolutions(module):
        forget(convolution.weight)


def refresh(module: nn.Module) -> None:
    """Compare all that a module's packed copies are made from, and drop those that are of other weights."""
    for convolution in _convolutions(module):
        _refresh(convolution.weight)


def strict(module: nn.Module, on: bool) -> None:
    """Compare all that a module's packed copies are made from at every use, or no more."""
    mark_strict(None, on)
    if "_modules" not in vars(module):  # it is being unpickled
        return
    for convolution in _convolutions(module):
        _strict(convolution.weight, on)


def _convolutions(module: nn.Module) -> Iterator[nn.Conv2d]:
    if isinstance(module, nn.Conv2d):
        yield module
        return
    for child in module.children():
        if isinstance(child, nn.Conv2d) or not layers.has_own_kernel(child):
            yield from _convolutions(child)
