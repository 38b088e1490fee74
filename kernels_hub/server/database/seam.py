"""What a Hub asks of its database, whichever it is.

One SQL text serves all: `?` is a value, column names that SQL reserves stand in quotes, an upsert says ON CONFLICT.
What cannot be said in common is in `schema.py` (tables) and in `Database.in_order` and `Database.forced_join` (how a
query goes through them): who uses these holds `Database.staying`, since rows may move to another database.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from kernels_hub.server.database.schema import Key, Schema, TextIndex

ALL_ROWS = 2**63 - 1
"""A LIMIT that limits nothing."""


Query = tuple[str, tuple[object, ...]]
"""A query and its values."""


@dataclass(frozen=True)
class Containing:
    """How an index of texts finds rows: it misses none that contain the text, and may find others.

    keys: a query for their keys, as the table calls them.
    condition: the same, of rows of the table.
    """

    keys: Query
    condition: Query


class Row(Protocol):
    """One row; columns by their names."""

    def __getitem__(self, name: str, /) -> Any: ...

    def keys(self) -> Iterable[str]:
        """The names of its columns."""


class DatabaseError(Exception):
    """A statement failed."""


class RowConflictError(DatabaseError):
    """The rows that are there forbid a change: a name is taken, a parent is gone, a table is append-only."""


class DatabaseFullError(DatabaseError):
    """The disk under the database is full; nothing was changed."""


class UnavailableError(DatabaseError):
    """The database cannot be reached, or cannot answer now. Sent again later, the same may succeed.

    A transaction whose end was not heard of is there whole, or not at all.
    """


class Database(ABC):
    """The rows of one Hub. Safe from several threads; several processes may use them at once."""

    name: str
    """What messages call it; without a password."""

    @abstractmethod
    def add(self, schema: Schema) -> None:
        """Make tables, indexes and triggers where they are missing, as one change."""

    @abstractmethod
    def rows(self, query: str, *values: object) -> Sequence[Row]:
        """Everything that a query finds."""

    @abstractmethod
    def row(self, query: str, *values: object) -> Row | None:
        """The first row that a query finds."""

    @abstractmethod
    def change(self, statement: str, *values: object) -> int:
        """Run one statement that changes rows; durable on return. How many it changed."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[None]:
        """Several statements of this thread as one, writing from the start; undone on an error.

        One at a time: what others wrote before it began is seen, and nobody writes in transactions beside it. One
        inside another is part of the outer one.
        """

    @abstractmethod
    def snapshot(self) -> AbstractContextManager[None]:
        """Several queries of this thread that see one moment, while others write; of any length."""

    def now(self) -> float:
        """Seconds since the epoch, by the one clock that all servers of a Hub go by."""
        return time.time()

    def staying(self) -> AbstractContextManager[None]:
        """Hold while a query is written for this database, as `in_order` and those below say, and asked of it."""
        return nullcontext()

    @abstractmethod
    def each(self, query: str) -> Iterator[Row]:
        """What a query finds, without holding all of it. Inside `snapshot` or `transaction`."""

    @abstractmethod
    def insert(self, table: str, columns: Sequence[str], values: Iterable[Sequence[object]]) -> None:
        """Add many rows. Inside `transaction`."""

    @abstractmethod
    def put(
        self, table: str, columns: Sequence[str], values: Iterable[Sequence[object]], *, keep: bool = False
    ) -> None:
        """Add many rows, in place of those with the same keys; with `keep`, those stay. Inside `transaction`."""

    @abstractmethod
    def key(self, table: str) -> Key:
        """The primary key of a table."""

    @abstractmethod
    def columns(self, table: str) -> list[str]:
        """The columns of a table, in their order, but for those that this database computes from others."""

    @abstractmethod
    def record(self, tables: Sequence[str]) -> None:
        """From now on, note the key of every row of these tables that changes in a new table `row_changes`.

        It has the columns number (each its own), table and key (JSON, bytes by their hexadecimal digits). With no
        tables, nothing is noted any more, and that table is gone. Inside `transaction`.
        """

    @abstractmethod
    def has(self, table: str) -> bool:
        """Whether there is such a table."""

    @abstractmethod
    def tables(self) -> list[str]:
        """The names of all tables, in the order of the alphabet."""

    @abstractmethod
    def backup(self, target: Path) -> None:
        """A consistent copy as an SQLite file, while others read and write."""

    @abstractmethod
    def check(self) -> list[str]:
        """What is wrong with the database itself; nothing when all is well."""

    @abstractmethod
    def in_order(self, index: str) -> str:
        """What follows a table that must be read through an index; "" where the database knows best."""

    @abstractmethod
    def containing(self, index: TextIndex, text: str) -> Containing | None:
        """How an index finds the rows that contain a text; None where only reading every row tells.

        That is so of less than three characters, and where the database lacks what such an index needs.
        """

    @property
    @abstractmethod
    def plans(self) -> bool:
        """Whether queries are planned by how many rows a text is in; else whoever asks chooses the index."""

    @property
    @abstractmethod
    def forced_join(self) -> str:
        """The join that reads the left table first."""

    @abstractmethod
    def close(self) -> None:
        """Close every connection."""


def put_statement(table: str, columns: Sequence[str], key: Key, *, keep: bool) -> str:
    """The statement that `Database.put` runs for each row."""
    names, marks = listed(columns), ", ".join("?" * len(columns))
    replaced = ", ".join(f'"{column}" = excluded."{column}"' for column in columns)
    otherwise = "NOTHING" if keep else f"UPDATE SET {replaced}"
    return (
        f"INSERT INTO {table} ({names}) VALUES ({marks}) "  # noqa: S608 -- names of our own tables
        f"ON CONFLICT ({listed(key.columns)}) DO {otherwise}"
    )


def listed(columns: Sequence[str]) -> str:
    """Names of columns as a statement has them."""
    return ", ".join(f'"{column}"' for column in columns)
