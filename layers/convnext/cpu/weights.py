"""What `kernelize` asks of a kernel that keeps packed weights; see kernels_hub/kernelization/bind.py.

The weights of a block's linear layers are packed; the originals stay, for calls that run the layers themselves.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from . import kernels
from .guard import mark_strict
from .parts import parts_of

holds_both = True
"""Copies are held beside the originals: `free_originals` frees nothing."""


def prepare(module: nn.Module) -> None:
    """Pack a block's weights now, so that the first call does not take longer."""
    for weight in _weights(module):
        kernels.prepare(weight)


def packed_nbytes(module: nn.Module) -> int:
    """Bytes of the packed copies of a block's weights."""
    return sum(map(kernels.packed_nbytes, _weights(module)))


def most_nbytes(module: nn.Module) -> int:
    """Bytes that the packed copies of a block's weights take at most."""
    return sum(map(kernels.most_nbytes, _weights(module)))


def free_originals(module: nn.Module) -> None:
    """Nothing: where the kernel does not run, the linear layers do."""


def restore_originals(module: nn.Module) -> None:
    """Nothing: the originals were kept."""


def release(module: nn.Module) -> None:
    """Drop the packed copies of a block's weights, for a model that goes back to its original forwards."""
    for weight in _weights(module):
        kernels.forget(weight)


def refresh(module: nn.Module) -> None:
    """Compare all of a block's weights with what was packed, and drop copies of others."""
    for weight in _weights(module):
        kernels.refresh(weight)


def strict(module: nn.Module, on: bool) -> None:
    """Compare all of a block's weights at every use of their copies, or no more."""
    mark_strict(None, on)
    if "_modules" not in vars(module):  # it is being unpickled
        return
    for weight in _weights(module):
        kernels.strict(weight, on)


def _weights(module: nn.Module) -> Iterator[Tensor]:
    parts = parts_of(module)
    for linear in (parts.first, parts.second):
        if type(getattr(linear, "weight", None)) is nn.Parameter:
            yield linear.weight
