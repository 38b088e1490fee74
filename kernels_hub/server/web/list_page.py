"""The list of repositories: searched, filtered by facets, sorted; and the links that change what it shows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kernels_hub.server.call import HubRequest
from kernels_hub.server.facets import LONGEST_VALUE
from kernels_hub.server.hub import Hub
from kernels_hub.server.refusal import bad_request
from kernels_hub.server.search import FACETS, MOST_COUNTED, SORTS, Listed, Wanted, describe
from kernels_hub.server.web.pages import with_query

PAGE_ROWS = 30
_LAST_PAGE = 1000
"""Whoever turns so many wants a filter, or the API, whose lists go on for ever."""
_QUERY_LENGTH = 100
_WORDS = 8
_SORT_NAMES = {
    "newest": "Newest", "updated": "Recently updated", "downloads": "Most downloaded", "name": "Name",
}  # fmt: skip
_FACET_NAMES = {
    "device": "Device", "layer": "Layer", "platform": "Platform", "licence": "Licence", "publisher": "Publisher",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RepositoryRow:
    """A repository in the list."""

    namespace: str
    name: str
    kind: str
    href: str
    summary: str | None
    version: str | None
    layers: int
    variants: int
    licence: str | None
    updated: str | None
    private: bool
    downloads: int


@dataclass(frozen=True, slots=True)
class Choice:
    """A link that changes what the list shows; `count` of repositories, where that is known."""

    name: str
    href: str
    count: int | None = None
    current: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """A facet and its most frequent values."""

    name: str
    values: tuple[Choice, ...]


@dataclass(frozen=True, slots=True)
class Chosen:
    """A filter that is set, and the list without it."""

    name: str
    value: str
    href: str


@dataclass(frozen=True, slots=True)
class ListQuery:
    """What the address of the list asks for."""

    text: str
    wanted: Wanted

    @classmethod
    def of(cls, call: HubRequest) -> ListQuery:
        """The query of a request. Refuses (400) an order that there is none of."""
        text = " ".join(call.query("q").split())[:_QUERY_LENGTH]
        sort = call.query("sort") or "newest"
        if sort not in SORTS:
            raise bad_request(f"sort is one of {', '.join(SORTS)}, not {sort[:100]!r}")
        facets = {kind: value[:LONGEST_VALUE] for kind in FACETS if (value := call.query(kind).strip())}
        return cls(text, Wanted(tuple(text.lower().split()[:_WORDS]), facets, sort))

    def address(self, **changed: object) -> str:
        """The list with some of its query changed."""
        sort = "" if self.wanted.sort == "newest" else self.wanted.sort
        return with_query("/", **{"q": self.text, **self.wanted.facets, "sort": sort, **changed})

    def chosen(self) -> Iterator[Chosen]:
        """The filters that are set."""
        for kind, value in self.wanted.facets.items():
            yield Chosen(_FACET_NAMES[kind], value, self.address(**{kind: ""}))

    def sorts(self) -> Iterator[Choice]:
        """The orders to choose from."""
        for sort, name in _SORT_NAMES.items():
            address = self.address(sort="" if sort == "newest" else sort)
            yield Choice(name, address, current=sort == self.wanted.sort)


def list_values(call: HubRequest) -> dict[str, Any]:
    """What the template of the list shows."""
    query, asked, hub = ListQuery.of(call), call.number("page", 1, _LAST_PAGE), call.hub
    counted = hub.search.overview(call.viewer, query.wanted)
    pages = max(1, -(-counted.total // PAGE_ROWS)) if counted.total < MOST_COUNTED else None
    page = min(asked, pages or asked)
    # The link to a page says where it begins; who asks for its number alone waits for those before it.
    after = call.query("after") if page == asked > 1 else ""
    found = hub.search.shown(
        call.viewer, query.wanted, (page - 1) * PAGE_ROWS, PAGE_ROWS, after=after, counted=counted
    )
    groups = [
        Group(
            _FACET_NAMES[kind],
            tuple(Choice(item.value, query.address(**{kind: item.value}), item.count) for item in values),
        )
        for kind, values in counted.facets.items()
        if values
    ]
    return {
        "query": query.text,
        "hidden": {**query.wanted.facets, **({"sort": query.wanted.sort} if query.wanted.sort != "newest" else {})},
        "total": counted.total,
        "most_counted": MOST_COUNTED,
        "rows": [_row(hub, listed) for listed in found.rows],
        "groups": groups,
        "chosen": list(query.chosen()),
        "sorts": list(query.sorts()),
        "newer": query.address(page=page - 1) if page > 1 else None,
        "older": query.address(page=page + 1, after=found.following) if found.following and page < _LAST_PAGE else None,
        "page": page,
        "pages": pages,
    }  # fmt: skip


def _row(hub: Hub, listed: Listed) -> RepositoryRow:
    repository = listed.repository
    described = listed.described or describe(hub.store, repository)[0]
    return RepositoryRow(
        repository.namespace,
        repository.name,
        repository.type,
        repository.page,
        described.summary,
        described.version,
        described.layers,
        described.variants,
        described.licence,
        described.updated,
        repository.private,
        listed.downloads,
    )
