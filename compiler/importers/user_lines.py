"""The line of a model that an op of its program comes from.

torch.export writes the whole stack down at every op, a quarter of the time of a trace. One frame is wanted of it.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import FrameType

NOWHERE = "no line of a model"
"""A stack without frames; for an empty one the whole stack is written down."""
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


def frame_text(frame: FrameType) -> str:
    """The innermost frame of a model that called this one, as a traceback has it.

    The forward of an importer stands around that of the model: outside of it nothing is the model's.
    """
    found: FrameType | None = frame
    while found is not None and not _is_of_a_model(found.f_code.co_filename):
        around = found.f_code.co_name == "forward" and found.f_code.co_filename.startswith(_OURS)
        found = None if around else found.f_back
    if found is None:
        return NOWHERE
    return f'File "{found.f_code.co_filename}", line {found.f_lineno}, in {found.f_code.co_name}'


def user_line(stack: str) -> str:
    """The innermost frame of a model in a printed stack, as "file:line in function"; "" where there is none."""
    frames = [one for one in _FRAME.findall(stack) if _is_of_a_model(one[0])]
    if not frames:
        return ""
    file, line, function = frames[-1]
    return f"{file}:{line} in {function}"


def _is_of_a_model(file: str) -> bool:
    """Whether a file is neither PyTorch's own nor an importer's."""
    return "/torch/" not in file.replace("\\", "/") and not file.startswith(_OURS)


_OURS = str(Path(__file__).parent)
