"""What PostgreSQL spells otherwise than SQLite: values, types, case, triggers.

Names are compared by the collation `nocase`, of ICU at its second level: as SQLite's NOCASE for ASCII, which names are.
All other text has the collation "C", so that it is compared and sorted byte by byte, as in SQLite.
"""

from __future__ import annotations

import functools
import re

from kernels_hub.server.database.schema import Index, Key, Schema, TextIndex, Trigger
from kernels_hub.server.database.seam import Containing

MADE = """
CREATE COLLATION IF NOT EXISTS nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
CREATE OR REPLACE FUNCTION instr(haystack text, needle text) RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT strpos($1, $2)';
CREATE OR REPLACE FUNCTION append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'integrity_constraint_violation'; END $$;
CREATE TABLE IF NOT EXISTS hub_root (
    single INTEGER PRIMARY KEY DEFAULT 1 CHECK (single = 1),
    root TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS hub_schemas (digest TEXT COLLATE "C" PRIMARY KEY);
"""
"""What the tables of a Hub need, and what says whose they are and which were made."""
OWN_TABLES = ("hub_root", "hub_schemas")
LONGEST_BRIEF = 1000
"""Bytes of a text that an index of other columns has room for."""
_TYPES = {
    r"\bTEXT\b(?! COLLATE NOCASE)(?! NOT NULL COLLATE NOCASE)(?! PRIMARY KEY COLLATE NOCASE)": 'TEXT COLLATE "C"',
    r"\bREAL\b": "DOUBLE PRECISION",
    r"\bBLOB\b": "BYTEA",
    r"\bINTEGER\b": "BIGINT",
    r" WITHOUT ROWID\b": "",
    # A collation belongs to the type, which is said before what is demanded of it.
    r"\bTEXT( NOT NULL| PRIMARY KEY) COLLATE NOCASE": r"TEXT COLLATE nocase\1",
    r"\bTEXT COLLATE NOCASE": "TEXT COLLATE nocase",
}
_FUNCTIONS = {
    r"\bgroup_concat\(": "string_agg(",
    r"\bhex\(CAST\((.+?) AS BLOB\)\)": r"encode(convert_to(\1, 'UTF8'), 'hex')",
}


@functools.lru_cache(maxsize=1024)
def query(text: str) -> str:
    """A statement with values as psycopg takes them."""
    return text.replace("%", "%%").replace("?", "%s")


def value(given: object) -> object:
    """A value that PostgreSQL holds."""
    return text(given) if isinstance(given, str) else given


def text(given: str) -> str:
    """Text that PostgreSQL holds: it has no U+0000, which finds nothing and is shown as U+FFFD."""
    return given.replace("\0", "\ufffd")


def script(schema: Schema) -> str:
    """The statements that make a schema's tables, indexes and triggers."""
    added = (
        f"ALTER TABLE {column.table} ADD COLUMN IF NOT EXISTS {column.name} {column.kind};"
        for column in schema.added
    )
    tables = "\n".join((schema.tables, *added, *(_brief(text) for text in schema.texts if text.brief)))
    for pattern, replacement in _TYPES.items():
        tables = re.sub(pattern, replacement, tables)
    fill = schema.fill
    for pattern, replacement in _FUNCTIONS.items():
        fill = re.sub(pattern, replacement, fill)
    return "\n".join(
        [
            tables,
            *map(_index, schema.indexes),
            *map(_trigger, schema.triggers),
            *map(_guard, schema.append_only),
            fill,
        ]
    )


def _index(index: Index) -> str:
    # An entry of an index has 2,704 bytes at most here: texts of any length stay in the table.
    where = f" WHERE {index.where}" if index.where else ""
    if not index.bounded:
        return f"CREATE INDEX IF NOT EXISTS {index.name} ON {index.table} ({index.key}){where};"
    made = f"CREATE INDEX IF NOT EXISTS {index.name}_covering ON {index.table} ({index.key})"
    # Databases of older versions have one of the same key alone.
    return f"DROP INDEX IF EXISTS {index.name};\n{made} INCLUDE ({index.bounded}){where};"


