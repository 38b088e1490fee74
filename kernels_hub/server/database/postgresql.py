"""Rows in a PostgreSQL database, by psycopg: what several machines share.

A transaction takes the one advisory lock of the database at its beginning, and what it reads is what was committed by
then (READ COMMITTED, statement by statement): transactions are done one after the other, as SQLite does them. That
needs no repetition, which SERIALIZABLE would ask of every caller, and the two logs are chains, to which entries can
only be added one after the other. Reads, and statements outside a transaction, do not wait for it.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kernels_hub.errors import KernelsHubError
from kernels_hub.server.database import dialect
from kernels_hub.server.database.address import checked, without_password
from kernels_hub.server.database.schema import CORE, MOVE_TABLES, SHORTEST_TEXT, Key, Schema, TextIndex
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
from kernels_hub.server.database.sqlite import SqliteDatabase
from kernels_hub.server.database.transfer import copy_rows

try:
    import psycopg
    from psycopg.rows import dict_row

    from kernels_hub.server.database.connections import Connection, Connections
except ModuleNotFoundError as missing:
    raise KernelsHubError(
        f"a Hub on PostgreSQL needs {missing.name}; pip install 'kernels-hub[postgresql]' brings it"
    ) from missing

_log = logging.getLogger("kernels_hub.server")
OLDEST = 140000
"""The oldest server, as PostgreSQL numbers its releases: the first that replaces triggers."""
_TRANSACTIONS = 0x6B68_7562
"""The advisory lock that a transaction holds."""
_ADVICE = "see that it runs and takes this user, with the password in PGPASSWORD or ~/.pgpass"
_SETTINGS = {
    "statement_timeout": "30s",
    "lock_timeout": "30s",
    "idle_in_transaction_session_timeout": "120s",
    # The lock of a machine that is gone is let go.
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    "client_min_messages": "warning",
    # Queries take milliseconds; to compile them, or to start processes for them, takes tens.
    "jit": "off",
    "max_parallel_workers_per_gather": "0",
    # What lists read is in memory, or on a disk without a head.
    "random_page_cost": "1.1",
    # Rows are looked up by keys of which no two are the same.
    "enable_memoize": "off",
    # A plan for any LIMIT and any word is a bad one for most.
    "plan_cache_mode": "force_custom_plan",
}
_CONNECTING: dict[str, str | int | None] = {
    "connect_timeout": 5,
    "application_name": "kernels-hub",
    # A machine that is gone says nothing: the system asks after 10 s, and gives up after 25.
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
_WITHOUT_END = (
    "SET LOCAL statement_timeout = 0",
    "SET LOCAL idle_in_transaction_session_timeout = 0",
)
_BESIDE = (*dialect.OWN_TABLES, *MOVE_TABLES)
"""Tables that are none of a Hub's."""
_CLOCKS_DIFFER_SECONDS = 5.0
_FULL = "53100"
_LATER = ("08", "53", "57", "40", "25006", "55P03", "58")
"""SQLSTATEs of what may succeed later: connections, resources, shutdown, deadlocks, read-only, lock timeouts."""


