"""Copies rows to another database while others write, in steps that can be interrupted anywhere.

Each step reads one moment of the source. It brings first what the log of changes holds (`change_log.py`) for tables
that were copied already, then the next rows by key, and keeps in the same transaction of the target how far it is. So
after each step the target is what the source was at that moment, as far as it goes; what a step that died has brought
is brought once more. Then all rows are compared by count and digest, and each row that changes after that on its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kernels_hub.errors import IntegrityError
from kernels_hub.server.database.change_log import (
    ChangeLog,
    Keys,
    Progress,
    noted,
    read_progress,
    write_progress,
)
from kernels_hub.server.database.schema import Schema
from kernels_hub.server.database.seam import Database, Row, listed
from kernels_hub.server.database.transfer import Copied, checked_tables, compare, row_digest

_ROWS = 1000
"""Rows of a step."""
_UNIQUE = {"repositories": "name", "mirrored": "origin_id"}
"""Table -> a column whose value may go over from one row to another: both cannot have it meanwhile."""


class OnlineCopy:
    """One move of all rows. Nobody else writes to the target."""

    def __init__(self, source: Database, target: Database, log: ChangeLog, schemas: Sequence[Schema]) -> None:
        self._source, self._target, self._log = source, target, log
        self._tables = checked_tables(source, target)
        self._kept = frozenset(table for schema in schemas for table in schema.append_only)
        self._keys = {table: source.key(table).columns for table in self._tables}
        self._columns = {table: listed(source.columns(table)) for table in self._tables}
        self.brought = self.changed = 0
        """Rows that were copied, and changes that were brought after them."""

    @property
    def tables(self) -> list[str]:
        """The tables that are copied, in this order."""
        return self._tables

    def begin(self, move: str) -> None:
        """Begin a move, or go on with it."""
        if read_progress(self._target) is None:
            with self._target.transaction():
                write_progress(self._target, Progress(move, self._tables[0]))

    def step(self) -> bool:
        """Bring what changed, and the next rows; whether there may be more of them."""
        progress = read_progress(self._target)
        assert progress is not None
        with self._source.snapshot():
            numbers, changes = self._log.pending()
            reached = self._tables.index(progress.table) if progress.table else len(self._tables)
            with self._target.transaction():
                self._bring(changes, self._tables[: reached + 1])
                if progress.table:
                    progress = self._next(progress)
                    write_progress(self._target, progress)
        self._log.forget(numbers)
        return bool(progress.table)

    def catch_up(self) -> int:
        """Bring what changed, and compare it row by row; how many rows."""
        with self._source.snapshot():
            numbers, changes = self._log.pending()
            with self._target.transaction():
                self._bring(changes, self._tables)
                self._compare_rows(changes)
        self._log.forget(numbers)
        return sum(map(len, changes.values()))

    def compare(self) -> list[Copied]:
        """Compare every row, as of one moment of the source. Raises IntegrityError where they differ."""
        with self._source.snapshot():
            numbers, changes = self._log.pending()
            with self._target.transaction():
                self._bring(changes, self._tables)
            with self._target.snapshot():
                found = compare(self._source, self._target, self._tables)
        self._log.forget(numbers)
        return found

    def check_counts(self) -> None:
        """Compare how many rows each table has, while nobody writes; IntegrityError where they differ."""
        for table in self._tables:
            there, here = (_count(database, table) for database in (self._source, self._target))
            if there != here:
                raise IntegrityError(
                    f"{table} has {here} rows in {self._target.name} and {there} in {self._source.name}; nothing was "
                    "changed"
                )

    def end(self) -> None:
        """Leave nothing of the move in either database."""
        with self._target.transaction():
            write_progress(self._target, None)
        self._log.end()

    # -- rows

    def _next(self, progress: Progress) -> Progress:
        """Copy the next rows of the table that is copied now; how far the copy is then."""
        table, keys = progress.table, self._keys[progress.table]
        names = ", ".join(f'"{key}"' for key in keys)
        where, values = "", Keys()
        if progress.after:
            values = self._log.values(table, progress.after)
            where = f"WHERE ({names}) > ({', '.join('?' * len(keys))}) "
        rows = self._source.rows(
            f"SELECT {self._columns[table]} FROM {table} {where}ORDER BY {names} LIMIT {_ROWS}",  # noqa: S608 -- names of our own tables
            *values,
        )
        self._put(table, rows)
        self.brought += len(rows)
        if len(rows) == _ROWS:
            return Progress(progress.move, table, noted(self._key_of(table, rows[-1])))
        following = self._tables.index(table) + 1
        return Progress(progress.move, self._tables[following] if following < len(self._tables) else "")

    def _bring(self, changes: dict[str, list[Keys]], tables: Sequence[str]) -> None:
        """Make rows of the target what they are in the source now: first those they refer to, then what is gone."""
        for table, column in _UNIQUE.items():
            for key in changes.get(table, ()):
                self._target.change(f"UPDATE {table} SET {column} = ? WHERE {self._is(table)}", *key, *key)  # noqa: S608
        gone: list[tuple[str, Keys]] = []
        for table in tables:
            rows = []
            for key in changes.get(table, ()):
                row = self._one(self._source, table, key)
                if row is None:
                    gone.append((table, key))
                else:
                    rows.append(row)
            self._put(table, rows)
            self.changed += len(rows)
        for table, key in reversed(gone):
            self._target.change(f"DELETE FROM {table} WHERE {self._is(table)}", *key)  # noqa: S608
        self.changed += len(gone)

    def _compare_rows(self, changes: dict[str, list[Keys]]) -> None:
        for table, key in _each(changes):
            there, here = (self._one(database, table, key) for database in (self._source, self._target))
            if (there and row_digest(there)) != (here and row_digest(here)):
                raise IntegrityError(
                    f"a row of {table} is another one in {self._target.name} than in {self._source.name} "
                    f"({noted(key)}); nothing was changed"
                )

    def _one(self, database: Database, table: str, key: Keys) -> Row | None:
        columns = self._columns[table]
        return database.row(f"SELECT {columns} FROM {table} WHERE {self._is(table)}", *key)  # noqa: S608

    def _is(self, table: str) -> str:
        return " AND ".join(f'"{key}" = ?' for key in self._keys[table])

    def _put(self, table: str, rows: Sequence[Row]) -> None:
        if rows:
            columns = list(rows[0].keys())
            values = (tuple(row[name] for name in columns) for row in rows)
            self._target.put(table, columns, values, keep=table in self._kept)

    def _key_of(self, table: str, row: Row) -> Keys:
        return tuple(row[key] for key in self._keys[table])


def _each(changes: dict[str, list[Keys]]) -> Iterator[tuple[str, Keys]]:
    return ((table, key) for table, keys in changes.items() for key in keys)


def _count(database: Database, table: str) -> int:
    (row,) = database.rows(f"SELECT COUNT(*) AS n FROM {table}")  # noqa: S608 -- a name of ours
    return int(row["n"])
