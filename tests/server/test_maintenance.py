"""gc, fsck, backup and the sweep at start: what goes, what stays, what is found."""

from __future__ import annotations

import gc
import hashlib
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from huggingface_hub import CommitOperationAdd, HfApi

from benchmarks.server_storm import Acknowledged, Writer, verify
from kernels_hub.errors import KernelsHubError
from kernels_hub.server.commit import AddFile, AddLarge, CommitRequest, Operation
from kernels_hub.server.durable import locked
from kernels_hub.server.hub import Hub
from kernels_hub.server.maintenance import backup, check, collect_garbage, strays
from kernels_hub.server.packs import BLOB, git_object
from kernels_hub.server.refs import BRANCHES
from kernels_hub.server.repositories import Repository
from kernels_hub.server.sweep import sweep
from tests.git_folder import bare, change_refs
from tests.object_store import flip, put, stored
from tests.running_hub import start_hub


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with Hub(tmp_path / "root", create=True) as hub:
        hub.accounts.add_user("ada")
        yield hub


@pytest.fixture
def repo(hub: Hub) -> Repository:
    return hub.changes.create("kernel", "ada", "k", private=False, author="ada")


def commit(hub: Hub, repo: Repository, path: str, content: bytes, branch: str = "main") -> str:
    return send(hub, repo, AddFile(path, git_object(BLOB, content)), branch)


def send(hub: Hub, repo: Repository, operation: Operation, branch: str = "main") -> str:
    return hub.changes.commit(repo, branch, CommitRequest("m", None, (operation,)), "ada").oid


def upload(hub: Hub, repo: Repository, content: bytes) -> str:
    path = hub.layout.temporary()
    path.write_bytes(content)
    oid = hashlib.sha256(content).hexdigest()
    hub.large_files.adopt(repo, path, oid, len(content))
    return oid


