"""Branches and tags of one repository, in git's own `packed-refs` file.

One small file holds them all: reading is one read, any set of changes is one atomic rename, and names
that a file system would confuse (`A` and `a`, `v1` and `v1/x`) never become files.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kernels_hub.server.durable import replace_flushed, write_flushed

BRANCHES, TAGS = "refs/heads/", "refs/tags/"
_HEADER = "# pack-refs with: peeled fully-peeled sorted "


@dataclass(frozen=True)
class Ref:
    """What a name points to; `peeled` is the commit where `oid` is an annotated tag."""

    oid: str
    peeled: str | None = None

    @property
    def commit(self) -> str:
        """The commit."""
        return self.peeled or self.oid


class Refs:
    """The refs of one repository; changes are made under the repository's lock."""

    def __init__(self, git: Path, temporary: Callable[[], Path]) -> None:
        self._path = git / "packed-refs"
        self._temporary = temporary
        self._guard = threading.Lock()
        self._seen: tuple[bytes, dict[str, Ref]] = (b"", {})

    def all(self) -> Mapping[str, Ref]:
        """Every ref by its full name. Do not change it."""
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return {}
        # Compared by content: two changes within one tick of the clock can look alike to stat.
        with self._guard:
            if self._seen[0] != content:
                self._seen = (content, _parse(content))
            return self._seen[1]

    def change(self, changes: Mapping[str, Ref | None]) -> None:
        """Set or delete refs, all at once; on disk when this returns."""
        refs: dict[str, Ref | None] = {**self.all(), **changes}
        lines = [_HEADER]
        for name in sorted(refs, key=str.encode):
            if (ref := refs[name]) is not None:
                lines.append(f"{ref.oid} {name}")
                if ref.peeled:
                    lines.append(f"^{ref.peeled}")
        temporary = self._temporary()
        try:
            write_flushed(temporary, ("\n".join(lines) + "\n").encode())
            replace_flushed(temporary, self._path)
        finally:
            temporary.unlink(missing_ok=True)


def _parse(content: bytes) -> dict[str, Ref]:
    refs: dict[str, Ref] = {}
    last = ""
    # Not splitlines: it splits at characters that names may hold.
    for line in content.decode().split("\n"):
        if line.startswith("^"):
            refs[last] = Ref(refs[last].oid, line[1:])
        elif line and not line.startswith("#"):
            oid, last = line.split(" ", 1)
            refs[last] = Ref(oid)
    return refs
