"""What `fsck` asks a PostgreSQL database. Everything is read once: PostgreSQL compares its checksums only then."""

from __future__ import annotations

from collections.abc import Iterator

from kernels_hub.server.database.schema import CORE
from kernels_hub.server.database.seam import Database, DatabaseError, UnavailableError

_REFERENCES = """
SELECT child.relname AS child, own.attname AS own, parent.relname AS parent, theirs.attname AS theirs
    FROM pg_constraint AS made
    JOIN pg_class AS child ON child.oid = made.conrelid
    JOIN pg_class AS parent ON parent.oid = made.confrelid
    JOIN pg_attribute AS own ON own.attrelid = made.conrelid AND own.attnum = made.conkey[1]
    JOIN pg_attribute AS theirs ON theirs.attrelid = made.confrelid AND theirs.attnum = made.confkey[1]
    WHERE made.contype = 'f' AND child.relnamespace = current_schema()::regnamespace
"""
_TRIGGERS = """
SELECT made.tgname AS name FROM pg_trigger AS made JOIN pg_class AS watched ON watched.oid = made.tgrelid
    WHERE watched.relnamespace = current_schema()::regnamespace AND made.tgenabled IN ('O', 'A')
"""
_BROKEN_INDEXES = """
SELECT index.relname AS name FROM pg_index AS made JOIN pg_class AS index ON index.oid = made.indexrelid
    WHERE index.relnamespace = current_schema()::regnamespace AND NOT (made.indisvalid AND made.indisready)
"""
_DURABLE = {
    "fsync": "a crash of its machine may lose what was acknowledged, or all",
    "full_page_writes": "a crash of its machine may leave half a page",
}


def problems(database: Database) -> list[str]:
    """Everything that is wrong; an outage is raised."""
    return list(_problems(database))


def _problems(database: Database) -> Iterator[str]:
    for name, loss in _DURABLE.items():
        row = database.row("SELECT current_setting(?) AS value", name)
        if row is not None and row["value"] != "on":
            yield f"PostgreSQL runs with {name} = {row['value']}: {loss}"
    with database.snapshot():
        triggers = {str(row["name"]) for row in database.rows(_TRIGGERS)}
        for table in CORE.append_only:
            for guard in (f"{table}_kept", f"{table}_whole"):
                if guard not in triggers:
                    yield f"the trigger {guard} is gone or off, which keeps {table} append-only"
        for row in database.rows(_BROKEN_INDEXES):
            yield f"the index {row['name']} is not valid; REINDEX makes it anew"
        references = database.rows(_REFERENCES)
        for reference in references:
            child, own, parent, theirs = (reference[name] for name in ("child", "own", "parent", "theirs"))
            lost = database.row(
                # Names from PostgreSQL's own catalogue.
                f'SELECT COUNT(*) AS n FROM "{child}" AS child WHERE "{own}" IS NOT NULL AND NOT EXISTS '  # noqa: S608
                f'(SELECT 1 FROM "{parent}" AS parent WHERE parent."{theirs}" = child."{own}")'
            )
            if lost is not None and lost["n"]:
                yield f"{lost['n']} rows of {child} name a row of {parent} that is not there"
    for table in database.tables():
        try:
            with database.snapshot():  # which may take its time
                database.row(f'SELECT SUM(hashtext(whole::text)) AS n FROM "{table}" AS whole')  # noqa: S608
        except UnavailableError:
            raise
        except DatabaseError as error:
            yield f"{table} cannot be read: {error}"
