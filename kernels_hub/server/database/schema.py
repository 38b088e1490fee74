"""Tables, indexes and triggers as data, and the tables that every other one refers to.

Texts are SQLite's, which needs every type and clause as it stands: `dialect.py` says them to PostgreSQL. COLLATE NOCASE
is for names, which are ASCII; all other text is compared byte by byte.
"""

from __future__ import annotations

from dataclasses import dataclass

SHORTEST_TEXT = 3
"""Characters of a text that an index of texts finds: those of a trigram."""


MOVE_TABLES = ("row_move", "row_changes")
"""Tables of `change_log.py`, there only while rows move to another database; no table of a Hub."""


@dataclass(frozen=True)
class Key:
    """A table's primary key: its columns, and which of them hold bytes."""

    columns: tuple[str, ...]
    binary: tuple[bool, ...]


@dataclass(frozen=True)
class Index:
    """An index over columns, in the order of `key`.

    covered: what is read with it, by databases that hold rows of any size in an index.
    bounded: the same, by those that hold little: columns of which all together have less than 2,000 bytes.
    where: makes it partial.
    """

    name: str
    table: str
    key: str
    covered: str = ""
    bounded: str = ""
    where: str = ""


@dataclass(frozen=True)
class TextIndex:
    """An index of all substrings of `SHORTEST_TEXT` characters or more, over texts of a row.

    key: the table's primary key.
    words: index whole words instead, of ASCII letters and digits and with a space on both sides; a text that is looked
        for is one or more of them, and all must be there.
    brief: a column of the texts of a row, or NULL where they are long, in databases whose indexes hold little.

    FTS5's trigram tokenizer in SQLite, pg_trgm in PostgreSQL; where neither is there, `Database.containing` says so.
    """

    name: str
    table: str
    key: str
    columns: tuple[str, ...]
    words: bool = False
    brief: str = ""

    def text(self, row: str = "") -> str:
        """The text that is indexed. row: "old." or "new.", in a trigger."""
        return " || ' ' || ".join(f"{row}{column}" for column in self.columns)


@dataclass(frozen=True)
class Trigger:
    """A statement that runs for each row after an event ("INSERT", "UPDATE") of a table; `new` is the row."""

    name: str
    event: str
    table: str
    statement: str


@dataclass(frozen=True)
class Column:
    """A column that tables of older versions lack. kind: its type and what follows, with a default."""

    table: str
    name: str
    kind: str


@dataclass(frozen=True)
class Schema:
    """Tables of one part, made in this order: tables, columns, indexes, triggers, guards, and the rows of `fill`."""

    tables: str
    added: tuple[Column, ...] = ()
    """Columns that `tables` has too, for tables that are there already."""
    indexes: tuple[Index, ...] = ()
    triggers: tuple[Trigger, ...] = ()
    append_only: tuple[str, ...] = ()
    """Tables whose rows are neither changed nor removed."""
    texts: tuple[TextIndex, ...] = ()
    fill: str = ""
    """Statements for what is older than the tables; they change nothing the second time."""


CORE = Schema(
    tables="""
CREATE TABLE IF NOT EXISTS accounts (
    name TEXT PRIMARY KEY COLLATE NOCASE,
    kind TEXT NOT NULL CHECK (kind IN ('user', 'org')),
    trusted INTEGER NOT NULL DEFAULT 0,
    created REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS members (
    organisation TEXT NOT NULL COLLATE NOCASE REFERENCES accounts ON DELETE CASCADE,
    "user" TEXT NOT NULL COLLATE NOCASE REFERENCES accounts ON DELETE CASCADE,
    role TEXT NOT NULL CHECK (role IN ('admin', 'write', 'read')),
    PRIMARY KEY (organisation, "user")
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tokens (
    id TEXT PRIMARY KEY,
    sha256 BLOB NOT NULL UNIQUE,
    "user" TEXT NOT NULL COLLATE NOCASE REFERENCES accounts ON DELETE CASCADE,
    role TEXT NOT NULL CHECK (role IN ('read', 'write')),
    repository TEXT COLLATE NOCASE,
    created REAL NOT NULL,
    expires REAL
);
CREATE TABLE IF NOT EXISTS repositories (
    id TEXT PRIMARY KEY,
    type TEXT NOT NULL CHECK (type IN ('model', 'kernel')),
    namespace TEXT NOT NULL COLLATE NOCASE REFERENCES accounts,
    name TEXT NOT NULL COLLATE NOCASE,
    private INTEGER NOT NULL,
    gated TEXT NOT NULL DEFAULT '' CHECK (gated IN ('', 'auto', 'manual')),
    created REAL NOT NULL,
    UNIQUE (type, namespace, name)
);
CREATE TABLE IF NOT EXISTS grants (
    repository TEXT NOT NULL REFERENCES repositories ON DELETE CASCADE,
    "user" TEXT NOT NULL COLLATE NOCASE REFERENCES accounts ON DELETE CASCADE,
    status TEXT NOT NULL CHECK (status IN ('accepted', 'pending', 'rejected')),
    changed REAL NOT NULL,
    PRIMARY KEY (repository, "user")
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS objects (
    repository TEXT NOT NULL REFERENCES repositories ON DELETE CASCADE,
    oid TEXT NOT NULL,
    size INTEGER NOT NULL,
    touched REAL NOT NULL,
    PRIMARY KEY (repository, oid)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS release_log (
    chain TEXT NOT NULL COLLATE NOCASE,
    number INTEGER NOT NULL,
    document TEXT NOT NULL,
    hash TEXT NOT NULL,
    oid TEXT NOT NULL,
    PRIMARY KEY (chain, number)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS pending_refs (
    repository TEXT PRIMARY KEY REFERENCES repositories ON DELETE CASCADE,
    changes TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS unlogged (
    repository TEXT PRIMARY KEY REFERENCES repositories ON DELETE CASCADE
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS audit_log (
    number INTEGER PRIMARY KEY,
    document TEXT NOT NULL,
    hash TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS upgrades (name TEXT PRIMARY KEY) WITHOUT ROWID;
""",
    append_only=("release_log", "audit_log"),
    # Once a root, the repositories that are older than the release log: their tags are not in it.
    fill="""
INSERT INTO unlogged SELECT id FROM repositories
    WHERE NOT EXISTS (SELECT 1 FROM upgrades WHERE name = 'release_log') ON CONFLICT DO NOTHING;
INSERT INTO upgrades VALUES ('release_log') ON CONFLICT DO NOTHING;
""",
)
