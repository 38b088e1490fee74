"""The tables of the index that lists and searches repositories, and what finds words and facets in them."""

from __future__ import annotations

from kernels_hub.server.database.schema import Column, Index, Schema, TextIndex, Trigger

_ADDED = """
INSERT INTO search (repository, type, namespace, name, private, gated, created)
    SELECT id, type, namespace, lower(namespace || '/' || name), private, gated, created FROM repositories
    WHERE id NOT IN (SELECT repository FROM search) ON CONFLICT DO NOTHING;
INSERT INTO ranks (repository, created)
    SELECT id, created FROM repositories WHERE id NOT IN (SELECT repository FROM ranks) ON CONFLICT DO NOTHING;
UPDATE search SET stale = 1 WHERE NOT EXISTS (SELECT 1 FROM upgrades WHERE name = 'facets');
INSERT INTO upgrades VALUES ('facets') ON CONFLICT DO NOTHING;
"""
TEXT = TextIndex("search_text", "search", "repository", ("name", "words"), brief="brief")
"""What words are looked for in."""
TOKENS = TextIndex("search_tokens", "search", "repository", ("tokens",), words=True)
"""What facets are looked for in."""
SCHEMA = Schema(
    tables="""
CREATE TABLE IF NOT EXISTS search (
    repository TEXT PRIMARY KEY REFERENCES repositories ON DELETE CASCADE,
    type TEXT NOT NULL,
    namespace TEXT NOT NULL COLLATE NOCASE,
    name TEXT NOT NULL,
    private INTEGER NOT NULL,
    gated TEXT NOT NULL,
    created REAL NOT NULL,
    stale INTEGER NOT NULL DEFAULT 1,
    words TEXT NOT NULL DEFAULT '',
    document TEXT NOT NULL DEFAULT '',
    tokens TEXT NOT NULL DEFAULT ''
);
CREATE TABLE IF NOT EXISTS ranks (
    repository TEXT PRIMARY KEY REFERENCES repositories ON DELETE CASCADE,
    created REAL NOT NULL,
    updated TEXT NOT NULL DEFAULT '',
    downloads INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
""",
    indexes=(
        Index(
            "search_newest",
            "search",
            "created DESC, repository",
            covered="type, namespace, private, gated, name, words",
            bounded="type, namespace, private, gated, name, brief",
        ),
        Index(
            "search_name",
            "search",
            "name, repository",
            covered="type, namespace, private, gated",
            bounded="type, namespace, private, gated, brief",
        ),
        Index("search_namespace", "search", "namespace, created DESC", covered="type, private, gated, name"),
        Index("search_stale", "search", "created DESC", where="stale = 1"),
        Index("ranks_updated", "ranks", "updated DESC, created DESC, repository"),
        Index("ranks_downloads", "ranks", "downloads DESC, created DESC, repository"),
    ),
    triggers=(
        Trigger(
            "search_insert",
            "INSERT",
            "repositories",
            "INSERT INTO search (repository, type, namespace, name, private, gated, created) VALUES "
            "(new.id, new.type, new.namespace, lower(new.namespace || '/' || new.name), new.private, new.gated, "
            "new.created)",
        ),
        Trigger(
            "search_update",
            "UPDATE",
            "repositories",
            "UPDATE search SET namespace = new.namespace, name = lower(new.namespace || '/' || new.name), "
            "private = new.private, gated = new.gated WHERE repository = new.id",
        ),
        Trigger(
            "ranks_insert",
            "INSERT",
            "repositories",
            "INSERT INTO ranks (repository, created) VALUES (new.id, new.created)",
        ),
    ),
    texts=(TEXT, TOKENS),
    added=(Column("search", "tokens", "TEXT NOT NULL DEFAULT ''"),),
    fill=_ADDED,
)
"""The tables, their triggers, and the rows of repositories that are older than they are; roots that are older than
facets describe every repository again."""
