"""The `kernels-hub` command. One module a command; what it needs is imported when it runs."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

TRACEBACK = "KERNELS_HUB_TRACEBACK"
"""Environment variable: set to 1, errors come with Python's traceback."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0 done, 1 an error (in one message on stderr), 2 wrong usage.

    arguments: those of the process when None.
    """
    from kernels_hub.cli.app import app
    from kernels_hub.cli.output import echo_lines
    from kernels_hub.errors import KernelsHubError

    _print_whatever_the_locale()
    try:
        with _one_line_of_torch_export():
            app(None if arguments is None else list(arguments), prog_name="kernels-hub")
    except Exception as error:
        if os.environ.get(TRACEBACK, "0") not in ("", "0"):
            raise
        if isinstance(error, KernelsHubError):
            message = str(error)
        else:
            message = f"{type(error).__name__}: {error} ({TRACEBACK}=1 shows where)"
        echo_lines(f"kernels-hub: {message}", err=True)
    sys.exit(1)


def _print_whatever_the_locale() -> None:
    """Characters that the terminal's encoding lacks are printed as escapes, not raised as errors."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


_TOLD_BY_THE_ERROR = ("torch.fx.experimental.symbolic_shapes", "torch._subclasses.fake_tensor")
"""Loggers that write of what torch.export cannot trace, before it raises."""


@contextlib.contextmanager
def _one_line_of_torch_export() -> Iterator[None]:
    """What torch.export prints and logs of a module that it cannot trace is left out: the error is enough."""
    loggers = [logging.getLogger(name) for name in _TOLD_BY_THE_ERROR]
    before = [logger.disabled for logger in loggers]
    try:
        for one in loggers:
            one.disabled = True
        with contextlib.redirect_stderr(_WithoutGraphs(sys.stderr)):
            yield
    finally:
        for one, was in zip(loggers, before, strict=True):
            one.disabled = was


class _WithoutGraphs:
    """A stream that drops what is the code of a graph."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """As the stream's."""
        if text.lstrip().startswith("def forward(self, arg"):
            return len(text)
        return int(self._stream.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
