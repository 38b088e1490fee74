"""The index of repositories: it says what the repositories say, whatever happened to them."""

from __future__ import annotations

import functools
import itertools
import json
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels_hub.server import search as search_module
from kernels_hub.server.access import Caller
from kernels_hub.server.commit import AddFile, CommitRequest, DeleteFile
from kernels_hub.server.database import DatabaseFullError
from kernels_hub.server.durable import locked
from kernels_hub.server.facets import INSERT
from kernels_hub.server.hub import Hub
from kernels_hub.server.packs import BLOB, git_object
from kernels_hub.server.refusal import Refusal
from kernels_hub.server.release_check import restore_refs
from kernels_hub.server.repositories import Repository
from kernels_hub.server.search import Wanted, describe


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with Hub(tmp_path / "root", create=True) as hub:
        hub.accounts.add_user("ada")
        hub.accounts.add_user("eve")
        hub.accounts.add_organisation("acme", "ada")
        yield hub


def make(hub: Hub, name: str, *, private: bool = False, kind: str = "kernel") -> Repository:
    return hub.changes.create(kind, *name.split("/"), private=private, author="ada")


def commit(hub: Hub, repository: Repository, path: str, content: str, branch: str = "main") -> None:
    operations = (AddFile(path, git_object(BLOB, content.encode())),)
    hub.changes.commit(repository, branch, CommitRequest("m", None, operations), "ada")


def toml(summary: str, *layers: str) -> str:
    return f'[kernel]\nsummary = "{summary}"\nlayers = {list(layers)!r}\nlicense = "mit"\n'


def names(hub: Hub, *words: str) -> list[str]:
    return [row.repository.full_name for row in hub.search.shown(Caller(), Wanted(words), 0, 100).rows]


def seen(hub: Hub, token: str | None = None, text: str = "", author: str = "") -> set[str]:
    caller = Caller(hub.accounts.authenticate(token)) if token else Caller()
    return {row.repository.full_name for row in hub.search.visible(caller, "kernel", author, text, 1000).rows}


@pytest.mark.each_database
def test_a_search_finds_what_was_written_before_it(hub: Hub):
    repository = make(hub, "acme/kernels")
    commit(hub, repository, "kernel.toml", toml("Fast GELU, 北京", "SiluAndMul"))
    for words in (["gelu"], ["silu", "acme"], ["siluandmul"], ["北京"], ["a"], []):
        assert names(hub, *words) == ["acme/kernels"]
    assert names(hub, "relu") == [] and names(hub, "%") == [] and names(hub, "_") == []
    commit(hub, repository, "kernel.toml", toml("Fast ReLU", "Mul"))
    assert names(hub, "gelu") == [] and names(hub, "relu") == ["acme/kernels"]
    (row,) = hub.search.shown(Caller(), Wanted(), 0, 10).rows
    assert row.described and (row.described.summary, row.described.licence) == ("Fast ReLU", "mit")
    hub.changes.create_tag(repository, "v1.0.0", "main", None, "ada")
    assert hub.search.shown(Caller(), Wanted(), 0, 10).rows[0].described.version == "v1.0.0"
    operations = (DeleteFile("kernel.toml"),)
    hub.changes.commit(repository, "main", CommitRequest("m", None, operations), "ada")
    hub.changes.create_tag(repository, "v2.0.0", "main", None, "ada")
    assert names(hub, "relu") == []


@pytest.mark.each_database
def test_renames_deletions_and_visibility_show_at_once(hub: Hub):
    repository = make(hub, "acme/one")
    commit(hub, repository, "kernel.toml", toml("secret", "Hidden"))
    assert names(hub, "hidden") == ["acme/one"]
    hub.repositories.rename(repository, "ada", "Two")
    assert names(hub, "acme") == [] and names(hub, "two", "hidden") == ["ada/Two"]
    assert seen(hub, text="TWO") == {"ada/Two"} == seen(hub, author="ADA") and not seen(hub, author="acme")
    hub.repositories.set_private(repository, True)
    assert names(hub) == [] and seen(hub) == set()
    hub.repositories.set_private(repository, False)
    hub.repositories.set_gated(repository, "auto")
    assert names(hub) == [] and seen(hub) == {"ada/Two"}, (
        "gated ones are listed, and their content is not shown"
    )
    hub.repositories.set_gated(repository, "")
    assert names(hub, "hidden") == ["ada/Two"]
    hub.store.delete(repository)
    assert names(hub) == [] and seen(hub) == set()
    assert not hub.database.rows("SELECT * FROM search")


