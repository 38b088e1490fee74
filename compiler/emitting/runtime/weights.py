"""What `kernelize` asks of a kernel that keeps packed weights. Originals stay: other calls run the original forward."""

from __future__ import annotations

from torch import nn

from .errors import Misfit
from .program import LAYER


def prepare(module: nn.Module) -> None:
    """Build the program and pack the module's weights now, so that the first call does not take longer."""
    try:
        LAYER.prepare(module)
    except Misfit as reason:
        LAYER.say(reason)


def packed_nbytes(module: nn.Module) -> int:
    """Bytes held for a module beyond its own weights."""
    state = LAYER.known(module)
    return 0 if state is None else state.nbytes


def free_originals(module: nn.Module) -> None:
    """Nothing: see the module."""


def restore_originals(module: nn.Module) -> None:
    """Nothing: none was freed."""


def release(module: nn.Module) -> None:
    """Drop the copies, for a module that goes back to its original forward."""
    LAYER.forget(module)


def refresh(module: nn.Module) -> None:
    """Compare all copies of a module's weights with them, and make those again that are of others."""
    try:
        LAYER.refresh(module)
    except Misfit as reason:
        LAYER.say(reason)


def strict(module: nn.Module, on: bool) -> None:
    """Compare all copies of a module's weights with them at every call, or no more."""
    LAYER.be_strict(module, on)
