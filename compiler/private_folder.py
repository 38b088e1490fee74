"""Folders of one process, for where a cache cannot be written to: made when first asked for, gone with the process."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import threading
from pathlib import Path


class PrivateFolder:
    """A folder under the system's temporary one. name: the beginning of its name, after "kernels_hub-"."""

    def __init__(self, name: str) -> None:
        self._prefix = f"kernels_hub-{name}-"
        self._lock = threading.Lock()
        self._made: Path | None = None

    def get(self) -> Path:
        """The folder. Raises OSError where none can be made."""
        with self._lock:
            if self._made is None:
                self._made = Path(tempfile.mkdtemp(prefix=self._prefix))
                atexit.register(_remove, self._made, os.getpid())
            return self._made

    def made(self) -> tuple[Path, ...]:
        """The folder if this process has asked for it, as something to iterate over."""
        return () if self._made is None else (self._made,)


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # not a process that was forked off it
        shutil.rmtree(folder, ignore_errors=True)
