"""Lists and searches among many repositories: pages by place, and words by an index of texts."""

from __future__ import annotations

import base64
import json
import re
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from unittest import mock

import pytest

from kernels_hub.server import list_sources
from kernels_hub.server import search as search_module
from kernels_hub.server.access import Caller
from kernels_hub.server.database import dialect, sqlite
from kernels_hub.server.facets import INSERT
from kernels_hub.server.hub import Hub
from kernels_hub.server.listed_order import ORDERS
from kernels_hub.server.refusal import Refusal
from kernels_hub.server.search import SORTS, Wanted
from kernels_hub.server.search_tables import TEXT
from tests.hub_databases import needs_postgresql
from tests.server.test_search import STALE_COPIES, commit, fill, make, names, toml

each_database = pytest.mark.each_database


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with Hub(tmp_path / "root", create=True) as hub:
        hub.accounts.add_user("ada")
        hub.accounts.add_organisation("acme", "ada")
        yield hub


def listed(hub: Hub, sort: str, size: int, meanwhile: Callable[[], object] = lambda: None) -> list[str]:
    """Every repository, page by page."""
    found, place = [], ""
    while True:
        page = hub.search.visible(Caller(), "kernel", "", "", size, after=place, sort=sort)
        found += [row.repository.name for row in page.rows]
        if page.following is None:
            return found
        place = page.following
        meanwhile()


def walked(hub: Hub, wanted: Wanted, size: int, meanwhile: Callable[[], object] = lambda: None) -> list[str]:
    """Every repository of a list that is filtered, page by page."""
    found, place = [], ""
    while True:
        # A place counts, wherever the page is said to start.
        page = hub.search.shown(Caller(), wanted, len(found) + 7, size, after=place) if place else None
        page = page or hub.search.shown(Caller(), wanted, 0, size)
        found += [row.repository.name for row in page.rows]
        if page.following is None:
            return found
        place = page.following
        meanwhile()


def rank(hub: Hub, name: str, updated: str, downloads: int) -> None:
    hub.database.change(
        "UPDATE ranks SET updated = ?, downloads = ? WHERE repository = (SELECT id FROM repositories WHERE name = ?)",
        *(updated, downloads, name),
    )


@each_database
def test_pages_go_on_where_the_last_one_ended(hub: Hub):
    for number in range(7):
        make(hub, f"acme/r{number}")
    hub.search.refresh()
    for number in range(7):  # with equals among them
        rank(hub, f"r{number}", f"2026-0{1 + number // 3}", number % 3)
    whole = {sort: listed(hub, sort, 100) for sort in SORTS}
    assert whole["newest"] == [f"r{number}" for number in reversed(range(7))] == whole["name"][::-1]
    assert whole["updated"][0] == "r6" and whole["downloads"][:2] == ["r5", "r2"]
    for sort in SORTS:
        for size in (1, 2, 3, 7):
            assert listed(hub, sort, size) == whole[sort], (sort, size)
    new = iter(range(100))
    # What appears in front meanwhile shows nothing twice.
    assert listed(hub, "newest", 2, lambda: make(hub, f"acme/late{next(new)}")) == whole["newest"]


