"""How a migration of rows or git data and the servers of a root take turns, by two lock files that the kernel lets go.

Whoever has the rows open shares the lock `using`. A migration that has copied all but the latest writes the file
`moving`, which says where to, and holds it locked. Servers look for it: each sees that it can reach that place, lets
its requests wait, closes the database and lets `using` go. Once everybody has, the migration has it alone, brings what
is left, and says where the data is from now on. Servers then open it there, and what waited goes on. Where a server
cannot reach the new place, or something else has the root open, the migration gives up in time, and nothing has
changed; one that dies lets both locks go, and servers open what they had.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kernels_hub.errors import KernelsHubError
from kernels_hub.files import write_atomically
from kernels_hub.server.database import Database, DatabaseError
from kernels_hub.server.database.movable import MovableDatabase
from kernels_hub.server.durable import share, try_lock
from kernels_hub.server.layout import Elsewhere, RootPaths, elsewhere_of, elsewhere_text
from kernels_hub.server.refusal import Refusal

SQLITE = "sqlite"
GIT = ("git store", "git folder")
"""What `moving` says while git data moves; else it says where rows go."""
_LOOK_SECONDS = 0.1
_STEP_SECONDS = 0.005
_REACH_SECONDS = 1.0
_LEAVE_SECONDS = 15.0
"""How long requests that are under way may hold up a move."""
_log = logging.getLogger("kernels_hub.server")


def goal_of(elsewhere: Elsewhere | None) -> str:
    """What `moving` says where rows go there; None for hub.sqlite."""
    return SQLITE if elsewhere is None else elsewhere_text(elsewhere)


@contextmanager
def taken_over(layout: RootPaths, seconds: float, goal: str) -> Iterator[None]:
    """Have a root that nobody else has open, when its servers have let it go.

    goal: what `moving` is to say. Raises KernelsHubError where somebody keeps it open.
    """
    # Locked before it can be seen: one that is not locked is left by a migration that died.
    new = layout.moving.with_name("moving.new")
    write_atomically(new, goal, mode=0o600, durable=True)
    told = try_lock(new)
    assert told is not None
    try:
        new.replace(layout.moving)
        with _only(layout, seconds):
            yield
    finally:
        layout.moving.unlink(missing_ok=True)
        os.close(told)


@contextmanager
def _only(layout: RootPaths, seconds: float) -> Iterator[None]:
    end = time.monotonic() + seconds
    while (descriptor := try_lock(layout.using)) is None:
        if time.monotonic() > end:
            raise KernelsHubError(
                f"{layout.root} is open: by a server that cannot go along (its log says why), by one of "
                "an earlier version, or by a command at work. Stop it, or wait for it, and run the same again; what "
                "was copied is kept, and nothing was changed"
            )
        time.sleep(_STEP_SECONDS)
    try:
        layout.read_marker()  # again: until now somebody else may have moved them
        yield
    finally:
        os.close(descriptor)


class Following:
    """Takes a process along when the rows or git data of its root move. One thread, from `start` to `stop`."""

    def __init__(
        self,
        layout: RootPaths,
        database: MovableDatabase,
        let_go: Callable[[], None],
        open_again: Callable[[int], Database],
        check_git: Callable[[], None],
    ) -> None:
        """let_go: lets the lock `using` go. open_again: opens all that moves where it is now, under that lock.

        check_git: raises KernelsHubError or Refusal where this process cannot go along with git data.
        """
        self._layout, self._database = layout, database
        self._let_go, self._open_again, self._check_git = let_go, open_again, check_git
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="data that moves")

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """End it."""
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._ending.wait(_LOOK_SECONDS):
            if self._is_asked():
                try:
                    self._move()
                except (KernelsHubError, Refusal, DatabaseError, OSError) as error:
                    _log.error("the data of %s moves, and this server stays: %s", self._layout.root, error)
                    self._ending.wait(_REACH_SECONDS)

    def _is_asked(self) -> bool:
        """Whether the migration that asks is alive."""
        try:
            held = try_lock(self._layout.moving, shared=True, make=False)
        except FileNotFoundError:
            return False
        if held is not None:
            os.close(held)
        return held is None

    def _move(self) -> None:
        self._check_reachable()
        with self._database.exchanged(_LEAVE_SECONDS) as exchange:
            if exchange is None:
                raise KernelsHubError(f"requests have been at work for {_LEAVE_SECONDS:.0f} s")
            self._let_go()
            _log.info("the data of %s moves: requests wait", self._layout.root)
            exchange(self._opened())
        _log.info("the rows of %s are in %s", self._layout.root, self._database.name)

    def _check_reachable(self) -> None:
        """Raise KernelsHubError where the data goes to a place that this process cannot reach."""
        text = self._layout.moving.read_text()
        if text in GIT:
            self._check_git()
        if text == SQLITE or text in GIT:
            return
        from kernels_hub.server.database.postgresql import PostgresqlDatabase

        goal = elsewhere_of(text, self._layout.moving)
        database = PostgresqlDatabase(goal.address)
        try:
            if database.root() != goal.root:
                raise KernelsHubError(f"{database.name} is another database from here")
        finally:
            database.close()

    def _opened(self) -> Database:
        """The rows where they are once the migration has ended, however it did."""
        while True:
            while self._is_asked():
                time.sleep(_STEP_SECONDS)
            try:
                return self._open_again(share(self._layout.using))
            except (KernelsHubError, Refusal, DatabaseError) as error:
                if self._ending.is_set():
                    raise
                _log.warning("the data of %s cannot be opened yet: %s", self._layout.root, error)
                time.sleep(_LOOK_SECONDS)
