"""What a forward is answered that asks whether it is being exported: as in eager, whose way a program is to go.

    if not torch.compiler.is_exporting():
        return torch.linalg.solve_triangular(system, x, upper=False)
    for row in range(1, len(system)): ...      for formats that have no such op

Models take other ways for exporters, written for what those lack. A function that asks whether it is compiled, too,
tells eager from torch.compile by both answers, and has torch.export's.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from kernels_hub.compiler.importers.known_code import is_of_model

_QUESTION = "exporting"
"""In the names of functions that ask only to pass the answer on."""
_OTHER_QUESTIONS = ("compiling", "tracing", "scripting")


@dataclass
class ExportingAnswers:
    """Whether a forward was answered otherwise than torch.export answers."""

    as_in_eager: bool = False


@contextmanager
def not_exporting() -> Iterator[ExportingAnswers]:
    """While it is open, functions of models that ask `torch.compiler.is_exporting` alone are told no."""
    import torch

    answers = ExportingAnswers()
    original = torch.compiler.is_exporting
    thread = threading.get_ident()

    def is_exporting() -> bool:
        if not original():
            return False
        if threading.get_ident() != thread or not _asks_that_alone(sys._getframe(1)):
            return True
        answers.as_in_eager = True
        return False

    torch.compiler.is_exporting = is_exporting
    try:
        yield answers
    finally:
        torch.compiler.is_exporting = original


def _asks_that_alone(frame: FrameType | None) -> bool:
    while frame is not None and _QUESTION in frame.f_code.co_name:
        frame = frame.f_back
    if frame is None or not is_of_model(frame):
        return False
    return not any(other in name for name in frame.f_code.co_names for other in _OTHER_QUESTIONS)
