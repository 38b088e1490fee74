"""Copies every row of one database into another, and compares what arrived with what was there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kernels_hub.errors import IntegrityError, KernelsHubError
from kernels_hub.server.database.seam import Database, Row, listed

TABLES = (
    "accounts", "members", "tokens", "repositories", "grants", "objects", "release_log", "pending_refs", "unlogged",
    "audit_log", "upgrades", "search", "ranks", "facets", "downloads", "sessions",
    "mirror", "mirrored", "git_place", "git_versions", "git_refs", "git_packs", "git_dropped",
)  # fmt: skip
"""Every table, each after those that it refers to."""
_MADE_BESIDE = ("upgrades", "search", "ranks")
"""Tables with rows that the target makes by itself, and that the copied ones replace."""


@dataclass(frozen=True)
class Copied:
    """One table that was copied: how many rows, and the digest of all of them, in whatever order they are read."""

    table: str
    rows: int
    digest: str


def copy_rows(source: Database, target: Database) -> list[Copied]:
    """Copy every row in one transaction of the target, which has no rows but those that it made with its tables.

    Missing tables of the target are made. The source is read at one moment, others may write on.
    Raises KernelsHubError where the target has rows already, or other rows than the source afterwards: then nothing
    was copied.
    """
    with source.snapshot(), target.transaction():
        names = checked_tables(source, target)
        for table in names:
            if table not in _MADE_BESIDE and target.row(f"SELECT 1 FROM {table} LIMIT 1") is not None:  # noqa: S608
                raise KernelsHubError(f"{target.name} has rows already, in {table}; nothing was changed")
        for table in names:
            if table in _MADE_BESIDE:
                target.change(f"DELETE FROM {table}")  # noqa: S608
            if source.row(f"SELECT 1 FROM {table} LIMIT 1") is not None:  # noqa: S608
                columns = source.columns(table)
                rows = (tuple(row[name] for name in columns) for row in _all(source, table))
                target.insert(table, columns, rows)
        return compare(source, target, names)


def compare(source: Database, target: Database, tables: Sequence[str]) -> list[Copied]:
    """Compare all rows of these tables; IntegrityError where they differ. Inside `snapshot`s or `transaction`s."""
    found = []
    for table in tables:
        there, here = digest(source, table), digest(target, table)
        if there != here:
            raise IntegrityError(
                f"{table} has {here.rows} rows in {target.name} and {there.rows} in {source.name}, or other ones; "
                "nothing was changed"
            )
        found.append(here)
    return found


def digest(database: Database, table: str) -> Copied:
    """Count and digest of a table; equal for equal rows in any database."""
    found = sorted(row_digest(row) for row in _all(database, table))
    return Copied(table, len(found), hashlib.sha256(b"".join(found)).hexdigest())


def checked_tables(source: Database, target: Database) -> list[str]:
    """The tables of a source, in the order of `TABLES`. Raises KernelsHubError where one is unknown, or lacks here."""
    unknown = sorted(set(source.tables()) - set(TABLES))
    if unknown:
        raise KernelsHubError(
            f"{source.name} has a table {unknown[0]} that this version does not know; use the version that made it"
        )
    missing = sorted(set(source.tables()) - set(target.tables()))
    if missing:
        raise KernelsHubError(f"{target.name} has no table {missing[0]}")
    return [table for table in TABLES if table in source.tables()]


def _all(database: Database, table: str) -> Iterator[Row]:
    return database.each(f"SELECT {listed(database.columns(table))} FROM {table}")  # noqa: S608 -- names of ours


def _names(row: Row) -> list[str]:
    return list(row.keys())


def row_digest(row: Row) -> bytes:
    """SHA-256 of a row, whatever database it comes from."""
    values = {name: _plain(row[name]) for name in _names(row)}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).digest()


def _plain(value: object) -> object:
    """A value as every database holds it: PostgreSQL has no U+0000 in text."""
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    return value.replace("\0", "\ufffd") if isinstance(value, str) else value
