"""The index that lists and searches repositories: one row each, kept right by the database itself.

Triggers copy names and visibility, within the transaction that changes them. What is inside a repository (its
summary, layers, newest release) is described by a document; a change marks it stale before it begins, holding the
repository's lock, and whoever searches next describes it again, holding the same lock. So a search finds what was
acknowledged before it, whichever process did it, and a crash leaves at most a stale row too many.

Of SQLite, one index covers what a search reads, newest first: 10,000 repositories are scanned in about 3 ms. Other
orders and facets have tables of their own, written with the document.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import msgspec

from kernels_hub.parsing import Struct
from kernels_hub.server.access import Caller
from kernels_hub.server.accounts import Accounts
from kernels_hub.server.database import Database, UnavailableError
from kernels_hub.server.database.schema import Index, Schema, Trigger
from kernels_hub.server.facets import facets_of
from kernels_hub.server.refs import DEFAULT_BRANCH
from kernels_hub.server.refusal import Refusal
from kernels_hub.server.repositories import Repositories, Repository
from kernels_hub.server.store import Store
from kernels_hub.server.web.contents import Contents, Facts, is_release

_ADDED = """
INSERT INTO search (repository, type, namespace, name, private, gated, created)
    SELECT id, type, namespace, lower(namespace || '/' || name), private, gated, created FROM repositories
    WHERE id NOT IN (SELECT repository FROM search) ON CONFLICT DO NOTHING;
INSERT INTO ranks (repository, created)
    SELECT id, created FROM repositories WHERE id NOT IN (SELECT repository FROM ranks) ON CONFLICT DO NOTHING;
UPDATE search SET stale = 1 WHERE NOT EXISTS (SELECT 1 FROM upgrades WHERE name = 'facets');
INSERT INTO upgrades VALUES ('facets') ON CONFLICT DO NOTHING;
"""
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
    document TEXT NOT NULL DEFAULT ''
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
        ),
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
    fill=_ADDED,
)
"""The tables, their triggers, and the rows of repositories that are older than they are; roots that are older than
facets describe every repository again."""
FACETS = ("device", "layer", "platform", "licence", "publisher")
"""What a list is filtered by, in the order in which a page shows it."""
SORTS = ("newest", "updated", "downloads", "name")
"""The orders of a list."""
_ORDERS = {
    "newest": "search.created DESC, search.repository",
    "updated": "ranks.updated DESC, ranks.created DESC, ranks.repository",
    "downloads": "ranks.downloads DESC, ranks.created DESC, ranks.repository",
    "name": "search.name, search.repository",
}
MOST_COUNTED = 2000
"""Repositories, the newest that match, of which facets are counted: a page takes as long with a million."""
_FACET_VALUES = 12
_AT_ONCE = 32
_MOST_WORDS = 20_000
_PAUSE_SECONDS = 0.005
_OUTAGE_SECONDS = 2.0


class Described(Struct, frozen=True):
    """What a repository's row in a list says."""

    head: str | None = None
    modified: str | None = None
    summary: str | None = None
    version: str | None = None
    layers: int = 0
    variants: int = 0
    licence: str | None = None
    updated: str | None = None


@dataclass(frozen=True)
class Listed:
    """A repository that was found; `described` is None where that must be read from the repository itself."""

    repository: Repository
    described: Described | None
    downloads: int = 0


@dataclass(frozen=True)
class Counted:
    """A value of a facet, and of how many repositories."""

    value: str
    count: int


@dataclass(frozen=True)
class Wanted:
    """What a list is asked for, besides whose it is."""

    words: Sequence[str] = ()
    """In lower case; each is in the name, summary, layers or functions."""
    facets: Mapping[str, str] = field(default_factory=dict)
    """Kind of `FACETS` -> value, without regard to case."""
    sort: str = "newest"
    """One of `SORTS`."""


@dataclass(frozen=True)
class Page:
    """Some of the repositories that were found, newest first, and how many there are."""

    rows: tuple[Listed, ...]
    total: int


