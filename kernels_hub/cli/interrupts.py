"""Ctrl-C during long work, so that it cannot get lost."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def interrupts() -> Iterator[Callable[[], None]]:
    """What this yields raises KeyboardInterrupt if there was a Ctrl-C: work calls it at every step.

    Python raises one wherever the main thread is. In a finalizer or a callback it is printed and forgotten, and the
    work would go on.
    """
    pressed = threading.Event()

    def note(number: int, frame: Any) -> None:
        pressed.set()
        signal.default_int_handler(number, frame)

    def check() -> None:
        if pressed.is_set():
            raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    # Whoever runs this in the background (nohup, &) may have it ignored, and so it stays.
    noted = before is not signal.SIG_IGN and threading.current_thread() is threading.main_thread()
    if noted:
        signal.signal(signal.SIGINT, note)
    try:
        yield check
    finally:
        if noted:
            signal.signal(signal.SIGINT, before)
