"""Rows in one SQLite file in WAL mode, `synchronous=FULL`: a committed row survives a loss of power.

Every thread has a connection of its own; several processes may use the file at once.
"""

from __future__ import annotations

import functools
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from kernels_hub.errors import KernelsHubError
from kernels_hub.server.database.schema import (
    CORE,
    MOVE_TABLES,
    SHORTEST_TEXT,
    Column,
    Index,
    Key,
    Schema,
    TextIndex,
    Trigger,
)
from kernels_hub.server.database.seam import (
    Containing,
    Database,
    DatabaseError,
    DatabaseFullError,
    Row,
    RowConflictError,
    UnavailableError,
    put_statement,
)

_SECONDS = 30
"""How long a statement waits for another process that writes."""
_CACHE_KIB = 8192
"""Pages that a thread keeps: what a search reads again for its second question, with 100,000 repositories."""


@functools.cache
def _has_trigrams() -> bool:
    """Whether this SQLite indexes substrings: from 3.34 on, with FTS5, which few builds leave out."""
    with closing(sqlite3.connect(":memory:")) as probe:
        try:
            probe.execute("CREATE VIRTUAL TABLE probe USING fts5(text, tokenize = 'trigram')")
        except sqlite3.OperationalError:
            return False
    return True


class SqliteDatabase(Database):
    """Connections to one SQLite file, which is made where it is missing."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._path = path
        self._local = threading.local()
        self._all: list[tuple[threading.Thread, sqlite3.Connection]] = []
        self._guard = threading.Lock()
        try:
            self.add(CORE)
        except DatabaseError as error:
            self.close()
            raise KernelsHubError(
                f"{path} cannot be used: {error}; if it is damaged, put back the one of a copy made by "
                "`kernels-hub hub backup`"
            ) from error

    def _connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._opened()
            with self._guard:
                # Threads end when there is little to do: their connections, three descriptors each, end here.
                for _, left in [row for row in self._all if not row[0].is_alive()]:
                    left.close()
                self._all = [row for row in self._all if row[0].is_alive()]
                self._all.append((threading.current_thread(), connection))
            self._local.connection = connection
        return connection

    def _opened(self) -> sqlite3.Connection:
        """A connection that one thread opens and uses, and whichever stops the server closes."""
        connection = sqlite3.connect(
            self._path,
            timeout=_SECONDS,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
        )
        connection.row_factory = sqlite3.Row
        try:
            for pragma in (
                "journal_mode=WAL",
                "synchronous=FULL",
                "foreign_keys=ON",
                f"cache_size=-{_CACHE_KIB}",
            ):
                connection.execute(f"PRAGMA {pragma}").close()
        except BaseException:
            connection.close()
            raise
        return connection

    def add(self, schema: Schema) -> None:
        """Make tables, indexes and triggers where they are missing, as one change."""
        with _translated():
            connection = self._connection()
            while True:
                columns = self._lacking(schema)
                try:
                    connection.executescript(f"BEGIN IMMEDIATE; {_script(schema, columns)} COMMIT;")
                    return
                except sqlite3.Error:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                    if self._lacking(schema) == columns:  # else another process added them meanwhile
                        raise

    def _lacking(self, schema: Schema) -> tuple[Column, ...]:
        """Columns that tables which are there lack."""
        found = []
        for column in schema.added:
            names = {str(row["name"]) for row in self.rows(f"PRAGMA table_info({column.table})")}
            if names and column.name not in names:
                found.append(column)
        return tuple(found)

    def containing(self, index: TextIndex, text: str) -> Containing | None:
        """How FTS5 finds a text; None below three characters, and without trigrams."""
        if not _has_trigrams() or (not index.words and (len(text) < SHORTEST_TEXT or "\0" in text)):
            return None
        phrases = text.split() if index.words else [text]
        phrase = " AND ".join('"' + text.replace('"', '""') + '"' for text in phrases)
        keys = (
            f"SELECT {index.key} FROM {index.name} CROSS JOIN {index.name}_rows ON number = {index.name}.rowid "  # noqa: S608
            f"WHERE {index.name} MATCH ?"
        )
        return Containing((keys, (phrase,)), (f"{index.table}.{index.key} IN ({keys})", (phrase,)))

    @property
    def plans(self) -> bool:
        """Not without counts of rows, which only ANALYZE would make."""
        return False

    def rows(self, query: str, *values: object) -> Sequence[Row]:
        """Everything that a query finds."""
        with _translated():
            return self._connection().execute(query, values).fetchall()

    def row(self, query: str, *values: object) -> Row | None:
        """The first row that a query finds."""
        with _translated():
            found = self._connection().execute(query, values).fetchone()
        assert found is None or isinstance(found, sqlite3.Row)
        return found

    def change(self, statement: str, *values: object) -> int:
        """Run one statement that changes rows; durable on return. How many it changed."""
        with _translated():
            return self._connection().execute(statement, values).rowcount

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Several statements of this thread as one, writing from the start; undone on an error."""
        with self._begun("BEGIN IMMEDIATE"):
            yield

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Several queries of this thread that see one moment, while others write."""
        with self._begun("BEGIN"):
            yield

    @contextmanager
    def _begun(self, how: str) -> Iterator[None]:
        with _translated():
            connection = self._connection()
            if nested := connection.in_transaction:
                pass
            else:
                connection.execute(how)
        if nested:
            yield
            return
        try:
            yield
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        with _translated():
            connection.execute("COMMIT")

    def each(self, query: str) -> Iterator[Row]:
        """What a query finds, without holding all of it."""
        with _translated():
            yield from self._connection().execute(query)

    def insert(self, table: str, columns: Sequence[str], values: Iterable[Sequence[object]]) -> None:
        """Add many rows."""
        names, marks = ", ".join(f'"{column}"' for column in columns), ", ".join("?" * len(columns))
        with _translated():
            self._connection().executemany(
                f"INSERT INTO {table} ({names}) VALUES ({marks})",  # noqa: S608 -- names of our own tables
                values,
            )

    def put(
        self, table: str, columns: Sequence[str], values: Iterable[Sequence[object]], *, keep: bool = False
    ) -> None:
        """Add many rows, in place of those with the same keys; with `keep`, those stay."""
        statement = put_statement(table, columns, self.key(table), keep=keep)
        with _translated():
            self._connection().executemany(statement, values)

    def key(self, table: str) -> Key:
        """The primary key of a table."""
        found = sorted(
            (row for row in self.rows(f"PRAGMA table_info({table})") if row["pk"]), key=lambda row: row["pk"]
        )
        names = tuple(str(row["name"]) for row in found)
        return Key(names, tuple(row["type"] == "BLOB" for row in found))

    def columns(self, table: str) -> list[str]:
        """The columns of a table, but for generated ones."""
        return [str(row["name"]) for row in self.rows(f"PRAGMA table_info({table})")]

    def record(self, tables: Sequence[str]) -> None:
        """Note the key of every row of these tables that changes, by triggers."""
        made = (
            "SELECT name FROM sqlite_master WHERE type = 'trigger' AND name LIKE 'row#_changes#_%' ESCAPE '#'"
        )
        for row in self.rows(made):
            self.change(f"DROP TRIGGER {row['name']}")
        self.change("DROP TABLE IF EXISTS row_changes")
        if tables:
            columns = '(number INTEGER PRIMARY KEY, "table" TEXT NOT NULL, key TEXT NOT NULL)'
            self.change(f"CREATE TABLE row_changes {columns}")
        for table in tables:
            for statement in _recording(table, self.key(table)):
                self.change(statement)

    def has(self, table: str) -> bool:
        """Whether there is such a table."""
        return self.row("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", table) is not None

    def tables(self) -> list[str]:
        """The names of all tables."""
        rows = self.rows(
            "SELECT name FROM sqlite_master AS made WHERE type = 'table' AND name NOT LIKE 'sqlite%' "
            # Indexes of text, and the tables that they are made of.
            "AND NOT EXISTS (SELECT 1 FROM sqlite_master AS text WHERE text.sql LIKE 'CREATE VIRTUAL TABLE%' "
            "AND instr(made.name || '_', text.name || '_') = 1) ORDER BY name"
        )
        return [name for row in rows if (name := str(row["name"])) not in MOVE_TABLES]

    def check(self) -> list[str]:
        """What SQLite's own check finds wrong; nothing when all is well."""
        found = [str(row["integrity_check"]) for row in self.rows("PRAGMA integrity_check")]
        broken = [f"{row['table']} row {row['rowid']}" for row in self.rows("PRAGMA foreign_key_check")]
        return [text for text in found if text != "ok"] + broken

    def backup(self, target: Path) -> None:
        """A consistent copy, page by page, while others read and write."""
        with closing(sqlite3.connect(target)) as copy, _translated():
            self._connection().backup(copy)
        with closing(SqliteDatabase(target)) as copied, copied.transaction():
            copied.record(())  # of a move that was begun: a copy is none's source
            copied.change("DROP TABLE IF EXISTS row_move")

    def in_order(self, index: str) -> str:
        """INDEXED BY: SQLite's planner has no counts of rows here."""
        return f" INDEXED BY {index}"

    @property
    def forced_join(self) -> str:
        """CROSS JOIN, which SQLite never turns round."""
        return "CROSS JOIN"

    def close(self) -> None:
        """Close every thread's connection."""
        with self._guard:
            for _, connection in self._all:
                connection.close()
            self._all.clear()
        self._local = threading.local()


