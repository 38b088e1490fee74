"""The release logs of a Hub: one hash-chained, append-only list for each name of a repository.

A chain belongs to the name, not to the repository of the moment: a deleted repository leaves its releases, each with a
`delete`, and one that is made again under the name goes on with the chain. The rows cannot be changed or removed
(triggers of the database refuse it).

An entry is written together with the change of refs that it stands for (`Refs.change`): a release is acknowledged only
when both are there, and after a crash both are or neither.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kernels_hub.errors import IntegrityError
from kernels_hub.parsing import parse_json
from kernels_hub.repository.release_entry import (
    MOST_NOTE,
    START,
    Kind,
    ReleaseEntry,
    Standing,
    chain_problem,
    standings,
)
from kernels_hub.server.audit import plain, utc
from kernels_hub.server.database import Database, Row
from kernels_hub.server.database.seam import ALL_ROWS
from kernels_hub.server.refs import TAGS, RefChanges
from kernels_hub.server.repositories import Repository


@dataclass(frozen=True)
class Event:
    """What becomes an entry. `oid` is what the tag's ref holds: the commit, or an annotated tag."""

    kind: Kind
    tag: str
    commit: str
    digest: str
    oid: str
    note: str = ""


def chain_of(repository: Repository) -> str:
    """The name of a repository's chain."""
    return f"{repository.type}/{repository.full_name}"


class ReleaseLog:
    """The table of entries."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def append(self, repository: Repository, events: Iterable[Event], actor: str) -> None:
        """Add entries; durable on return, or with the transaction that this is a part of.

        Call it under the repository's lock, or in the transaction that renames or deletes the repository.
        """
        with self._database.transaction():
            chain = chain_of(repository)
            index, previous = self.head(chain)
            for event in events:
                entry = ReleaseEntry(
                    index=index,
                    previous=previous,
                    kind=event.kind,
                    repository=chain,
                    tag=event.tag,
                    commit=event.commit,
                    digest=event.digest,
                    actor=plain(actor)[:200],
                    time=utc(time.time()),
                    note=plain(event.note)[:MOST_NOTE],
                )
                self._database.change(
                    "INSERT INTO release_log VALUES (?, ?, ?, ?, ?)",
                    *(chain, index, entry.canonical().decode(), entry.hash, event.oid),
                )
                index, previous = index + 1, entry.hash

    def extend(self, repository: Repository, entries: Iterable[ReleaseEntry], changes: RefChanges) -> None:
        """Add entries that another Hub wrote, as they are. changes: of refs, which are made together with this.

        Call it under the repository's lock. The entries were checked: they follow the last that is held.
        """
        chain = chain_of(repository)
        with self._database.transaction():
            for entry in entries:
                ref = changes.get(TAGS + entry.tag)
                oid = ref.oid if ref is not None and ref.commit == entry.commit else entry.commit
                self._database.change(
                    "INSERT INTO release_log VALUES (?, ?, ?, ?, ?)",
                    *(chain, entry.index, entry.canonical().decode(), entry.hash, oid),
                )

    def head(self, chain: str) -> tuple[int, str]:
        """How many entries a chain has, and the hash of the last."""
        row = self._database.row(
            "SELECT number, hash FROM release_log WHERE chain = ? ORDER BY number DESC LIMIT 1", chain
        )
        return (0, START) if row is None else (row["number"] + 1, row["hash"])

    def entries(self, chain: str, start: int = 0, count: int = ALL_ROWS) -> list[ReleaseEntry]:
        """Entries from a number on, oldest first."""
        rows = self._rows(chain, start, count)
        return [_parsed(row) for row in rows]

    def standings(self, chain: str) -> dict[str, Standing]:
        """What the chain says of each version, by `version_key`."""
        return standings(self.entries(chain))

    def oids(self, chain: str) -> dict[tuple[str, str], str]:
        """What the ref of a tag held, by tag and commit: the id of an annotated tag is in no entry."""
        rows = [(_parsed(row), str(row["oid"])) for row in self._rows(chain)]
        placed = ("release", "forced-move")
        return {(entry.tag, entry.commit): oid for entry, oid in rows if entry.kind in placed}

    def chains(self) -> list[str]:
        """The names of all chains."""
        rows = self._database.rows("SELECT DISTINCT chain FROM release_log ORDER BY chain")
        return [str(row["chain"]) for row in rows]

    def problems(self, chain: str) -> list[str]:
        """What is wrong with a chain itself."""
        try:
            rows = self._rows(chain)
            entries = [_parsed(row) for row in rows]
        except IntegrityError as error:
            return [str(error)]
        if problem := chain_problem(entries, chain):
            return [f"release log: {problem}"]
        wrong = [entry for entry, row in zip(entries, rows, strict=True) if entry.hash != row["hash"]]
        return [f"release log: entry #{entry.index} was changed after it was written" for entry in wrong]

    def _rows(self, chain: str, start: int = 0, count: int = ALL_ROWS) -> Sequence[Row]:
        return self._database.rows(
            "SELECT * FROM release_log WHERE chain = ? AND number >= ? ORDER BY number LIMIT ?",
            *(chain, start, count),
        )


def _parsed(row: Row) -> ReleaseEntry:
    where = f"release log of {row['chain']}, entry #{row['number']}"
    return parse_json(row["document"].encode(), ReleaseEntry, where=where, error=IntegrityError)
