"""The index that lists and searches repositories: one row each, kept right by the database itself.

Triggers copy names and visibility, within the transaction that changes them. What is inside a repository (its
summary, layers, newest release) is described by a document; a change marks it stale before it begins, holding the
repository's lock, and whoever searches next describes it again, holding the same lock. So a search finds what was
acknowledged before it, whichever process did it, and a crash leaves at most a stale row too many.

A list is read in its order, from an index of it, until a page is full. Where a word, facets or a publisher leave few
repositories, counted up to `_few`, those are read from the index of that, and sorted; how many have a word, the planner
of PostgreSQL knows. All facets that are asked for are found by one index, which each repository is in with all of its
facets (`facets.token_of`), so that several count as one filter. Words of one or two letters alone, which no index
finds, are looked for among the first `MOST_LOOKED_AT` of the order. So a list takes as long with a million
repositories, but for a publisher or a word beside facets, of which each leaves many and both together few.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import msgspec

from kernels_hub.parsing import Struct
from kernels_hub.server.access import Caller
from kernels_hub.server.accounts import Accounts
from kernels_hub.server.database import Containing, Database, DatabaseFullError, Query, Row, UnavailableError
from kernels_hub.server.database.schema import SHORTEST_TEXT
from kernels_hub.server.facets import facets_of, token_of, tokens_of
from kernels_hub.server.listed_order import ORDERS, Order
from kernels_hub.server.refs import DEFAULT_BRANCH
from kernels_hub.server.refusal import Refusal
from kernels_hub.server.repositories import Repositories, Repository
from kernels_hub.server.search_tables import TEXT, TOKENS
from kernels_hub.server.store import Store
from kernels_hub.server.web.contents import Contents, Facts, is_release

_log = logging.getLogger("kernels_hub.server")
FACETS = ("device", "layer", "platform", "licence", "publisher")
"""What a list is filtered by, in the order in which a page shows it."""
SORTS = tuple(ORDERS)
"""The orders of a list."""
MOST_COUNTED = 500
"""Repositories, the newest that match, that are counted, and their facets: a page takes as long with a million."""
MOST_LOOKED_AT = 10_000
"""Repositories, the first of the order, that words of fewer letters than an index finds are looked for in."""
_COSTS = {(True, False): (1, 1), (True, True): (4, 2), (False, False): (1, 6), (False, True): (8, 9)}
"""(Whether the database plans, whether the order is that of `ranks`) -> what a row takes that is read in order, and one
that is sorted: as measured with 100,000 repositories, in microseconds or half of them."""
_SIZE_SECONDS = 60.0
"""How long a number of rows is believed, where it only says which way is quick."""
_COUNTS_KEPT = 1000
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
    """

    total: int
    facets: Mapping[str, Sequence[Counted]]


@dataclass(frozen=True)
class _Condition:
    """Which repositories are meant.

    few: indexes, each of which finds all of them and maybe others.
    facets: whether only the index of the newest with their facets has all that is asked of a row.
    found: whether a text in it is found by an index; False where all that there are are too short, None without any.
    """

    text: str
    values: tuple[object, ...] = ()
    few: tuple[Containing, ...] = ()
    facets: bool = False
    found: bool | None = None

    def also(self, text: str, *values: object, few: Containing | None = None) -> _Condition:
        more = (few,) if few else ()
        return replace(
            self, text=f"{self.text} AND {text}", values=(*self.values, *values), few=(*self.few, *more)
        )


