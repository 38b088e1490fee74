"""The index of repositories: it says what the repositories say, whatever happened to them."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels_hub.server.access import Caller
from kernels_hub.server.commit import AddFile, CommitRequest, DeleteFile
from kernels_hub.server.durable import locked
from kernels_hub.server.hub import Hub
from kernels_hub.server.packs import BLOB, git_object
from kernels_hub.server.refusal import Refusal
from kernels_hub.server.release_check import restore_refs
from kernels_hub.server.repositories import Repository
from kernels_hub.server.search import describe


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
    return [row.repository.full_name for row in hub.search.public(words, 0, 100).rows]


def seen(hub: Hub, token: str | None = None, text: str = "", author: str = "") -> set[str]:
    caller = Caller(hub.accounts.authenticate(token)) if token else Caller()
    return {
        row.repository.full_name for row in hub.search.visible(caller, "kernel", author, text, 0, 1000).rows
    }


def test_a_search_finds_what_was_written_before_it(hub: Hub):
    repository = make(hub, "acme/kernels")
    commit(hub, repository, "kernel.toml", toml("Fast GELU, 北京", "SiluAndMul"))
    for words in (["gelu"], ["silu", "acme"], ["siluandmul"], ["北京"], ["a"], []):
        assert names(hub, *words) == ["acme/kernels"]
    assert names(hub, "relu") == [] and names(hub, "%") == [] and names(hub, "_") == []
    commit(hub, repository, "kernel.toml", toml("Fast ReLU", "Mul"))
    assert names(hub, "gelu") == [] and names(hub, "relu") == ["acme/kernels"]
    (row,) = hub.search.public([], 0, 10).rows
    assert row.described and (row.described.summary, row.described.licence) == ("Fast ReLU", "mit")
    hub.changes.create_tag(repository, "v1.0.0", "main", None, "ada")
    assert hub.search.public([], 0, 10).rows[0].described.version == "v1.0.0"
    operations = (DeleteFile("kernel.toml"),)
    hub.changes.commit(repository, "main", CommitRequest("m", None, operations), "ada")
    hub.changes.create_tag(repository, "v2.0.0", "main", None, "ada")
    assert names(hub, "relu") == []


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


def test_a_root_that_is_older_than_the_index(hub: Hub, tmp_path: Path):
    repository = make(hub, "acme/kernels")
    commit(hub, repository, "kernel.toml", toml("Fast GELU"))
    make(hub, "acme/closed", private=True)
    with closing(sqlite3.connect(tmp_path / "root" / "hub.sqlite")) as rows, rows:
        rows.executescript("DROP TRIGGER search_insert; DROP TRIGGER search_update; DROP TABLE search;")
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
        assert hub.search.public([], 0, 10).rows[0].described is None, "is not called current"
    assert hub.search.public([], 0, 10).rows[0].described is not None


def test_refs_that_an_administrator_restores_show_at_once(hub: Hub):
    repository = make(hub, "acme/kernels")
    commit(hub, repository, "kernel.toml", toml("Fast GELU"))
    before = hub.store.resolve(repository, "main")
    commit(hub, repository, "kernel.toml", toml("Fast ReLU"))
    assert names(hub, "relu") == ["acme/kernels"]
    restore_refs(hub, repository, {"main": before})
    assert names(hub, "gelu") == ["acme/kernels"] and names(hub, "relu") == []


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
    assert [row.repository.id for row in hub.search.public([], 0, 100).rows] == [
        repository.id for repository in hub.repositories.all() if not repository.private
    ]
