"""The orders of a list of repositories, and where in one a list goes on.

A place is the keys of the last row that was shown, so that what follows takes as long on the last page as on the first,
and nothing is left out or shown twice when repositories appear meanwhile.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kernels_hub.server.database import Query, Row
from kernels_hub.server.refusal import Refusal, bad_request

_LONGEST_PLACE = 2000


@dataclass(frozen=True)
class Key:
    """A column that rows are sorted by."""

    column: str
    of: type
    falling: bool = True

    @property
    def name(self) -> str:
        """The column without its table."""
        return self.column.partition(".")[2]


@dataclass(frozen=True)
class Order:
    """One order of a list; the last key is another one in each row.

    index: the one that has the rows in this order.
    facet_index: the one of the table `facets` that has the rows of one facet in this order.
    """

    keys: tuple[Key, ...]
    index: str
    facet_index: str

    @property
    def ranked(self) -> bool:
        """Whether the order is that of the table `ranks`."""
        return self.table == "ranks"

    @property
    def table(self) -> str:
        """The table that has the order."""
        return self.keys[0].column.partition(".")[0]

    @property
    def of_facet(self) -> Order:
        """The same order, of rows of the table `facets`, which has copies of the keys."""
        keys = (replace(key, column=f"facets.{key.name}") for key in self.keys)
        return Order(tuple(keys), self.facet_index, self.facet_index)

    @property
    def by(self) -> str:
        """What follows ORDER BY."""
        return ", ".join(key.column + (" DESC" if key.falling else "") for key in self.keys)

    @property
    def columns(self) -> str:
        """The keys, as columns k0, k1, … of a query."""
        return ", ".join(f"{key.column} AS k{number}" for number, key in enumerate(self.keys))

    def place(self, row: Row) -> str:
        """The place after a row."""
        return self.place_of(*(row[f"k{number}"] for number in range(len(self.keys))))

    def place_of(self, *values: object) -> str:
        """The place after the row with these keys."""
        return base64.urlsafe_b64encode(json.dumps(values).encode()).decode().rstrip("=")

    def after(self, place: str) -> Query:
        """The condition on rows after a place. Refuses (400) what `place` did not make for this order."""
        values = self._values(place)
        # (a, b) > (x, y) as a >= x AND (a > x OR b > y), which an index on (a, b) begins at.
        *outer, last = list(zip(self.keys, values, strict=True))
        condition = f"{last[0].column} {_sign(last[0])} ?"
        bound: tuple[object, ...] = (last[1],)
        for key, value in reversed(outer):
            sign = _sign(key)
            condition = f"{key.column} {sign}= ? AND ({key.column} {sign} ? OR {condition})"
            bound = (value, value, *bound)
        return condition, bound

    def _values(self, place: str) -> Sequence[object]:
        try:
            text = base64.urlsafe_b64decode(place[:_LONGEST_PLACE] + "=" * (-len(place) % 4))
            values = json.loads(text)
            json.dumps(values, ensure_ascii=False).encode()  # which text with half a surrogate pair is not
        except (binascii.Error, ValueError, RecursionError):
            raise _unknown() from None
        wanted = [key.of for key in self.keys]
        if not isinstance(values, list) or [type(value) for value in values] != wanted:
            raise _unknown()
        if any(isinstance(value, int) and abs(value) >= 2**63 for value in values):
            raise _unknown()
        return values


def _sign(key: Key) -> str:
    return "<" if key.falling else ">"


def _unknown() -> Refusal:
    return bad_request("This cursor is not one of this server's for this order: follow the Link of an answer")


ORDERS = {
    "newest": Order(
        (Key("search.created", float), Key("search.repository", str, False)), "search_newest", "facets_newest"
    ),
    "updated": Order(
        (
            Key("ranks.updated", str),
            Key("ranks.created", float),
            Key("ranks.repository", str, False),
        ),
        "ranks_updated",
        "facets_updated",
    ),
    "downloads": Order(
        (
            Key("ranks.downloads", int),
            Key("ranks.created", float),
            Key("ranks.repository", str, False),
        ),
        "ranks_downloads",
        "facets_downloads",
    ),
    "name": Order(
        (Key("search.name", str, False), Key("search.repository", str, False)), "search_name", "facets_name"
    ),
}
"""The orders by their names, the usual one first."""