@contextmanager
def _translated() -> Iterator[None]:
    """SQLite's errors as those of every database."""
    try:
        yield
    except sqlite3.IntegrityError as error:
        raise RowConflictError(str(error)) from error
    except sqlite3.OperationalError as error:
        name = getattr(error, "sqlite_errorname", "") or ""
        if name.startswith("SQLITE_FULL"):
            raise DatabaseFullError(str(error)) from error
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            raise UnavailableError(f"{error}: another process has been writing for {_SECONDS} s") from error
        raise DatabaseError(str(error)) from error
    except sqlite3.Error as error:
        raise DatabaseError(str(error)) from error


def _script(schema: Schema, lacking: Iterable[Column]) -> str:
    guards = [
        f"CREATE TRIGGER IF NOT EXISTS {table}_{action} BEFORE {action} ON {table} "
        f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END;"
        for table in schema.append_only
        for action in ("UPDATE", "DELETE")
    ]
    texts = map(_text_index, schema.texts) if _has_trigrams() else ()
    return "\n".join(
        [
            schema.tables,
            *(f"ALTER TABLE {column.table} ADD COLUMN {column.name} {column.kind};" for column in lacking),
            *map(_index, schema.indexes),
            *texts,
            *map(_trigger, schema.triggers),
            *guards,
            schema.fill,
        ]
    )