@each_database
@pytest.mark.parametrize("few", [-1, 500])
@pytest.mark.parametrize("sort", SORTS)
def test_filtered_pages_go_on_where_the_last_one_ended(
    hub: Hub, sort: str, few: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(list_sources, "LEAST_SORTED", 0)
    monkeypatch.setattr(list_sources.Sources, "_few", lambda *_: few)
    for number in range(7):
        make(hub, f"acme/word{number}zq")
        make(hub, f"acme/other{number}")
    hub.search.refresh()
    for number in range(7):
        rank(hub, f"word{number}zq", f"2026-0{1 + number // 3}", number % 3)
    new = iter(range(100))
    for wanted in (
        Wanted(("word",), sort=sort),
        Wanted(("zq",), {"publisher": "acme"}, sort),
        Wanted(("zq",), sort=sort),
    ):
        whole = [row.repository.name for row in hub.search.shown(Caller(), wanted, 0, 100).rows]
        assert len(whole) >= 7
        for size in (1, 3, 7):
            assert walked(hub, wanted, size) == whole
        for most in (2, 5, 500):
            with mock.patch.object(search_module, "MOST_COUNTED", most):
                counted = hub.search.overview(Caller(), wanted)
            for start in range(9):
                page = hub.search.shown(Caller(), wanted, start, 3, counted=counted)
                assert [row.repository.name for row in page.rows] == whole[start : start + 3]
    # What appears in front meanwhile shows nothing twice.
    newest = Wanted(("word",))
    before = [row.repository.name for row in hub.search.shown(Caller(), newest, 0, 100).rows]
    assert walked(hub, newest, 2, lambda: make(hub, f"acme/word-late{next(new)}")) == before


@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.parametrize(
    "place",
    [
        "1",
        "é",
        "A" * 5000,
        *(
            base64.urlsafe_b64encode(text.encode()).decode()
            for text in (
                "[]",
                "{}",
                '[1, "a", 2]',
                '["\\ud800", "a"]',
                "[" * 1000,
                f"[{2**70}, 1.5, 0]",
                "[1e999]",
            )
        ),
    ],
)
def test_a_place_of_elsewhere_is_refused(sort: str, place: str):
    with pytest.raises(Refusal, match="cursor"):
        ORDERS[sort].after(place)


def test_a_place_of_another_order_is_refused(hub: Hub):
    make(hub, "acme/a")
    make(hub, "acme/b")
    page = hub.search.visible(Caller(), "kernel", "", "", 1, sort="newest")
    assert page.following is not None
    with pytest.raises(Refusal, match="cursor"):
        hub.search.visible(Caller(), "kernel", "", "", 1, after=page.following, sort="downloads")


WORDS = (
    "fast",
    "gel",
    "elu",
    "100%",
    "a_b",
    "a%b",
    'o"k',
    "'; --",
    "c\\d",
    "北京市",
    "ÄÖÜ",
    "no such word",
    "fa st",
)


@each_database
def test_the_index_of_texts_finds_what_reading_every_row_finds(hub: Hub):
    texts = ["Fast GELU 100%", "a_b c\\d", "axb 'o\"k'", "北京市 äöü", "'; -- fast", "fa", ""]
    for number, text in enumerate(texts):
        name = f"acme/r{number}"
        commit(
            hub,
            make(hub, name),
            "kernel.toml",
            f"[kernel]\nsummary = {json.dumps(text, ensure_ascii=False)}\n",
        )
    names(hub)
    for word in (*WORDS, "acme", "r3", "gelu 1", "\0", "x\0y"):
        with hub.database.staying():
            assert len(word) < 3 or "\0" in word or hub.database.containing(TEXT, word) is not None, word
        found = names(hub, word.lower())
        with mock.patch.object(type(hub.database), "containing", return_value=None):
            assert names(hub, word.lower()) == found, word
    assert names(hub, "100%") == ["acme/r0"] and names(hub, "a_b") == ["acme/r1"] and names(hub, "a%b") == []
    assert names(hub, "北京市") == ["acme/r3"] and names(hub, "fast", "gel") == ["acme/r0"]


@each_database
def test_the_index_of_texts_follows_every_change(hub: Hub):
    one, two = make(hub, "acme/first"), make(hub, "acme/second")
    commit(hub, one, "kernel.toml", toml("Fast GELU"))
    assert names(hub, "gelu") == ["acme/first"] and names(hub, "second") == ["acme/second"]
    commit(hub, one, "kernel.toml", toml("Fast ReLU"))
    hub.repositories.rename(two, "ada", "Third")
    assert names(hub, "gelu") == [] == names(hub, "second")
    assert names(hub, "relu") == ["acme/first"] and names(hub, "third") == ["ada/Third"]
    hub.store.delete(one)
    assert names(hub, "relu") == []
    make(hub, "acme/first")
    assert names(hub, "first") == ["acme/first"]


@pytest.mark.sqlite
def test_a_root_that_is_older_than_the_index_of_texts(hub: Hub, tmp_path: Path):
    fill(hub)
    assert names(hub, "attention") == ["acme/attention"]
    dropped = "".join(f"DROP TRIGGER search_text_{event}; " for event in ("insert", "update", "delete"))
    with closing(sqlite3.connect(tmp_path / "root" / "hub.sqlite")) as rows, rows:
        rows.executescript(f"{dropped} DROP TABLE search_text; DROP TABLE search_text_rows;")
    for _ in range(2):
        with Hub(tmp_path / "root") as again:
            assert names(again, "attention") == ["acme/attention"] and names(again, "norm") == [
                "acme/attention",
                "acme/norm",
            ]
            again.database.change("VACUUM")
            assert again.database.check() == []


@pytest.mark.sqlite
def test_what_few_have_is_found_without_reading_the_others(hub: Hub):
    """Counted, not timed: instructions of SQLite's machine for a word, a facet and a publisher of one repository."""
    hub.accounts.add_user("rare")
    commit(hub, make(hub, "rare/special"), "build/torch-cpu/metadata.json", '{"backend": {"type": "cpu"}}')
    names(hub)
    steps, took = 0, {}

    def step() -> None:
        nonlocal steps
        steps += 1

    asked = {"word": Wanted(("special",)), "device": Wanted(facets={"device": "cpu"}), "publisher": Wanted(facets={"publisher": "rare"})}  # fmt: skip
    for count in (50, 400):
        with hub.database.transaction():
            for number in range(hub.database.row("SELECT COUNT(*) AS n FROM search")["n"], count):
                hub.database.change(
                    "INSERT INTO repositories VALUES (?, 'kernel', 'acme', ?, 0, '', ?)",
                    f"{number:032}",
                    f"k{number}",
                    number,
                )
            hub.database.change("UPDATE search SET stale = 0")
        for label, wanted in asked.items():
            hub.database.inner._connection().set_progress_handler(step, 20)
            page, seen = hub.search.shown(Caller(), wanted, 0, 30), hub.search.overview(Caller(), wanted)
            hub.database.inner._connection().set_progress_handler(None, 0)
            assert [row.repository.name for row in page.rows] == ["special"] and seen.total == 1
            took[label, count], steps = steps, 0
    for label in asked:
        assert took[label, 400] - took[label, 50] <= 5, took
    with (
        mock.patch.object(list_sources.Sources, "_few", return_value=-1),
        mock.patch.object(list_sources.Sources, "_count", return_value=400),
    ):
        hub.database.inner._connection().set_progress_handler(step, 20)
        hub.search.overview(Caller(), asked["publisher"])
        hub.database.inner._connection().set_progress_handler(None, 0)
    assert steps > 2 * took["publisher", 400], "what is counted are the rows that are read"


@pytest.mark.sqlite
@pytest.mark.parametrize("sort", SORTS)
def test_a_facet_is_read_in_order_wherever_it_stands(hub: Hub, sort: str):
    """Counted as above: as much for a facet of the first of an order, as for one of its last."""
    steps, took = 0, {}

    def step() -> None:
        nonlocal steps
        steps += 1

    with hub.database.transaction():
        for number in range(300):
            row = f"{number:032}", f"k{999 - number}", number
            hub.database.change("INSERT INTO repositories VALUES (?, 'kernel', 'acme', ?, 0, '', ?)", *row)
            for kind, value in (
                ("device", {0: "last", 5: "first"}.get(number // 50, "other")),
                ("platform", "all"),
            ):
                hub.database.change(INSERT, kind, value, row[0])
            rank(hub, row[1], f"2026-{number:03}", number)
        hub.database.change("UPDATE search SET stale = 0")
    for count in (5, 30):
        for value in ("first", "last"):
            hub.database.inner._connection().set_progress_handler(step, 20)
            page = hub.search.shown(Caller(), Wanted(facets={"device": value}, sort=sort), 0, count)
            hub.database.inner._connection().set_progress_handler(None, 0)
            last = {"first": 299, "last": 49}[value]
            assert [row.repository.name for row in page.rows] == [
                f"k{999 - number}" for number in range(last, last - count, -1)
            ]
            took[count, value], steps = steps, 0
    for count in (5, 30):
        assert abs(took[count, "last"] - took[count, "first"]) <= 3, took
    assert took[30, "last"] > 2 * took[5, "last"], "what is counted are the rows that are read"


@each_database
@pytest.mark.parametrize("sort", SORTS)
def test_short_words_are_looked_for_among_the_first(hub: Hub, sort: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(list_sources, "MOST_LOOKED_AT", 3)
    monkeypatch.setattr(list_sources, "MOST_JOINED", 3)
    for number in range(5):
        rank_of = {"newest": "5", "name": "a"}
        make(hub, f"acme/{rank_of.get(sort, 'x')}{number}zq")
        rank(hub, f"{rank_of.get(sort, 'x')}{number}zq", f"2026-0{number + 1}", number)
    hub.search.refresh()
    first = [row.repository.name for row in hub.search.shown(Caller(), Wanted(sort=sort), 0, 3).rows]
    wanted = Wanted(("zq",), sort=sort)
    assert [row.repository.name for row in hub.search.shown(Caller(), wanted, 0, 10).rows] == first
    assert hub.search.overview(Caller(), wanted).total == 3
    assert walked(hub, wanted, 1) == first
    # Beside a word that an index finds, and in what a publisher leaves, all are.
    assert len(hub.search.shown(Caller(), Wanted(("zq", "acme"), sort=sort), 0, 10).rows) == 5
    assert len(hub.search.shown(Caller(), Wanted(("zq",), {"publisher": "acme"}, sort), 0, 10).rows) == 5
    assert len(hub.search.visible(Caller(), "kernel", "", "zq", 10, sort=sort).rows) == 3


@each_database
@pytest.mark.parametrize("sort", SORTS)
def test_a_word_of_few_is_read_from_its_index(hub: Hub, sort: str, monkeypatch: pytest.MonkeyPatch):
    """Whatever a planner guesses by its sample, which may say that many have it."""
    for number in range(4):
        make(hub, f"acme/word{number}")
    hub.search.refresh()
    read: list[str] = []
    rows = hub.database.rows
    monkeypatch.setattr(
        hub.database, "rows", lambda query, *values: read.append(query) or rows(query, *values)
    )
    for most, is_few in ((4, True), (3, False)):
        monkeypatch.setattr(list_sources, "LEAST_SORTED", most)
        monkeypatch.setattr(list_sources.Sources, "_few", lambda *_, most=most: most)
        hub.search._sources._counts.clear()
        read.clear()
        wanted = Wanted(("word",), sort=sort)
        assert len(hub.search.shown(Caller(), wanted, 0, 9).rows) == 4
        assert hub.search.overview(Caller(), wanted).total == 4
        with hub.database.staying():
            if hub.database.plans:
                lists = [query for query in read if "instr(search." in query]
                assert len(lists) == 2 and all(("OFFSET 0" in query) == is_few for query in lists)


@each_database
@pytest.mark.parametrize("sort", SORTS)
def test_short_words_of_a_facet_are_looked_for_among_its_first(
    hub: Hub, sort: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(list_sources, "MOST_JOINED", 5)
    monkeypatch.setattr(list_sources, "LEAST_SORTED", -9)  # so that 4 * 3 - 9 are looked at first
    for number in range(8):
        name = f"k{number}zq" if number in (0, 1, 4) else f"k{number}"
        commit(
            hub, make(hub, f"acme/{name}"), "build/torch-cpu/metadata.json", '{"backend": {"type": "cpu"}}'
        )
        hub.search.refresh()
        rank(hub, name, f"2026-0{number + 1}", number)
    wanted = Wanted(("zq",), {"device": "cpu"}, sort)
    meant = {"name": ["k0zq", "k1zq", "k4zq"]}.get(sort, ["k4zq"])
    assert walked(hub, wanted, 2) == meant
    assert hub.search.overview(Caller(), wanted).total == 1, "of the newest"
    with monkeypatch.context() as seen:
        read: list[str] = []
        rows = hub.database.rows
        seen.setattr(hub.database, "rows", lambda query, *values: read.append(query) or rows(query, *values))
        hub.search.shown(Caller(), wanted, 0, 2)
    limits = [int(found) for query in read for found in re.findall(r"LIMIT (\d+)\) AS facets", query)]
    with hub.database.staying():
        assert limits == ([5] if hub.database.plans else [3, 5])


@each_database
def test_nothing_is_looked_for_that_was_not_counted(hub: Hub, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(list_sources, "MOST_LOOKED_AT", 2)
    for name in ("acme/early-zq", "acme/b", "acme/c"):
        make(hub, name)
        hub.search.refresh()
    rank(hub, "early-zq", "2027", 9)
    for sort, meant in (("newest", []), ("updated", ["early-zq"]), ("downloads", ["early-zq"])):
        wanted = Wanted(("zq",), sort=sort)
        counted = hub.search.overview(Caller(), wanted)
        assert counted.total == 0, "of the newest"
        page = hub.search.shown(Caller(), wanted, 0, 5, counted=counted)
        assert [row.repository.name for row in page.rows] == meant, sort
    wanted = Wanted(("absent",))
    counted = hub.search.overview(Caller(), wanted)
    with mock.patch.object(hub.search, "_page", side_effect=AssertionError):
        assert hub.search.shown(Caller(), wanted, 0, 5, counted=counted).rows == ()


@each_database
@pytest.mark.parametrize("sort", SORTS)
def test_facets_of_few_and_of_many_find_the_same(hub: Hub, sort: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(search_module, "MOST_COUNTED", 2)
    monkeypatch.setattr(list_sources, "LEAST_SORTED", 0)
    for number in range(9):
        repository = make(hub, f"acme/k{number}")
        kind = "cpu" if number % 2 else "cuda"
        commit(hub, repository, f"build/torch-{kind}/metadata.json", f'{{"backend": {{"type": "{kind}"}}}}')
        commit(hub, repository, "kernel.toml", f'[kernel]\nlayers = ["L{number % 3}"]\n')
    hub.search.refresh()
    for number in range(9):  # those of cpu are the last of every order
        rank(hub, f"k{number}", f"2026-{number % 2 * 12:02}", number % 2)
    every = listed(hub, sort, 100)
    asked = [
        ({"device": "CPU"}, lambda number: number % 2 == 1),
        ({"device": "cuda", "layer": "l1"}, lambda number: number % 2 == 0 and number % 3 == 1),
        ({"device": "cuda", "publisher": "Acme"}, lambda number: number % 2 == 0),
        ({"device": "rocm", "layer": "L1"}, lambda _: False),
    ]
    for facets, is_meant in asked:
        # Read in order, as far as enough of them should be, and then sorted; or sorted at once.
        for few in (-1, 2, 500):
            monkeypatch.setattr(list_sources.Sources, "_few", lambda *_, few=few: few)
            hub.search._sources._counts.clear()
            wanted = Wanted(facets=facets, sort=sort)
            meant = [name for name in every if is_meant(int(name[1:]))]
            for start in (0, 1, 3):
                page = hub.search.shown(Caller(), wanted, start, 2)
                assert [row.repository.name for row in page.rows] == meant[start : start + 2], (facets, few)
            counted = hub.search.overview(Caller(), wanted)
            assert counted.total == min(2, len(meant))
            for start in range(5):  # behind those that were counted, and among them
                page = hub.search.shown(Caller(), wanted, start, 2, counted=counted)
                assert [row.repository.name for row in page.rows] == meant[start : start + 2], (facets, few)
            assert walked(hub, wanted, 2) == meant, (facets, few)


@each_database
def test_what_the_first_of_an_order_lack_is_found_all_the_same(hub: Hub, monkeypatch: pytest.MonkeyPatch):
    for number in range(16):
        repository = make(hub, f"acme/k{number}")
        commit(hub, repository, "build/torch-cpu/metadata.json", '{"backend": {"type": "cpu"}}')
        if number < 3:
            commit(hub, repository, "kernel.toml", '[kernel]\nlayers = ["Norm"]\n')
    while hub.search.refresh():
        pass
    monkeypatch.setattr(search_module, "MOST_COUNTED", 1)
    monkeypatch.setattr(list_sources, "LEAST_SORTED", 0)
    monkeypatch.setattr(list_sources.Sources, "_few", lambda *_: 1)
    monkeypatch.setattr(list_sources.Sources, "_count", lambda *_: 16)  # as of most repositories
    wanted = Wanted(facets={"device": "cpu", "layer": "norm"})
    rows = hub.search.shown(Caller(), wanted, 0, 2).rows
    assert [row.repository.name for row in rows] == ["k2", "k1"]
    assert hub.search.overview(Caller(), wanted).facets["publisher"][0].count == 1


@each_database
def test_a_database_that_is_older_than_the_index_of_facets(hub: Hub, tmp_path: Path):
    repository = make(hub, "acme/kernels")
    commit(hub, repository, "build/torch-cpu/metadata.json", '{"backend": {"type": "cpu"}}')
    commit(hub, repository, "kernel.toml", '[kernel]\nlayers = ["Größe \\u00c4%s?"]\nlicense = "MIT"\n')
    hub.search.refresh()
    rank(hub, "kernels", "2026-05", 7)
    made = hub.database.row("SELECT tokens FROM search")["tokens"]
    with hub.database.transaction():
        if hub.database.plans:
            hub.database.change("DELETE FROM hub_schemas")
        else:
            for event in ("insert", "update", "delete"):
                hub.database.change(f"DROP TRIGGER search_tokens_{event}")
            dropped = ["TABLE search_tokens", "TABLE search_tokens_rows"]
            dropped += [f"INDEX {order.facet_index}" for order in ORDERS.values()]
            dropped += ["TRIGGER facets_ranked", "TRIGGER facets_renamed"]
            for name in dropped:
                hub.database.change(f"DROP {name}")
        for column in ("created", "updated", "downloads", "name"):
            hub.database.change(f"ALTER TABLE facets DROP COLUMN {column}")
        hub.database.change("CREATE INDEX facets_value ON facets (kind, lower(value), repository)")
        hub.database.change("DELETE FROM upgrades WHERE name = 'facet_orders'")
        hub.database.change("DELETE FROM upgrades WHERE name = 'tokens'")
        hub.database.change("ALTER TABLE search DROP COLUMN tokens")
    with ThreadPoolExecutor(3) as threads:  # as servers that start together
        opened = list(threads.map(lambda _: Hub(tmp_path / "root"), range(3)))
    try:
        assert sorted(made.split()) == sorted(
            opened[0].database.row("SELECT tokens FROM search")["tokens"].split()
        )
        for facets in ({"device": "CPU"}, {"layer": "gRöße Ä%S?", "licence": "mit"}):
            for sort in SORTS:
                assert opened[1].search.shown(Caller(), Wanted(facets=facets, sort=sort), 0, 5).rows, facets
        assert opened[0].database.rows("SELECT 1 FROM facets WHERE downloads = 7 AND name = 'acme/kernels'")
        rank(opened[2], "kernels", "2026-06", 8)
        assert not opened[1].database.rows(STALE_COPIES)
        assert opened[2].database.check() == []
    finally:
        for other in opened:
            other.close()


def test_without_trigrams_every_row_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sqlite, "_has_trigrams", lambda: False)
    with Hub(tmp_path / "root", create=True) as hub:
        hub.accounts.add_user("ada")
        make(hub, "ada/kernels")
        assert names(hub, "kernels") == ["ada/kernels"] and names(hub, "other") == []


@needs_postgresql
def test_without_pg_trgm_it_is_said_and_every_row_is_read(
    tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    with monkeypatch.context() as lacking:
        lacking.setattr(dialect, "text_index", lambda _index: ("CREATE EXTENSION no_such_extension",))
        with Hub(tmp_path / "root", create=True, database=database) as hub:
            hub.accounts.add_user("ada")
            make(hub, "ada/kernels")
            assert names(hub, "kernels") == ["ada/kernels"] and names(hub, "other") == []
    assert "CREATE EXTENSION pg_trgm" in caplog.text
    caplog.clear()
    with Hub(tmp_path / "root") as hub:  # which has it now
        assert names(hub, "kernels") == ["ada/kernels"]
        with hub.database.staying():
            assert hub.database.containing(TEXT, "kernels") is not None
    assert "pg_trgm" not in caplog.text