STALE_COPIES = """
SELECT facets.repository FROM facets JOIN ranks ON ranks.repository = facets.repository
JOIN search ON search.repository = facets.repository
WHERE facets.created <> ranks.created OR facets.updated <> ranks.updated OR facets.downloads <> ranks.downloads
    OR facets.name <> search.name
"""
"""Facets whose copies of what lists are sorted by are not what they were copied from."""


def work(hub: Hub, *words: str) -> tuple[int, int]:
    """What a search takes: instructions of SQLite's machine, in hundreds, and repositories that are opened."""
    steps, opened = 0, []

    def step() -> None:
        nonlocal steps
        steps += 1

    with mock.patch.object(search_module, "describe", side_effect=lambda *given: opened.append(given)):
        connection = hub.database.inner._connection()
        connection.set_progress_handler(step, 100)
        try:
            hub.search.shown(Caller(), Wanted(words), 0, 30)
        finally:
            connection.set_progress_handler(None, 0)
    return steps, len(opened)


@pytest.mark.sqlite
def test_a_search_reads_the_index_and_opens_no_repository(hub: Hub):
    """What it takes is counted, not timed: some instructions for each row of the index that it passes, and no file."""
    took = {}
    for count in (100, 400):
        for number in range(hub.database.row("SELECT COUNT(*) AS n FROM search")["n"], count):
            make(hub, f"acme/kernels-{number}")
        turns = 0
        while hub.search.refresh():
            turns += 1
            assert turns <= count, "what was described stays stale"
        took[count] = work(hub), work(hub, "nothing"), work(hub, "kernels-7")
    for at in range(3):
        (few, opened), (many, opened_then) = took[100][at], took[400][at]
        assert opened == opened_then == 0
        assert many - few <= 300 * 60 / 100, "of every further row, so many instructions at most"
    assert took[400][1][0] > took[100][1][0], "what is counted are these rows"


@pytest.mark.sqlite
def test_counting_facets_takes_as_long_however_many_match(hub: Hub):
    """Counted as above; the index ends the search for the newest that match, and facets are looked up for those."""

    def steps() -> int:
        count, connection = 0, hub.database.inner._connection()

        def step() -> None:
            nonlocal count
            count += 1

        connection.set_progress_handler(step, 100)
        try:
            hub.search.overview(Caller(), Wanted())
        finally:
            connection.set_progress_handler(None, 0)
        return count

    took = {}
    with mock.patch.object(search_module, "MOST_COUNTED", 50):
        for count in (100, 400):
            for number in range(hub.database.row("SELECT COUNT(*) AS n FROM search")["n"], count):
                repository = make(hub, f"acme/kernels-{number}")
                hub.database.change(INSERT, "device", f"d{number % 5}", repository.id)
            hub.database.change("UPDATE search SET stale = 0")  # so that nothing is described meanwhile
            took[count] = steps()
    assert abs(took[400] - took[100]) <= 2, took
    with mock.patch.object(search_module, "MOST_COUNTED", 400):
        assert steps() > 4 * took[400], "what is counted are the rows of the newest"


def plans(hub: Hub, ask: Callable[[], object]) -> list[str]:
    """How SQLite goes through the table `search` for each query, as it says itself."""
    statements: list[str] = []
    connection = hub.database.inner._connection()
    connection.set_trace_callback(statements.append)
    try:
        ask()
    finally:
        connection.set_trace_callback(None)
    asked = [one for one in statements if one.startswith("SELECT") and "search" in one]
    details = [row[3] for one in asked for row in connection.execute(f"EXPLAIN QUERY PLAN {one}")]
    return [one for one in details if "repositories" not in one]


