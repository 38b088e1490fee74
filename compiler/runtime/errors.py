"""Errors of the runtime; of a layer that has an original forward, only IndexError reaches a caller."""

from __future__ import annotations


class Misfit(Exception):
    """A call, or a module, that the program was not built for. kind: what is said once is said once of a kind."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


class ShapeMisfit(Misfit):
    """Shapes of inputs that contradict what was declared, or each other, or tell too little."""


class SizeMisfit(Misfit):
    """A size that is out of the bounds of its symbol."""


class ValueMisfit(Misfit):
    """An argument whose values are not those that the program is of."""


class BuildError(RuntimeError):
    """C++ that could not be built here."""


class NoOriginalError(RuntimeError):
    """A call that the program was not built for, on a module that has no forward of its own to fall back on."""
