"""Which rows of a database changed while they are being copied to another, noted by triggers of that database.

So it holds for whoever writes: servers of this version or another, commands, an administrator with SQL. A change and
its note are one transaction. The log is there only while rows move; it names the move, so that a copy which was
interrupted goes on only if nothing was missed meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kernels_hub.server.database.schema import MOVE_TABLES
from kernels_hub.server.database.seam import Database

_MOVE, _CHANGES = MOVE_TABLES
_AT_ONCE = 500
Keys = tuple[object, ...]
"""The values of one row's primary key."""


@dataclass(frozen=True)
class Progress:
    """How far a copy is. `table` is the one that is copied now, "" once all are; `after` the last key, in JSON."""

    move: str
    table: str
    after: str = ""


def read_progress(database: Database) -> Progress | None:
    """What a database says of the move that it is source or target of; None where it is neither."""
    if not database.has(_MOVE):
        return None
    row = database.row(f'SELECT id, "table", after FROM {_MOVE}')  # noqa: S608 -- as below: names of ours
    return None if row is None else Progress(str(row["id"]), str(row["table"]), str(row["after"]))


def write_progress(database: Database, progress: Progress | None) -> None:
    """Say how far a copy is; None where there is no move any more. Inside `transaction`."""
    if progress is None:
        database.change(f"DROP TABLE IF EXISTS {_MOVE}")
        return
    database.change(
        f'CREATE TABLE IF NOT EXISTS {_MOVE} (id TEXT NOT NULL, "table" TEXT NOT NULL, after TEXT NOT NULL)'
    )
    database.change(f"DELETE FROM {_MOVE}")  # noqa: S608
    database.change(f"INSERT INTO {_MOVE} VALUES (?, ?, ?)", progress.move, progress.table, progress.after)  # noqa: S608


class ChangeLog:
    """The keys of rows that changed since `begin`, and were not forgotten."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._binary: dict[str, tuple[bool, ...]] = {}

    def begin(self, move: str, tables: Sequence[str]) -> None:
        """Note from now on what changes in these tables; what was noted for another move is forgotten."""
        with self._database.transaction():
            self._drop()
            write_progress(self._database, Progress(move, ""))
            self._database.record(tables)

    def end(self) -> None:
        """Note nothing any more."""
        with self._database.transaction():
            self._drop()

    def _drop(self) -> None:
        self._database.record(())
        write_progress(self._database, None)

    def pending(self) -> tuple[list[int], dict[str, list[Keys]]]:
        """The numbers of what was noted, and table -> keys of rows that changed, each once. Inside `snapshot`."""
        numbers, found = [], dict[str, dict[str, None]]()
        for row in self._database.rows(f'SELECT number, "table", key FROM {_CHANGES}'):  # noqa: S608
            numbers.append(int(row["number"]))
            found.setdefault(str(row["table"]), {})[str(row["key"])] = None
        return numbers, {table: [self.values(table, key) for key in keys] for table, keys in found.items()}

    def values(self, table: str, key: str) -> Keys:
        """A key that was noted as its values."""
        if table not in self._binary:
            self._binary[table] = self._database.key(table).binary
        pairs = zip(json.loads(key), self._binary[table], strict=True)
        return tuple(bytes.fromhex(value) if binary else value for value, binary in pairs)

    def forget(self, numbers: Sequence[int]) -> None:
        """What was noted under these numbers is in the copy."""
        for some in _groups(numbers):
            marks = ", ".join("?" * len(some))
            self._database.change(f"DELETE FROM {_CHANGES} WHERE number IN ({marks})", *some)  # noqa: S608


def noted(key: Keys) -> str:
    """A key as the log notes it."""
    return json.dumps([value.hex() if isinstance(value, bytes) else value for value in key])


def _groups(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(numbers), _AT_ONCE):
        yield numbers[start : start + _AT_ONCE]
