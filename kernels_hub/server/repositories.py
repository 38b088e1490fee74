"""Repositories as rows: which there are, under which id; their content is found by that id."""

from __future__ import annotations

import time
import uuid
from contextlib import AbstractContextManager
from dataclasses import dataclass

from kernels_hub.server.audit import Audit
from kernels_hub.server.database import Database, Row, RowConflictError
from kernels_hub.server.paths import is_name

TYPES = ("model", "kernel")


@dataclass(frozen=True)
class Repository:
    """One repository. `gated` is "", "auto" or "manual"."""

    id: str
    type: str
    namespace: str
    name: str
    private: bool
    gated: str
    created: float

    @property
    def full_name(self) -> str:
        """ "org/name", as clients write it."""
        return f"{self.namespace}/{self.name}"

    @property
    def page(self) -> str:
        """The path of its page: "/org/name", or "/kernels/org/name"."""
        return f"/{self.full_name}" if self.type == "model" else f"/{self.type}s/{self.full_name}"


class Repositories:
    """The table of repositories, and of who was let into gated ones."""

    def __init__(self, database: Database, audit: Audit) -> None:
        self._database = database
        self._audit = audit

    def transaction(self) -> AbstractContextManager[None]:
        """Several changes of rows as one."""
        return self._database.transaction()

    def find(self, kind: str, namespace: str, name: str) -> Repository | None:
        """The repository of a type and name, in any case."""
        if not (is_name(namespace) and is_name(name)):
            return None
        row = self._database.row(
            "SELECT * FROM repositories WHERE type = ? AND namespace = ? AND name = ?", kind, namespace, name
        )
        return _repository(row) if row else None

    def by_id(self, identifier: str) -> Repository | None:
        """The repository of an id."""
        row = self._database.row("SELECT * FROM repositories WHERE id = ?", identifier)
        return _repository(row) if row else None

    def all(self, kind: str | None = None) -> list[Repository]:
        """Every repository, or those of a type, newest first."""
        condition, values = ("", ()) if kind is None else (" WHERE type = ?", (kind,))
        rows = self._database.rows(
            f"SELECT * FROM repositories{condition} ORDER BY created DESC, id",  # noqa: S608 -- of the two above
            *values,
        )
        return [_repository(row) for row in rows]

    def after(self, identifier: str, count: int) -> list[Repository]:
        """Repositories in the order of their ids, from the first after one on."""
        rows = self._database.rows(
            "SELECT * FROM repositories WHERE id > ? ORDER BY id LIMIT ?", identifier, count
        )
        return [_repository(row) for row in rows]

    def of_row(self, row: Row) -> Repository:
        """The repository of a row of the table."""
        return _repository(row)

    def mark_changed(self, repository: Repository) -> None:
        """Say, before its content changes, that lists must read it again. Call it under the repository's lock."""
        self._database.change("UPDATE search SET stale = 1 WHERE repository = ? AND stale = 0", repository.id)

    def count_in(self, namespace: str) -> int:
        """How many repositories an account owns."""
        row = self._database.row("SELECT COUNT(*) AS n FROM repositories WHERE namespace = ?", namespace)
        assert row is not None
        return int(row["n"])

    @staticmethod
    def new_id() -> str:
        """The id, and so the folder, of a new repository."""
        return uuid.uuid4().hex

    def insert(
        self, identifier: str, kind: str, namespace: str, name: str, *, private: bool
    ) -> Repository | None:
        """Add a row; None where the name is taken."""
        created = time.time()
        try:
            self._database.change(
                "INSERT INTO repositories VALUES (?, ?, ?, ?, ?, '', ?)",
                *(identifier, kind, namespace, name, int(private), created),
            )
        except RowConflictError:
            return None
        return Repository(identifier, kind, namespace, name, private, "", created)

    def set_private(self, repository: Repository, private: bool) -> None:
        """Hide a repository from strangers, or show it."""
        with self._database.transaction():
            self._database.change(
                "UPDATE repositories SET private = ? WHERE id = ?", int(private), repository.id
            )
            self._record("private", repository, private="yes" if private else "no")

    def set_gated(self, repository: Repository, gated: str) -> None:
        """Ask for access before downloads ("auto", "manual"), or not ("")."""
        with self._database.transaction():
            self._database.change("UPDATE repositories SET gated = ? WHERE id = ?", gated, repository.id)
            self._record("gated", repository, gated=gated or "no")

    def _record(self, action: str, repository: Repository, **detail: str) -> None:
        self._audit.record(f"repository.{action}", repository.full_name, type=repository.type, **detail)

    def rename(self, repository: Repository, namespace: str, name: str) -> bool:
        """Give a repository another name; False where that is taken."""
        try:
            self._database.change(
                "UPDATE repositories SET namespace = ?, name = ? WHERE id = ?", namespace, name, repository.id
            )
        except RowConflictError:
            return False
        return True

    def delete(self, repository: Repository) -> bool:
        """Remove the row, and with it grants and large-file rows; False where it was gone."""
        return self._database.change("DELETE FROM repositories WHERE id = ?", repository.id) > 0

    def grant(self, repository: Repository, user: str, status: str) -> None:
        """Record who may download from a gated repository."""
        with self._database.transaction():
            self._database.change(
                'INSERT INTO grants VALUES (?, ?, ?, ?) ON CONFLICT (repository, "user") '
                "DO UPDATE SET status = excluded.status, changed = excluded.changed",
                *(repository.id, user, status, time.time()),
            )
            self._record("grant", repository, user=user, status=status)

    def grant_of(self, repository: Repository, user: str) -> str | None:
        """A user's status for a gated repository."""
        row = self._database.row(
            'SELECT status FROM grants WHERE repository = ? AND "user" = ?', repository.id, user
        )
        return str(row["status"]) if row else None

    def grants(self, repository: Repository, status: str) -> list[tuple[str, float]]:
        """The users of a status, and since when."""
        rows = self._database.rows(
            'SELECT "user", changed FROM grants WHERE repository = ? AND status = ? ORDER BY "user"',
            *(repository.id, status),
        )
        return [(row["user"], row["changed"]) for row in rows]


def _repository(row: Row) -> Repository:
    return Repository(
        row["id"],
        row["type"],
        row["namespace"],
        row["name"],
        bool(row["private"]),
        row["gated"],
        row["created"],
    )
