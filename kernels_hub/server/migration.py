"""Moves the rows of a root to another database: SQLite to PostgreSQL, back, or from one PostgreSQL to another.

All rows are copied in one transaction and compared by count and digest; then one file, FORMAT, is replaced, which says
where the rows are. Before that the old database counts, afterwards the new one; the old one stays as it was. What a
migration that died has copied is dropped, and copied anew, by the same command. Nobody else may have the root open.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from kernels_hub.errors import KernelsHubError
from kernels_hub.files import move_into_place
from kernels_hub.server.database import Database, DatabaseError
from kernels_hub.server.database.address import checked, without_password
from kernels_hub.server.database.opening import open_database
from kernels_hub.server.database.sqlite import SqliteDatabase
from kernels_hub.server.database.transfer import Copied, copy_rows
from kernels_hub.server.durable import try_lock
from kernels_hub.server.hub import SCHEMAS
from kernels_hub.server.layout import Elsewhere, RootPaths

SQLITE = "sqlite"


def migrate(root: Path, to: str, *, database: str | None = None) -> list[Copied]:
    """Move the rows of a root; what was copied, a record a table.

    to: "sqlite", or the address of an empty PostgreSQL database.
    database: the address of the one that the rows are in now, where the root does not know it, or has a password.
    Raises KernelsHubError while servers or commands have the root open, for a target that is not empty, and where what
    arrived is not what was sent; then nothing was changed.
    """
    if to != SQLITE:
        checked(to)
    layout = RootPaths.open(root)
    if layout.read().git:
        raise KernelsHubError(
            f"the git data of {root} is in its database and object store, which other roots may serve as well; nothing "
            "was changed. Move it to this root first, with `kernels-hub hub migrate --git folder`; from one PostgreSQL "
            "to another, copy the database with pg_dump while no server runs, and correct its address in "
            f"{layout.address}"
        )
    with alone(layout), closing(open_database(layout, database)) as source:
        for schema in SCHEMAS:
            source.add(schema)
        try:
            return _to_sqlite(layout, source) if to == SQLITE else _to_postgresql(layout, source, to)
        except DatabaseError as error:
            raise KernelsHubError(
                f"the rows could not be moved: {error}; {source.name} still has them, as before"
            ) from error


@contextmanager
def alone(layout: RootPaths) -> Iterator[None]:
    """Have a root that nobody else has open. Raises KernelsHubError where somebody has."""
    descriptor = try_lock(layout.using)
    if descriptor is None:
        raise KernelsHubError(
            f"{layout.root} is open: stop its servers, and wait for commands that run on it; nothing was changed"
        )
    try:
        layout.read_marker()  # again: until now somebody else may have moved them
        yield
    finally:
        os.close(descriptor)


def _to_sqlite(layout: RootPaths, source: Database) -> list[Copied]:
    if layout.elsewhere is None:
        raise KernelsHubError(f"the rows of {layout.root} are in hub.sqlite already")
    if layout.database.exists():
        raise KernelsHubError(
            f"{layout.database} is there already, from before the rows were moved away; move it elsewhere first, "
            "nothing was changed"
        )
    partial = layout.root / "hub.sqlite.partial"
    for suffix in ("", "-wal", "-shm"):
        partial.with_name(partial.name + suffix).unlink(missing_ok=True)
    with closing(SqliteDatabase(partial)) as target:
        copied = _copied(source, target)
    # The last connection that closes leaves one file.
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    move_into_place(partial, layout.database, durable=True, overwrite=False)
    layout.write_marker(None)
    layout.address.unlink(missing_ok=True)
    return copied


def _to_postgresql(layout: RootPaths, source: Database, to: str) -> list[Copied]:
    from kernels_hub.server.database.postgresql import PostgresqlDatabase

    begun = _begun(layout)
    with closing(PostgresqlDatabase(to)) as target:
        owner = target.root()
        if layout.elsewhere is not None and owner == layout.elsewhere.root:
            raise KernelsHubError(f"the rows of {layout.root} are in {target.name} already")
        with target.transaction():
            if begun is not None and owner == begun.root:
                target.unmake()  # a copy by a migration that died before it counted
            target.check_empty()
            goal = begun if begun is not None and begun.address == without_password(to) else None
            goal = goal or Elsewhere(without_password(to), layout.new_id())
            layout.write_address(goal, begun=True)
            target.make()
            target.claim(goal.root)
            copied = _copied(source, target)
    layout.write_address(goal)
    layout.write_marker(goal)
    layout.begun.unlink(missing_ok=True)
    return copied


def _begun(layout: RootPaths) -> Elsewhere | None:
    """The target of a migration that died."""
    return layout.read_address(begun=True) if layout.begun.is_file() else None


def _copied(source: Database, target: Database) -> list[Copied]:
    for schema in SCHEMAS:
        target.add(schema)
    return copy_rows(source, target)