@pytest.mark.sqlite
def test_a_search_goes_through_the_covering_index(hub: Hub):
    """In the order of its rows: nothing is sorted, no document is read but of those that are shown."""
    for number in range(40):
        make(hub, f"acme/kernels-{number}")
    ada = Caller(hub.accounts.authenticate(hub.accounts.new_token("ada", "read")[0]))
    for caller, words, start in itertools.product((Caller(), ada), ((), ("7",), ("no",)), (0, 30)):
        found = plans(hub, lambda: hub.search.shown(caller, Wanted(words), start, 5))  # noqa: B023
        assert "SCAN search USING COVERING INDEX search_newest" in found
        assert all(
            one == "SCAN search USING COVERING INDEX search_newest"  # which rows match
            # The first rows of the order, for a word that no index finds: those of them that match are sorted once more.
            or (words and one in ("CO-ROUTINE search", "SCAN search", "USE TEMP B-TREE FOR ORDER BY"))
            or one == "SCAN search USING INDEX search_stale"  # what is to be described anew
            # What is shown, and its downloads.
            or one.startswith(
                ("SEARCH search USING INDEX sqlite_autoindex_search", "SEARCH ranks USING PRIMARY KEY")
            )
            for one in found
        ), found


@contextmanager
def without_room(hub: Hub) -> Iterator[None]:
    """A database whose disk is full: SQLite's own limit on pages, or PostgreSQL's error."""
    database = hub.database.inner
    if database.plans:
        full = "$$BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = 'disk_full'; END$$"
        hub.database.change(f"CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS {full}")
        for table in ("search", "repositories"):
            hub.database.change(
                f"CREATE TRIGGER no_room BEFORE INSERT OR UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION no_room()"
            )
        yield
        hub.database.change("DROP FUNCTION no_room CASCADE")
        return
    connection = database._connection()
    (free,) = connection.execute("PRAGMA freelist_count").fetchone()
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    assert free == 0
    connection.execute(f"PRAGMA max_page_count = {pages}")
    yield
    connection.execute("PRAGMA max_page_count = 1073741823")


@pytest.mark.each_database
def test_lists_are_shown_while_the_database_is_full(hub: Hub):
    old, new = make(hub, "acme/old"), make(hub, "acme/new")
    commit(hub, old, "kernel.toml", toml("Fast GELU", "Gelu"))
    commit(hub, new, "kernel.toml", toml("Slow", "Slow"))
    assert names(hub, "gelu") == ["acme/old"]
    commit(hub, new, "kernel.toml", toml("GELU " * 3000, *(f"Layer{number}" for number in range(400))))
    with without_room(hub):
        with pytest.raises(DatabaseFullError):
            hub.search.refresh()
        assert names(hub) == ["acme/new", "acme/old"] and names(hub, "gelu") == ["acme/old"]
        assert seen(hub, text="NEW") == {"acme/new"}
        with pytest.raises(DatabaseFullError):
            list(map(functools.partial(make, hub), (f"acme/more{number}" for number in range(200))))
    while hub.search.refresh():
        pass
    assert sorted(names(hub, "gelu")) == ["acme/new", "acme/old"]
    assert hub.database.check() == []


@pytest.mark.each_database
def test_only_who_may_see_a_repository_finds_it(hub: Hub):
    make(hub, "acme/open")
    for name in ("acme/closed", "ada/mine", "eve/hers"):
        make(hub, name, private=True)
    ada, eve = (hub.accounts.new_token(user, "read")[0] for user in ("ada", "eve"))
    one = hub.accounts.new_token("ada", "read", repository="ACME/Closed")[0]
    other = hub.accounts.new_token("ada", "read", repository="eve/hers")[0]
    assert seen(hub) == {"acme/open"} == seen(hub, other)
    assert seen(hub, ada) == {"acme/open", "acme/closed", "ada/mine"}
    assert seen(hub, eve) == {"acme/open", "eve/hers"}
    assert seen(hub, one) == {"acme/open", "acme/closed"}
    for token in (None, ada, eve, one, other):
        caller = Caller(hub.accounts.authenticate(token)) if token else Caller()
        assert seen(hub, token) == {
            r.full_name for r in hub.repositories.all() if hub.access.may_see(caller, r)
        }
        counted = {
            space: sum(hub.search.count_of(caller, space).values()) for space in ("acme", "ada", "eve")
        }
        assert counted == {space: sum(n.startswith(space) for n in seen(hub, token)) for space in counted}


