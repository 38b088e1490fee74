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

    is_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, note) if is_main else None
    try:
        yield check
    finally:
        if is_main:
            signal.signal(signal.SIGINT, before)
