"""Opens the database that has the rows of a root, and no other."""

from __future__ import annotations

from collections.abc import Callable

from kernels_hub.errors import KernelsHubError
from kernels_hub.server.database.seam import Database
from kernels_hub.server.database.sqlite import SqliteDatabase
from kernels_hub.server.layout import Elsewhere, RootPaths


def open_database(
    layout: RootPaths,
    address: str | None = None,
    *,
    join: Callable[[Database, str], bool] = lambda *_: False,
) -> Database:
    """The database of a root.

    address: of the PostgreSQL database, where it is not the one that the root remembers, or has a password.
    join: makes a new root one of those of the Hub that the database has, by its id; whether it did.
    Raises KernelsHubError for a database that cannot be used, or that has the rows of another root, or none.
    """
    if layout.elsewhere is None:
        return SqliteDatabase(layout.database)
    try:
        return _open_postgresql(layout, layout.elsewhere, address, join)
    except KernelsHubError:
        if layout.is_new:
            layout.unmake()
        raise


def _open_postgresql(
    layout: RootPaths, elsewhere: Elsewhere, address: str | None, join: Callable[[Database, str], bool]
) -> Database:
    from kernels_hub.server.database.postgresql import PostgresqlDatabase

    database = PostgresqlDatabase(address or elsewhere.address)
    try:
        owner = database.root()
        if owner is None:
            with database.transaction():
                owner = database.root()
                if owner is None:
                    if any(layout.repositories.iterdir()):
                        raise KernelsHubError(
                            f"{database.name} has no rows of a Hub, and {layout.root} has repositories; nothing was "
                            f"changed. Restore the database, or correct its address in {layout.address}"
                        )
                    if (store := layout.objects()) is not None and layout.read().git:
                        raise KernelsHubError(
                            f"{database.name} has no rows of a Hub, and {layout.root} has served one whose git data is "
                            f"in {store}; nothing was changed. Restore the database, or correct its address in "
                            f"{layout.address}"
                        )
                    database.check_empty()
                    database.make()
                    database.claim(owner := elsewhere.root)
        if owner != elsewhere.root and not join(database, owner):
            raise KernelsHubError(
                f"{database.name} has the rows of another root ({owner}, this one is {elsewhere.root}); nothing was "
                f"changed. Correct the address in {layout.address}, or give each Hub a database of its own"
            )
        database.make()
    except BaseException:
        database.close()
        raise
    return database
