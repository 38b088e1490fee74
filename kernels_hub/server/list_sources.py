"""What a list of repositories is read from: an index in the order of the list, or one of what few have.

A list is read in its order, from an index of it, until a page is full: of all repositories, or of those that have a
facet, the rarest one that is asked for. Where a word, several facets together or a publisher leave few repositories,
counted up to `_few`, those are read from the index of that, and sorted; where rows of two tables are read for a word of
more than `LEAST_SORTED`, the planner of PostgreSQL knows better. Several facets are found by one index, which each
repository is in with all of its facets (`facets.token_of`), so that they count as one filter; PostgreSQL, where many
have all, merges the entries of each. Words of one or two letters alone, which no index finds, are looked for among the
first `MOST_LOOKED_AT` of the order, or the first `MOST_JOINED` where rows of two tables are read. So a list takes as
long with a million repositories, but for filters of which each leaves many and all together few, where no index finds
those that have all.

The indexes have what lists are filtered by in their entries, since a row of the table, wherever it lies, takes five
times as long as an entry: SQLite all words, PostgreSQL those of texts that are not long.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kernels_hub.server.database import Containing, Database, Query
from kernels_hub.server.database.schema import SHORTEST_TEXT
from kernels_hub.server.facets import token_of
from kernels_hub.server.listed_order import Order
from kernels_hub.server.search_tables import TEXT, TOKENS

LEAST_SORTED = 500
"""Repositories that are sorted rather than looked for in order, however many there are."""
MOST_LOOKED_AT = 10_000
"""Repositories, the first of the order, that words of fewer letters than an index finds are looked for in."""
MOST_JOINED = 4_000
"""The same, where the order is another table's: each row takes two to five times as long."""
_COSTS = {
    (True, "search"): (1, 7),
    (True, "ranks"): (4, 2),
    (True, "facets"): (1, 2),
    (False, "search"): (1, 6),
    (False, "ranks"): (8, 9),
    (False, "facets"): (8, 9),
}
"""(Whether the database plans, the table that an index has in the order) -> what a row takes that is read in order, and
one that is sorted: as measured with 100,000 repositories, in microseconds or some other part of a second."""
_MOST_SIZED = 100_000
"""Repositories of a facet that are counted, where it is asked which of several is the rarest."""
_SIZE_SECONDS = 60.0
"""How long a number of rows is believed, where it only says which way is quick."""
_COUNTS_KEPT = 1000
_HAS_FACET = "facets.kind = ? AND lower(facets.value) = ?"
_HAS_WORD = "(instr(search.name, ?) > 0 OR instr(search.words, ?) > 0)"
_HAS_WORD_BRIEFLY = (
    f"CASE WHEN search.{TEXT.brief} IS NOT NULL THEN instr(search.{TEXT.brief}, ?) > 0 ELSE "  # noqa: S608 -- ours
    # A subquery of one row, which no planner turns into a list of all rows with the word.
    "(SELECT instr(whole.name, ?) > 0 OR instr(whole.words, ?) > 0 FROM search AS whole "
    "WHERE whole.repository = search.repository) END"
)
"""The same by an index of the order alone, but for the rows with long texts."""
_COVERED = "repository, type, namespace, private, gated, created, name"
"""What the indexes of the orders of `search` have, besides words."""


@dataclass(frozen=True)
class Condition:
    """Which repositories are meant.

    few: indexes, each of which finds all of them and maybe others.
    words: indexes of texts that find them, where the database plans by how many they find.
    texts: words without spaces, which are in each; `tested` makes conditions on rows of them.
    facets: kinds and values, in lower case, which are asked for besides.
    found: whether a text in it is found by an index; False where all that there are are too short, None without any.
    after: the place where a list goes on; "" for its beginning.
    """

    text: str
    values: tuple[object, ...] = ()
    few: tuple[Containing, ...] = ()
    words: tuple[Containing, ...] = ()
    texts: tuple[str, ...] = ()
    facets: tuple[tuple[str, str], ...] = ()
    found: bool | None = None
    after: str = ""

    def also(self, text: str, *values: object, few: Containing | None = None) -> Condition:
        """Those of these that meet another condition. few: an index that finds them."""
        more = (few,) if few else ()
        return replace(
            self, text=f"{self.text} AND {text}", values=(*self.values, *values), few=(*self.few, *more)
        )

    def having(self, word: str) -> Condition:
        """Those of these with a word, which has no space, in their names or words."""
        return replace(self, texts=(*self.texts, word))

    def tested(self, has: str) -> Condition:
        """These, with the words looked for in each row. has: a condition on rows with ? for a word, once or more."""
        condition = self
        for word in self.texts:
            condition = condition.also(has, *(word,) * has.count("?"))
        return replace(condition, texts=())

    def going_on(self, order: Order) -> Condition:
        """Those after the place. order: of the rows that are read. Refuses (400) a place of another order."""
        if not self.after:
            return self
        place, bound = order.after(self.after)
        return self.also(f"({place})", *bound)

    def with_facets(self, facets: Sequence[tuple[str, str]]) -> Condition:
        """These, as far as their rows say that they have some facets."""
        condition = self
        for facet in facets:
            condition = condition.also("instr(tokens, ?) > 0", f" {token_of(*facet)} ")
        return condition


