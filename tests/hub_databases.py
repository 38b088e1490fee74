"""Which database the Hubs of tests have their rows in: SQLite, or a PostgreSQL of the tests' own.

`pytest --hub-database postgresql` runs every test on PostgreSQL; a test marked `each_database` runs on both, one after
the other. The tests themselves open roots as always: a root that is made on PostgreSQL gets a new database.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.postgresql_server import PostgresqlServer, missing

if TYPE_CHECKING:
    from kernels_hub.server.hub import Hub

SQLITE, POSTGRESQL = "sqlite", "postgresql"
_lacking = missing()
needs_postgresql = pytest.mark.skipif(_lacking is not None, reason=str(_lacking))
"""Marks a test that a PostgreSQL server is started for."""
_server: PostgresqlServer | None = None
_made: list[tuple[Path, str]] = []
_on_postgresql = False


def server() -> PostgresqlServer:
    """The PostgreSQL of this process, started when it is first asked for."""
    global _server
    if _server is None:
        _server = PostgresqlServer()
    return _server


def stop() -> None:
    """End the PostgreSQL of this process, if it was started."""
    global _server
    if _server is not None:
        _server.stop()
        _server = None


def new_address(root: Path) -> str | None:
    """The address of a new database for a root that is about to be made; None on SQLite, and for one that is there."""
    if not _on_postgresql or (root / "FORMAT").exists():
        return None
    address = server().new_database()
    _made.append((root.resolve(), address))
    return address


@contextmanager
def rows_in(database: str) -> Iterator[None]:
    """New roots of this process, and of servers that it starts, have their rows there."""
    global _on_postgresql
    from kernels_hub.server.layout import RootPaths

    before, original = _on_postgresql, RootPaths.open
    _on_postgresql = database == POSTGRESQL

    def opened(root: Path, *, create: bool = False, database: str | None = None, **more: Any) -> RootPaths:
        if create and database is None:
            database = new_address(root)
        return original(root, create=create, database=database, **more)

    RootPaths.open = opened  # type: ignore[method-assign]
    try:
        yield
    finally:
        RootPaths.open = original  # type: ignore[method-assign]
        _on_postgresql = before


@contextmanager
def unguarded(hub: Hub, table: str) -> Iterator[None]:
    """An append-only table without its guards, as for somebody who has the database."""
    if hub.database.name == "hub.sqlite":  # the next Hub that is opened makes them again
        for action in ("UPDATE", "DELETE"):
            hub.database.change(f"DROP TRIGGER IF EXISTS {table}_{action}")
        yield
        return
    hub.database.change(f"ALTER TABLE {table} DISABLE TRIGGER USER")
    yield
    hub.database.change(f"ALTER TABLE {table} ENABLE TRIGGER USER")


def holds(hub: Hub, text: str) -> bool:
    """Whether a text, or bytes by their hexadecimal digits, are in any row, or in the file of SQLite beside them."""
    found = any(
        text in str(item.hex() if isinstance(item, bytes) else item)
        for table in hub.database.tables()
        for row in hub.database.rows(f"SELECT * FROM {table}")
        for item in (row[name] for name in list(row.keys()))
    )
    return found or any(text.encode() in path.read_bytes() for path in hub.layout.root.glob("hub.sqlite*"))


def drop(below: Path) -> None:
    """Remove the databases of roots below a folder, when their test is over."""
    below = below.resolve()
    for root, address in [made for made in _made if made[0].is_relative_to(below)]:
        server().drop(address)
        _made.remove((root, address))