@pytest.mark.sqlite
def test_a_root_that_is_older_than_the_index(hub: Hub, tmp_path: Path):
    repository = make(hub, "acme/kernels")
    commit(hub, repository, "kernel.toml", toml("Fast GELU"))
    make(hub, "acme/closed", private=True)
    with closing(sqlite3.connect(tmp_path / "root" / "hub.sqlite")) as rows, rows:
        rows.executescript(
            "DROP TRIGGER search_insert; DROP TRIGGER search_update; DROP TABLE search; "
            "DROP TABLE search_text; DROP TABLE search_text_rows; "
            "DROP TABLE search_tokens; DROP TABLE search_tokens_rows;"
        )
    with Hub(tmp_path / "root") as again:
        assert names(again, "kernels") == ["acme/kernels"] == names(again, "gelu")
        again.search.start()
        again.search.stop()
        commit(again, repository, "kernel.toml", toml("Fast ReLU"))
        assert names(again, "relu") == ["acme/kernels"]


def test_a_repository_that_is_being_changed_holds_up_no_search(hub: Hub):
    repository = make(hub, "acme/kernels")
    commit(hub, repository, "kernel.toml", toml("Fast GELU"))
    assert names(hub, "gelu") == ["acme/kernels"]
    hub.repositories.mark_changed(repository)
    with locked(hub.layout.lock(repository.id)):
        assert names(hub, "gelu") == ["acme/kernels"], "what was known before"
        assert hub.search.shown(Caller(), Wanted(), 0, 10).rows[0].described is None, "is not called current"
    assert hub.search.shown(Caller(), Wanted(), 0, 10).rows[0].described is not None


def test_refs_that_an_administrator_restores_show_at_once(hub: Hub):
    repository = make(hub, "acme/kernels")
    commit(hub, repository, "kernel.toml", toml("Fast GELU"))
    before = hub.store.resolve(repository, "main")
    commit(hub, repository, "kernel.toml", toml("Fast ReLU"))
    assert names(hub, "relu") == ["acme/kernels"]
    restore_refs(hub, repository, {"main": before})
    assert names(hub, "gelu") == ["acme/kernels"] and names(hub, "relu") == []


@pytest.mark.each_database
def test_searches_beside_writers_lose_nothing(hub: Hub):
    repositories = [make(hub, f"acme/r{n}") for n in range(4)]

    def write(repository: Repository) -> None:
        for number in range(8):
            commit(hub, repository, "kernel.toml", toml(f"word{number}"))
            assert repository.full_name in names(hub, f"word{number}")

    problems: list[BaseException] = []

    def guarded(repository: Repository) -> None:
        try:
            write(repository)
        except BaseException as error:  # noqa: BLE001 -- raised again below
            problems.append(error)

    threads = [threading.Thread(target=guarded, args=(repository,)) for repository in repositories]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    assert len(names(hub, "word7")) == 4 and not names(hub, "word6")


def variant(backend: str, *layers: str) -> str:
    document = {"backend": {"type": backend}, "license": "MIT", "kernels-hub": {"layers": layers}}
    return json.dumps(document)


def filtered(hub: Hub, sort: str = "newest", **facets: str) -> list[str]:
    page = hub.search.shown(Caller(), Wanted((), facets, sort), 0, 100)
    assert page.following is None
    return [row.repository.name for row in page.rows]


