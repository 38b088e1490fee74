"""Precompiled header: half of what the compiler does for most units is to read the runtime's first header.

A process that compiles several units has that done once, beside the compiles that go on, into its private copy of the
headers; GCC then takes it by itself for what is compiled with the same flags, and makes the same objects of it. Search
and tuning, which compile hundreds of candidates, take it from the fourth.

GCC 12 was seen to crash on all that one process compiled with its precompiled header, on a machine where hundreds of
other headers served. So a unit that GCC crashes on beside one is compiled again without, as is all that comes after it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from ...cxx_compiler import BESIDE, lowered
from ...files import move_into_place

HEADER = "scalar.h"
"""What generated units include first: GCC takes one precompiled header, before anything else."""
COMPILED = f"{HEADER}.gch"
"""Where GCC looks for it: a folder, with one of them for each set of flags."""
FIRST = 3
"""So many units are compiled without: it takes as long as four of them gain."""


class Precompiled:
    """What is precompiled for one compiler with its flags, for as long as the folder of headers stays."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._compiled = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._made: Path | None = None
        self._is_over = False
        self._lock = threading.Lock()

    def note(self, command: Sequence[str], folder: Path) -> None:
        """A unit is about to be compiled. command: the compiler with all flags, without files."""
        if self._is_over or self._owner != os.getpid() or not (folder / HEADER).exists():
            return
        with self._lock:
            self._go_on(command, folder)

    def _go_on(self, command: Sequence[str], folder: Path) -> None:
        self._compiled += 1
        if self._process is not None:
            outcome = self._process.poll()
            if outcome is None:
                return
            self._is_over = True
            if outcome == 0 and self._made is not None:
                with contextlib.suppress(OSError):
                    compiled_headers = folder / COMPILED
                    compiled_headers.mkdir(exist_ok=True)
                    move_into_place(self._made, compiled_headers / self._made.parent.name)
        elif self._compiled > FIRST:
            try:
                self._made = output = Path(tempfile.mkdtemp(dir=folder)) / "part"
                self._process = subprocess.Popen(
                    [
                        *lowered(BESIDE.get()),
                        *command,
                        "-x",
                        "c++-header",
                        str(folder / HEADER),
                        "-o",
                        str(output),
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            except OSError:
                self._is_over = True
                return
            atexit.register(self._end)

    def _end(self) -> None:
        if self._process is not None and self._owner == os.getpid():
            self._process.kill()
            self._process.wait()


_KNOWN: dict[tuple[str, ...], Precompiled] = {}
_DISCARDED: set[Path] = set()
"""Folders of headers that nothing is precompiled in any more."""


def note(command: Sequence[str], folder: Path, version: str) -> None:
    """A unit is about to be compiled with headers in a folder that nobody else can write. version: the compiler's."""
    if "Free Software Foundation" in version and folder not in _DISCARDED:
        known = _KNOWN.setdefault((*command, str(folder)), Precompiled())
        known.note(command, folder)


def is_there(folder: Path) -> bool:
    """Whether a unit that includes headers of a folder may take one that is precompiled."""
    return (folder / COMPILED).exists()


def discard(folder: Path) -> None:
    """Have no unit take what is precompiled in a folder any more."""
    _DISCARDED.add(folder)
    shutil.rmtree(folder / COMPILED, ignore_errors=True)
