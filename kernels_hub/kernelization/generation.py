"""Detects calls that are made by a `generate`, a method or function that calls one model many times for one result.

Within one of them no forward is replaced: all of its tokens are computed alike.
"""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Any

_NAME = "generate"
_MARK = "__kernels_hub_seen__"
"""Local of a frame: who was seen in it. It ends with the frame."""


def is_within_generation(caller: object) -> bool:
    """Whether a caller was seen before in the `generate` that is under way on this thread. It is seen from then on."""
    frame = _outermost(sys._getframe(1))
    if frame is None:
        return False
    variables: Any = frame.f_locals
    seen: set[int] | None = variables.get(_MARK)
    if seen is None:
        seen = variables[_MARK] = set()
    if id(caller) in seen:
        return True
    seen.add(id(caller))
    return False


def is_generating() -> bool:
    """Whether a `generate` is under way on this thread."""
    return _outermost(sys._getframe(1)) is not None


def others_generate() -> bool:
    """Whether another thread is within a `generate`."""
    own = threading.get_ident()
    return any(
        _outermost(frame) is not None for thread, frame in sys._current_frames().items() if thread != own
    )


def _outermost(frame: FrameType | None) -> FrameType | None:
    from torch import nn

    found = None
    while frame is not None:
        code = frame.f_code
        if code.co_name == _NAME and code.co_argcount:
            first = frame.f_locals.get(code.co_varnames[0])
            if isinstance(first, nn.Module):
                found = frame
        frame = frame.f_back
    return found
