"""A database that can be exchanged for another while threads use it: what servers have while their rows may move."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from kernels_hub.server.database.schema import Key, Schema, TextIndex
from kernels_hub.server.database.seam import Containing, Database, Row, UnavailableError

_WAIT_SECONDS = 10.0
"""How long a statement waits while rows move, before it is a 503 that clients send again."""


class _Thread(threading.local):
    depth = 0
    """How often this thread is inside."""


class _Gate:
    """Lets threads in, each as often as it likes, until it is shut; then nobody new, until it is opened again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._inside = 0
        self._shut = False
        self._local = _Thread()

    def __enter__(self) -> None:
        depth = self._local.depth
        if not depth:
            with self._lock:
                if self._shut and not self._changed.wait_for(lambda: not self._shut, _WAIT_SECONDS):
                    raise UnavailableError("its rows are being moved to another database")
                self._inside += 1
        self._local.depth = depth + 1

    def __exit__(self, *_: object) -> None:
        self._local.depth -= 1
        if not self._local.depth:
            with self._lock:
                self._inside -= 1
                if self._shut:
                    self._changed.notify_all()

    @property
    def is_inside(self) -> bool:
        """Whether this thread is."""
        return self._local.depth > 0

    def shut(self, seconds: float) -> bool:
        """Let nobody in any more; whether all who were inside have left in time."""
        with self._changed:
            self._shut = True
            return self._changed.wait_for(lambda: not self._inside, seconds)

    def open(self) -> None:
        """Let threads in again."""
        with self._changed:
            self._shut = False
            self._changed.notify_all()


class MovableDatabase(Database):
    """Another database, whichever it is now. What is begun on one, a statement or a transaction, ends on it."""

    def __init__(self, database: Database) -> None:
        self._gate = _Gate()
        self._set(database)

    def _set(self, database: Database) -> None:
        self.inner = database
        self.name = database.name

    @contextmanager
    def exchanged(self, seconds: float) -> Iterator[Callable[[Database], None] | None]:
        """Close the database, and take another one, which the block gives; who asks meanwhile waits.

        None where somebody has been in it for longer than `seconds`: then it stays. A block that gives none must not
        end before the database that was closed can be opened again.
        """
        if not self._gate.shut(seconds):
            self._gate.open()
            yield None
            return
        try:
            self.inner.close()
            yield self._set
        finally:
            self._gate.open()

    @property
    def _here(self) -> Database:
        """The database that this thread stays on: what is asked of it here is of use for nothing else."""
        assert self._gate.is_inside, "another database may take its place: hold `staying`, or a transaction"
        return self.inner

    # -- what every database does

    def now(self) -> float:
        """Seconds since the epoch, by the clock that all servers of the Hub go by."""
        return self.inner.now()

    def add(self, schema: Schema) -> None:
        """Make tables, indexes and triggers where they are missing, as one change."""
        with self._gate:
            self.inner.add(schema)

    def rows(self, query: str, *values: object) -> Sequence[Row]:
        """Everything that a query finds."""
        with self._gate:
            return self.inner.rows(query, *values)

    def row(self, query: str, *values: object) -> Row | None:
        """The first row that a query finds."""
        with self._gate:
            return self.inner.row(query, *values)

    def change(self, statement: str, *values: object) -> int:
        """Run one statement that changes rows; durable on return. How many it changed."""
        with self._gate:
            return self.inner.change(statement, *values)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Several statements of this thread as one, writing from the start; undone on an error."""
        with self._gate, self.inner.transaction():
            yield

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Several queries of this thread that see one moment, while others write."""
        with self._gate, self.inner.snapshot():
            yield

    def staying(self) -> AbstractContextManager[None]:
        """Hold while a query is written for this database and asked of it. The same one each time, for any thread."""
        return self._gate

    def each(self, query: str) -> Iterator[Row]:
        """What a query finds, without holding all of it."""
        return self._here.each(query)

    def insert(self, table: str, columns: Sequence[str], values: Iterable[Sequence[object]]) -> None:
        """Add many rows."""
        with self._gate:
            self.inner.insert(table, columns, values)

    def put(
        self, table: str, columns: Sequence[str], values: Iterable[Sequence[object]], *, keep: bool = False
    ) -> None:
        """Add many rows, in place of those with the same keys; with `keep`, those stay."""
        with self._gate:
            self.inner.put(table, columns, values, keep=keep)

    def key(self, table: str) -> Key:
        """The primary key of a table."""
        with self._gate:
            return self.inner.key(table)

    def columns(self, table: str) -> list[str]:
        """The columns of a table, but for those that the database computes."""
        with self._gate:
            return self.inner.columns(table)

    def record(self, tables: Sequence[str]) -> None:
        """Note the key of every row of these tables that changes."""
        with self._gate:
            self.inner.record(tables)

    def has(self, table: str) -> bool:
        """Whether there is such a table."""
        with self._gate:
            return self.inner.has(table)

    def tables(self) -> list[str]:
        """The names of all tables."""
        with self._gate:
            return self.inner.tables()

    def backup(self, target: Path) -> None:
        """A consistent copy as an SQLite file, while others read and write."""
        with self._gate:
            self.inner.backup(target)

    def check(self) -> list[str]:
        """What is wrong with the database itself; nothing when all is well."""
        with self._gate:
            return self.inner.check()

    def in_order(self, index: str) -> str:
        """What follows a table that must be read through an index."""
        return self._here.in_order(index)

    def containing(self, index: TextIndex, text: str) -> Containing | None:
        """How an index finds the rows that contain a text."""
        return self._here.containing(index, text)

    @property
    def plans(self) -> bool:
        """Whether queries are planned by how many rows a text is in."""
        return self._here.plans

    @property
    def forced_join(self) -> str:
        """The join that reads the left table first."""
        return self._here.forced_join

    def close(self) -> None:
        """Close every connection."""
        self.inner.close()
