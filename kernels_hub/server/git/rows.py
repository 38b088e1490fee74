"""Rows of git data that lies in an object store: where it is, refs, and which packs a repository has.

A repository has a version, which every change of its refs or packs replaces by another: a change is made only where the
version is still the one that it was thought out for.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from kernels_hub.server.database import Database
from kernels_hub.server.database.schema import Schema
from kernels_hub.server.refs import Ref, RefChanges
from kernels_hub.server.refusal import Refusal, repository_not_found

SCHEMA = Schema(
    tables="""
CREATE TABLE IF NOT EXISTS git_place (
    single INTEGER PRIMARY KEY CHECK (single = 1),
    state TEXT NOT NULL CHECK (state IN ('store', 'moving', 'folder')),
    objects TEXT NOT NULL,
    identity TEXT NOT NULL,
    secret BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS git_versions (
    repository TEXT PRIMARY KEY REFERENCES repositories ON DELETE CASCADE,
    version TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS git_refs (
    repository TEXT NOT NULL REFERENCES repositories ON DELETE CASCADE,
    name TEXT NOT NULL,
    oid TEXT NOT NULL,
    peeled TEXT,
    PRIMARY KEY (repository, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS git_packs (
    repository TEXT NOT NULL REFERENCES repositories ON DELETE CASCADE,
    name TEXT NOT NULL,
    pack_bytes INTEGER NOT NULL,
    index_bytes INTEGER NOT NULL,
    PRIMARY KEY (repository, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS git_dropped (
    repository TEXT NOT NULL REFERENCES repositories ON DELETE CASCADE,
    name TEXT NOT NULL,
    dropped REAL NOT NULL,
    PRIMARY KEY (repository, name)
) WITHOUT ROWID;
"""
)
_REPOSITORY_TABLES = ("git_dropped", "git_packs", "git_refs", "git_versions")
TABLES = (*_REPOSITORY_TABLES, "git_place")
State = Literal["store", "moving", "folder"]
_PLACE = "SELECT state, objects, identity, secret FROM git_place"
_ALL = """
SELECT 'version' AS kind, version AS name, '' AS oid, '' AS peeled, 0 AS pack_bytes, 0 AS index_bytes
    FROM git_versions WHERE repository = ?
UNION ALL SELECT 'ref', name, oid, COALESCE(peeled, ''), 0, 0 FROM git_refs WHERE repository = ?
UNION ALL SELECT 'pack', name, '', '', pack_bytes, index_bytes FROM git_packs WHERE repository = ?
"""


@dataclass(frozen=True)
class Place:
    """Where a Hub's git data lies, and what its servers share.

    state: "store" while it is in the object store; "folder" once it was moved back to a root; "moving" in between, when
        nothing is changed in the store.
    objects: the place of the object store. identity: who the Hub is to that. secret: the key that signs addresses.
    """

    state: State
    objects: str
    identity: str
    secret: bytes


@dataclass(frozen=True)
class PackRow:
    """A pack of a repository: the name of its object, and how many bytes of that are pack and index."""

    name: str
    pack_bytes: int
    index_bytes: int

    @property
    def size(self) -> int:
        """The bytes of the object."""
        return self.pack_bytes + self.index_bytes


@dataclass(frozen=True)
class Snapshot:
    """The git side of a repository at one moment."""

    version: str
    refs: Mapping[str, Ref]
    packs: tuple[PackRow, ...]


def moved() -> Refusal:
    """503: the git data is elsewhere by now, or about to be."""
    return Refusal(
        503,
        "The git data of this Hub is being moved, and its servers are about to be restarted; nothing was changed, try "
        "again",
        headers={"Retry-After": "10"},
    )


class GitRows:
    """The rows, over one database."""

    def __init__(self, database: Database) -> None:
        self.database = database

    # -- the place

    def place(self) -> Place | None:
        """Where the git data lies; None where it never was in an object store."""
        row = self.database.row(_PLACE)
        if row is None:
            return None
        return Place(row["state"], str(row["objects"]), str(row["identity"]), bytes(row["secret"]))

    def settle(self, place: Place) -> None:
        """Say where the git data lies from now on."""
        self.database.change(
            "INSERT INTO git_place VALUES (1, ?, ?, ?, ?) ON CONFLICT (single) DO UPDATE SET state = excluded.state, "
            "objects = excluded.objects, identity = excluded.identity, secret = excluded.secret",
            *(place.state, place.objects, place.identity, place.secret),
        )

    # -- repositories

    def version(self, repository: str) -> str | None:
        """The version of a repository; None where it is not here."""
        row = self.database.row("SELECT version FROM git_versions WHERE repository = ?", repository)
        return None if row is None else str(row["version"])

    def versions(self) -> dict[str, str]:
        """The version of every repository."""
        rows = self.database.rows("SELECT repository, version FROM git_versions")
        return {str(row["repository"]): str(row["version"]) for row in rows}

    def snapshot(self, repository: str) -> Snapshot:
        """Refs and packs of a repository, of one moment. Refuses one that is not here."""
        version, refs, packs = "", dict[str, Ref](), list[PackRow]()
        for row in self.database.rows(_ALL, repository, repository, repository):
            if row["kind"] == "version":
                version = str(row["name"])
            elif row["kind"] == "ref":
                refs[str(row["name"])] = Ref(str(row["oid"]), str(row["peeled"]) or None)
            else:
                packs.append(PackRow(str(row["name"]), int(row["pack_bytes"]), int(row["index_bytes"])))
        if not version:
            raise self.missing()
        return Snapshot(version, refs, tuple(sorted(packs, key=lambda pack: pack.name)))

    def missing(self) -> Refusal:
        """Why a repository is not here: it was deleted, or all are elsewhere."""
        place = self.place()
        return repository_not_found(anonymous=False) if place and place.state == "store" else moved()

    def pack_names(self, repository: str) -> set[str]:
        """The packs of a repository."""
        rows = self.database.rows("SELECT name FROM git_packs WHERE repository = ?", repository)
        return {str(row["name"]) for row in rows}

    def insert(self, repository: str, refs: RefChanges, packs: Iterable[PackRow]) -> None:
        """Add the git side of a repository. Inside the transaction that adds its row."""
        self.database.change("INSERT INTO git_versions VALUES (?, ?)", repository, uuid.uuid4().hex)
        self._put(repository, refs, packs)

    def replace(
        self,
        repository: str,
        version: str,
        *,
        refs: RefChanges | None = None,
        added: Iterable[PackRow] = (),
        dropped: Iterable[PackRow] = (),
    ) -> None:
        """Change refs and packs, if the version is still this one. Inside a transaction.

        Refuses (503) where somebody else has changed the repository, and while git data is moved.
        """
        changed = self.database.change(
            "UPDATE git_versions SET version = ? WHERE repository = ? AND version = ? "
            "AND EXISTS (SELECT 1 FROM git_place WHERE state = 'store')",
            *(uuid.uuid4().hex, repository, version),
        )
        if not changed:
            if self.version(repository) in (None, version):
                raise self.missing()
            raise Refusal(
                503,
                "Another server has changed the repository meanwhile; nothing was changed, try again",
                headers={"Retry-After": "1"},
            )
        self._put(repository, refs or {}, added)
        for pack in dropped:
            self.database.change(
                "DELETE FROM git_packs WHERE repository = ? AND name = ?", repository, pack.name
            )
            self.database.change(
                "INSERT INTO git_dropped VALUES (?, ?, ?)", repository, pack.name, time.time()
            )

    def dropped(self, repository: str) -> dict[str, float]:
        """The packs that a repository had before they were joined, and since when it has them no more."""
        rows = self.database.rows("SELECT name, dropped FROM git_dropped WHERE repository = ?", repository)
        return {str(row["name"]): float(row["dropped"]) for row in rows}

    def forget_dropped(self, repository: str, name: str) -> None:
        """Say that a pack that was dropped is removed."""
        self.database.change("DELETE FROM git_dropped WHERE repository = ? AND name = ?", repository, name)

    def _put(self, repository: str, refs: RefChanges, packs: Iterable[PackRow]) -> None:
        for name, ref in refs.items():
            if ref is None:
                self.database.change(
                    "DELETE FROM git_refs WHERE repository = ? AND name = ?", repository, name
                )
            else:
                self.database.change(
                    "INSERT INTO git_refs VALUES (?, ?, ?, ?) ON CONFLICT (repository, name) "
                    "DO UPDATE SET oid = excluded.oid, peeled = excluded.peeled",
                    *(repository, name, ref.oid, ref.peeled),
                )
        for pack in packs:
            self.database.change(
                "INSERT INTO git_packs VALUES (?, ?, ?, ?)",
                *(repository, pack.name, pack.pack_bytes, pack.index_bytes),
            )

    def drop_all(self) -> None:
        """Remove the git side of every repository, which is elsewhere. Inside a transaction."""
        for table in _REPOSITORY_TABLES:
            self.database.change(f"DELETE FROM {table}")  # noqa: S608 -- of these

    def drop(self, repository: str) -> None:
        """Remove the git side of a repository, which is elsewhere. Inside a transaction."""
        for table in _REPOSITORY_TABLES:
            self.database.change(f"DELETE FROM {table} WHERE repository = ?", repository)  # noqa: S608 -- of these