def _recording(table: str, key: Key) -> Iterator[str]:
    """Triggers that note the keys of rows that change, old and new ones."""

    def of(row: str) -> str:
        columns = (f'{row}."{column}"' for column in key.columns)
        return ", ".join(
            f"lower(hex({column}))" if binary else column
            for column, binary in zip(columns, key.binary, strict=True)
        )

    for event, rows in (("INSERT", ("new",)), ("UPDATE", ("old", "new")), ("DELETE", ("old",))):
        noted = " UNION ".join(f"SELECT '{table}', json_array({of(row)})" for row in rows)
        yield (
            f"CREATE TRIGGER row_changes_{table}_{event.lower()} AFTER {event} ON {table} "
            f'BEGIN INSERT INTO row_changes ("table", key) {noted}; END'
        )


def _text_index(index: TextIndex) -> str:
    """An index of text without a copy of it, and what keeps it right.

    FTS5 knows rows by numbers, which those of a table with a primary key of text are not: VACUUM may change them.
    """
    name, key, rows = index.name, index.key, f"{index.name}_rows"
    old, new = (index.text(row) for row in ("old.", "new."))
    number_of = f"FROM {rows} WHERE {key} ="  # as all of these: names of our own tables
    add = f"INSERT INTO {name} (rowid, text) SELECT number, {new} {number_of} new.{key};"
    remove = f"INSERT INTO {name} ({name}, rowid, text) SELECT 'delete', number, {old} {number_of} old.{key};"
    # Where in a text a word stands is never asked.
    tokenizer = "'ascii', detail = none" if index.words else "'trigram case_sensitive 1'"
    changed = " OR ".join(f"old.{column} <> new.{column}" for column in index.columns)
    return f"""
CREATE TABLE IF NOT EXISTS {rows} (number INTEGER PRIMARY KEY, {key} TEXT NOT NULL UNIQUE);
CREATE VIRTUAL TABLE IF NOT EXISTS {name} USING fts5(text, content = '', tokenize = {tokenizer});
INSERT OR IGNORE INTO {rows} ({key}) SELECT {key} FROM {index.table} WHERE NOT EXISTS (SELECT 1 FROM {name});
INSERT INTO {name} (rowid, text) SELECT number, {index.text()} FROM {index.table} JOIN {rows} USING ({key})
    WHERE NOT EXISTS (SELECT 1 FROM {name});
CREATE TRIGGER IF NOT EXISTS {name}_insert AFTER INSERT ON {index.table}
    BEGIN INSERT INTO {rows} ({key}) VALUES (new.{key}); {add} END;
CREATE TRIGGER IF NOT EXISTS {name}_update AFTER UPDATE OF {", ".join(index.columns)} ON {index.table}
    WHEN {changed} BEGIN {remove} {add} END;
CREATE TRIGGER IF NOT EXISTS {name}_delete AFTER DELETE ON {index.table}
    BEGIN {remove} DELETE FROM {rows} WHERE {key} = old.{key}; END;
"""  # noqa: S608 -- names of our own tables


def _index(index: Index) -> str:
    columns = ", ".join(filter(None, (index.key, index.covered)))
    where = f" WHERE {index.where}" if index.where else ""
    return f"CREATE INDEX IF NOT EXISTS {index.name} ON {index.table} ({columns}){where};"


def _trigger(trigger: Trigger) -> str:
    return (
        f"CREATE TRIGGER IF NOT EXISTS {trigger.name} AFTER {trigger.event} ON {trigger.table} "
        f"BEGIN {trigger.statement}; END;"
    )
