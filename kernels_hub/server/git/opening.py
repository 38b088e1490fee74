"""Opens the git data of a root: the place that it remembers, never another by mistake.

FORMAT of a root says where its git data is; a row of the database, `git_place`, says so to servers with other roots. A
migration changes FORMAT in one step while nobody has the root open, and the row before and after. Where it died in
between, the file `git.begun` is there: whoever opens the root next has the row say what FORMAT says.
"""

from __future__ import annotations

import time
from dataclasses import replace

from kernels_hub.errors import KernelsHubError
from kernels_hub.server.database import Database
from kernels_hub.server.git.folder import FolderGit
from kernels_hub.server.git.rows import GitRows, Place
from kernels_hub.server.git.seam import GitStore
from kernels_hub.server.layout import Elsewhere, RootPaths
from kernels_hub.server.objects.address import S3Address
from kernels_hub.server.objects.store import ObjectStore

_MAKING_SECONDS = 10.0


def join_hub(layout: RootPaths, database: Database, owner: str, objects: str | None) -> bool:
    """Make a new, empty root one of those that serve the Hub of a database; whether that may be.

    owner: the id of the Hub's first root in the database, which all of its roots have.
    objects: the address of the object store, which must be the Hub's.
    Raises KernelsHubError where it is another, or the Hub's git data is in the folder of a root.
    """
    marker = layout.read()
    if (
        layout.is_new
        and objects is None
        and (place := _place(database)) is not None
        and place.state == "store"
    ):
        raise KernelsHubError(
            f"{database.name} has a Hub whose git data and large files are in {place.objects}; to serve it from a new "
            "root, say where with --objects"
        )
    if not marker.git or marker.objects is not None or objects is None or layout.elsewhere is None:
        return False
    end = time.monotonic() + _MAKING_SECONDS
    while (place := _place(database)) is None and _is_empty(database) and time.monotonic() < end:
        time.sleep(0.1)  # another server is making the Hub
    if place is None or place.state == "folder":
        raise KernelsHubError(
            f"{database.name} has the rows of another root, whose folder has the git data; nothing was changed. Serve "
            "that root, give this Hub a database of its own, or move the git data with `kernels-hub hub migrate "
            "--git store`"
        )
    _check_objects(place, objects)
    if place.state == "moving":
        raise _moving()
    address = Elsewhere(layout.elsewhere.address, owner)
    layout.join(address, place.identity, place.secret, str(S3Address.parse(objects)))
    return True


def _place(database: Database) -> Place | None:
    return GitRows(database).place() if "git_place" in database.tables() else None


def _is_empty(database: Database) -> bool:
    return (
        "repositories" not in database.tables() or database.row("SELECT 1 FROM repositories LIMIT 1") is None
    )


def _check_objects(place: Place, objects: str) -> None:
    if (given := S3Address.parse(objects).place) != place.objects:
        raise KernelsHubError(
            f"this Hub keeps its git data and large files in {place.objects}, not in {given}; nothing was changed, "
            "check --objects"
        )


def _moving() -> KernelsHubError:
    return KernelsHubError(
        "a migration of this Hub's git data was begun and is not done; run the same `kernels-hub hub migrate --git …` "
        "again, on the root where it was begun"
    )


def settle_begun(layout: RootPaths, rows: GitRows) -> Place | None:
    """Where the git data is, once what a migration that died has left of it is settled. Holding `using`, or alone."""
    place, is_stored = rows.place(), layout.read().git
    if place is None or not layout.git_begun.is_file():
        return place
    to_store = layout.git_begun.read_text() == "store\n"
    if place.state == "moving" and is_stored:
        place = replace(place, state="store")
    elif place.state == "moving" and not to_store:
        place = replace(place, state="folder")
    elif is_stored != to_store or place.state == "moving":
        return place  # It has not come so far yet.
    with rows.database.transaction():
        rows.settle(place)
        if place.state == "folder":
            rows.drop_all()
    if is_stored == to_store:
        layout.git_begun.unlink(missing_ok=True)
    return place


def open_git(
    layout: RootPaths,
    database: Database,
    store: ObjectStore,
    *,
    cache_bytes: int,
    followed: Database | None = None,
) -> GitStore:
    """The git data of a root.

    cache_bytes: how much local copies of packs may take, where it is in an object store.
    followed: the database as it goes on where its rows move, which they do only while git data is in the folder.
    Raises KernelsHubError where it is somewhere else than the root remembers.
    """
    rows = GitRows(database)
    place = settle_begun(layout, rows)
    if not layout.read().git:
        if place is not None and place.state == "store":
            raise KernelsHubError(
                f"the git data of this Hub is in {place.objects} and {database.name}, not below {layout.root}, which "
                "is an older copy of a root; start a server there with a new --root"
            )
        return FolderGit(layout, followed or database)
    from kernels_hub.server.database.postgresql import PostgresqlDatabase
    from kernels_hub.server.git.stored import StoredGit
    from kernels_hub.server.objects.s3 import S3Objects

    assert isinstance(database, PostgresqlDatabase)
    if not isinstance(store, S3Objects):
        raise KernelsHubError(
            f"{layout.root} keeps its git data in an object store; say which with --objects (or KERNELS_HUB_OBJECTS in "
            "the environment)"
        )
    if place is None:
        if not _is_empty(database):
            raise KernelsHubError(
                f"{database.name} does not say where the git data is; restore it from a copy, nothing was changed"
            )
        # A new Hub.
        rows.settle(Place("store", store.place, layout.identity(), layout.secret()))
    else:
        _check_objects(place, str(store.address))
        if place.state == "moving":
            raise _moving()
        if place.state == "folder":
            raise KernelsHubError(
                f"the git data of this Hub was moved to the folder of another root than {layout.root}; nothing was "
                "changed, serve that one"
            )
        if (layout.identity(), layout.secret()) != (place.identity, place.secret):
            assert layout.elsewhere is not None
            layout.join(layout.elsewhere, place.identity, place.secret, str(store.address))
    return StoredGit(layout, database, store, cache_bytes)
