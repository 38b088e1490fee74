"""A crash at every single step of every change: the old state or the new one, nothing in between.

Steps are the calls that reach the disk. A change is run again and again, dying at its first step, its
second, and so on; once dead, a process reaches nothing any more, its own cleaning up included. Then
the root is opened as after a restart, and must be whole.
"""

from __future__ import annotations

import hashlib
import os
import re
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernels_hub.errors import KernelsHubError
from kernels_hub.server.commit import AddFile, AddLarge, CommitRequest
from kernels_hub.server.database import Database
from kernels_hub.server.hub import Hub
from kernels_hub.server.maintenance import check, collect_garbage
from kernels_hub.server.packs import BLOB, git_object
from kernels_hub.server.releases import Force
from kernels_hub.server.repositories import Repository
from kernels_hub.server.sweep import sweep
from tests.git_folder import bare
from tests.object_store import objects_for

LARGE = b"large" * 1000
OID = hashlib.sha256(LARGE).hexdigest()


class Died(BaseException):
    """The process is gone."""


class Disk:
    """Counts steps, and lets the process die before one of them."""

    CALLS = ("fsync", "rename", "replace", "link", "unlink", "rmdir", "mkdir")

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps = 0
        self.last = 10**9
        for name in self.CALLS:
            monkeypatch.setattr(os, name, self._counted(getattr(os, name)))
        for kind in Database.__subclasses__():  # those that were imported
            monkeypatch.setattr(kind, "change", self._counted(kind.change))

    def _counted(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **options: Any) -> Any:
            if self.steps >= self.last:
                raise Died
            self.steps += 1
            return real(*arguments, **options)

        return step


def commit(hub: Hub, repo: Repository, *operations: AddFile | AddLarge) -> None:
    hub.changes.commit(repo, "main", CommitRequest("m", None, operations), "ada")


def small(path: str, content: bytes) -> AddFile:
    return AddFile(path, git_object(BLOB, content))


def upload(hub: Hub, repo: Repository, content: bytes = LARGE) -> None:
    path = hub.layout.temporary()
    path.write_bytes(content)
    hub.large_files.adopt(repo, path, hashlib.sha256(content).hexdigest(), len(content))


CHANGES: dict[str, Callable[[Hub, Repository], object]] = {
    "commit": lambda hub, repo: commit(hub, repo, small("new", b"1"), small("a/b/c", b"2")),
    "upload": upload,
    "commit of a large file": lambda hub, repo: (
        upload(hub, repo),
        commit(hub, repo, AddLarge("large", OID, len(LARGE))),
    ),
    "tag": lambda hub, repo: hub.changes.create_tag(repo, "v1.0.0", "main", "message", "ada"),
    "tag without a message": lambda hub, repo: hub.changes.create_tag(repo, "v1.0.0", "main", None, "ada"),
    "moved release": lambda hub, repo: hub.changes.force_tag(repo, "v0.1.0", "main", "root", Force("x")),
    "deleted release": lambda hub, repo: hub.changes.delete_tag(repo, "v0.1.0", "root", force=Force("x")),
    "yank": lambda hub, repo: commit(hub, repo, small("yanked.json", b'{"0.1.0": "wrong"}')),
    "rename": lambda hub, repo: hub.changes.rename(repo, "ada", "other", "ada"),
    "branch": lambda hub, repo: hub.changes.create_branch(repo, "v1", None),
    "deleted branch": lambda hub, repo: hub.changes.delete_branch(repo, "side"),
    "create": lambda hub, repo: hub.changes.create("model", "ada", "other", private=True, author="ada"),
    "delete": lambda hub, repo: hub.store.delete(repo),
    "gc": lambda hub, repo: collect_garbage(hub, prune=True, grace=0),
}


def prepare(root: Path) -> None:
    with Hub(root, create=True) as hub:
        hub.accounts.add_user("ada")
        repo = hub.changes.create("kernel", "ada", "k", private=False, author="ada")
        commit(hub, repo, small("old", b"0"))
        hub.changes.create_branch(repo, "side", None)
        hub.changes.create_tag(repo, "v0.1.0", "side", "first", "ada")
        upload(hub, repo, b"kept" * 1000)
        commit(hub, repo, AddLarge("kept", hashlib.sha256(b"kept" * 1000).hexdigest(), 4000))
        upload(hub, repo, b"for gc" * 1000)


def state(hub: Hub) -> object:
    """Everything that a client can see."""
    found: list[object] = []
    for repo in sorted(hub.repositories.all(), key=lambda repo: repo.full_name):
        refs = hub.store.content(repo).refs.all()
        trees = {name: sorted(hub.store.listing(repo, ref.commit).entries) for name, ref in refs.items()}
        large = [hub.large_files.size(repo, oid) for oid in (OID, hashlib.sha256(b"kept" * 1000).hexdigest())]
        found.append((repo.type, repo.full_name, trees, large))
    log = hub.releases.log
    found.append([[(e.kind, e.tag, e.commit) for e in log.entries(chain)] for chain in log.chains()])
    return [re.sub(r"\b[0-9a-f]{40}\b", "commit", repr(found)), len(hub.audit.records())]