def _brief(index: TextIndex) -> str:
    """The statement that adds the column of short texts."""
    text = index.text()
    value = f"CASE WHEN octet_length({text}) <= {LONGEST_BRIEF} THEN {text} END"
    made = f"ALTER TABLE {index.table} ADD COLUMN IF NOT EXISTS {index.brief} TEXT"
    return f"{made} GENERATED ALWAYS AS ({value}) STORED;"


def text_index(index: TextIndex) -> tuple[str, ...]:
    """The statements that make an index of text: entries are added at once, so that no search looks through a list."""
    if index.words:
        return (_gin(index, _words(index)),)
    return "CREATE EXTENSION IF NOT EXISTS pg_trgm", _gin(index, f"({index.text()}) gin_trgm_ops")


def _gin(index: TextIndex, key: str) -> str:
    made = f"CREATE INDEX IF NOT EXISTS {index.name} ON {index.table}"
    return f"{made} USING gin ({key}) WITH (fastupdate = off)"


def containing(index: TextIndex, text: str) -> Containing:
    """How the index finds a text."""
    if index.words:
        condition = f"{_words(index)} @> string_to_array(?, ' ')"
        return Containing(
            (f"SELECT {index.key} FROM {index.table} WHERE {condition}", (text,)),  # noqa: S608 -- names of ours
            (condition, (text,)),
        )
    condition = f"({index.text(index.table + '.')}) LIKE ?"
    pattern = "%" + re.sub(r"([\\%_])", r"\\\1", text) + "%"
    return Containing(
        (f"SELECT {index.key} FROM {index.table} WHERE {condition}", (pattern,)),  # noqa: S608 -- names of ours
        (condition, (pattern,)),
    )


def _words(index: TextIndex) -> str:
    return f"string_to_array({index.text(index.table + '.')}, ' ')"


def _trigger(trigger: Trigger) -> str:
    return (
        f"CREATE OR REPLACE FUNCTION {trigger.name}() RETURNS trigger LANGUAGE plpgsql AS $$\n"
        f"BEGIN {trigger.statement}; RETURN NULL; END $$;\n"
        f"CREATE OR REPLACE TRIGGER {trigger.name} AFTER {trigger.event} ON {trigger.table} "
        f"FOR EACH ROW EXECUTE FUNCTION {trigger.name}();"
    )


def _guard(table: str) -> str:
    return (
        f"CREATE OR REPLACE TRIGGER {table}_kept BEFORE UPDATE OR DELETE ON {table} "
        "FOR EACH ROW EXECUTE FUNCTION append_only();\n"
        f"CREATE OR REPLACE TRIGGER {table}_whole BEFORE TRUNCATE ON {table} "
        "FOR EACH STATEMENT EXECUTE FUNCTION append_only();"
    )


ROW_CHANGES = """
CREATE TABLE row_changes (
    number BIGSERIAL PRIMARY KEY,
    "table" TEXT COLLATE "C" NOT NULL,
    key TEXT COLLATE "C" NOT NULL
)
"""
RECORDING = (
    "SELECT proname AS name FROM pg_proc JOIN pg_namespace ON pg_namespace.oid = pronamespace "
    "WHERE nspname = current_schema() AND proname LIKE 'row#_changes#_%' ESCAPE '#'"
)
"""The functions of `recording`."""


def recording(table: str, key: Key) -> str:
    """A trigger that notes the keys of rows that change, old and new ones."""

    def noted(row: str) -> str:
        columns = (f'{row}."{column}"' for column in key.columns)
        listed = ", ".join(
            f"encode({column}, 'hex')" if binary else column
            for column, binary in zip(columns, key.binary, strict=True)
        )
        made = f"json_build_array({listed})::text"
        return f"INSERT INTO row_changes (\"table\", key) VALUES ('{table}', {made});"  # noqa: S608

    return f"""
CREATE FUNCTION row_changes_{table}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF TG_OP <> 'INSERT' THEN {noted("old")} END IF;
    IF TG_OP <> 'DELETE' THEN {noted("new")} END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER row_changes_{table} AFTER INSERT OR UPDATE OR DELETE ON {table}
    FOR EACH ROW EXECUTE FUNCTION row_changes_{table}();
"""
