"""Facets of a repository: what lists are filtered by, and counted for.

A facet is a kind and a value. Devices and platforms are those of the variants of the release that a list shows; a
variant for every backend counts for each. The publisher is the namespace, which a rename changes, so it is read from
the list's own row and stands in no facet.

A facet's row has copies of what lists are sorted by, kept right by triggers: so the repositories of a facet are read in
any order from an index, as all repositories are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kernels_hub.errors import MetadataError
from kernels_hub.repository.backends import BACKENDS, UNIVERSAL
from kernels_hub.repository.variants import Variant
from kernels_hub.server.database.schema import Column, Index, Schema, Trigger
from kernels_hub.server.web.contents import Facts, VariantFacts

ANY_PLATFORM = "any"
"""The platform of a variant without compiled code."""
MOST_VALUES = 200
"""Values of one kind that a repository is found by."""
LONGEST_VALUE = 200

SCHEMA = Schema(
    """
CREATE TABLE IF NOT EXISTS facets (
    repository TEXT NOT NULL REFERENCES repositories ON DELETE CASCADE,
    kind TEXT NOT NULL CHECK (kind IN ('layer', 'device', 'platform', 'licence')),
    value TEXT NOT NULL,
    created REAL NOT NULL DEFAULT 0,
    updated TEXT NOT NULL DEFAULT '',
    downloads INTEGER NOT NULL DEFAULT 0,
    name TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (repository, kind, value)
) WITHOUT ROWID;
""",
    added=(
        Column("facets", "created", "REAL NOT NULL DEFAULT 0"),
        Column("facets", "updated", "TEXT NOT NULL DEFAULT ''"),
        Column("facets", "downloads", "INTEGER NOT NULL DEFAULT 0"),
        Column("facets", "name", "TEXT NOT NULL DEFAULT ''"),
    ),
    indexes=(
        *(
            Index(f"facets_{order}", "facets", f"kind, lower(value), {keys}, repository", bounded="value")
            for order, keys in {
                "newest": "created DESC",
                "updated": "updated DESC, created DESC",
                "downloads": "downloads DESC, created DESC",
                "name": "name",
            }.items()
        ),
    ),
    triggers=(
        Trigger(
            "facets_ranked",
            "UPDATE",
            "ranks",
            "UPDATE facets SET updated = new.updated, downloads = new.downloads WHERE repository = new.repository",
        ),
        Trigger(
            "facets_renamed",
            "UPDATE",
            "repositories",
            "UPDATE facets SET name = lower(new.namespace || '/' || new.name) WHERE repository = new.id",
        ),
    ),
    # For rows that are older than `tokens_of`, which is the same, and than the copies of what lists are sorted by.
    fill="""
DROP INDEX IF EXISTS facets_value;
DROP INDEX IF EXISTS search_facets;
UPDATE facets SET (created, updated, downloads) = (
    SELECT ranks.created, ranks.updated, ranks.downloads FROM ranks WHERE ranks.repository = facets.repository
), name = (SELECT search.name FROM search WHERE search.repository = facets.repository)
WHERE NOT EXISTS (SELECT 1 FROM upgrades WHERE name = 'facet_orders')
    AND repository IN (SELECT ranks.repository FROM ranks JOIN search ON search.repository = ranks.repository);
INSERT INTO upgrades VALUES ('facet_orders') ON CONFLICT DO NOTHING;
UPDATE search SET tokens = (
    SELECT ' ' || group_concat(lower(hex(CAST(kind || '=' || lower(value) AS BLOB))), ' ') || ' '
    FROM facets WHERE facets.repository = search.repository
) WHERE NOT EXISTS (SELECT 1 FROM upgrades WHERE name = 'tokens')
    AND EXISTS (SELECT 1 FROM facets WHERE facets.repository = search.repository);
INSERT INTO upgrades VALUES ('tokens') ON CONFLICT DO NOTHING;
""",
)


INSERT = """
INSERT INTO facets (repository, kind, value, created, updated, downloads, name)
    SELECT ranks.repository, ?, ?, ranks.created, ranks.updated, ranks.downloads, search.name
    FROM ranks JOIN search ON search.repository = ranks.repository WHERE ranks.repository = ?
"""
"""Gives a repository a facet: kind, value, repository."""


def token_of(kind: str, value: str) -> str:
    """A facet as one word of letters and digits, the same for every case of a value's ASCII letters."""
    return f"{kind}={lower(value)}".encode().hex()


def lower(value: str) -> str:
    """A value with its ASCII letters in lower case, as SQL's `lower` has it."""
    return "".join(c.lower() if c.isascii() else c for c in value)


def tokens_of(facets: Mapping[str, Sequence[str]]) -> str:
    """The words of all facets of a repository, each with a space on both sides."""
    tokens = [token_of(kind, value) for kind, values in facets.items() for value in values]
    return f" {' '.join(tokens)} " if tokens else ""


def facets_of(facts: Facts) -> dict[str, list[str]]:
    """Kind -> values, without regard to case each once, of a release."""
    values = {
        "layer": [layer.name for layer in facts.layers],
        "device": [device for variant in facts.variants for device in devices_of(variant)],
        "platform": [platform for variant in facts.variants if (platform := platform_of(variant))],
        "licence": [facts.license] if facts.license else [],
    }
    return {kind: list(_distinct(found)) for kind, found in values.items()}


def devices_of(variant: VariantFacts) -> tuple[str, ...]:
    """The types of devices that a variant says it runs on, by its metadata, else by its name."""
    backend = variant.backend or _backend_named(variant.name)
    if backend == UNIVERSAL:
        return tuple(BACKENDS)
    return (backend,) if backend else ()


def platform_of(variant: VariantFacts) -> str | None:
    """ "linux x86_64"; "any" without compiled code; None where the name does not say."""
    parsed = _parsed(variant.name)
    if parsed is None:
        return None
    return ANY_PLATFORM if parsed.noarch else f"{parsed.os} {parsed.cpu}"


def framework_of(variant: VariantFacts) -> str | None:
    """What a variant is loaded with: "torch 2.13", "torch 2.10 or newer", "any torch"."""
    parsed = _parsed(variant.name)
    if parsed is None:
        return None
    if parsed.framework_version is None:
        return "any torch"
    version = ".".join(map(str, parsed.framework_version))
    return {
        "torch": f"torch {version}",
        "torch-stable-abi": f"torch {version} or newer",
        "tvm-ffi": f"any torch, tvm-ffi {version}",
    }[parsed.framework]


def _backend_named(name: str) -> str | None:
    parsed = _parsed(name)
    return parsed.backend if parsed else None


def _parsed(name: str) -> Variant | None:
    try:
        return Variant.parse(name)
    except MetadataError:
        return None


def _distinct(values: list[str]) -> Iterator[str]:
    seen: set[str] = set()
    for value in values:
        # SQLite's NOCASE knows ASCII alone: what is lower here is at least as coarse.
        text = value[:LONGEST_VALUE]
        if text.lower() not in seen and len(seen) < MOST_VALUES:
            seen.add(text.lower())
            yield text
