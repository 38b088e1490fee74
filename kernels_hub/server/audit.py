"""The log of administration: who changed what, when, from where; append-only and hash-chained.

Accounts, members, trust flags, tokens (by id), access to repositories, deletions, forced changes of releases. A record
is written in the transaction of the change that it records, so that neither is there without the other.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass

from kernels_hub.server.database import Database
from kernels_hub.server.database.seam import ALL_ROWS

START = "0" * 64
_MOST_TEXT = 2000


@dataclass(frozen=True)
class Actor:
    """Who acts, and from where."""

    name: str
    source: str


@dataclass(frozen=True)
class AuditRecord:
    """One act of administration."""

    number: int
    previous: str
    time: str
    actor: str
    source: str
    action: str
    """What was done, as "token.remove"."""
    subject: str
    """To what: a name or an id."""
    detail: dict[str, str]

    @property
    def hash(self) -> str:
        """SHA-256 of the canonical JSON."""
        document = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(document.encode()).hexdigest()


_actor: ContextVar[Actor | None] = ContextVar("actor", default=None)


@contextmanager
def acting(name: str, source: str) -> Iterator[None]:
    """What is changed inside is recorded as done by somebody; without it, by the user of this process."""
    token = _actor.set(Actor(name, source))
    try:
        yield
    finally:
        _actor.reset(token)


def current_actor() -> Actor:
    """Who acts here."""
    if (actor := _actor.get()) is not None:
        return actor
    try:
        name = getpass.getuser()
    except (
        OSError,
        KeyError,
        ImportError,
    ):  # no entry in the password database (which error depends on the version)
        name = f"uid {os.getuid()}"
    return Actor(name, f"command line on {socket.gethostname()}")


class Audit:
    """The records of one Hub."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def record(self, action: str, subject: str, **detail: object) -> None:
        """Add a record. Call it in the transaction of what it records."""
        with self._database.transaction():
            last = self._database.row("SELECT number, hash FROM audit_log ORDER BY number DESC LIMIT 1")
            actor = current_actor()
            record = AuditRecord(
                0 if last is None else last["number"] + 1,
                START if last is None else last["hash"],
                utc(time.time()),
                plain(actor.name),
                plain(actor.source),
                action,
                plain(subject),
                {key: plain(value) for key, value in detail.items() if value not in (None, "")},
            )
            self._database.change(
                "INSERT INTO audit_log VALUES (?, ?, ?)",
                *(record.number, json.dumps(asdict(record)), record.hash),
            )

    def records(self, *, last: int | None = None) -> list[AuditRecord]:
        """Every record, or the last few, oldest first."""
        rows = self._database.rows(
            "SELECT document FROM audit_log ORDER BY number DESC LIMIT ?", ALL_ROWS if last is None else last
        )
        return [AuditRecord(**json.loads(row["document"])) for row in reversed(rows)]

    def problems(self) -> list[str]:
        """What is wrong with the chain."""
        previous = START
        found: list[str] = []
        rows = self._database.rows("SELECT * FROM audit_log ORDER BY number")
        for number, row in enumerate(rows):
            try:
                record = AuditRecord(**json.loads(row["document"]))
            except (ValueError, TypeError):
                return [*found, f"audit log: record {number} cannot be read"]
            if (record.number, record.previous, record.hash) != (number, previous, row["hash"]):
                found.append(f"audit log: record {number} does not follow the one before it, or was changed")
            previous = row["hash"]
        return found


def plain(value: object) -> str:
    """Text for a log: valid Unicode, of bounded length."""
    text = str(value).encode("utf-8", "replace").decode()
    return text if len(text) <= _MOST_TEXT else text[: _MOST_TEXT - 1] + "…"


def utc(seconds: float) -> str:
    """A moment as the logs write it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
