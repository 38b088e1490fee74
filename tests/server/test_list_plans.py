"""How PostgreSQL reads long lists: from entries of indexes, which have short texts of the rows in them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest

from kernels_hub.server import list_sources
from kernels_hub.server.access import Caller
from kernels_hub.server.database import dialect
from kernels_hub.server.facets import INSERT, tokens_of
from kernels_hub.server.hub import Hub
from kernels_hub.server.search import SORTS, Wanted
from kernels_hub.server.search_tables import TEXT
from tests.hub_databases import needs_postgresql
from tests.server.test_long_lists import walked
from tests.server.test_search import make

FACETS = {
    "device": ["cuda", "cpu", "rocm"],
    "licence": ["mit", "MIT", "bsd"],
    "layer": ["Norm", "Mul", "Sum"],
}


@pytest.fixture
def hub(tmp_path: Path, database: str) -> Iterator[Hub]:
    with Hub(tmp_path / "root", create=True, database=database) as hub:
        hub.accounts.add_user("ada")
        hub.accounts.add_organisation("acme", "ada")
        yield hub


@pytest.fixture
def in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists as of very many repositories, which are read in their order."""
    monkeypatch.setattr(list_sources, "LEAST_SORTED", 0)
    monkeypatch.setattr(list_sources.Sources, "_few", lambda *_: 0)


