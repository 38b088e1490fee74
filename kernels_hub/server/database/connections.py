"""Connections to PostgreSQL, lent for a statement or a transaction.

A process has few: PostgreSQL allows 100 to all by default, and each is a process there. A connection that was lost is
noticed before it is lent again, so that what follows a restart of PostgreSQL works.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable

import psycopg
from psycopg.rows import DictRow

from kernels_hub.server.database.seam import UnavailableError

Connection = psycopg.Connection[DictRow]
MOST = 16
"""Connections of a process."""
_WAIT_SECONDS = 30.0
_IDLE_SECONDS = 60.0


class Connections:
    """The connections of one process to one database. Safe from several threads."""

    def __init__(self, connect: Callable[[], Connection], most: int = MOST) -> None:
        self._connect = connect
        self._free = threading.BoundedSemaphore(most)
        self._guard = threading.Lock()
        self._idle: list[tuple[float, Connection]] = []
        self._closed = False

    def take(self) -> Connection:
        """A connection for this thread alone; give it back. UnavailableError where there is none in time."""
        if not self._free.acquire(timeout=_WAIT_SECONDS):
            raise UnavailableError(f"no connection to the database was free for {_WAIT_SECONDS:.0f} s")
        try:
            while (known := self._latest()) is not None:
                if _is_alive(known):
                    return known
                known.close()
            return self._connect()
        except BaseException:
            self._free.release()
            raise

    def _latest(self) -> Connection | None:
        with self._guard:
            return self._idle.pop()[1] if self._idle else None

    def give(self, connection: Connection) -> None:
        """A connection that nothing is done with any more."""
        unwanted = []
        with self._guard:
            if self._closed or not _is_usable(connection):
                unwanted.append(connection)
            else:
                self._idle.append((time.monotonic(), connection))
            before = time.monotonic() - _IDLE_SECONDS
            while self._idle and self._idle[0][0] < before:
                unwanted.append(self._idle.pop(0)[1])
        for left in unwanted:
            left.close()
        self._free.release()

    def close(self) -> None:
        """Close those that are idle; those that are lent are closed when they come back."""
        with self._guard:
            self._closed = True
            idle, self._idle = self._idle, []
        for _, connection in idle:
            connection.close()


def _is_usable(connection: Connection) -> bool:
    return not connection.closed and connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def _is_alive(connection: Connection) -> bool:
    """Whether nothing has come on an idle connection: its end, or PostgreSQL's word that it ends it."""
    if connection.closed:
        return False
    waiting = select.poll()
    waiting.register(connection.fileno(), select.POLLIN | select.POLLHUP | select.POLLERR)
    return not waiting.poll(0)
