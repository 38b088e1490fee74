"""gc, fsck, backup, the sweep and deletion with large files in an S3 store; workers killed in the middle of uploads."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from benchmarks.server_storm import storm
from kernels_hub.cli import main
from kernels_hub.errors import KernelsHubError
from kernels_hub.server.commit import AddLarge, CommitRequest
from kernels_hub.server.hub import Hub
from kernels_hub.server.maintenance import backup, check, collect_garbage, strays
from kernels_hub.server.objects.store import new_upload
from kernels_hub.server.repositories import Repository
from kernels_hub.server.sweep import sweep
from tests import object_store
from tests.object_store import BUCKET, OPTION, put, store, stored
from tests.running_hub import start_hub
from tests.server.lfs_client import PART, Lfs, oid_of

KEPT = b"kept" * 1000


def upload(hub: Hub, repo: Repository, content: bytes) -> str:
    path = hub.layout.temporary()
    path.write_bytes(content)
    hub.large_files.adopt(repo, path, oid_of(content), len(content))
    return oid_of(content)


def commit(hub: Hub, repo: Repository, path: str, oid: str, size: int) -> None:
    hub.changes.commit(repo, "main", CommitRequest("m", None, (AddLarge(path, oid, size),)), "ada")


@pytest.fixture
def address(tmp_path: Path) -> str:
    return store().address(hashlib.sha256(str(tmp_path).encode()).hexdigest()[:16])


@pytest.fixture
def prefix(address: str) -> str:
    return address.partition(f"{BUCKET}/")[2].partition("?")[0]


@pytest.fixture
def hub(tmp_path: Path, address: str) -> Iterator[Hub]:
    with Hub(tmp_path / "root", create=True, objects=address) as hub:
        hub.accounts.add_user("ada")
        yield hub


@pytest.fixture
def repo(hub: Hub) -> Repository:
    repo = hub.changes.create("kernel", "ada", "k", private=False, author="ada")
    commit(hub, repo, "kept", upload(hub, repo, KEPT), len(KEPT))
    return repo


def test_gc_removes_what_no_row_needs_and_nothing_else(hub: Hub, repo: Repository, prefix: str):
    dropped, fresh = upload(hub, repo, b"dropped"), upload(hub, repo, b"fresh")
    hub.database.change("UPDATE objects SET touched = 0 WHERE oid != ?", fresh)
    put(hub, repo, "ab" * 32, b"a copy that a crash left without its row")
    assert len(strays(hub)) == 1 and check(hub) == []
    done = collect_garbage(hub)
    assert done.large_files_removed == 2 and strays(hub) == []
    place = f"{prefix}/large/{repo.id}/"
    assert set(store().keys(place)) == {place + oid_of(KEPT), place + fresh}
    assert stored(hub, repo, dropped) is None and check(hub) == []


def test_an_object_that_gc_removed_before_its_row_is_copied_again(hub: Hub, repo: Repository):
    """Between the copy to the final key and the row, gc sees an object that nobody has."""
    content = b"in the middle"
    path = hub.layout.temporary()
    path.write_bytes(content)
    with hub.large_files.objects.stage(repo.id, oid_of(content), path, len(content)) as staged:
        assert stored(hub, repo, oid_of(content)) == content
        assert collect_garbage(hub).large_files_removed == 1
        assert stored(hub, repo, oid_of(content)) is None
        hub.large_files.enter(repo, staged, oid_of(content), len(content))
    assert stored(hub, repo, oid_of(content)) == content and check(hub) == []


DAMAGE: dict[str, tuple[Callable[[Hub, Repository], object], str]] = {
    "other content": (lambda hub, repo: object_store.flip(hub, repo, oid_of(KEPT)), "has other content"),
    "gone": (
        lambda hub, repo: hub.large_files.objects.remove(repo.id, oid_of(KEPT)),
        "is missing or truncated",
    ),
    "truncated": (lambda hub, repo: put(hub, repo, oid_of(KEPT), KEPT[:-1]), "is missing or truncated"),
    "no row": (lambda hub, repo: hub.database.change("DELETE FROM objects"), "no row of 4000 bytes"),
    "a row that no commit needs, without object": (
        lambda hub, repo: hub.large_files.objects.remove(repo.id, upload(hub, repo, b"alone")),
        "which no ref names, has a row and is missing",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_fsck_finds(hub: Hub, repo: Repository, damage: str):
    assert check(hub) == []
    change, words = DAMAGE[damage]
    change(hub, repo)
    (problem,) = check(hub)
    assert problem.startswith("kernel ada/k: large file") and problem.endswith(words)


def test_a_deleted_repository_takes_its_objects_along(hub: Hub, repo: Repository, prefix: str):
    other = hub.changes.create("kernel", "ada", "other", private=False, author="ada")
    upload(hub, other, KEPT)
    hub.store.delete(repo)
    assert store().keys(f"{prefix}/large/") == [f"{prefix}/large/{other.id}/{oid_of(KEPT)}"]
    # What a store that did not answer then has kept: no problem, and `gc --prune` removes it.
    put(hub, repo, oid_of(KEPT), KEPT)
    assert strays(hub) == [f"objects of a repository that has no row: {repo.id}"] and check(hub) == []
    collect_garbage(hub)
    assert len(store().keys(f"{prefix}/large/")) == 2, "hub.sqlite may be an old copy: not without --prune"
    assert any("without a row" in line for line in collect_garbage(hub, prune=True).swept)
    assert store().keys(f"{prefix}/large/") == [f"{prefix}/large/{other.id}/{oid_of(KEPT)}"]


def test_uploads_that_nobody_finished_are_swept(
    hub: Hub, repo: Repository, prefix: str, monkeypatch: pytest.MonkeyPatch
):
    transfers, objects = hub.large_files.transfers, hub.large_files.objects
    assert transfers is not None
    transfers.begin(repo.id, [(new_upload(), (5,)), (new_upload(), (PART, 5))], 60)
    store().client().put_object(Bucket=BUCKET, Key=f"{prefix}/incoming/{repo.id}/{new_upload()}", Body=b"x")
    assert sweep(hub) == [] and len(store().uploads(prefix)) == 2, "they may go on"
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 25 * 3600)
    assert len(sweep(hub)) == 3
    assert store().uploads(prefix) == store().keys(f"{prefix}/incoming/") == []
    assert objects.size(repo.id, oid_of(KEPT)) == len(KEPT)


@pytest.mark.git_folder
def test_a_backup_holds_large_files_or_says_that_it_does_not(
    hub: Hub, repo: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv(OPTION, raising=False)  # which says for a root where its files are
    unnamed = upload(hub, repo, b"no commit yet")
    assert backup(hub, tmp_path / "whole") == 2
    assert backup(hub, tmp_path / "rows", large_files=False) == 0
    with Hub(tmp_path / "whole") as copy:
        assert copy.layout.objects() is None and check(copy) == []
        assert stored(copy, repo, oid_of(KEPT)) == KEPT and stored(copy, repo, unnamed) == b"no commit yet"
        with pytest.raises(KernelsHubError, match="in no object store"):
            backup(copy, tmp_path / "third", large_files=False)
    with pytest.raises(KernelsHubError, match="say which: --objects"):
        Hub(tmp_path / "rows")
    with Hub(tmp_path / "rows", objects=hub.objects) as copy:
        assert check(copy) == [] and stored(copy, repo, oid_of(KEPT)) == KEPT


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as done:
        main(["hub", *arguments])
    return int(done.value.code or 0)


@pytest.mark.git_folder
def test_commands_name_the_store(
    hub: Hub,
    repo: Repository,
    address: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.delenv(OPTION, raising=False)  # which says for a root where its files are
    root, given = ("--root", str(tmp_path / "root")), ("--objects", address)
    for command in (("fsck",), ("gc",), ("user", "list"), ("backup", str(tmp_path / "copy"))):
        assert run(*command, *root) == 1 and "say which: --objects 's3://" in capsys.readouterr().err
        assert run(*command, *root, *given) == 0
        capsys.readouterr()
    put(hub, repo, "ab" * 32, b"stray")
    assert run("fsck", *root, *given) == 0
    assert f"gc removes it: kernel ada/k: object {'ab' * 32} has no row" in capsys.readouterr().out
    assert run("fsck", "--json", *root, *given) == 0
    assert len(json.loads(capsys.readouterr().out)["strays"]) == 1
    assert run("backup", str(tmp_path / "rows"), "--no-large-files", *root, *given) == 0
    assert "without large files, which it needs where they are: s3://" in capsys.readouterr().out
    assert run("gc", *root, "--objects", "s3://Not_A_Bucket/x") == 1
    assert "cannot name a bucket" in capsys.readouterr().err


def test_what_is_missing_is_named(tmp_path: Path):
    """Without boto3, which the extra brings."""
    program = (
        "import sys; sys.modules['boto3'] = None\n"
        "from kernels_hub.cli import main\n"
        f"main(['hub', 'user', 'add', 'ada', '--root', {str(tmp_path / 'root')!r}, '--objects', 's3://bucket/x'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1 and "pip install 'kernels-hub[s3]' brings it" in " ".join(done.stderr.split())


@pytest.mark.exhaustive
@pytest.mark.parametrize("rounds", [1, 10])
def test_workers_that_are_killed_in_the_middle_of_uploads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rounds: int
):
    monkeypatch.setenv(object_store.OPTION, "s3")
    found = storm(tmp_path / "hub", rounds, workers=2, seed=7, least=5)
    assert found["problems"] == [] and found["commits acknowledged"] >= 5 * rounds


def test_an_upload_whose_end_was_cut_off_by_a_kill(tmp_path: Path, address: str):
    """The parts are joined, or copied, and the server is gone: the next one ends it, or it is swept."""
    content = os.urandom(70_000)
    limits = {"large_from_bytes": 1024}
    with start_hub(tmp_path / "root", objects=address, limits=limits) as running:
        lfs = Lfs(running, running.token("ada"), "ada/k").create()
        actions = lfs.actions(content)
        assert httpx.put(actions["upload"]["href"], content=content).status_code == 200
        running.kill()
    with start_hub(tmp_path / "root", objects=address, limits=limits) as again:
        lfs.hub = again
        verify = actions["verify"]["href"].replace(running.endpoint, again.endpoint)
        assert lfs.end({"verify": {"href": verify}}, content).status_code == 200
        assert lfs.commit("big", content).status_code == 200 and lfs.get("big").content == content
