"""Moves the rows of a root to another database: SQLite to PostgreSQL, back, or from one PostgreSQL to another.

Servers serve and clients write meanwhile. Triggers of the old database note which rows change from the beginning on;
rows are copied by key, what changed is brought after them, and all of it is compared by count and digest
(`database/online_copy.py`). Then servers let the root go (`row_moves.py`), for as long as it takes to bring and compare
the last changes, and one file, FORMAT, is replaced, which says where the rows are. Before that the old database counts,
afterwards the new one; the old one stays as it was then. What died or gave up is run again, and goes on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from kernels_hub.errors import IntegrityError, KernelsHubError
from kernels_hub.files import move_into_place
from kernels_hub.server.database import Database, DatabaseError
from kernels_hub.server.database.address import checked, without_password
from kernels_hub.server.database.change_log import ChangeLog, read_progress
from kernels_hub.server.database.online_copy import OnlineCopy
from kernels_hub.server.database.opening import open_database
from kernels_hub.server.database.schema import CORE
from kernels_hub.server.database.sqlite import SqliteDatabase
from kernels_hub.server.database.transfer import Copied
from kernels_hub.server.durable import share, try_lock
from kernels_hub.server.hub import SCHEMAS
from kernels_hub.server.layout import Elsewhere, RootPaths
from kernels_hub.server.row_moves import SQLITE, goal_of, taken_over

SECONDS = 20.0
"""How long a migration waits, at its end, for servers and commands to let the root go."""
_FEW = 200
"""So many changes may be left to be brought while requests wait."""
_ROUNDS = 20
_TELL_SECONDS = 5.0


@dataclass(frozen=True)
class Moved:
    """What a migration did.

    tables: what was compared, as of one moment while servers ran. known: whether an earlier run had begun it.
    changes: rows that changed meanwhile and were brought afterwards; in_the_last: those while requests waited, for
        `waited` seconds.
    """

    tables: tuple[Copied, ...]
    known: bool
    changes: int
    in_the_last: int
    waited: float


def migrate(
    root: Path,
    to: str,
    *,
    database: str | None = None,
    seconds: float | None = None,
    announce: Callable[[str], None] = lambda _: None,
) -> Moved:
    """Move the rows of a root, while servers of it run and clients write.

    to: "sqlite", or the address of an empty PostgreSQL database, which every server of the root can reach.
    database: the address of the one that the rows are in now, where the root does not know it, or has a password.
    seconds: how long to wait, at the end, for servers and commands to let the root go; `SECONDS` by default.
    announce: is told how far it is.
    Raises KernelsHubError for a target that is not empty, where somebody keeps the root open, and where what arrived is
    not what was sent; the rows are then where they were, and the next run goes on.
    """
    if to != SQLITE:
        checked(to)
    with _source(root, database) as (layout, source, let_go):
        try:
            target = (
                _sqlite_target(layout, source) if to == SQLITE else _postgresql_target(layout, source, to)
            )
            with closing(target.database):
                return _move(
                    layout, source, target, let_go, SECONDS if seconds is None else seconds, announce
                )
        except DatabaseError as error:
            raise KernelsHubError(
                f"the rows could not be moved: {error}; {source.name} still has them, as before. Run the same again"
            ) from error


def give_up(root: Path, *, database: str | None = None) -> None:
    """Forget a move of rows that was begun and is not to be ended. What it copied to a PostgreSQL stays there."""
    with _source(root, database) as (layout, source, _):
        ChangeLog(source).end()
        layout.begun.unlink(missing_ok=True)
        _remove_partial(_partial(layout))


@contextmanager
def _source(root: Path, database: str | None) -> Iterator[tuple[RootPaths, Database, Callable[[], None]]]:
    """What a migration of rows works with: see `only_migration`."""
    layout = RootPaths.open(root)
    check_git_stays(layout)
    if layout.read().git:
        raise KernelsHubError(
            f"the git data of {root} is in its database and object store, which other roots may serve as well; nothing "
            "was changed. Move it to this root first, with `kernels-hub hub migrate --git folder`; from one PostgreSQL "
            "to another, copy the database with pg_dump while no server runs, and correct its address in "
            f"{layout.address}"
        )
    with only_migration(layout, database) as (source, let_go):
        yield layout, source, let_go


def check_git_stays(layout: RootPaths) -> None:
    """Raise KernelsHubError where git data is on its way: what it goes to stays where it is meanwhile."""
    if layout.git_begun.is_file():
        raise KernelsHubError(
            f"a move of the git data of {layout.root} was begun and is not done; nothing was changed. Run it again, "
            "with `kernels-hub hub migrate --git …`, or forget it with --give-up"
        )


@contextmanager
def only_migration(layout: RootPaths, database: str | None) -> Iterator[tuple[Database, Callable[[], None]]]:
    """The only migration of a root, its rows, and what lets go of the lock that says that they are open here."""
    only = try_lock(layout.root / "maintenance.lock")
    if only is None:
        raise KernelsHubError(
            f"gc, fsck, backup or migrate is at work on {layout.root}; wait until it is done"
        )
    using: int | None = None

    def let_go() -> None:
        nonlocal using
        if using is not None:
            os.close(using)
            using = None

    try:
        using = share(layout.using)
        layout.read_marker()  # again: until now somebody else may have moved them
        with closing(open_database(layout, database)) as source:
            for schema in SCHEMAS:
                source.add(schema)
            yield source, let_go
    finally:
        let_go()
        os.close(only)


@dataclass(frozen=True)
class _Target:
    """Where rows go. `elsewhere`: None for hub.sqlite. `known`: whether an earlier run has begun there."""

    database: Database
    elsewhere: Elsewhere | None
    move: str
    known: bool


def _move(
    layout: RootPaths,
    source: Database,
    target: _Target,
    let_go: Callable[[], None],
    seconds: float,
    announce: Callable[[str], None],
) -> Moved:
    log = ChangeLog(source)
    copy = OnlineCopy(source, target.database, log, (CORE, *SCHEMAS))
    if not target.known:
        log.begin(target.move, copy.tables)
    copy.begin(target.move)
    try:
        compared = _copied(copy, announce)
        let_go()
        began = time.monotonic()
        with taken_over(layout, seconds, goal_of(target.elsewhere)):
            last = copy.catch_up()
            copy.check_counts()
            copy.end()
            _switch(layout, target)
    except IntegrityError:
        log.end()  # the next run begins anew
        raise
    return Moved(tuple(compared), target.known, copy.changed, last, round(time.monotonic() - began, 3))


def _copied(copy: OnlineCopy, announce: Callable[[str], None]) -> list[Copied]:
    """Copy every row, and compare them, but for what few changes have come since."""
    told = time.monotonic()
    while copy.step():
        if time.monotonic() - told > _TELL_SECONDS:
            announce(f"{copy.brought} rows copied, {copy.changed} changed meanwhile")
            told = time.monotonic()
    compared = copy.compare()
    announce(f"{sum(item.rows for item in compared)} rows are there and equal")
    for _ in range(_ROUNDS):
        if copy.catch_up() <= _FEW:
            break
    return compared


def _switch(layout: RootPaths, target: _Target) -> None:
    """From here on, the rows are in the target."""
    if target.elsewhere is not None:
        layout.write_address(target.elsewhere)
        layout.write_marker(target.elsewhere)
        layout.begun.unlink(missing_ok=True)
        return
    target.database.close()
    # The last connection that closes leaves one file.
    partial = _partial(layout)
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    move_into_place(partial, layout.database, durable=True, overwrite=False)
    layout.write_marker(None)
    layout.address.unlink(missing_ok=True)


def _partial(layout: RootPaths) -> Path:
    return layout.root / "hub.sqlite.partial"


def _remove_partial(partial: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        partial.with_name(partial.name + suffix).unlink(missing_ok=True)


def _sqlite_target(layout: RootPaths, source: Database) -> _Target:
    if layout.elsewhere is None:
        raise KernelsHubError(f"the rows of {layout.root} are in hub.sqlite already")
    if layout.database.exists():
        raise KernelsHubError(
            f"{layout.database} is there already, from before the rows were moved away; move it elsewhere first, "
            "nothing was changed"
        )
    partial = _partial(layout)
    if partial.exists():
        target = SqliteDatabase(partial)
        if (move := _same_move(source, target)) is not None:
            return _Target(target, None, move, known=True)
        target.close()
    _remove_partial(partial)
    target = SqliteDatabase(partial)
    _add_tables(target)
    return _Target(target, None, layout.new_id(), known=False)


def _postgresql_target(layout: RootPaths, source: Database, to: str) -> _Target:
    from kernels_hub.server.database.postgresql import PostgresqlDatabase

    begun = layout.read_address(begun=True) if layout.begun.is_file() else None
    target = PostgresqlDatabase(to)
    try:
        owner = target.root()
        if layout.elsewhere is not None and owner == layout.elsewhere.root:
            raise KernelsHubError(f"the rows of {layout.root} are in {target.name} already")
        if begun is not None and owner == begun.root == _same_move(source, target):
            return _Target(target, Elsewhere(without_password(to), begun.root), begun.root, known=True)
        with target.transaction():
            if begun is not None and owner == begun.root:
                target.unmake()  # what changed since that began was not noted
            target.check_empty()
            goal = Elsewhere(without_password(to), layout.new_id())
            layout.write_address(goal, begun=True)
            target.make()
            target.claim(goal.root)
            _add_tables(target)
    except BaseException:
        target.close()
        raise
    return _Target(target, goal, goal.root, known=False)


def _same_move(source: Database, target: Database) -> str | None:
    """The move that both databases are in, if they are in one."""
    there, here = read_progress(source), read_progress(target)
    return here.move if there is not None and here is not None and there.move == here.move else None


def _add_tables(target: Database) -> None:
    for schema in SCHEMAS:
        target.add(schema)