class PostgresqlDatabase(Database):
    """Connections to one PostgreSQL database. Raises KernelsHubError where it cannot be used."""

    def __init__(self, address: str) -> None:
        self.name = without_password(checked(address))
        self._address = address
        self._local = threading.local()
        self._added: list[Schema] = []
        self._texts: set[str] = set()
        self._ahead = 0.0
        try:
            self._conninfo = _conninfo(address)
        except psycopg.ProgrammingError as error:
            raise KernelsHubError(
                f"{self.name} is no address that libpq takes: {_first_line(error)}"
            ) from None
        self._connections = Connections(self._connect)
        try:
            self._check_server()
        except DatabaseError as error:
            raise KernelsHubError(f"{self.name} cannot be used: {error}; {_ADVICE}") from error
        except KernelsHubError:
            self.close()
            raise

    # -- connections

    def _connect(self) -> Connection:
        with _translated():
            connection = psycopg.connect(self._conninfo, autocommit=True, row_factory=dict_row)
            # What is acknowledged is on disk, whatever the server's default; a stronger one stays.
            connection.execute(
                "SELECT set_config('synchronous_commit', 'on', false) "
                "WHERE current_setting('synchronous_commit') = 'off'"
            )
            self._compare_clocks(connection)
            return connection

    def _compare_clocks(self, connection: Connection) -> None:
        before = time.time()
        row = connection.execute(
            "SELECT extract(epoch FROM clock_timestamp())::double precision AS now"
        ).fetchone()
        after = time.time()
        assert row is not None
        ahead = float(row["now"]) - (before + after) / 2
        # Within the time that the question took, and what clocks that are set by a network differ by, they are equal.
        ahead = ahead if abs(ahead) > after - before + _CLOCKS_DIFFER_SECONDS else 0.0
        if abs(ahead - self._ahead) > _CLOCKS_DIFFER_SECONDS:
            _log.warning(
                "the clock of %s is %.0f s %s this server's, and counts; set both",
                self.name,
                abs(ahead),
                "ahead of" if ahead > 0 else "behind",
            )
        self._ahead = ahead

    def now(self) -> float:
        """By the clock of PostgreSQL, as each new connection compares it with this machine's."""
        return time.time() + self._ahead

    def _check_server(self) -> None:
        row = self.row("SELECT current_setting('server_encoding') AS encoding")
        with self._lent() as connection:
            version = connection.info.server_version
        if version < OLDEST:
            raise KernelsHubError(
                f"{self.name} is PostgreSQL {version // 10000}; a Hub needs {OLDEST // 10000} or newer"
            )
        if row is None or row["encoding"] != "UTF8":
            raise KernelsHubError(
                f"{self.name} is encoded in {row['encoding'] if row else '?'}; make one with `createdb -E UTF8`"
            )

    @contextmanager
    def _lent(self) -> Iterator[Connection]:
        """The connection of this thread's transaction, or one for a statement."""
        connection: Connection | None = getattr(self._local, "connection", None)
        if connection is not None:
            if connection.closed:
                raise UnavailableError("the connection to the database was lost")
            with _translated():
                yield connection
            return
        connection = self._connections.take()
        try:
            with _translated():
                yield connection
        finally:
            self._connections.give(connection)

    # -- statements

    def rows(self, query: str, *values: object) -> Sequence[Row]:
        """Everything that a query finds."""
        with self._lent() as connection:
            return connection.execute(*_statement(query, values)).fetchall()

    def row(self, query: str, *values: object) -> Row | None:
        """The first row that a query finds."""
        with self._lent() as connection:
            return connection.execute(*_statement(query, values)).fetchone()

    def change(self, statement: str, *values: object) -> int:
        """Run one statement that changes rows; durable on return. How many it changed."""
        with self._lent() as connection:
            return connection.execute(*_statement(statement, values)).rowcount

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Several statements of this thread as one, writing from the start; undone on an error."""
        with self._begun(
            "BEGIN ISOLATION LEVEL READ COMMITTED", f"SELECT pg_advisory_xact_lock({_TRANSACTIONS})"
        ):
            yield

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Several queries of this thread that see one moment, while others write; of any length."""
        with self._begun("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", *_WITHOUT_END):
            yield

    @contextmanager
    def _begun(self, *statements: str) -> Iterator[None]:
        if getattr(self._local, "begun", False):
            yield
            return
        with self._bound() as connection:
            self._local.begun = True
            try:
                with _translated():
                    for statement in statements:
                        connection.execute(statement)
                yield
                if connection.closed:  # somebody caught the error that said so
                    raise UnavailableError("the connection to the database was lost; nothing was changed")
                with _translated():
                    if connection.execute("COMMIT").statusmessage != "COMMIT":
                        raise DatabaseError("a statement of the transaction failed; nothing was changed")
            except BaseException:
                _undo(connection)
                raise
            finally:
                self._local.begun = False

    @contextmanager
    def _bound(self) -> Iterator[Connection]:
        """The connection of all that this thread does until the end of the block."""
        if (known := getattr(self._local, "connection", None)) is not None:
            yield known
            return
        connection = self._connections.take()
        self._local.connection = connection
        try:
            yield connection
        finally:
            self._local.connection = None
            self._connections.give(connection)

    # -- locks

    @contextmanager
    def held(self, name: str, seconds: float = 0.0) -> Iterator[bool]:
        """Hold a lock that everybody on this database respects: whether it is held, within some seconds.

        What this thread does meanwhile goes through the connection that holds it: once the lock is lost, with its
        connection, nothing is changed under it any more.
        """
        with self._bound() as connection, _advisory(connection, name, seconds) as held:
            yield held

    @contextmanager
    def held_apart(self, name: str, seconds: float = 0.0) -> Iterator[bool]:
        """As `held`, on a connection of its own, for work that outlasts restarts of the database: then it is lost."""
        connection = self._connections.take()
        try:
            with _advisory(connection, name, seconds) as held:
                yield held
        finally:
            self._connections.give(connection)

    def containing(self, index: TextIndex, text: str) -> Containing | None:
        """How pg_trgm finds a text; None below three characters, and without it. Words are found by arrays."""
        if (not index.words and len(text) < SHORTEST_TEXT) or index.name not in self._texts:
            return None
        return dialect.containing(index, text)

    @property
    def plans(self) -> bool:
        """By what ANALYZE counted, of the texts as well."""
        return True

    def each(self, query: str) -> Iterator[Row]:
        """What a query finds, without holding all of it."""
        with self._lent() as connection, connection.cursor(name="each") as cursor:
            cursor.itersize = 2000
            yield from cursor.execute(query.encode())

    def insert(self, table: str, columns: Sequence[str], values: Iterable[Sequence[object]]) -> None:
        """Add many rows."""
        names = ", ".join(f'"{column}"' for column in columns)
        with self._lent() as connection, connection.cursor() as cursor:
            for setting in _WITHOUT_END:
                cursor.execute(setting.encode())
            with cursor.copy(f"COPY {table} ({names}) FROM STDIN".encode()) as copy:
                for row in values:
                    copy.write_row([dialect.value(item) for item in row])

    def put(
        self, table: str, columns: Sequence[str], values: Iterable[Sequence[object]], *, keep: bool = False
    ) -> None:
        """Add many rows, in place of those with the same keys; with `keep`, those stay."""
        statement = dialect.query(put_statement(table, columns, self.key(table), keep=keep)).encode()
        with self._lent() as connection, connection.cursor() as cursor:
            cursor.executemany(statement, ([dialect.value(item) for item in row] for row in values))

    def key(self, table: str) -> Key:
        """The primary key of a table."""
        found = self.rows(
            "SELECT attname AS name, atttypid = 'bytea'::regtype AS bytes FROM pg_index "
            "JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY(indkey) "
            "WHERE indrelid = to_regclass(?) AND indisprimary ORDER BY array_position(indkey::int2[], attnum)",
            table,
        )
        return Key(tuple(row["name"] for row in found), tuple(row["bytes"] for row in found))

    def columns(self, table: str) -> list[str]:
        """The columns of a table, but for generated ones."""
        found = (
            "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(?) AND attnum > 0 "
            "AND NOT attisdropped AND attgenerated = '' ORDER BY attnum"
        )
        return [str(row["attname"]) for row in self.rows(found, table)]

    def record(self, tables: Sequence[str]) -> None:
        """Note the key of every row of these tables that changes, by triggers; waits for statements under way."""
        keys = {table: self.key(table) for table in tables}
        with self._lent() as connection:
            if tables:
                connection.execute(f"LOCK TABLE {', '.join(tables)} IN SHARE ROW EXCLUSIVE MODE".encode())
            for row in self.rows(dialect.RECORDING):
                connection.execute(f"DROP FUNCTION {row['name']}() CASCADE".encode())
            connection.execute(b"DROP TABLE IF EXISTS row_changes")
            if tables:
                connection.execute(dialect.ROW_CHANGES.encode())
            for table, key in keys.items():
                connection.execute(dialect.recording(table, key).encode())

    # -- tables

    def make(self) -> None:
        """Make the tables that every Hub has, where they are missing."""
        if not self.has("hub_schemas"):
            with self.transaction(), self._lent() as connection:
                connection.execute(dialect.MADE.encode())
        self.add(CORE)

    def check_empty(self) -> None:
        """Raise KernelsHubError where there are tables already, of whomever."""
        row = self.row("SELECT tablename FROM pg_tables WHERE schemaname = current_schema() LIMIT 1")
        if row is not None:
            raise KernelsHubError(
                f"{self.name} is not empty: it has a table {row['tablename']}; nothing was changed. A Hub takes a "
                "database of its own, as `createdb` makes it"
            )

    def has(self, table: str) -> bool:
        """Whether there is such a table."""
        found = "SELECT 1 FROM pg_tables WHERE schemaname = current_schema() AND tablename = ?"
        return self.row(found, table) is not None

    def add(self, schema: Schema) -> None:
        """Make tables, indexes and triggers where they are missing, as one change, once a database."""
        self._added.append(schema)
        script = dialect.script(schema)
        digest = hashlib.sha256(script.encode()).hexdigest()
        made = "SELECT 1 FROM hub_schemas WHERE digest = ?"
        if self.row(made, digest) is None:
            with self.transaction(), self._lent() as connection:
                if self.row(made, digest) is None:  # nor by another process, meanwhile
                    for setting in _WITHOUT_END:  # of an upgrade that fills a column of very many rows
                        connection.execute(setting.encode())
                    connection.execute(script.encode())
                    self.change("INSERT INTO hub_schemas VALUES (?)", digest)
        for index in schema.texts:
            self._make_text_index(index)

    def _make_text_index(self, index: TextIndex) -> None:
        """Make an index of text; without pg_trgm, which the server may lack now and have later, say so."""
        found = "SELECT 1 FROM pg_indexes WHERE schemaname = current_schema() AND indexname = ?"
        if self.row(found, index.name) is None:
            try:
                with self.transaction(), self._lent() as connection:
                    for statement in (*_WITHOUT_END, *dialect.text_index(index)):
                        connection.execute(statement.encode())
            except UnavailableError:
                raise
            except DatabaseError as error:
                _log.warning(
                    "%s has no index of text, so that a search for words reads every row: %s; install PostgreSQL's "
                    "contributed modules, and run CREATE EXTENSION pg_trgm in it",
                    *(self.name, error),
                )
                return
        self._texts.add(index.name)

    def tables(self) -> list[str]:
        """The names of all tables of a Hub."""
        rows = self.rows(
            "SELECT tablename FROM pg_tables WHERE schemaname = current_schema() "
            'ORDER BY tablename COLLATE "C"'
        )
        return [str(row["tablename"]) for row in rows if row["tablename"] not in _BESIDE]

    def root(self) -> str | None:
        """The id of the root whose rows these are; None for a database without one."""
        row = self.row("SELECT root FROM hub_root") if self.has("hub_root") else None
        return None if row is None else str(row["root"])

    def claim(self, root: str) -> None:
        """Say, once, whose rows these are."""
        self.change("INSERT INTO hub_root (root) VALUES (?)", root)

    def unmake(self) -> None:
        """Remove every table of a Hub; for a copy that was never finished. Inside `transaction`."""
        with self._lent() as connection:
            for table in (*self.tables(), *_BESIDE):
                connection.execute(f"DROP TABLE IF EXISTS {table} CASCADE".encode())

    # -- upkeep

    def backup(self, target: Path) -> None:
        """A consistent copy as an SQLite file, while others read and write."""
        copy = SqliteDatabase(target)
        try:
            for schema in self._added:
                copy.add(schema)
            copy_rows(self, copy)
        finally:
            copy.close()

    def check(self) -> list[str]:
        """Rows that cannot be read or refer to none, guards that are gone, settings that lose commits."""
        from kernels_hub.server.database.postgresql_check import problems

        return problems(self)

    def in_order(self, index: str) -> str:
        """Nothing: PostgreSQL's planner counts rows, and is told by no name."""
        del index
        return ""

    @property
    def forced_join(self) -> str:
        """A plain join: the planner knows which side is read first."""
        return "JOIN"

    def close(self) -> None:
        """Close every connection."""
        self._connections.close()