@pytest.mark.parametrize("name", CHANGES)
def test_a_crash_at_every_step(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    crash_at_every_step(name, tmp_path, monkeypatch)


@pytest.mark.parametrize("rows_in", ["postgresql"], indirect=True)
@pytest.mark.parametrize("name", ["tag"])
def test_a_crash_at_every_step_with_rows_in_postgresql(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    crash_at_every_step(name, tmp_path, monkeypatch)


def crash_at_every_step(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states, finished, at = [], False, 0
    while not finished:
        root = tmp_path / str(at)
        prepare(root)
        with Hub(root) as hub, monkeypatch.context() as patch:
            repo = hub.repositories.find("kernel", "ada", "k")
            assert repo is not None
            before = state(hub)
            hub.layout.temporary()
            disk = Disk(patch)
            disk.last = at
            try:
                CHANGES[name](hub, repo)
                finished = True
            except Died:
                pass
            disk.last = 10**9
            # As with the process: its locks and connections are gone, its files stay.
            if hub.layout._own_lock is not None:
                os.close(hub.layout._own_lock)
            hub.layout._own_lock = hub.layout._own_folder = None
        with Hub(root) as hub:
            sweep(hub)
            assert check(hub) == [], f"step {at}"
            states.append(state(hub))
            corners = {path for path in root.glob("incoming/*") if path != hub.layout._own_folder}
            assert not corners, f"step {at}"
            rows = {repo.id for repo in hub.repositories.all()}
            if not hub.git.has_several_roots:
                assert {path.name for path in hub.layout.repositories.iterdir()} == rows, f"step {at}"
            for git in [bare(hub, repo) for repo in hub.repositories.all()]:
                done = subprocess.run(
                    ["git", "-C", git, "fsck", "--strict", "--full", "--no-dangling"], capture_output=True
                )
                assert (done.returncode, done.stdout, done.stderr) == (0, b"", b""), f"step {at}"
            collect_garbage(hub)
            assert check(hub) == []
        at += 1
    elsewhere = name == "upload" and objects_for(tmp_path / "0") is not None
    assert at > (2 if elsewhere else 3), "the change has steps, some of them in the store if there is one"
    after = states[-1]
    assert states[0] == before, "a change that died before its first step did nothing"
    if name == "commit of a large file":  # Two requests: the upload is a state of its own.
        return
    # Old, old, … old, new, … new: one step makes it visible.
    turn = next((number for number, seen in enumerate(states) if seen == after), len(states))
    assert states == [before] * turn + [after] * (len(states) - turn)


@pytest.mark.sqlite
def test_a_row_is_on_disk_when_a_change_returns(tmp_path: Path):
    prepare(tmp_path / "root")
    with Hub(tmp_path / "root") as hub:
        assert hub.database.rows("PRAGMA synchronous")[0][0] == 2
        assert hub.database.rows("PRAGMA journal_mode")[0][0] == "wal"
        other = sqlite3.connect(tmp_path / "root" / "hub.sqlite")
        assert other.execute("SELECT COUNT(*) FROM repositories").fetchone() == (1,)
        other.close()


@pytest.mark.sqlite
def test_a_file_that_is_no_database_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    prepare(tmp_path / "root")
    (tmp_path / "root" / "hub.sqlite").write_bytes(b"no database" * 1000)
    connections: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def noted(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        connections.append(connect(*args, **kwargs))
        return connections[-1]

    monkeypatch.setattr(sqlite3, "connect", noted)
    with pytest.raises(KernelsHubError, match="cannot be used"):
        Hub(tmp_path / "root")
    assert connections
    for connection in connections:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.execute("SELECT 1")


@pytest.mark.git_folder
@pytest.mark.parametrize("name", CHANGES)
def test_what_becomes_visible_was_flushed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Against a loss of power: content before its name, and the name's folder before the answer."""
    root = tmp_path / "root"
    prepare(root)
    flushed: list[int] = []
    visible: list[tuple[Path, int]] = []
    problems: list[str] = []
    fsync, mkdir = os.fsync, os.mkdir

    def seen_fsync(descriptor: int) -> None:
        fsync(descriptor)
        flushed.append(os.fstat(descriptor).st_ino)

    def seen(move: Callable[..., None]) -> Callable[..., None]:
        def seen_move(source: Path, target: Path, **options: Any) -> None:
            hidden = "incoming" in Path(target).parts
            for path in () if hidden else (Path(source), *Path(source).rglob("*")):
                empty = path.is_dir() and not any(path.iterdir())
                if path.stat().st_ino not in flushed and not empty:
                    problems.append(f"{path} became {target} before it was flushed")
            move(source, target, **options)
            if not hidden:
                visible.append((Path(target), len(flushed)))

        return seen_move

    def seen_mkdir(path: Path, *mode: int, **options: Any) -> None:
        mkdir(path, *mode, **options)
        if "incoming" not in Path(path).parts:
            visible.append((Path(path), len(flushed)))

    with Hub(root) as hub:
        repo = hub.repositories.find("kernel", "ada", "k")
        assert repo is not None
        for function, replacement in (("fsync", seen_fsync), ("mkdir", seen_mkdir)):
            monkeypatch.setattr(os, function, replacement)
        for function in ("rename", "replace", "link"):
            monkeypatch.setattr(os, function, seen(getattr(os, function)))
        CHANGES[name](hub, repo)
    problems += [
        f"the folder of {path} was not flushed"
        for path, moment in visible
        if path.parent.stat().st_ino not in flushed[moment:]
    ]
    assert problems == []
    elsewhere = name == "upload" and hub.objects is not None
    assert visible or elsewhere or name in ("delete", "rename"), "only rows change"
