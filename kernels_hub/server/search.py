"""The index that lists and searches repositories: one row each, kept right by the database itself.

Triggers copy names and visibility, within the transaction that changes them. What is inside a repository (its
summary, layers, newest release) is described by a document; a change marks it stale before it begins, holding the
repository's lock, and whoever searches next describes it again, holding the same lock. So a search finds what was
acknowledged before it, whichever process did it, and a crash leaves at most a stale row too many.

One index covers what a search reads, newest first: 10,000 repositories are scanned in about 3 ms.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import msgspec

from kernels_hub.parsing import Struct
from kernels_hub.server.access import Caller
from kernels_hub.server.accounts import Accounts
from kernels_hub.server.database import Database
from kernels_hub.server.durable import try_lock
from kernels_hub.server.refusal import Refusal
from kernels_hub.server.repositories import Repositories, Repository
from kernels_hub.server.store import DEFAULT_BRANCH, Store
from kernels_hub.server.web.contents import Contents, Facts, is_release

SCHEMA = """
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
CREATE INDEX IF NOT EXISTS search_newest
    ON search (created DESC, repository, type, namespace, private, gated, name, words);
CREATE INDEX IF NOT EXISTS search_stale ON search (created DESC) WHERE stale = 1;
CREATE TRIGGER IF NOT EXISTS search_insert AFTER INSERT ON repositories BEGIN
    INSERT OR REPLACE INTO search (repository, type, namespace, name, private, gated, created) VALUES
        (new.id, new.type, new.namespace, lower(new.namespace || '/' || new.name), new.private, new.gated, new.created);
END;
CREATE TRIGGER IF NOT EXISTS search_update AFTER UPDATE ON repositories BEGIN
    UPDATE search SET namespace = new.namespace, name = lower(new.namespace || '/' || new.name),
        private = new.private, gated = new.gated WHERE repository = new.id;
END;
INSERT OR IGNORE INTO search (repository, type, namespace, name, private, gated, created)
    SELECT id, type, namespace, lower(namespace || '/' || name), private, gated, created FROM repositories
    WHERE id NOT IN (SELECT repository FROM search);
"""
"""The table, its triggers, and the rows of repositories that are older than it."""
_AT_ONCE = 32
_MOST_WORDS = 20_000
_PAUSE_SECONDS = 0.005


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
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    # -- finding

    def public(self, words: Sequence[str], start: int, count: int) -> Page:
        """What everybody may download, by words in names, summaries, layers and functions (lower case)."""
        self.refresh()
        condition = "private = 0 AND gated = ''"
        condition += " AND (instr(name, ?) OR instr(words, ?))" * len(words)
        return self._page(condition, [word for word in words for _ in range(2)], start, count)

    def visible(self, caller: Caller, kind: str, author: str, text: str, start: int, count: int) -> Page:
        """What a caller may see, by type, account and text in the name; "" for any."""
        self.refresh()
        condition, values = self._seen_by(caller)
        condition += " AND type = ?"
        values.append(kind)
        if author:
            condition, values = f"{condition} AND namespace = ?", [*values, author]
        if text:
            condition, values = f"{condition} AND instr(name, ?)", [*values, text.lower()]
        return self._page(condition, values, start, count)

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
        member = [item.organisation for item in self._accounts.organisations_of(caller.token.user)]
        spaces: list[object] = [caller.token.user, *member]
        condition = f"namespace IN ({', '.join('?' * len(spaces))})"
        if (scope := caller.token.repository) is not None:
            condition, spaces = f"{condition} AND name = ?", [*spaces, scope.lower()]
        return f"(private = 0 OR ({condition}))", spaces

    def _page(self, condition: str, values: Sequence[object], start: int, count: int) -> Page:
        # Over the covering index, by SQLite alone; conditions are made here, values are bound.
        table = f"FROM search INDEXED BY search_newest WHERE {condition}"
        found = self._database.rows(
            f"SELECT repository {table} ORDER BY created DESC, repository LIMIT ? OFFSET ?",
            *(*values, count + 1, start),
        )
        total = start + len(found)
        if len(found) > count or (start and not found):
            # Many match: the page was found early, and counting looks at the rest. Else the one pass told all.
            (row,) = self._database.rows(f"SELECT COUNT(*) AS n {table}", *values)
            total = int(row["n"])
        wanted = [row["repository"] for row in found[:count]]
        marks = ", ".join("?" * len(wanted))
        rows = self._database.rows(
            "SELECT repositories.*, search.stale, search.document FROM repositories JOIN search "  # noqa: S608
            f"ON search.repository = repositories.id WHERE repositories.id IN ({marks})",
            *wanted,
        )
        by_id = {row["id"]: row for row in rows}
        listed = [
            Listed(
                self._repositories.of_row(row),
                None
                if row["stale"] or not row["document"]
                else msgspec.json.decode(row["document"], type=Described),
            )
            for row in (by_id.get(identifier) for identifier in wanted)
            if row is not None  # deleted meanwhile
        ]
        return Page(tuple(listed), total)

    # -- describing

    def refresh(self, most: int = _AT_ONCE) -> int:
        """Describe up to `most` repositories that changed, newest first; how many there were."""
        rows = self._database.rows(
            "SELECT repository FROM search INDEXED BY search_stale WHERE stale = 1 ORDER BY created DESC LIMIT ?",
            most,
        )
        for row in rows:
            if (repository := self._repositories.by_id(row["repository"])) is not None:
                self._describe(repository)
        return len(rows)

    def _describe(self, repository: Repository) -> None:
        try:
            lock = try_lock(self._store.layout.lock(repository.id))
        except OSError:
            return
        try:
            described, words = describe(self._store, repository)
            # Without the lock another search describes it, or it is being changed: what was acknowledged before is
            # found, and the row stays stale.
            self._database.change(
                "UPDATE search SET stale = ?, words = ?, document = ? WHERE repository = ? AND stale = 1",
                *(
                    int(lock is None),
                    words[:_MOST_WORDS],
                    msgspec.json.encode(described).decode(),
                    repository.id,
                ),
            )
        finally:
            if lock is not None:
                os.close(lock)

    def start(self) -> None:
        """Describe in the background what is stale now: every repository, after an upgrade."""
        self._thread = threading.Thread(target=self._catch_up, daemon=True)
        self._thread.start()

    def _catch_up(self) -> None:
        before = None
        while not self._ending.wait(_PAUSE_SECONDS):
            rows = self._database.rows("SELECT COUNT(*) AS n FROM search WHERE stale = 1")
            left = int(rows[0]["n"])
            if not left or left == before:  # the rest is being changed, or cannot be read
                return
            before = left
            self.refresh(most=8)

    def stop(self) -> None:
        """End the background work."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join()


def describe(store: Store, repository: Repository) -> tuple[Described, str]:
    """What a list says of a repository, and the words that find it."""
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
    return described, " ".join((facts.summary or "", *names)).lower()