def described(hub: Hub, number: int, words: str) -> None:
    """A repository with words and, by its number, some values of each kind of facet."""
    name = f"kernels{number}"
    identifier = make(hub, f"acme/{name}").id
    hub.search.refresh()
    given = {kind: [values[number // 3**place % 3]] for place, (kind, values) in enumerate(FACETS.items())}
    change = "UPDATE search SET words = ?, tokens = ?, stale = 0 WHERE repository = ?"
    hub.database.change(change, words, tokens_of(given), identifier)
    change = "UPDATE ranks SET updated = ?, downloads = ? WHERE repository = ?"
    hub.database.change(change, f"2026-0{number % 4 + 1}", number % 5, identifier)
    for kind, (value,) in given.items():
        hub.database.change(INSERT, kind, value, identifier)


def plans(hub: Hub, ask: Callable[[], object]) -> list[str]:
    """How PostgreSQL would find what is listed, had it very many rows, as it says itself."""
    asked: list[tuple[str, tuple[object, ...]]] = []
    database, rows = hub.database.inner, hub.database.inner.rows

    def noted(query: str, *values: object) -> object:
        asked.append((query, values))
        return rows(query, *values)

    with mock.patch.object(database, "rows", noted):
        ask()
    with hub.database.transaction():
        for way in ("seqscan", "sort", "bitmapscan", "hashjoin", "nestloop"):
            database.change(f"SET LOCAL enable_{way} = off")
        return [
            "\n".join(str(row["QUERY PLAN"]) for row in database.rows(f"EXPLAIN {query}", *values))
            for query, values in asked
            if "AS k0" in query or query.startswith("WITH newest")
        ]


@needs_postgresql
@pytest.mark.parametrize("words", [("kernels",), ("ls1", "fast"), ("3",), ()])
@pytest.mark.usefixtures("in_order")
def test_what_is_listed_is_found_without_its_rows(hub: Hub, words: tuple[str, ...]):
    for number in range(4):
        described(hub, number, "fast kernels")
    for sort, caller in itertools.product(("newest", "name"), (Caller(), ada(hub))):
        wanted = Wanted(words, sort=sort)
        (plan,) = plans(hub, lambda: hub.search.shown(caller, wanted, 2, 5))  # noqa: B023
        assert f"Index Only Scan using search_{sort}_covering on search" in plan
        (plan,) = plans(hub, lambda: hub.search.overview(caller, wanted))  # noqa: B023
        assert "Index Only Scan using search_newest_covering on search" in plan


def ada(hub: Hub) -> Caller:
    return Caller(hub.accounts.authenticate(hub.accounts.new_token("ada", "read")[0]))


@needs_postgresql
@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.usefixtures("in_order")
def test_several_facets_are_one_merge_of_entries(hub: Hub, sort: str):
    for number in range(27):
        described(hub, number, "")
    every = walked(hub, Wanted(sort=sort), 100)
    for device, licence, layer in itertools.product(FACETS["device"], ("mit", "bsd"), ("norm", None)):
        facets = {"device": device, "licence": licence, **({"layer": layer} if layer else {})}
        wanted = Wanted((), facets, sort)
        found = walked(hub, wanted, 1)
        assert found and found == [name for name in every if has(int(name.removeprefix("kernels")), facets)]
        assert hub.search.overview(Caller(), wanted).total == len(found)
    first, *_, last = plans(hub, lambda: walked(hub, wanted, 1))
    for plan in (first, last):
        assert plan.count(f"Index Only Scan using facets_{sort}_covering") == 2
        assert "Merge Join" in plan and "tokens" not in plan


def has(number: int, facets: dict[str, str]) -> bool:
    return all(
        FACETS[kind][number // 3 ** list(FACETS).index(kind) % 3].lower() == value
        for kind, value in facets.items()
    )


@needs_postgresql
@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.usefixtures("in_order")
def test_words_of_texts_that_no_index_has_room_for_are_found(hub: Hub, sort: str):
    """Of texts as long as there is room for, too, in bytes."""
    room = dialect.LONGEST_BRIEF - len("acme/kernels0 ")
    texts = [
        "a last",
        "x" * (room - 5) + " last",
        "x" * (room - 4) + " last",
        "é" * 600 + " last",
        "y" * 19_000 + " last",
    ]
    for number, words in enumerate([*texts, "z" * 5000]):
        described(hub, number, words)
    lengths = hub.database.rows(f"SELECT {TEXT.brief} IS NULL AS long FROM search ORDER BY name")
    assert [row["long"] for row in lengths] == [False, False, True, True, True, True]
    for words in (("last",), ("la",), ("la", "kernels")):
        found = walked(hub, Wanted(words, sort=sort), 1)
        assert sorted(found) == [f"kernels{number}" for number in range(len(texts))]
        assert hub.search.overview(Caller(), Wanted(words, sort=sort)).total == len(texts)
    assert walked(hub, Wanted(("last", "yyy"), sort=sort), 1) == ["kernels4"]
    assert (
        walked(hub, Wanted(("zzzz",), sort=sort), 1)
        == walked(hub, Wanted(("zz",), sort=sort), 1)
        == ["kernels5"]
    )
    assert walked(hub, Wanted(("lasty",), sort=sort), 1) == []


@needs_postgresql
@pytest.mark.usefixtures("in_order")
def test_a_database_of_an_older_version_is_given_its_indexes(tmp_path: Path, database: str):
    with Hub(tmp_path / "root", create=True, database=database) as hub:
        hub.accounts.add_user("ada")
        hub.accounts.add_organisation("acme", "ada")
        described(hub, 0, "fast")
        hub.database.change(f"ALTER TABLE search DROP COLUMN {TEXT.brief} CASCADE")
        hub.database.change("DROP INDEX facets_newest_covering")
        hub.database.change("CREATE INDEX search_newest ON search (created DESC, repository)")
        hub.database.change(
            "CREATE INDEX facets_newest ON facets (kind, lower(value), created DESC, repository)"
        )
        hub.database.change("DELETE FROM hub_schemas")
    with Hub(tmp_path / "root") as hub:
        assert (
            walked(hub, Wanted(("fast",)), 1)
            == ["kernels0"]
            == walked(hub, Wanted((), {"device": "cuda"}), 1)
        )
        names = {row["indexname"] for row in hub.database.rows("SELECT indexname FROM pg_indexes")}
        assert {"search_newest_covering", "search_name_covering", "facets_newest_covering"} <= names
        assert not {"search_newest", "facets_newest"} & names
