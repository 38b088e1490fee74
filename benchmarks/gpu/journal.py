"""What is known so far, in a file of JSON lines: written as it comes, read when a run goes on."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Entry:
    """How a case went. error: why it has no result."""

    slice: int
    case: str
    seconds: float
    result: dict[str, Any] = field(default_factory=dict)
    error: str = ""


class Journal:
    """The entries of a file; the last one of a case counts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._entries: dict[tuple[int, str], Entry] = {}
        self._lock = threading.Lock()
        if path.is_file():
            for line in path.read_text(encoding="utf-8").splitlines():
                self._keep(line)

    def _keep(self, line: str) -> None:
        try:
            entry = Entry(**json.loads(line))
        except (ValueError, TypeError):
            return  # cut off while it was written: the case runs again
        self._entries[entry.slice, entry.case] = entry

    def add(self, entry: Entry) -> None:
        """Write an entry; it is on the disk when this returns."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps(asdict(entry), ensure_ascii=True)
        with self._lock, self.path.open("a+b") as file:
            cut_off = file.tell() and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n"
            file.write((b"\n" if cut_off else b"") + line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._keep(line)

    def done(self, number: int, *, failed: bool = True) -> set[str]:
        """The cases of a slice that need not run. failed: those that failed count as well."""
        return {
            case
            for (of, case), entry in self._entries.items()
            if of == number and (failed or not entry.error)
        }

    def of(self, number: int) -> list[Entry]:
        """The entries of a slice."""
        return [entry for entry in self._entries.values() if entry.slice == number]