def fill(hub: Hub) -> dict[str, Repository]:
    made = {}
    for name, variants in {
        "norm": {"torch-cpu": ("cpu", "Norm"), "torch213-cu130-x86_64-linux": ("cuda", "Norm")},
        "attention": {"torch-universal": ("universal", "Attention", "norm")},
        "plain": {},
    }.items():
        made[name] = make(hub, f"acme/{name}")
        commit(hub, made[name], "README.md", "---\nlicense: mit\n---\n")
        for folder, (backend, *layers) in variants.items():
            commit(hub, made[name], f"build/{folder}/metadata.json", variant(backend, *layers))
    make(hub, "ada/empty")
    commit(
        hub, make(hub, "acme/hidden", private=True), "build/torch-cpu/metadata.json", variant("cpu", "Norm")
    )
    return made


@pytest.mark.each_database
def test_facets_filter_without_regard_to_case(hub: Hub):
    fill(hub)
    assert filtered(hub) == ["empty", "plain", "attention", "norm"]
    assert filtered(hub, device="cpu") == ["attention", "norm"] == filtered(hub, layer="NORM")
    assert filtered(hub, device="cuda", layer="Norm") == ["attention", "norm"]
    assert filtered(hub, platform="linux x86_64") == ["norm"] and filtered(hub, platform="any") == [
        "attention",
        "norm",
    ]
    assert filtered(hub, licence="MIT") == ["plain", "attention", "norm"]
    assert filtered(hub, publisher="ADA") == ["empty"]
    assert filtered(hub, layer="none") == [] == filtered(hub, device="' OR 1=1 --")


def test_facets_are_counted_among_what_is_found_and_seen(hub: Hub):
    fill(hub)

    def counts(wanted: Wanted, caller: Caller = Caller()) -> dict[str, dict[str, int]]:
        return {
            kind: {item.value.lower(): item.count for item in values}
            for kind, values in hub.search.overview(caller, wanted).facets.items()
        }

    every = counts(Wanted())
    assert every["device"] | {"cpu": 2, "cuda": 2, "rocm": 1} == every["device"]
    assert every["layer"] == {"norm": 2, "attention": 1}
    assert every["licence"] == {"mit": 3} and every["publisher"] == {"acme": 3, "ada": 1}
    few = counts(Wanted(("attention",), {"device": "cpu"}))
    assert (
        "device" not in few
        and few["layer"] == {"norm": 1, "attention": 1}
        and few["publisher"] == {"acme": 1}
    )
    ada = Caller(hub.accounts.authenticate(hub.accounts.new_token("ada", "read")[0]))
    assert counts(Wanted(), ada)["device"]["cpu"] == 3 and counts(Wanted(), ada)["publisher"]["acme"] == 4


@pytest.mark.each_database
def test_facets_and_publishers_follow_a_change_and_a_rename(hub: Hub):
    made = fill(hub)
    commit(hub, made["norm"], "build/torch-cpu/metadata.json", variant("cpu", "LayerNorm"))
    operations = (DeleteFile("build/torch213-cu130-x86_64-linux/metadata.json"),)
    hub.changes.commit(made["norm"], "main", CommitRequest("m", None, operations), "ada")
    assert filtered(hub, layer="LayerNorm") == ["norm"] and filtered(hub, layer="norm") == ["attention"]
    assert filtered(hub, device="cuda") == ["attention"]
    assert not hub.database.rows(STALE_COPIES)
    hub.database.change(
        "UPDATE ranks SET updated = '2026-03', downloads = 9 WHERE repository = ?", made["norm"].id
    )
    hub.repositories.rename(made["norm"], "ada", "renamed")
    assert filtered(hub, publisher="ada") == ["empty", "renamed"]
    assert hub.database.rows(
        "SELECT 1 FROM facets WHERE name = 'ada/renamed' AND updated = '2026-03' AND downloads = 9"
    )
    assert not hub.database.rows(STALE_COPIES)
    hub.store.delete(made["attention"])
    assert filtered(hub, device="rocm") == [] and not hub.database.rows(
        "SELECT 1 FROM facets WHERE value = 'rocm'"
    )


