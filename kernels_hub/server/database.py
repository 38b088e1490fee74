"""Database records: accounts, members, tokens, repositories, access grants, large files.

One sqlite file in WAL mode, `synchronous=FULL`: a committed row survives a loss of power. Every thread
has a connection of its own; several processes may use the file at once.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kernels_hub.errors import KernelsHubError

_SCHEMA = """
CREATE TABLE IF NOT EXISTS accounts (
    name TEXT PRIMARY KEY COLLATE NOCASE,
    kind TEXT NOT NULL CHECK (kind IN ('user', 'org')),
    trusted INTEGER NOT NULL DEFAULT 0,
    created REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS members (
    organisation TEXT NOT NULL COLLATE NOCASE REFERENCES accounts ON DELETE CASCADE,
    user TEXT NOT NULL COLLATE NOCASE REFERENCES accounts ON DELETE CASCADE,
    role TEXT NOT NULL CHECK (role IN ('admin', 'write', 'read')),
    PRIMARY KEY (organisation, user)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tokens (
    id TEXT PRIMARY KEY,
    sha256 BLOB NOT NULL UNIQUE,
    user TEXT NOT NULL COLLATE NOCASE REFERENCES accounts ON DELETE CASCADE,
    role TEXT NOT NULL CHECK (role IN ('read', 'write')),
    repository TEXT COLLATE NOCASE,
    created REAL NOT NULL,
    expires REAL
);
CREATE TABLE IF NOT EXISTS repositories (
    id TEXT PRIMARY KEY,
    type TEXT NOT NULL CHECK (type IN ('model', 'kernel')),
    namespace TEXT NOT NULL COLLATE NOCASE REFERENCES accounts,
    name TEXT NOT NULL COLLATE NOCASE,
    private INTEGER NOT NULL,
    gated TEXT NOT NULL DEFAULT '' CHECK (gated IN ('', 'auto', 'manual')),
    created REAL NOT NULL,
    UNIQUE (type, namespace, name)
);
CREATE TABLE IF NOT EXISTS grants (
    repository TEXT NOT NULL REFERENCES repositories ON DELETE CASCADE,
    user TEXT NOT NULL COLLATE NOCASE REFERENCES accounts ON DELETE CASCADE,
    status TEXT NOT NULL CHECK (status IN ('accepted', 'pending', 'rejected')),
    changed REAL NOT NULL,
    PRIMARY KEY (repository, user)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS objects (
    repository TEXT NOT NULL REFERENCES repositories ON DELETE CASCADE,
    oid TEXT NOT NULL,
    size INTEGER NOT NULL,
    touched REAL NOT NULL,
    PRIMARY KEY (repository, oid)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS release_log (
    chain TEXT NOT NULL COLLATE NOCASE,
    number INTEGER NOT NULL,
    document TEXT NOT NULL,
    hash TEXT NOT NULL,
    oid TEXT NOT NULL,
    PRIMARY KEY (chain, number)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS pending_refs (
    repository TEXT PRIMARY KEY REFERENCES repositories ON DELETE CASCADE,
    changes TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS unlogged (
    repository TEXT PRIMARY KEY REFERENCES repositories ON DELETE CASCADE
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS audit_log (
    number INTEGER PRIMARY KEY,
    document TEXT NOT NULL,
    hash TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS upgrades (name TEXT PRIMARY KEY) WITHOUT ROWID;
"""
_APPEND_ONLY = ("release_log", "audit_log")
_KEEP = """
CREATE TRIGGER IF NOT EXISTS {table}_{action} BEFORE {action} ON {table}
BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END;
"""


class Database:
    """Connections to one sqlite file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._local = threading.local()
        self._all: list[tuple[threading.Thread, sqlite3.Connection]] = []
        self._guard = threading.Lock()
        try:
            self._connection().executescript(_SCHEMA)
            for table in _APPEND_ONLY:
                for action in ("UPDATE", "DELETE"):
                    self._connection().executescript(_KEEP.format(table=table, action=action))
            self._upgrade()
        except sqlite3.DatabaseError as error:
            raise KernelsHubError(
                f"{path} cannot be used: {error}; if it is damaged, put back the one of a copy made by "
                "`kernels-hub hub backup`"
            ) from error

    def _upgrade(self) -> None:
        """Note, once a root, the repositories that are older than the release log: their tags are not in it."""
        if self.row("SELECT 1 FROM upgrades WHERE name = 'release_log'") is None:
            with self.transaction():
                if self.change("INSERT OR IGNORE INTO upgrades VALUES ('release_log')"):
                    self.change("INSERT OR IGNORE INTO unlogged SELECT id FROM repositories")

    def _connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            # Opened and used by one thread; closed by whichever stops the server.
            connection = sqlite3.connect(
                self._path, timeout=30, isolation_level=None, check_same_thread=False, cached_statements=256
            )
            connection.row_factory = sqlite3.Row
            for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
                connection.execute(f"PRAGMA {pragma}").close()
            with self._guard:
                # Threads end when there is little to do: their connections, three descriptors each, end here.
                for _, left in [row for row in self._all if not row[0].is_alive()]:
                    left.close()
                self._all = [row for row in self._all if row[0].is_alive()]
                self._all.append((threading.current_thread(), connection))
            self._local.connection = connection
        return connection

    def add(self, schema: str) -> None:
        """Make the tables of another module, where they are missing, as one change: `CREATE … IF NOT EXISTS`."""
        self._connection().executescript(f"BEGIN IMMEDIATE; {schema} COMMIT;")

    def rows(self, query: str, *values: object) -> list[sqlite3.Row]:
        """Everything that a query finds."""
        return self._connection().execute(query, values).fetchall()

    def row(self, query: str, *values: object) -> sqlite3.Row | None:
        """The first row that a query finds."""
        found = self._connection().execute(query, values).fetchone()
        assert found is None or isinstance(found, sqlite3.Row)
        return found

    def change(self, statement: str, *values: object) -> int:
        """Run one statement that changes rows; durable on return. How many it changed."""
        return self._connection().execute(statement, values).rowcount

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Several statements of this thread as one, writing from the start; undone on an error.

        One inside another is part of the outer one.
        """
        connection = self._connection()
        if connection.in_transaction:
            yield
            return
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")

    def backup(self, target: Path) -> None:
        """A consistent copy, while others read and write."""
        copy = sqlite3.connect(target)
        try:
            self._connection().backup(copy)
        finally:
            copy.close()

    def check(self) -> list[str]:
        """What sqlite's own check finds wrong; nothing when all is well."""
        found = [str(row[0]) for row in self.rows("PRAGMA integrity_check")]
        broken = [f"{row['table']} row {row['rowid']}" for row in self.rows("PRAGMA foreign_key_check")]
        return [text for text in found if text != "ok"] + broken

    def close(self) -> None:
        """Close every thread's connection."""
        with self._guard:
            for _, connection in self._all:
                connection.close()
            self._all.clear()
        self._local = threading.local()
