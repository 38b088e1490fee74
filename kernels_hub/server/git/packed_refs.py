"""Branches and tags of one repository, in git's own `packed-refs` file.

One small file holds them all: reading is one read, any set of changes is one atomic rename, and names
that a file system would confuse (`A` and `a`, `v1` and `v1/x`) never become files.

Rows of the database that belong to a change are committed together with a row that notes it (`pending_refs`), then
the file is written, then that row is dropped; a crash in between leaves it, and whoever works on the repository next,
or the sweep at start, completes the change. So it is acknowledged only when both hold it, and after recovery both do or
neither.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from kernels_hub.files import write_atomically
from kernels_hub.server.database import Database, DatabaseFullError, UnavailableError
from kernels_hub.server.refs import Ref, RefChanges, Refs, RefsDamagedError
from kernels_hub.server.refusal import Refusal

_HEADER = "# pack-refs with: peeled fully-peeled sorted "
_LINE = re.compile(r"([0-9a-f]{40}) (refs/[^\x00-\x20\x7f]+)")
_PEELED = re.compile(r"\^([0-9a-f]{40})")


class PendingChange:
    """A change of one repository's refs that is about to be made: a row, written with those that it belongs to."""

    def __init__(self, database: Database, repository: str) -> None:
        self.database = database
        self._repository = repository

    def begin(self, changes: RefChanges) -> None:
        """Note a change. Inside the transaction of the rows that it belongs to."""
        written = json.dumps({name: [ref.oid, ref.peeled] if ref else None for name, ref in changes.items()})
        self.database.change("INSERT INTO pending_refs VALUES (?, ?)", self._repository, written)

    def read(self) -> RefChanges | None:
        """The change that was begun and is not known to be done."""
        row = self.database.row("SELECT changes FROM pending_refs WHERE repository = ?", self._repository)
        if row is None:
            return None
        return {name: Ref(*ref) if ref else None for name, ref in json.loads(row["changes"]).items()}

    def done(self) -> None:
        """The refs say what the rows say."""
        self.database.change("DELETE FROM pending_refs WHERE repository = ?", self._repository)


class PackedRefs(Refs):
    """Implements `Refs` with the `packed-refs` file of a repository."""

    def __init__(
        self, git: Path, temporary: Callable[[], Path], pending: PendingChange | None = None
    ) -> None:
        """pending: None where refs are never changed together with rows."""
        self._pending = pending
        self._path = git / "packed-refs"
        self._temporary = temporary
        self._guard = threading.Lock()
        self._seen: tuple[bytes, dict[str, Ref]] = (b"", {})

    def all(self) -> Mapping[str, Ref]:
        """Every ref by its full name. Do not change it. Raises RefsDamagedError where the file cannot be read."""
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

    def change(self, changes: RefChanges, record: Callable[[], None] | None = None) -> None:
        """Set or delete refs, all at once; on disk when this returns."""
        if record is None:
            self._write({**self.all(), **changes})
            return
        pending = self._noted()
        with pending.database.transaction():
            record()
            pending.begin(changes)
        try:
            self._write({**self.all(), **changes})
        except OSError as error:
            raise Refusal(
                507,
                "The release is in the log, and its tag follows when the server's disk takes it "
                f"({error.strerror}); tell its administrator, and ask again",
            ) from error
        with suppress(
            DatabaseFullError, UnavailableError
        ):  # The change stands in both; whoever is next drops the row.
            pending.done()

    def _noted(self) -> PendingChange:
        assert self._pending is not None, "these refs are of a repository that is in its place"
        return self._pending

    def replace(self, refs: Mapping[str, Ref]) -> None:
        """Write these refs and no others, for a new repository or in place of damaged ones; on disk on return."""
        self._write(refs)
        if self._pending is not None:
            self._pending.done()

    def interrupted(self) -> bool:
        """Whether there is a row of a change that is not known to be done."""
        return self._pending is not None and self._pending.read() is not None

    def recover(self) -> None:
        """Make the change that was begun, again if it was made."""
        pending = self._noted()
        if (changes := pending.read()) is not None:
            self._write({**self.all(), **changes})
            pending.done()

    def _write(self, refs: Mapping[str, Ref | None]) -> None:
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