@pytest.mark.each_database
def test_orders(hub: Hub):
    made = fill(hub)
    assert len(filtered(hub)) == 4
    for name, updated, downloads in (
        ("norm", "2026-02", 5),
        ("attention", "2026-03", 0),
        ("plain", "2026-01", 7),
    ):
        hub.database.change(
            "UPDATE ranks SET updated = ?, downloads = ? WHERE repository = ?",
            updated,
            downloads,
            made[name].id,
        )
    assert filtered(hub, "updated") == ["empty", "attention", "norm", "plain"]
    assert filtered(hub, "downloads") == ["plain", "norm", "empty", "attention"]
    assert filtered(hub, "name") == ["attention", "norm", "plain", "empty"], "acme's before ada's"
    assert filtered(hub, "downloads", licence="mit") == ["plain", "norm", "attention"]
    page = hub.search.shown(Caller(), Wanted((), {}, "downloads"), 1, 2)
    assert [row.repository.name for row in page.rows] == ["norm", "empty"] and page.following
    assert [row.downloads for row in page.rows] == [5, 0]


@pytest.mark.sqlite
def test_a_root_that_is_older_than_facets(hub: Hub, tmp_path: Path):
    fill(hub)
    assert filtered(hub, device="rocm") == ["attention"]
    with closing(sqlite3.connect(tmp_path / "root" / "hub.sqlite")) as rows, rows:
        rows.executescript(
            "DROP TRIGGER ranks_insert; DROP TABLE ranks; DROP TABLE facets; DROP TABLE downloads; "
            "DELETE FROM upgrades WHERE name = 'facets'"
        )
    with Hub(tmp_path / "root") as again:
        assert filtered(again, device="rocm") == ["attention"] and filtered(again, "downloads")[0] == "empty"
    with Hub(tmp_path / "root") as again:
        assert not again.database.rows("SELECT 1 FROM search WHERE stale = 1"), (
            "described again once, not at each start"
        )


@pytest.mark.each_database
def test_of_many_repositories_the_newest_are_counted(hub: Hub):
    fill(hub)
    with mock.patch.object(search_module, "MOST_COUNTED", 2):
        found = hub.search.overview(Caller(), Wanted())
        counted = found.facets
    assert (
        found.total == 2 and sum(item.count for item in counted["publisher"]) == 2 and counted["layer"] == []
    )


STEPS = st.lists(
    st.tuples(st.sampled_from(["make", "commit", "rename", "delete", "hide", "show", "tag"]), st.integers(0, 3), st.integers(0, 3)),
    max_size=25,
)  # fmt: skip


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_the_index_agrees_with_the_repositories(hub: Hub, steps: list[tuple[str, int, int]]):
    for repository in hub.repositories.all():
        hub.store.delete(repository)
    for step, which, number in steps:
        repository = hub.repositories.find("kernel", "acme", f"r{which}")
        try:
            if repository is None:
                make(hub, f"acme/r{which}", private=number == 0)
            elif step == "commit":
                commit(hub, repository, "kernel.toml", toml(f"word{number}"))
            elif step == "rename":
                hub.repositories.rename(repository, "acme", f"r{number}")
            elif step == "delete":
                hub.store.delete(repository)
            elif step in ("hide", "show"):
                hub.repositories.set_private(repository, step == "hide")
            elif step == "tag":
                hub.changes.create_tag(repository, f"v{number}.0.0", "main", None, "ada")
        except Refusal:
            pass
    for word in ("", "r1", "word2"):
        expected = {
            repository.full_name
            for repository in hub.repositories.all()
            if not repository.private
            and (word in repository.full_name.lower() or word in describe(hub.store, repository)[1])
        }
        assert set(names(hub, *([word] if word else []))) == expected
    assert [row.repository.id for row in hub.search.shown(Caller(), Wanted(), 0, 100).rows] == [
        repository.id for repository in hub.repositories.all() if not repository.private
    ]
    assert not hub.database.rows(STALE_COPIES)