@dataclass(frozen=True)
class Source:
    """What a list is read from: what follows SELECT, up to WHERE, the condition on its rows, and their order."""

    text: str
    condition: Condition
    order: Order
    within: Query | None = None
    """The part of the condition that the index of the order begins with."""


class Sources:
    """Chooses what lists are read from. Safe from several threads; who uses it holds `Database.staying`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._size = 0, -math.inf
        self._counts: dict[Query, tuple[int, int, float]] = {}

    def of(self, condition: Condition, order: Order, wanted: int) -> Iterator[Source]:
        """What a list is read from, until `wanted` rows are found.

        These are all rows in order, or those of a facet, or those that a filter leaves, to be sorted. Where it leaves
        many, enough of them are among the first of the order, as a rule: where they are not, all that it leaves are
        sorted after all, which the last of these does. A list that goes on after a place is read from there in its
        order, whole.
        """
        if condition.facets:
            yield from self._of_facets(condition, order, wanted)
            return
        if condition.found is False and not condition.few:
            for first in self._looked_at(wanted, is_joined=order.ranked):
                yield self._in_order(condition, order, first)
            return
        every = self._in_order(condition, order)
        words = self._together(condition.words)
        if not condition.few and not words:
            yield every
            return
        # How many rows of two tables are read for a word, the planner knows; but it guesses, and would read all rows
        # in order for a word of one where its sample has that.
        planned = order.ranked and not condition.few
        most = LEAST_SORTED if planned else self._few(wanted, order, self._all())
        count, few = self._fewest((*condition.few, *((words,) if words else ())), most)
        if count > most:
            is_whole = condition.after or (self._database.plans and condition.found)
            first = 4 * wanted * self._all() // max(count, 1) + LEAST_SORTED
            bound = None if is_whole else self._bound(every, first)
            yield bound or every
            if bound is None:
                return
        yield self._of_few(condition, few, order)

    def containing(self, condition: Condition, text: str) -> Condition:
        """Those that an index finds a text in."""
        if (found := self._database.containing(TEXT, text)) is None:
            is_short = len(text) < SHORTEST_TEXT and condition.found is None
            return replace(condition, found=False) if is_short else replace(condition, found=True)
        condition = replace(condition, found=True)
        if self._database.plans:
            return replace(condition, words=(*condition.words, found))
        return replace(condition, few=(*condition.few, found))

    def _few(self, wanted: int, order: Order, among: int) -> int:
        """Rows that are sorted in less time than as many as are wanted of them are looked for, in order, among others.

        among: how many there are.
        """
        # Of n among all N, so many are found in wanted * N / n rows.
        read, sort = _COSTS[self._database.plans, order.table]
        return max(LEAST_SORTED, math.isqrt(wanted * among * read // sort))

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

    def _of_facets(self, condition: Condition, order: Order, wanted: int) -> Iterator[Source]:
        """`of` for repositories that have some facets."""
        few = self._few_with_facets(condition)
        sizes = [self._count(_of_facet(facet), _MOST_SIZED) if few else 0 for facet in condition.facets]
        size, number = min((size, number) for number, size in enumerate(sizes))
        others = [facet for facet in condition.facets if facet != condition.facets[number]]
        facet, among = condition.facets[number], condition.with_facets(others)
        if condition.found is False and not few:
            for first in self._looked_at(wanted, is_joined=True):
                yield self._in_order_of_facet(among, facet, order, first)
            return
        every = self._in_order_of_facet(among, facet, order)
        if not few:
            yield every
            return
        most = self._few(wanted, every.order, size)
        count, fewest = self._fewest(few, most)
        if count > most and size > most:
            if self._database.plans and others and condition.found is None:
                yield self._in_order_of_facet(condition, facet, order, others=others)
                return
            first = 4 * wanted * size // max(count, 1) + LEAST_SORTED
            if first >= size or condition.after:
                yield every
                return
            # A database that plans knows that the first rows are in order already, and reads no more than it must.
            planned = self._database.plans
            bound = (
                self._in_order_of_facet(among, facet, order, first) if planned else self._bound(every, first)
            )
            yield bound or every
        if size <= count:
            yield every
        else:
            yield self._of_few(condition.with_facets(condition.facets), fewest, order)

    def _few_with_facets(self, condition: Condition) -> tuple[Containing, ...]:
        """Indexes that find fewer repositories than have one of the facets; none where there may be no such."""
        tokens = " ".join(token_of(*facet) for facet in condition.facets)
        is_more = len(condition.facets) > 1 or condition.words
        found = self._database.containing(TOKENS, tokens) if is_more else None
        if found is None:
            return (*condition.few, *condition.words)
        together = self._together((found, *condition.words)) if condition.words else found
        return (*condition.few, together or found)

    def _together(self, indexes: Sequence[Containing]) -> Containing | None:
        """Several indexes as one, which a database that plans looks into at once; None of none."""
        if not indexes:
            return None
        text = " AND ".join(item.condition[0] for item in indexes)
        values = tuple(value for item in indexes for value in item.condition[1])
        return Containing((f"SELECT repository FROM search WHERE {text}", values), (text, values))  # noqa: S608

    def _looked_at(self, wanted: int, *, is_joined: bool) -> Iterator[int]:
        """How many of the first rows are looked at for short words, one after the other until enough are found."""
        most = MOST_JOINED if is_joined else MOST_LOOKED_AT
        # SQLite reads all of these before it sorts them; PostgreSQL knows their order, and stops.
        first = 4 * wanted + LEAST_SORTED
        if first < most and not self._database.plans:
            yield first
        yield most

    def _fewest(self, few: Sequence[Containing], most: int) -> tuple[int, Containing]:
        """The index that finds the fewest rows, and how many, up to more than `most`."""
        count, number = min((self._count(item.keys, most), number) for number, item in enumerate(few))
        return count, few[number]

    def _bound(self, every: Source, first: int) -> Source | None:
        """The first of an order, and those that are equal to the last of these; None where that is all."""
        key, table = every.order.keys[0], every.order.table
        read = self._database.in_order(every.order.index) if table != "ranks" else ""
        condition, values = every.within or ("TRUE", ())
        last = self._database.row(
            f"SELECT {key.column} AS k FROM {table}{read} WHERE {condition} "  # noqa: S608
            f"ORDER BY {every.order.by} LIMIT 1 OFFSET ?",
            *values,
            first,
        )
        if last is None:
            return None
        text = f"{key.column} {'>=' if key.falling else '<='} ?"
        return replace(every, condition=every.condition.also(text, last["k"]))

    def _of_few(self, condition: Condition, few: Containing, order: Order) -> Source:
        """Rows that an index finds, to be sorted."""
        condition = condition.tested(_HAS_WORD)
        join = self._database.forced_join
        ranks = f" {join} ranks ON ranks.repository = search.repository" if order.ranked else ""
        condition = condition.going_on(order)
        if self._database.plans:
            text, values = few.condition
            # OFFSET 0 keeps the planner from reading all rows in order instead, as it does where it guesses wrong.
            source = f"FROM (SELECT * FROM search WHERE {text} OFFSET 0) AS search{ranks}"  # noqa: S608
        else:
            query, values = few.keys
            source = f"FROM ({query}) AS few {join} search ON search.repository = few.repository{ranks}"
        return Source(source, replace(condition, values=(*values, *condition.values)), order)

    def _in_order_of_facet(
        self,
        condition: Condition,
        facet: tuple[str, str],
        order: Order,
        most: int = 0,
        others: Sequence[tuple[str, str]] = (),
    ) -> Source:
        """All rows of a facet in their order, or the first `most` of them.

        others: facets that they have besides, read from the same index in the same order, so that one merge of index
        entries finds those that have all: where each has many repositories, by a database that plans for few.
        """
        order, join = order.of_facet, self._database.forced_join
        condition = condition.tested(_HAS_WORD).going_on(order)
        read, text = f"facets{self._database.in_order(order.index)}", f"{_HAS_FACET} AND {condition.text}"
        if most:
            first = f"WHERE {_HAS_FACET} ORDER BY {order.by} LIMIT {most}"
            read, text = f"(SELECT * FROM {read} {first}) AS facets", condition.text  # noqa: S608
        source, values = f"FROM {read} ", list[str]()
        for number, other in enumerate(others):
            name = f"facets{number}"
            same = " AND ".join(f"{name}.{key.name} = {key.column}" for key in order.keys)
            source += f"JOIN facets AS {name} ON {same} AND {_HAS_FACET.replace('facets', name)} "
            values += other
        source += f"{join} search ON search.repository = facets.repository"
        among = replace(condition, text=text, values=(*values, *facet, *condition.values))
        return Source(source, among, order, (_HAS_FACET, facet))

    def _in_order(self, condition: Condition, order: Order, most: int = 0) -> Source:
        """All rows in their order, or the first `most` of them."""
        join = self._database.forced_join
        is_brief = self._database.plans and not order.ranked
        if not is_brief:
            for found in condition.words:
                condition = condition.also(found.condition[0], *found.condition[1])
        condition = condition.tested(_HAS_WORD_BRIEFLY if is_brief else _HAS_WORD)
        table = "ranks" if order.ranked else "search"
        read = f"{table}{'' if order.ranked else self._database.in_order(order.index)}"
        if most:
            # Of what an index covers, where it does.
            columns = "*" if order.ranked else f"{_COVERED}, {TEXT.brief if is_brief else 'words'}"
            read = f"(SELECT {columns} FROM {read} ORDER BY {order.by} LIMIT {most}) AS {table}"  # noqa: S608
        ranked = f" {join} search ON search.repository = ranks.repository" if order.ranked else ""
        return Source(f"FROM {read}{ranked}", condition.going_on(order), order)


def _of_facet(facet: tuple[str, str]) -> Query:
    """The repositories that have a facet: its kind, and its value in lower case."""
    return f"SELECT repository FROM facets WHERE {_HAS_FACET}", facet  # noqa: S608