def _conninfo(address: str) -> str:
    """An address with the settings of a Hub; what it says itself of a setting counts."""
    given = psycopg.conninfo.conninfo_to_dict(address)
    settings = " ".join(f"-c {name}={value}" for name, value in _SETTINGS.items())
    options = f"{settings} {given.get('options', '')}".strip()
    return psycopg.conninfo.make_conninfo("", **{**_CONNECTING, **given, "options": options})


def _statement(query: str, values: Sequence[object]) -> tuple[bytes, list[object] | None]:
    return dialect.query(query).encode(), [dialect.value(item) for item in values]


@contextmanager
def _advisory(connection: Connection, name: str, seconds: float) -> Iterator[bool]:
    """An advisory lock of a connection, whether it is taken within some seconds; it ends with the connection."""
    key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big", signed=True)
    end, pause = time.monotonic() + seconds, 0.001
    with _translated():
        while not (taken := _try_advisory(connection, key)) and time.monotonic() < end:
            time.sleep(pause)
            pause = min(1.5 * pause, 0.05)
    try:
        yield taken
    finally:
        if taken and not connection.closed:
            try:
                connection.execute("SELECT pg_advisory_unlock(%s)", [key])
            except psycopg.Error:
                connection.close()


def _try_advisory(connection: Connection, key: int) -> bool:
    row = connection.execute("SELECT pg_try_advisory_lock(%s) AS taken", [key]).fetchone()
    return row is not None and bool(row["taken"])


def _undo(connection: Connection) -> None:
    """ROLLBACK; a connection that cannot even do that is closed, which does it too."""
    try:
        if not connection.closed:
            connection.execute("ROLLBACK")
    except psycopg.Error:
        connection.close()


@contextmanager
def _translated() -> Iterator[None]:
    """psycopg's errors as those of every database."""
    try:
        yield
    except psycopg.IntegrityError as error:
        raise RowConflictError(_first_line(error)) from error
    except psycopg.Error as error:
        state = error.sqlstate or ""
        if state == _FULL:
            raise DatabaseFullError(_first_line(error)) from error
        lost = not state and isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
        if lost or state.startswith(_LATER):
            raise UnavailableError(_first_line(error)) from error
        raise DatabaseError(f"{_first_line(error)} ({state or type(error).__name__})") from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
