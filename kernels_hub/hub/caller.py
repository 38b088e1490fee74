"""Finds the calling code's project, whose lock applies."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Caller:
    """A module outside of this library."""

    module: str
    file: Path | None
    """None for an interactive session."""

    @property
    def package(self) -> str:
        """Its top-level package."""
        return self.module.partition(".")[0]


def find_caller() -> Caller:
    """The innermost caller outside of this library. Looks at frames, never at the disk."""
    depth = 1
    while True:
        try:
            frame = sys._getframe(depth)
        except ValueError:
            return Caller("__main__", None)
        name = str(frame.f_globals.get("__name__", ""))
        if (
            name.partition(".")[0] not in {"kernels_hub", "importlib"}
            and frame.f_code.co_filename != "<string>"
        ):
            file = frame.f_globals.get("__file__")
            return Caller(name, Path(file) if isinstance(file, str) else None)
        depth += 1
