"""What this layer's code raises, of which nothing but IndexError ever reaches a caller that has an original."""

from __future__ import annotations


class Misfit(Exception):
    """A call, or a module, that the program was not built for. kind: what is said once is said once of a kind."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


class BuildError(RuntimeError):
    """C++ that could not be built here."""


class NoOriginalError(RuntimeError):
    """A call that the program was not built for, on a module that has no forward of its own to fall back on."""