class Search:
    """Lists and searches the repositories of a Hub. Safe from several threads and processes."""

    def __init__(
        self, database: Database, accounts: Accounts, repositories: Repositories, store: Store
    ) -> None:
        self._database = database
        self._accounts = accounts
        self._repositories = repositories
        self._store = store
        self._size = 0, -math.inf
        self._counts: dict[Query, tuple[int, int, float]] = {}
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    # -- finding

    def shown(self, caller: Caller, wanted: Wanted, start: int, count: int) -> Page:
        """What everybody may download and what is the caller's, of what is wanted."""
        self._refresh_if_possible()
        with self._database.staying():
            return self._page(self._shown(caller, wanted), count, wanted.sort, start=start)

    def overview(self, caller: Caller, wanted: Wanted) -> Overview:
        """How many repositories `shown` finds, and of which kinds they are."""
        with self._database.staying():
            return self._overview(caller, wanted)

    def _overview(self, caller: Caller, wanted: Wanted) -> Overview:
        condition, newest = self._shown(caller, wanted), ORDERS["newest"]
        for source, among in self._sources(condition, newest, MOST_COUNTED, whole=False):
            rows = self._counted(source, among)
            total = next(int(row["n"]) for row in rows if row["kind"] == "total")
            if total == MOST_COUNTED:
                break
        found: dict[str, list[Counted]] = {kind: [] for kind in FACETS if kind not in wanted.facets}
        for row in sorted(rows, key=lambda row: (-int(row["n"]), str(row["value"]).lower())):
            if row["kind"] in found:
                found[row["kind"]].append(Counted(str(row["value"]), int(row["n"])))
        return Overview(total, found)

    def _counted(self, source: str, condition: _Condition) -> Sequence[Row]:
        """Rows of kind, value and n: the facets of the newest that are meant, and their total."""
        newest = ORDERS["newest"].by
        return self._database.rows(
            # Conditions are made here, values are bound. SQLite looks for what is named once only, from 3.35 on.
            f"WITH newest AS (SELECT search.repository, namespace {source} WHERE {condition.text} "  # noqa: S608
            f"ORDER BY {newest} LIMIT {MOST_COUNTED}), "
            "counted AS (SELECT kind, MIN(value) AS value, COUNT(*) AS n FROM newest "
            "JOIN facets ON facets.repository = newest.repository GROUP BY kind, lower(value)), "
            "placed AS (SELECT kind, value, n, "
            "ROW_NUMBER() OVER (PARTITION BY kind ORDER BY n DESC, lower(value)) AS place FROM counted) "
            f"SELECT kind, value, n FROM placed WHERE place <= {_FACET_VALUES} UNION ALL "
            "SELECT * FROM (SELECT 'publisher', namespace, COUNT(*) AS n FROM newest GROUP BY namespace "
            f"ORDER BY n DESC, namespace LIMIT {_FACET_VALUES}) AS publishers UNION ALL "
            "SELECT 'total', '', COUNT(*) FROM newest",
            *condition.values,
        )

    def _shown(self, caller: Caller, wanted: Wanted) -> _Condition:
        condition = _Condition("private = 0 AND gated = ''")
        if caller.token is not None:
            own = self._own(caller)
            condition = _Condition(f"({condition.text} OR ({own.text}))", own.values)
        for word in wanted.words:
            condition = self._containing(condition, word)
            condition = condition.also("(instr(name, ?) > 0 OR instr(words, ?) > 0)", word, word)
        if publisher := wanted.facets.get("publisher"):
            condition = condition.also("namespace = ?", publisher, few=_of_publisher(publisher))
        tokens = [token_of(kind, value) for kind, value in wanted.facets.items() if kind != "publisher"]
        return self._with_facets(condition, tokens) if tokens else condition

    def _with_facets(self, condition: _Condition, tokens: Sequence[str]) -> _Condition:
        """Those that have every one of some facets."""
        condition = replace(condition, facets=condition.found is None)
        found = self._database.containing(TOKENS, " ".join(tokens))
        for token in tokens:
            condition = condition.also("instr(tokens, ?) > 0", f" {token} ")
        if found is None:
            return condition
        if self._database.plans and condition.found:
            # Beside the index of texts: the planner chooses among them, or takes what both find.
            text, values = found.condition
            return condition.also(text, *values, few=found)
        return replace(condition, few=(*condition.few, found))

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
                lower = text.lower()
                condition = self._containing(condition, lower).also("instr(name, ?) > 0", lower)
            return self._page(condition, count, sort, after=after)

    def count_of(self, caller: Caller, namespace: str) -> dict[str, int]:
        """How many repositories of each type an account has that a caller may see."""
        condition = self._seen_by(caller).also("namespace = ?", namespace)
        rows = self._database.rows(
            f"SELECT type, COUNT(*) AS n FROM search WHERE {condition.text} GROUP BY type",  # noqa: S608
            *condition.values,
        )
        return {row["type"]: int(row["n"]) for row in rows}

    def _seen_by(self, caller: Caller) -> _Condition:
        """`Access.may_see`, as a condition on rows."""
        if caller.token is None:
            return _Condition("private = 0")
        own = self._own(caller)
        return _Condition(f"(private = 0 OR ({own.text}))", own.values)

    def _own(self, caller: Caller) -> _Condition:
        """What belongs to a caller's namespaces, as far as the token goes, as a condition on rows."""
        assert caller.token is not None
        member = [item.organisation for item in self._accounts.organisations_of(caller.token.user)]
        values: tuple[object, ...] = (caller.token.user, *member)
        condition = _Condition(f"namespace IN ({', '.join('?' * len(values))})", values)
        if (scope := caller.token.repository) is not None:
            condition = condition.also("name = ?", scope.lower())
        return condition

    def _containing(self, condition: _Condition, text: str) -> _Condition:
        """Those that an index finds a text in."""
        if (found := self._database.containing(TEXT, text)) is None:
            is_short = len(text) < SHORTEST_TEXT and condition.found is None
            return replace(condition, found=False) if is_short else replace(condition, found=True)
        condition = replace(condition, found=True)
        if not self._database.plans:
            return replace(condition, few=(*condition.few, found))
        indexed, values = found.condition
        return condition.also(indexed, *values)

    def _few(self, wanted: int, order: Order) -> int:
        """Rows that are sorted in less time than as many as are wanted of them are looked for, in order, among all."""
        # Of n among all N, so many are found in wanted * N / n rows.
        read, sort = _COSTS[self._database.plans, order.ranked]
        return max(MOST_COUNTED, math.isqrt(wanted * self._all() * read // sort))

    def _all(self) -> int:
        """About how many repositories there are."""
        known, since = self._size
        if time.monotonic() - since > _SIZE_SECONDS:
            (row,) = self._database.rows("SELECT COUNT(*) AS n FROM search")
            known = int(row["n"])
            self._size = known, time.monotonic()
        return known

    def _count(self, few: Query, most: int) -> int:
        """How many rows a query has, up to more than `most`; believed for a while, since it only says what is quick."""
        known, limit, since = self._counts.get(few, (0, -1, -math.inf))
        if (known > limit and limit < most) or time.monotonic() - since > _SIZE_SECONDS:
            query, values = few
            (row,) = self._database.rows(
                f"SELECT COUNT(*) AS n FROM (SELECT 1 FROM ({query}) AS given LIMIT {most + 1}) AS few",  # noqa: S608
                *values,
            )
            known = int(row["n"])
            if len(self._counts) >= _COUNTS_KEPT:
                self._counts.clear()
            self._counts[few] = known, most, time.monotonic()
        return known

    def _sources(
        self, condition: _Condition, order: Order, wanted: int, *, whole: bool
    ) -> Iterator[tuple[str, _Condition]]:
        """The tables that a list is read from, and its condition, until `wanted` rows are found.

        These are all rows in order, or those that a filter leaves, to be sorted. Where it leaves many, enough of them
        are among the first of the order, as a rule: where they are not, all that it leaves are sorted after all, which
        the last of these does. whole: no order is read in part.
        """
        if not condition.few:
            yield self._in_order(condition, order), condition
            return
        most = self._few(wanted, order)
        counted = [(self._count(few.keys, most), number) for number, few in enumerate(condition.few)]
        count, number = min(counted)
        if count > most:
            first = 4 * wanted * self._all() // max(count, 1) + MOST_COUNTED
            # How many rows have a word, the planner knows.
            bound = not (whole or (self._database.plans and condition.found)) and self._bound(order, first)
            if not bound:
                yield self._in_order(condition, order), condition
                return
            text, values = bound
            yield self._in_order(condition, order), condition.also(text, *values)
        source, values = self._of_few(condition.few[number], order)
        yield source, replace(condition, values=(*values, *condition.values))

    def _bound(self, order: Order, first: int) -> Query | None:
        """That a row is among the first of an order, or is equal to the last of those; None where all are."""
        key = order.keys[0]
        table = "ranks" if order.ranked else f"search{self._database.in_order(order.index)}"
        last = self._database.row(
            f"SELECT {key.column} AS k FROM {table} ORDER BY {order.by} LIMIT 1 OFFSET ?",  # noqa: S608
            first,
        )
        return None if last is None else (f"{key.column} {'>=' if key.falling else '<='} ?", (last["k"],))

    def _of_few(self, few: Containing, order: Order) -> Query:
        """Rows that an index finds, to be sorted."""
        join = self._database.forced_join
        ranks = f" {join} ranks ON ranks.repository = search.repository" if order.ranked else ""
        if self._database.plans:
            text, values = few.condition
            # OFFSET 0 keeps the planner from reading all rows in order instead, as it does where it guesses wrong.
            return f"FROM (SELECT * FROM search WHERE {text} OFFSET 0) AS search{ranks}", values  # noqa: S608
        query, values = few.keys
        return f"FROM ({query}) AS few {join} search ON search.repository = few.repository{ranks}", values

    def _in_order(self, condition: _Condition, order: Order) -> str:
        """All rows in their order; for short words alone, the first of them."""
        join = self._database.forced_join
        table = "ranks" if order.ranked else "search"
        index = "search_facets" if condition.facets and order is ORDERS["newest"] else order.index
        read = f"{table}{'' if order.ranked else self._database.in_order(index)}"
        if condition.found is False and not condition.few:
            # Of what an index covers, where it does: these are up to MOST_LOOKED_AT rows.
            columns = (
                "*" if order.ranked else "repository, type, namespace, private, gated, created, name, words"
            )
            read = f"(SELECT {columns} FROM {read} ORDER BY {order.by} LIMIT {MOST_LOOKED_AT}) AS {table}"  # noqa: S608
        ranked = f" {join} search ON search.repository = ranks.repository" if order.ranked else ""
        return f"FROM {read}{ranked}"

    def _page(self, condition: _Condition, count: int, sort: str, *, start: int = 0, after: str = "") -> Page:
        # Over indexes, by the database alone; conditions are made here, values are bound.
        order = ORDERS[sort]
        if after:
            place, bound = order.after(after)
            condition = condition.also(f"({place})", *bound)
        for source, among in self._sources(condition, order, start + count + 1, whole=bool(after)):
            found = self._database.rows(
                f"SELECT search.repository, {order.columns} {source} WHERE {among.text} "
                f"ORDER BY {order.by} LIMIT ? OFFSET ?",
                *(*among.values, count + 1, start),
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
