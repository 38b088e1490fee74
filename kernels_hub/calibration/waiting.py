"""Detects disturbed timings: the seconds that threads of this process were ready to run and had no core.

Where every barrier waits for a thread that lost its core, all times are long, and agree; the scheduler alone knows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

_THREADS = Path("/proc/self/task")
_WAKING_S = 20e-6
_MOST_WAITING = 0.02
"""Share of a time that threads may have waited for a core; waking them up takes `_WAKING_S` of it."""


def is_undisturbed(waited: float, seconds: float) -> bool:
    """Whether a time of so many seconds counts, in which threads waited for a core for so many."""
    return waited <= max(_WAKING_S, _MOST_WAITING * seconds)


@contextmanager
def waiting() -> Iterator[Callable[[], float]]:
    """A function: the seconds that the present threads of this process were ready to run and had no core.

    Always 0 where Linux does not tell.
    """
    with ExitStack() as stack:
        files = []
        with suppress(OSError):
            for thread in _THREADS.iterdir():
                with suppress(OSError):  # it has ended
                    files.append(stack.enter_context((thread / "schedstat").open("rb", buffering=0)))

        def waited_s() -> float:
            nanoseconds = 0
            for file in files:
                with suppress(OSError, IndexError, ValueError):  # its thread has ended
                    nanoseconds += int(os.pread(file.fileno(), 100, 0).split()[1])
            return nanoseconds * 1e-9

        yield waited_s
