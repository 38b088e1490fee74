"""The index that lists and searches repositories: one row each, kept right by the database itself.

Triggers copy names and visibility, within the transaction that changes them. What is inside a repository (its
summary, layers, newest release) is described by a document; a change marks it stale before it begins, holding the
repository's lock, and whoever searches next describes it again, holding the same lock. So a search finds what was
acknowledged before it, whichever process did it, and a crash leaves at most a stale row too many.

What a list is read from, so that it takes as long with a million repositories, says `list_sources.py`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import msgspec

from kernels_hub.parsing import Struct
from kernels_hub.server.access import Caller
from kernels_hub.server.accounts import Accounts
from kernels_hub.server.database import Containing, Database, DatabaseFullError, Query, Row, UnavailableError
from kernels_hub.server.facets import INSERT, facets_of, lower, tokens_of
from kernels_hub.server.list_sources import Condition, Source, Sources
from kernels_hub.server.listed_order import ORDERS
from kernels_hub.server.refs import DEFAULT_BRANCH
from kernels_hub.server.refusal import Refusal
from kernels_hub.server.repositories import Repositories, Repository
from kernels_hub.server.store import Store
from kernels_hub.server.web.contents import Contents, Facts, is_release

_log = logging.getLogger("kernels_hub.server")
FACETS = ("device", "layer", "platform", "licence", "publisher")
"""What a list is filtered by, in the order in which a page shows it."""
SORTS = tuple(ORDERS)
"""The orders of a list."""
MOST_COUNTED = 500
"""Repositories, the newest that match, that are counted, and their facets: a page takes as long with a million."""
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
    """Some of the repositories that were found, in the order that was asked for.

    following: the place where the list goes on; None at its end.
    """

    rows: tuple[Listed, ...]
    following: str | None = None


@dataclass(frozen=True)
class Overview:
    """What is counted among all that was found, or among the newest `MOST_COUNTED` of it.

    total: how many; with `MOST_COUNTED`, there may be more.
    facets: kind -> its most frequent values; none of a kind that is asked for.
    last: the place after the last of these, the newest first, where there may be more.
    """

    total: int
    facets: Mapping[str, Sequence[Counted]]
    last: str = ""


class Search:
    """Lists and searches the repositories of a Hub. Safe from several threads and processes."""

    def __init__(
        self, database: Database, accounts: Accounts, repositories: Repositories, store: Store
    ) -> None:
        self._database = database
        self._accounts = accounts
        self._repositories = repositories
        self._store = store
        self._sources = Sources(database)
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    # -- finding

    def shown(
        self,
        caller: Caller,
        wanted: Wanted,
        start: int,
        count: int,
        *,
        after: str = "",
        counted: Overview | None = None,
    ) -> Page:
        """What everybody may download and what is the caller's, of what is wanted.

        after: `Page.following` of another page; the list goes on there, and nothing is left out at its start.
        counted: the overview of the same, as it was found just now; spares looking for what it says is not there, and
        at what it looked at.
        """
        if counted is None:
            self._refresh_if_possible()
        with self._database.staying():
            condition = replace(self._shown(caller, wanted), after=after)
            # Short words are looked for among the first of an order, which the overview has from the newest.
            same = condition.found is not False or wanted.sort == "newest"
            if counted is not None and counted.total == 0 and same:
                return Page(())
            if after:
                start = 0
            elif counted is not None and counted.last and start >= counted.total and wanted.sort == "newest":
                condition, start = replace(condition, after=counted.last), start - counted.total
            return self._page(condition, count, wanted.sort, start=start)

    def overview(self, caller: Caller, wanted: Wanted) -> Overview:
        """How many repositories `shown` finds, and of which kinds they are."""
        self._refresh_if_possible()
        with self._database.staying():
            return self._overview(caller, wanted)

    def _overview(self, caller: Caller, wanted: Wanted) -> Overview:
        condition, newest = self._shown(caller, wanted), ORDERS["newest"]
        for source in self._sources.of(condition, newest, MOST_COUNTED):
            rows = self._counted(source)
            by_kind = {row["kind"]: row for row in rows}
            total = int(by_kind["total"]["n"])
            if total == MOST_COUNTED:
                break
        found: dict[str, list[Counted]] = {kind: [] for kind in FACETS if kind not in wanted.facets}
        for row in sorted(rows, key=lambda row: (-int(row["n"]), str(row["value"]).lower())):
            if row["kind"] in found:
                found[row["kind"]].append(Counted(str(row["value"]), int(row["n"])))
        last = (
            newest.place_of(by_kind["last"]["n"], by_kind["last"]["value"]) if total == MOST_COUNTED else ""
        )
        return Overview(total, found, last)

    def _counted(self, source: Source) -> Sequence[Row]:
        """Rows of kind, value and n: the facets of the newest that are meant, their total, and the keys of the last."""
        return self._database.rows(
            # Conditions are made here, values are bound. SQLite looks for what is named once only, from 3.35 on.
            f"WITH newest AS (SELECT search.repository, namespace, search.created {source.text} "  # noqa: S608
            f"WHERE {source.condition.text} ORDER BY {source.order.by} LIMIT {MOST_COUNTED}), "
            "counted AS (SELECT kind, MIN(value) AS value, COUNT(*) AS n FROM newest "
            "JOIN facets ON facets.repository = newest.repository GROUP BY kind, lower(value)), "
            "placed AS (SELECT kind, value, n, "
            "ROW_NUMBER() OVER (PARTITION BY kind ORDER BY n DESC, lower(value)) AS place FROM counted) "
            f"SELECT kind, value, n FROM placed WHERE place <= {_FACET_VALUES} UNION ALL "
            "SELECT * FROM (SELECT 'publisher', namespace, COUNT(*) AS n FROM newest GROUP BY namespace "
            f"ORDER BY n DESC, namespace LIMIT {_FACET_VALUES}) AS publishers UNION ALL "
            "SELECT 'total', '', COUNT(*) FROM newest UNION ALL "
            "SELECT * FROM (SELECT 'last', repository, created FROM newest "
            "ORDER BY created, repository DESC LIMIT 1) AS last",
            *source.condition.values,
        )

    def _shown(self, caller: Caller, wanted: Wanted) -> Condition:
        condition = Condition("private = 0 AND gated = ''")
        if caller.token is not None:
            own = self._own(caller)
            condition = Condition(f"({condition.text} OR ({own.text}))", own.values)
        for word in wanted.words:
            condition = self._sources.containing(condition, word).having(word)
        if publisher := wanted.facets.get("publisher"):
            condition = condition.also("namespace = ?", publisher, few=_of_publisher(publisher))
        facets = ((kind, lower(value)) for kind, value in wanted.facets.items() if kind != "publisher")
        return replace(condition, facets=tuple(facets))

    def visible(
        self,
        caller: Caller,
        kind: str,
        author: str,
        text: str,
        count: int,
        *,
        after: str = "",
        sort: str = "newest",
    ) -> Page:
        """What a caller may see, by type, account and text in the name; "" for any. after: `Page.following`."""
        self._refresh_if_possible()
        condition = self._seen_by(caller).also("type = ?", kind)
        if author:
            condition = condition.also("namespace = ?", author, few=_of_publisher(author))
        with self._database.staying():
            if text:
                lowered = text.lower()
                condition = self._sources.containing(condition, lowered).also(
                    "instr(search.name, ?) > 0", lowered
                )
            return self._page(replace(condition, after=after), count, sort)

    def count_of(self, caller: Caller, namespace: str) -> dict[str, int]:
        """How many repositories of each type an account has that a caller may see."""
        condition = self._seen_by(caller).also("namespace = ?", namespace)
        rows = self._database.rows(
            f"SELECT type, COUNT(*) AS n FROM search WHERE {condition.text} GROUP BY type",  # noqa: S608
            *condition.values,
        )
        return {row["type"]: int(row["n"]) for row in rows}

    def _seen_by(self, caller: Caller) -> Condition:
        """`Access.may_see`, as a condition on rows."""
        if caller.token is None:
            return Condition("private = 0")
        own = self._own(caller)
        return Condition(f"(private = 0 OR ({own.text}))", own.values)

    def _own(self, caller: Caller) -> Condition:
        """What belongs to a caller's namespaces, as far as the token goes, as a condition on rows."""
        assert caller.token is not None
        member = [item.organisation for item in self._accounts.organisations_of(caller.token.user)]
        values: tuple[object, ...] = (caller.token.user, *member)
        condition = Condition(f"namespace IN ({', '.join('?' * len(values))})", values)
        if (scope := caller.token.repository) is not None:
            condition = condition.also("search.name = ?", scope.lower())
        return condition

    def _page(self, condition: Condition, count: int, sort: str, *, start: int = 0) -> Page:
        # Over indexes, by the database alone; conditions are made here, values are bound.
        order = ORDERS[sort]
        for source in self._sources.of(condition, order, start + count + 1):
            found = self._database.rows(
                f"SELECT search.repository, {source.order.columns} {source.text} WHERE {source.condition.text} "
                f"ORDER BY {source.order.by} LIMIT ? OFFSET ?",
                *(*source.condition.values, count + 1, start),
            )
            if len(found) > count:
                break
        following = order.place(found[count - 1]) if len(found) > count else None
        wanted = [row["repository"] for row in found[:count]]
        return Page(tuple(self._listed(wanted)), following) if wanted else Page(())

    def _listed(self, wanted: Sequence[str]) -> Iterator[Listed]:
        """The repositories of ids, but for those that were deleted meanwhile."""
        marks = ", ".join("?" * len(wanted))
        rows = self._database.rows(
            "SELECT repositories.*, search.stale, search.document, ranks.downloads FROM repositories "  # noqa: S608
            "JOIN search ON search.repository = repositories.id JOIN ranks ON ranks.repository = repositories.id "
            f"WHERE repositories.id IN ({marks})",
            *wanted,
        )
        by_id = {row["id"]: row for row in rows}
        for row in (by_id[identifier] for identifier in wanted if identifier in by_id):
            described = None
            if row["document"] and not row["stale"]:
                described = msgspec.json.decode(row["document"], type=Described)
            yield Listed(self._repositories.of_row(row), described, int(row["downloads"]))

    # -- describing

    def _refresh_if_possible(self) -> None:
        """Describe what changed; where the database takes no writes, lists say what was described before."""
        try:
            self.refresh()
        except (DatabaseFullError, UnavailableError) as error:
            _log.warning("repositories that changed are described later: %s", error)

    def refresh(self, most: int = _AT_ONCE) -> int:
        """Describe up to `most` repositories that changed, newest first; how many there were."""
        with self._database.staying():
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
                "UPDATE search SET stale = ?, words = ?, document = ?, tokens = ? WHERE repository = ? AND stale = 1",
                *(
                    int(not held),
                    words[:_MOST_WORDS].replace("\0", " "),  # which ends a text for FTS5
                    msgspec.json.encode(described).decode(),
                    tokens_of(facets),
                    repository.id,
                ),
            )
            if written:
                self._rank(repository, described, facets)

    def _rank(
        self, repository: Repository, described: Described, facets: Mapping[str, Sequence[str]]
    ) -> None:
        self._database.change("DELETE FROM facets WHERE repository = ?", repository.id)
        self._database.change(
            "UPDATE ranks SET updated = ? WHERE repository = ?", described.updated or "", repository.id
        )
        for kind, values in facets.items():
            for value in values:
                self._database.change(INSERT, kind, value, repository.id)

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
            except (DatabaseFullError, UnavailableError):
                before = None
                self._ending.wait(_OUTAGE_SECONDS)

    def stop(self) -> None:
        """End the background work."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join()


def _of_publisher(namespace: str) -> Containing:
    condition: Query = "namespace = ?", (namespace,)
    return Containing(("SELECT repository FROM search WHERE namespace = ?", (namespace,)), condition)


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