class Search:
    """Lists and searches the repositories of a Hub. Safe from several threads and processes."""

    def __init__(
        self, database: Database, accounts: Accounts, repositories: Repositories, store: Store
    ) -> None:
        self._database = database
        self._accounts = accounts
        self._repositories = repositories
        self._store = store
        self._newest = f"FROM search{database.in_order('search_newest')}"
        self._ranked = f"FROM ranks {database.forced_join} search ON search.repository = ranks.repository"
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    # -- finding

    def shown(self, caller: Caller, wanted: Wanted, start: int, count: int) -> Page:
        """What everybody may download and what is the caller's, of what is wanted."""
        self.refresh()
        condition, values = self._shown(caller, wanted)
        return self._page(condition, values, start, count, wanted.sort)

    def facets(self, caller: Caller, wanted: Wanted) -> dict[str, list[Counted]]:
        """Kind -> its most frequent values among what `shown` finds; none of a kind that is asked for.

        Of the newest `MOST_COUNTED` that match.
        """
        condition, values = self._shown(caller, wanted)
        rows = self._database.rows(
            # Conditions are made here, values are bound. SQLite looks for what is named once only, from 3.35 on.
            f"WITH newest AS (SELECT repository, namespace {self._newest} WHERE {condition} "  # noqa: S608
            f"ORDER BY created DESC, repository LIMIT {MOST_COUNTED}) "
            "SELECT kind, MIN(value) AS value, COUNT(*) AS n FROM newest "
            "JOIN facets ON facets.repository = newest.repository GROUP BY kind, lower(value) UNION ALL "
            "SELECT 'publisher', namespace, COUNT(*) FROM newest GROUP BY namespace",
            *values,
        )
        found: dict[str, list[Counted]] = {kind: [] for kind in FACETS if kind not in wanted.facets}
        for row in sorted(rows, key=lambda row: (-int(row["n"]), str(row["value"]).lower())):
            if len(counted := found.get(row["kind"], [])) < _FACET_VALUES:
                counted.append(Counted(str(row["value"]), int(row["n"])))
        return found

    def _shown(self, caller: Caller, wanted: Wanted) -> tuple[str, list[object]]:
        condition, values = "private = 0 AND gated = ''", list[object]()
        if caller.token is not None:
            own, values = self._own(caller)
            condition = f"({condition} OR ({own}))"
        condition += " AND (instr(name, ?) > 0 OR instr(words, ?) > 0)" * len(wanted.words)
        values += [word for word in wanted.words for _ in range(2)]
        for kind, value in wanted.facets.items():
            if kind == "publisher":
                condition, values = f"{condition} AND namespace = ?", [*values, value]
                continue
            condition += (
                " AND EXISTS (SELECT 1 FROM facets WHERE facets.repository = search.repository "
                "AND facets.kind = ? AND lower(facets.value) = ?)"
            )
            values += [kind, "".join(c.lower() if c.isascii() else c for c in value)]
        return condition, values

    def visible(
        self, caller: Caller, kind: str, author: str, text: str, start: int, count: int, sort: str = "newest"
    ) -> Page:
        """What a caller may see, by type, account and text in the name; "" for any."""
        self.refresh()
        condition, values = self._seen_by(caller)
        condition += " AND type = ?"
        values.append(kind)
        if author:
            condition, values = f"{condition} AND namespace = ?", [*values, author]
        if text:
            condition, values = f"{condition} AND instr(name, ?) > 0", [*values, text.lower()]
        return self._page(condition, values, start, count, sort)

    def count_of(self, caller: Caller, namespace: str) -> dict[str, int]:
        """How many repositories of each type an account has that a caller may see."""
        condition, values = self._seen_by(caller)
        rows = self._database.rows(
            f"SELECT type, COUNT(*) AS n FROM search WHERE {condition} AND namespace = ? GROUP BY type",  # noqa: S608
            *(*values, namespace),
        )
        return {row["type"]: int(row["n"]) for row in rows}

    def _seen_by(self, caller: Caller) -> tuple[str, list[object]]:
        """`Access.may_see`, as a condition on rows."""
        if caller.token is None:
            return "private = 0", []
        condition, values = self._own(caller)
        return f"(private = 0 OR ({condition}))", values

    def _own(self, caller: Caller) -> tuple[str, list[object]]:
        """What belongs to a caller's namespaces, as far as the token goes, as a condition on rows."""
        assert caller.token is not None
        member = [item.organisation for item in self._accounts.organisations_of(caller.token.user)]
        values: list[object] = [caller.token.user, *member]
        condition = f"namespace IN ({', '.join('?' * len(values))})"
        if (scope := caller.token.repository) is not None:
            condition, values = f"{condition} AND name = ?", [*values, scope.lower()]
        return condition, values

    def _page(self, condition: str, values: Sequence[object], start: int, count: int, sort: str) -> Page:
        # Over an index, by the database alone; conditions are made here, values are bound.
        ranked = sort in ("updated", "downloads")
        table = f"{self._ranked if ranked else self._newest} WHERE {condition}"
        found = self._database.rows(
            f"SELECT search.repository {table} ORDER BY {_ORDERS[sort]} LIMIT ? OFFSET ?",
            *(*values, count + 1, start),
        )
        total = start + len(found)
        if len(found) > count or (start and not found):
            # Many match: the page was found early, and counting looks at the rest. Else the one pass told all.
            (row,) = self._database.rows(
                f"SELECT COUNT(*) AS n {self._newest} WHERE {condition}",
                *values,
            )
            total = int(row["n"])
        wanted = [row["repository"] for row in found[:count]]
        if not wanted:
            return Page((), total)
        marks = ", ".join("?" * len(wanted))
        rows = self._database.rows(
            "SELECT repositories.*, search.stale, search.document, ranks.downloads FROM repositories "  # noqa: S608
            "JOIN search ON search.repository = repositories.id JOIN ranks ON ranks.repository = repositories.id "
            f"WHERE repositories.id IN ({marks})",
            *wanted,
        )
        by_id = {row["id"]: row for row in rows}
        listed = [
            Listed(
                self._repositories.of_row(row),
                None
                if row["stale"] or not row["document"]
                else msgspec.json.decode(row["document"], type=Described),
                int(row["downloads"]),
            )
            for row in (by_id.get(identifier) for identifier in wanted)
            if row is not None  # deleted meanwhile
        ]
        return Page(tuple(listed), total)

    # -- describing

    def refresh(self, most: int = _AT_ONCE) -> int:
        """Describe up to `most` repositories that changed, newest first; how many there were."""
        rows = self._database.rows(
            f"SELECT repository FROM search{self._database.in_order('search_stale')} WHERE stale = 1 "  # noqa: S608
            "ORDER BY created DESC LIMIT ?",
            most,
        )
        for row in rows:
            if (repository := self._repositories.by_id(row["repository"])) is not None:
                self._describe(repository)
        return len(rows)

    def _describe(self, repository: Repository) -> None:
        try:
            with self._store.git.try_locked(repository.id) as held:
                self._write(repository, held)
        except OSError:  # something else in the place of its lock
            return

    def _write(self, repository: Repository, held: bool) -> None:
        described, words, facets = describe(self._store, repository)
        with self._database.transaction():
            # Without the lock another search describes it, or it is being changed: what was acknowledged before is
            # found, and the row stays stale.
            written = self._database.change(
                "UPDATE search SET stale = ?, words = ?, document = ? WHERE repository = ? AND stale = 1",
                *(
                    int(not held),
                    words[:_MOST_WORDS],
                    msgspec.json.encode(described).decode(),
                    repository.id,
                ),
            )
            if written:
                self._rank(repository, described, facets)

    def _rank(
        self, repository: Repository, described: Described, facets: Mapping[str, Sequence[str]]
    ) -> None:
        self._database.change(
            "UPDATE ranks SET updated = ? WHERE repository = ?", described.updated or "", repository.id
        )
        self._database.change("DELETE FROM facets WHERE repository = ?", repository.id)
        for kind, values in facets.items():
            for value in values:
                self._database.change("INSERT INTO facets VALUES (?, ?, ?)", repository.id, kind, value)

    def start(self) -> None:
        """Describe in the background what is stale now: every repository, after an upgrade."""
        self._thread = threading.Thread(target=self._catch_up, daemon=True)
        self._thread.start()

    def _catch_up(self) -> None:
        before = None
        while not self._ending.wait(_PAUSE_SECONDS):
            try:
                rows = self._database.rows("SELECT COUNT(*) AS n FROM search WHERE stale = 1")
                left = int(rows[0]["n"])
                if not left or left == before:  # the rest is being changed, or cannot be read
                    return
                before = left
                self.refresh(most=8)
            except UnavailableError:
                before = None
                self._ending.wait(_OUTAGE_SECONDS)

    def stop(self) -> None:
        """End the background work."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join()


def describe(store: Store, repository: Repository) -> tuple[Described, str, dict[str, list[str]]]:
    """What a list says of a repository, the words that find it, and its facets."""
    contents = Contents(store, repository)
    facts, described = Facts(), Described()
    with suppress(Refusal, KeyError, OSError):  # deleted meanwhile, or damaged: `fsck` says how
        head = store.resolve(repository, DEFAULT_BRANCH)
        described = Described(head=head, modified=store.commit_info(repository, head).date)
    with suppress(Refusal, KeyError, OSError):
        revision = contents.revision(contents.default)
        facts = contents.facts(revision.commit)
        licence = facts.license or contents.card_license(revision.commit)
        facts = replace(facts, license=licence)
        described = Described(
            head=described.head,
            modified=described.modified,
            summary=facts.summary,
            version=revision.name if is_release(revision.name) else None,
            layers=len(facts.layers),
            variants=len(facts.variants),
            licence=licence,
            updated=revision.date,
        )
    names = (defined.name for defined in (*facts.layers, *facts.functions))
    return described, " ".join((facts.summary or "", *names)).lower(), facets_of(facts)
