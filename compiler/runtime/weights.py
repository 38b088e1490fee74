"""The weights protocol of kernels that pack weights, for `kernelize`. The originals stay."""

from __future__ import annotations

from typing import Protocol

from torch import nn

from .errors import Misfit
from .state import State


class PacksWeights(Protocol):
    """What is asked of a `Layer`, or of a `ByDtype`."""

    def prepare(self, module: nn.Module) -> None:
        """Pack a module's weights now. Raises Misfit."""

    def known(self, module: nn.Module) -> State | None:
        """What was made of a module."""

    def forget(self, module: nn.Module) -> None:
        """Drop it."""

    def refresh(self, module: nn.Module) -> None:
        """Make it again where it is of other weights. Raises Misfit."""

    def be_strict(self, module: nn.Module, on: bool) -> None:
        """Compare all of it at every call, or no more."""

    def say(self, reason: Misfit) -> None:
        """Log a fallback."""


class Weights:
    """The attribute `weights` of a kernel's package, of its layer."""

    def __init__(self, layer: PacksWeights) -> None:
        self._layer = layer

    def prepare(self, module: nn.Module) -> None:
        """Build the program and pack the module's weights now, so that the first call does not take longer."""
        try:
            self._layer.prepare(module)
        except Misfit as reason:
            self._layer.say(reason)

    def packed_nbytes(self, module: nn.Module) -> int:
        """Bytes held for a module beyond its own weights."""
        state = self._layer.known(module)
        return 0 if state is None else state.nbytes

    def free_originals(self, module: nn.Module) -> None:
        """Nothing: see the module."""

    def restore_originals(self, module: nn.Module) -> None:
        """Nothing: none was freed."""

    def release(self, module: nn.Module) -> None:
        """Drop the copies, for a module that goes back to its original forward."""
        self._layer.forget(module)

    def refresh(self, module: nn.Module) -> None:
        """Compare all copies of a module's weights with them, and make those again that are of others."""
        try:
            self._layer.refresh(module)
        except Misfit as reason:
            self._layer.say(reason)

    def strict(self, module: nn.Module, on: bool) -> None:
        """Compare all copies of a module's weights with them at every call, or no more."""
        self._layer.be_strict(module, on)