def git(hub: Hub, repo: Repository, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", bare(hub, repo), *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_git_agrees(hub: Hub, repo: Repository):
    for number in range(5):
        commit(hub, repo, f"d{number}/f", b"%d" % number)
        commit(hub, repo, f"d{number}.x", b"sorted between d and d/")
    hub.changes.create_tag(repo, "v1.0.0", "main", "First", "ada")
    assert git(hub, repo, "fsck", "--strict", "--full") == ""
    assert git(hub, repo, "rev-parse", "v1.0.0^{commit}", "main").split() == [
        hub.store.resolve(repo, "v1.0.0"),
        hub.store.resolve(repo, "main"),
    ]
    listed = git(hub, repo, "ls-tree", "-r", "-t", "--name-only", "main").splitlines()
    assert listed == list(hub.store.listing(repo, hub.store.resolve(repo, "main")).entries)
    assert "Author: ada <ada@users.noreply>" in git(hub, repo, "log", "-1", "main")


@pytest.mark.git_folder
def test_executable_files_stay_executable(hub: Hub, repo: Repository, tmp_path: Path):
    head = commit(hub, repo, "run.sh", b"1")
    tree = git(hub, repo, "ls-tree", head)
    home = hub.layout.repository(repo.id) / "git"
    changed = subprocess.run(
        ["git", "-C", home, "mktree"],
        input=tree.replace("100644 blob", "100755 blob"),
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    env = {
        **os.environ,
        **{f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    }
    new = subprocess.run(
        ["git", "-C", home, "commit-tree", "-m", "x", "-p", head, changed],
        capture_output=True, text=True, env=env, check=True,
    ).stdout.strip()  # fmt: skip
    from kernels_hub.server.refs import Ref

    change_refs(hub, repo, {BRANCHES + "main": Ref(new)})
    commit(hub, repo, "run.sh", b"2")
    commit(hub, repo, "other.sh", b"2")
    assert git(hub, repo, "ls-tree", "main", "run.sh").startswith("100755")
    assert git(hub, repo, "ls-tree", "main", "other.sh").startswith("100644")


def test_small_packs_are_joined_as_they_gather(hub: Hub, repo: Repository):
    for number in range(60):
        commit(hub, repo, f"f{number}", b"%d" % number)
    packs = hub.store.content(repo).packs
    assert len(packs.kept()) < 30
    assert git(hub, repo, "fsck", "--strict", "--full") == "" and check(hub) == []
    assert len(hub.store.history(repo, hub.store.resolve(repo, "main"), 1000)[0]) == 61


@pytest.mark.each_database
def test_gc_drops_what_nobody_names(hub: Hub, repo: Repository):
    kept, dropped, fresh = (upload(hub, repo, os.urandom(5000)) for _ in range(3))
    send(hub, repo, AddLarge("large", kept, 5000))
    hub.database.change("UPDATE objects SET touched = 0 WHERE oid IN (?, ?)", kept, dropped)
    stray = "ab" * 32
    put(hub, repo, stray, b"no row")
    assert [line.split()[-4] for line in strays(hub)] == [stray]
    hub.changes.create_branch(repo, "gone", None)
    pinned = commit(hub, repo, "a", b"on a branch", "gone")
    hub.changes.delete_branch(repo, "gone")
    done = collect_garbage(hub)
    assert (done.large_files_removed, done.packs_after) == (2, 1)
    assert [hub.large_files.size(repo, oid) for oid in (kept, dropped, fresh)] == [5000, None, 5000]
    assert stored(hub, repo, dropped) is None and stored(hub, repo, stray) is None and strays(hub) == []
    assert hub.store.resolve(repo, pinned) == pinned, "locks may pin what no branch reaches"
    assert check(hub) == [] and git(hub, repo, "fsck", "--strict", "--full", "--no-dangling") == ""
    collect_garbage(hub, prune=True, grace=0)
    assert pinned not in hub.store.content(repo).packs.oids()
    assert hub.large_files.size(repo, fresh) is None and hub.large_files.size(repo, kept) == 5000
    assert check(hub) == [] and git(hub, repo, "fsck", "--strict", "--full") == ""


def test_gc_keeps_large_files_of_commits_without_a_branch(hub: Hub, repo: Repository):
    oid = upload(hub, repo, b"x" * 5000)
    hub.changes.create_branch(repo, "b", None)
    send(hub, repo, AddLarge("large", oid, 5000), "b")
    hub.changes.delete_branch(repo, "b")
    collect_garbage(hub, grace=0)
    assert hub.large_files.size(repo, oid) == 5000
    collect_garbage(hub, grace=0, prune=True)
    assert hub.large_files.size(repo, oid) is None


def test_gc_beside_a_running_server(tmp_path: Path):
    with start_hub(tmp_path / "hub", workers=2) as running:
        api = HfApi(running.endpoint, token=running.token("ada"))
        api.create_repo("ada/k", repo_type="kernel")
        heads = []
        for number in range(12):
            add = [CommitOperationAdd(f"f{number}", b"%d" % number)]
            heads.append(api.create_commit("ada/k", add, commit_message="m", repo_type="kernel").oid)
            if number % 4 == 3:
                with running.administer() as hub:
                    assert collect_garbage(hub).packs_after == 1
        for number, head in enumerate(heads):
            url = f"{running.endpoint}/kernels/ada/k/resolve/{head}/f{number}"
            for _ in range(4):
                assert httpx.get(url).text == str(number)


def test_upkeep_while_three_writers_write(tmp_path: Path):
    done = Acknowledged()
    with start_hub(tmp_path / "hub", workers=2, limits={"large_from_bytes": 1024}) as running:
        headers = {"Authorization": f"Bearer {running.token('writer')}"}
        body = {"name": "shared", "type": "kernel"}
        httpx.post(f"{running.endpoint}/api/repos/create", json=body, headers=headers).raise_for_status()
        writers = [Writer(running, number, done, "w") for number in range(3)]
        for writer in writers:
            writer.start()
        with running.administer() as hub:
            end = time.monotonic() + 1
            while time.monotonic() < end:
                assert check(hub) == []
                collect_garbage(hub, prune=True)
            backup(hub, tmp_path / "copy")
        saved = len(done.commits)
        assert [writer.problems for writer in writers] == [[], [], []] and saved > 0
        running.kill()
        for writer in writers:
            writer.join()
    with start_hub(tmp_path / "hub") as again:
        assert verify(again, done) == []
    with Hub(tmp_path / "copy") as copy:
        assert check(copy) == []


def _packs(hub: Hub, repo: Repository) -> list[Path]:
    return sorted((hub.layout.repository(repo.id) / "git").rglob("*.pack"))


DAMAGE = {
    "a large file with other content": flip,
    "a large file that is gone": lambda hub, repo, oid: hub.large_files.objects.remove(repo.id, oid),
    "a row that is gone": lambda hub, repo, oid: hub.database.change("DELETE FROM objects"),
    "a pack that is gone": lambda hub, repo, oid: _packs(hub, repo)[0].unlink(),
    "a pack with other content": lambda hub, repo, oid: _flip(_packs(hub, repo)[0]),
    "a ref to nowhere": lambda hub, repo, oid: (
        hub.layout.repository(repo.id) / "git" / "packed-refs"
    ).write_text(f"{'0' * 40} refs/heads/main\n"),
    "a folder that is gone": lambda hub, repo, oid: shutil.rmtree(hub.layout.repository(repo.id)),
}


def _flip(path: Path) -> None:
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x55
    path.write_bytes(data)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
@pytest.mark.git_folder
@pytest.mark.parametrize("damage", DAMAGE)
def test_fsck_finds(hub: Hub, repo: Repository, damage: str):
    oid = upload(hub, repo, os.urandom(5000))
    send(hub, repo, AddLarge("large", oid, 5000))
    assert check(hub) == []
    DAMAGE[damage](hub, repo, oid)
    with Hub(hub.layout.root) as fresh:  # Without what this one has in memory.
        problems = check(fresh)
        assert problems and all(problem.startswith("kernel ada/k: ") for problem in problems)
        if "pack" in damage or "ref" in damage:
            with pytest.raises(KernelsHubError, match="is damaged .* nothing was removed"):
                collect_garbage(fresh)
    gc.collect()  # Maps of damaged packs, while their warnings are ignored.


@pytest.mark.each_database
def test_a_backup_is_a_hub(tmp_path: Path):
    copy = tmp_path / "copy"
    with start_hub(tmp_path / "hub", limits={"large_from_bytes": 1000}) as running:
        token = running.token("ada")
        api = HfApi(running.endpoint, token=token)
        api.create_repo("ada/k", repo_type="kernel")
        with pytest.warns(DeprecationWarning, match="content="):
            api.upload_file(
                path_or_fileobj=b"x" * 5000, path_in_repo="l", repo_id="ada/k", repo_type="kernel"
            )
        api.create_repo("ada/gone")
        with running.administer() as hub:
            backup(hub, copy)
            with pytest.raises(KernelsHubError, match="exists already"):
                backup(hub, copy)
        api.delete_repo("ada/gone")
    with start_hub(copy) as again:
        answer = httpx.get(f"{again.endpoint}/kernels/ada/k/resolve/main/l")
        assert answer.content == b"x" * 5000
        assert HfApi(again.endpoint, token=token).model_info("ada/gone").id == "ada/gone"
        with again.administer() as hub:
            assert check(hub) == []


@pytest.mark.git_folder
def test_what_a_crash_left_is_swept(hub: Hub, repo: Repository):
    layout = hub.layout
    mine = layout.temporary()
    mine.write_bytes(b"being written")
    dead = layout.incoming / "dead"
    dead.mkdir()
    (dead / "lock").touch()
    (dead / "half").write_bytes(b"x")
    old, new = layout.multipart / "old", layout.multipart / "new"
    for folder in (old, new):
        folder.mkdir()
        (folder / "data").write_bytes(b"x")
    for path in (old / "data", old):
        os.utime(path, (time.time() - 90_000,) * 2)
    shutil.copytree(layout.repository(repo.id), layout.repository("f" * 32))
    shutil.copytree(layout.repository(repo.id), layout.repository("e" * 32))
    packs = layout.repository(repo.id) / "git" / "objects" / "pack"
    (packs / "pack-x.pack").write_bytes(b"half")
    (packs / "pack-y.idx").write_bytes(b"half")
    with locked(layout.lock("e" * 32)):  # Somebody is making this one.
        assert len(sweep(hub)) == 5
    assert mine.exists() and not dead.exists()
    assert new.exists() and not old.exists()
    assert not layout.repository("f" * 32).exists() and layout.repository("e" * 32).exists()
    assert [path.suffix for path in sorted(packs.iterdir())] == [".idx", ".pack"]
    assert hub.store.resolve(repo, "main") and check(hub) == []


@pytest.mark.git_folder
@pytest.mark.each_database
def test_a_repository_without_a_row_is_never_deleted_at_start(hub: Hub, repo: Repository):
    """Whoever puts back an old hub.sqlite finds later repositories set aside, and can put them back."""
    lost = hub.layout.repository("d" * 32)
    shutil.copytree(hub.layout.repository(repo.id), lost)
    files = {path.relative_to(lost) for path in lost.rglob("*")}
    assert any("orphans/" in line and lost.name in line for line in sweep(hub))
    aside = hub.layout.orphans / lost.name
    assert not lost.exists() and {path.relative_to(aside) for path in aside.rglob("*")} == files
    assert collect_garbage(hub).swept == ()
    assert aside.is_dir()
    assert any(lost.name in line for line in collect_garbage(hub, prune=True).swept)
    assert not aside.exists() and check(hub) == []


@pytest.mark.sqlite
def test_a_root_that_lost_its_rows_is_not_served(hub: Hub, repo: Repository):
    root = hub.layout.root
    hub.close()
    database = root / "hub.sqlite"
    kept = database.read_bytes()
    for path in root.glob("hub.sqlite*"):
        path.unlink()
    with pytest.raises(KernelsHubError, match=r"repositories but no hub\.sqlite.*hub backup"):
        Hub(root, create=True)
    assert (root / "repositories" / repo.id).is_dir() and not database.exists()
    database.write_bytes(b"garbage" * 1000)
    with pytest.raises(KernelsHubError, match=r"hub\.sqlite cannot be used: .*hub backup"):
        Hub(root)
    for path in root.glob("hub.sqlite*"):
        path.unlink()
    database.write_bytes(kept)
    with Hub(root) as again:
        assert again.store.resolve(repo, "main") and sweep(again) == []
        secret = root / "secret"
        secret.write_bytes(b"")
        with pytest.raises(KernelsHubError, match="is damaged: it has 0 bytes"):
            again.layout.secret()


def test_a_root_is_a_root(tmp_path: Path):
    (tmp_path / "plain").touch()
    with pytest.raises(KernelsHubError, match="is a file, not a folder"):
        Hub(tmp_path / "plain", create=True)
    (tmp_path / "plain").unlink()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(KernelsHubError, match="neither empty nor"):
        Hub(tmp_path, create=True)
    with pytest.raises(KernelsHubError, match="is not the root of a Hub"):
        Hub(tmp_path / "none")
    Hub(tmp_path / "new", create=True).close()
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700, "others on the machine read nothing"
    (tmp_path / "new" / "FORMAT").write_text("kernels-hub root 99\n")
    with pytest.raises(KernelsHubError, match="another format"):
        Hub(tmp_path / "new")
    assert (tmp_path / "new" / "secret").stat().st_mode & 0o777 == 0o600


def test_threads_that_ended_leave_no_descriptors(tmp_path: Path):
    with Hub(tmp_path / "root", create=True) as hub:
        hub.database.row("SELECT 1")
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(60):
            thread = threading.Thread(target=hub.database.row, args=("SELECT 1",))
            thread.start()
            thread.join()
        assert len(os.listdir("/proc/self/fd")) <= before + 6
