"""Branches and tags of one repository, in git's own `packed-refs` file.

One small file holds them all: reading is one read, any set of changes is one atomic rename, and names
that a file system would confuse (`A` and `a`, `v1` and `v1/x`) never become files.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kernels_hub.files import write_atomically
from kernels_hub.server.refusal import Refusal

BRANCHES, TAGS = "refs/heads/", "refs/tags/"
_HEADER = "# pack-refs with: peeled fully-peeled sorted "
_LINE = re.compile(r"([0-9a-f]{40}) (refs/[^\x00-\x20\x7f]+)")
_PEELED = re.compile(r"\^([0-9a-f]{40})")


class RefsDamagedError(Refusal):
    """Refs that are missing, cannot be read, or lead to nothing; what answers a request to such a repository.

    `problem` says what is wrong, for the administrator.
    """

    def __init__(self, problem: str) -> None:
        super().__init__(
            500,
            f"This repository is damaged on the server ({problem}); nothing was changed. Its administrator finds "
            "what was lost, and how to restore it, with `kernels-hub hub fsck`",
        )
        self.problem = problem


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
        """Every ref by its full name. Do not change it. Raises RefsDamagedError where they cannot be read."""
        try:
            content = self._path.read_bytes()
        except OSError as error:
            # Every repository has the file from its first commit on.
            what = (
                "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror}"
            )
            raise RefsDamagedError(f"packed-refs {what}") from error
        # Compared by content: two changes within one tick of the clock can look alike to stat.
        with self._guard:
            if self._seen[0] != content:
                self._seen = (content, _parse(content))
            return self._seen[1]

    def change(self, changes: Mapping[str, Ref | None]) -> None:
        """Set or delete refs, all at once; on disk when this returns."""
        self.replace({**self.all(), **changes})

    def replace(self, refs: Mapping[str, Ref | None]) -> None:
        """Write these refs and no others, for a new repository or in place of damaged ones; on disk on return."""
        lines = [_HEADER]
        for name in sorted(refs, key=str.encode):
            if (ref := refs[name]) is not None:
                lines.append(f"{ref.oid} {name}")
                if ref.peeled:
                    lines.append(f"^{ref.peeled}")
        write_atomically(self._path, "\n".join(lines) + "\n", beside=self._temporary().parent, durable=True)


def _parse(content: bytes) -> dict[str, Ref]:
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise RefsDamagedError(f"packed-refs is not text from byte {error.start} on") from None
    if not text.endswith("\n"):
        raise RefsDamagedError("packed-refs is cut off" if text.strip("\0") else "packed-refs is empty")
    refs: dict[str, Ref] = {}
    last = ""
    # Not splitlines: it splits at characters that names may hold.
    for number, line in enumerate(text.split("\n"), 1):
        if match := _LINE.fullmatch(line):
            last = match[2]
            if last in refs:
                raise RefsDamagedError(f"packed-refs names {last} twice, in line {number} again")
            refs[last] = Ref(match[1])
        elif (match := _PEELED.fullmatch(line)) and last and refs[last].peeled is None:
            refs[last] = Ref(refs[last].oid, match[1])
        elif line and not line.startswith("#"):
            raise RefsDamagedError(f"packed-refs is garbled in line {number}")
    return refs
