"""Whose code runs: that of packages whose release says all there is to say of it, this library's, or a user's."""

from __future__ import annotations

import sys
from types import FrameType

KNOWN = frozenset({"torch", "builtins", "typing", "numpy", *sys.stdlib_module_names} - {"__main__"})
"""Packages whose release says all there is to say of their code."""


def is_known(module: str) -> bool:
    """Whether a module of Python, by its name, is PyTorch's, NumPy's or the standard library's."""
    return module.partition(".")[0] in KNOWN


def is_of_known(frame: FrameType | None) -> bool:
    """Whether a frame runs code of such a module. None is nobody's."""
    return frame is None or is_known(str(frame.f_globals.get("__name__", "")))


def is_of_model(frame: FrameType) -> bool:
    """Whether a frame runs code that is neither such a module's nor this library's."""
    name = str(frame.f_globals.get("__name__", ""))
    return not is_known(name) and name.partition(".")[0] != "kernels_hub"
