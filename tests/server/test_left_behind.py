"""What moves of git data leave in the former place: used again by the next move, and removed by gc after a day."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernels_hub.errors import KernelsHubError
from kernels_hub.server.git.migration import _Migration, give_up, migrate
from kernels_hub.server.hub import Hub
from kernels_hub.server.maintenance import backup, check, collect_garbage, strays
from kernels_hub.server.repositories import Repository
from tests.hub_databases import needs_postgresql
from tests.object_store import BUCKET, store
from tests.server.release_cases import commit, kinds, new, release

pytestmark = needs_postgresql


@pytest.fixture
def root(tmp_path: Path, database: str, objects: str) -> Path:
    """A Hub of two repositories whose git data is in the store."""
    with Hub(tmp_path / "root", create=True, database=database, objects=objects) as hub:
        hub.accounts.add_user("ada")
        for name in ("k", "gone"):
            commit(hub, repo := new(hub, name), "a", name)
            release(hub, repo, "v1.0.0")
    return tmp_path / "root"


@pytest.fixture
def a_day_later(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Time as it is said to processes of Python; files keep theirs."""
    real = time.time
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: real() + 25 * 3600)
        yield


def damage(key: str) -> None:
    content = bytearray(store().client().get_object(Bucket=BUCKET, Key=key)["Body"].read())
    content[len(content) // 2] ^= 0x55
    store().client().put_object(Bucket=BUCKET, Key=key, Body=bytes(content))


def repositories(hub: Hub) -> dict[str, Repository]:
    return {repository.name: repository for repository in hub.repositories.all()}


def is_whole(hub: Hub) -> bool:
    known = repositories(hub)
    return check(hub) == [] and all(
        hub.store.blob(repo, hub.store.listing(repo, hub.store.resolve(repo, "main")).entries["a"].oid)
        == name.encode()
        for name, repo in known.items()
    )


def test_gc_removes_packs_from_before_a_move_to_the_folder(
    root: Path, objects: str, prefix: str, request: pytest.FixtureRequest
):
    with Hub(root, objects=objects) as hub:
        before = store().keys(f"{prefix}/git/")
    assert len(before) >= 4
    migrate(root, "folder")
    with Hub(root, objects=objects) as hub:
        hub.store.delete(repositories(hub)["gone"])
        assert len(strays(hub)) == 2 and all("before a move" in line for line in strays(hub))
        collect_garbage(hub)
        assert store().keys(f"{prefix}/git/") == before, "a database may be restored to yesterday"
        request.getfixturevalue("a_day_later")
        (removed,) = [line for line in collect_garbage(hub).swept if "before a move" in line]
        known = repositories(hub)["k"].id
        assert removed.endswith(known) and not store().keys(f"{prefix}/git/{known}/")
        (left,) = strays(hub)
        assert known not in left, "what is of a repository without a row goes with --prune alone"
        collect_garbage(hub, prune=True)
        assert strays(hub) == [] and not store().keys(f"{prefix}/git/") and is_whole(hub)
    migrate(root, "store")
    with Hub(root, objects=objects) as hub:
        assert is_whole(hub)


def test_gc_removes_folders_from_before_a_move_to_the_store(
    root: Path, objects: str, prefix: str, request: pytest.FixtureRequest
):
    migrate(root, "folder")
    migrate(root, "store")
    with Hub(root, objects=objects) as hub:
        known = repositories(hub)
        home = hub.layout.repository(known["k"].id)
        large = hub.layout.repository(known["gone"].id) / "lfs" / "ab"
        large.mkdir()  # from before large files were moved, which is for administrators to remove
        assert len([line for line in strays(hub) if "in its folder" in line]) == 2
        collect_garbage(hub)
        assert (home / "git" / "packed-refs").is_file()
        request.getfixturevalue("a_day_later")
        assert len([line for line in collect_garbage(hub).swept if "in its folder" in line]) == 2
        assert not home.exists() and large.is_dir() and not (large.parents[1] / "git").exists()
        assert [line for line in strays(hub) if "before a move" in line] == []
        collect_garbage(hub)
        assert is_whole(hub) and len(store().keys(f"{prefix}/git/")) == 2


def test_nothing_is_removed_while_a_move_is_under_way(
    root: Path, objects: str, prefix: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
):
    migrate(root, "folder")

    def dies(*_: object) -> None:
        raise KernelsHubError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(_Migration, "_end", dies)
        with pytest.raises(KernelsHubError, match="killed"):
            migrate(root, "store")
    before = store().keys(f"{prefix}/git/")
    request.getfixturevalue("a_day_later")
    with Hub(root, objects=objects) as hub:
        assert strays(hub) == []
        assert [line for line in collect_garbage(hub, prune=True).swept if "before a move" in line] == []
        assert store().keys(f"{prefix}/git/") == before and is_whole(hub)
    give_up(root)
    with Hub(root, objects=objects) as hub:
        assert len(strays(hub)) == 2
        assert len([line for line in collect_garbage(hub).swept if "before a move" in line]) == 2
        assert not store().keys(f"{prefix}/git/") and is_whole(hub)


@pytest.mark.usefixtures("a_day_later")
def test_a_copy_of_a_root_leaves_the_store_of_the_hub_alone(
    root: Path, objects: str, prefix: str, tmp_path: Path
):
    with Hub(root, objects=objects) as hub:
        backup(hub, tmp_path / "copy", large_files=False)
        before = store().keys(f"{prefix}/git/")
    with Hub(tmp_path / "copy", objects=objects) as copy:
        assert strays(copy) == []
        collect_garbage(copy, prune=True)
        assert store().keys(f"{prefix}/git/") == before and is_whole(copy)


def test_the_next_move_sends_only_what_the_store_has_not(root: Path, objects: str, prefix: str):
    migrate(root, "folder")
    with Hub(root, objects=objects) as hub:
        log = kinds(hub)
    before = store().keys(f"{prefix}/git/")
    done = migrate(root, "store")
    assert (done.repositories, done.packs, done.bytes) == (2, 0, 0)
    assert store().keys(f"{prefix}/git/") == before
    migrate(root, "folder")
    damage(before[0])
    with Hub(root, objects=objects) as hub:
        shutil.rmtree(hub.layout.cache)
        commit(hub, repositories(hub)["k"], "b", "1")
    assert migrate(root, "store").packs == 2, "a new one, and one that is damaged in the store"
    with Hub(root, objects=objects) as hub:
        shutil.rmtree(hub.layout.cache, ignore_errors=True)
        assert is_whole(hub) and kinds(hub) == log
