"""What `kernelize` asks of a kernel that keeps packed weights; see kernels_hub/kernelization/bind.py.

The weights of a layer's linear layers are packed; the originals stay, for calls that run the layers themselves.
"""

from __future__ import annotations

from torch import Tensor, nn

from . import kernels
from .families import parts_of
from .guard import mark_strict
from .parts import weight_and_bias

holds_both = True
"""Copies are held beside the originals: `free_originals` frees nothing."""


def prepare(module: nn.Module) -> None:
    """Pack a layer's weights now, so that the first call does not take longer."""
    if weights := _weights(module):
        kernels.prepare(weights)


def packed_nbytes(module: nn.Module) -> int:
    """Bytes of the packed copies of a layer's weights."""
    weights = _weights(module)
    return kernels.packed_nbytes(weights) if weights else 0


def most_nbytes(module: nn.Module) -> int:
    """Bytes that the packed copies of a layer's weights take at most."""
    return kernels.most_nbytes(_weights(module))


def free_originals(module: nn.Module) -> None:
    """Nothing: where the kernel does not run, the linear layers do."""


def restore_originals(module: nn.Module) -> None:
    """Nothing: the originals were kept."""


def release(module: nn.Module) -> None:
    """Drop the packed copies of a layer's weights, for a model that goes back to its original forwards."""
    if weights := _weights(module):
        kernels.forget(weights)


def refresh(module: nn.Module) -> None:
    """Compare all of a layer's weights with what was packed, and drop copies of others."""
    if weights := _weights(module):
        kernels.refresh(weights)


def strict(module: nn.Module, on: bool) -> None:
    """Compare all of a layer's weights at every use of their copies, or no more."""
    mark_strict(None, on)
    if "_modules" in vars(module) and (weights := _weights(module)):  # not while it is being unpickled
        kernels.strict(weights, on)


def _weights(module: nn.Module) -> list[Tensor]:
    """Those of the linear layers; none where one has another kind of weight, or the module is not what it was."""
    try:
        parts = parts_of(module)
        held = [*parts.projections(), *map(weight_and_bias, parts.linears)]
    except (AttributeError, KeyError, ValueError):
        return []
    weights: list[Tensor] = [weight for weight, _ in held if type(weight) is nn.Parameter]
    return weights if len(weights) == len(held) else []
