"""What a process keeps open of repositories: opened once, closed to make room, never while it is worked on or moves."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from kernels_hub.server.commit import AddFile, CommitRequest
from kernels_hub.server.git import open_repositories
from kernels_hub.server.git.folder import FolderGit
from kernels_hub.server.git.open_repositories import OpenRepositories
from kernels_hub.server.hub import Hub
from kernels_hub.server.layout import RootPaths
from kernels_hub.server.packs import BLOB, git_object
from kernels_hub.server.refusal import Refusal


def test_the_idle_one_that_was_used_least_recently_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_repositories, "MOST_OPEN", 2)
    begun: list[str] = []
    ended: list[str] = []
    busy: set[str] = set()

    def begin(name: str) -> str:
        begun.append(name)
        return name

    known = OpenRepositories(begin, ended.append, lambda one: one not in busy)
    assert [known.get(name) for name in "abab"] == list("abab") and begun == ["a", "b"]
    known.get("c")
    assert ended == ["a"]
    busy.add("b")
    known.get("d")
    assert ended == ["a", "c"], "b is worked on"
    busy.add("d")
    known.get("e")
    assert ended == ["a", "c"], "and so is d: there is one more than is kept"
    known.close("b")
    known.close("unknown")
    assert ended == ["a", "c", "b"]
    known.keep("b", "b")
    known.close_all()
    assert sorted(ended[3:]) == ["b", "d", "e"] and begun == list("abcde")


@pytest.mark.git_folder
@pytest.mark.sqlite
def test_what_was_opened_before_a_move_is_read_in_the_new_place_after_it(tmp_path: Path) -> None:
    root, copy = tmp_path / "root", tmp_path / "copy"
    blob = git_object(BLOB, b"content of a file")
    with Hub(root, create=True) as hub:
        hub.accounts.add_user("ada")
        repository = hub.changes.create("kernel", "ada", "k", private=False, author="ada")
        shutil.copytree(root, copy)
        commit = hub.changes.commit(
            repository, "main", CommitRequest("m", None, (AddFile("f", blob),)), "ada"
        ).oid
        here = hub.git.open(repository.id)
        assert here.packs.read(blob.oid) == blob.content
        assert here.refs.all()["refs/heads/main"].commit == commit

        # A place that has less: what is read says which of the two it was read in.
        layout = RootPaths.open(copy)
        read: list[tuple[int | None, str]] = []

        def reads() -> None:
            read.append((here.packs.kind(blob.oid), here.refs.all()["refs/heads/main"].commit))

        with hub.database.staying(), hub.database.exchanged(0.01) as exchange:
            assert exchange is None, "nothing moves under a reader"
        rows = hub.database.inner
        with hub.database.exchanged(1) as exchange:
            assert exchange is not None
            reader = threading.Thread(target=reads)
            reader.start()
            reader.join(0.2)
            assert reader.is_alive() and not read, "a reader waits while it moves"
            before = hub.git.inner
            hub.git.exchange(FolderGit(layout, rows))
            before.close()
            exchange(rows)
        reader.join()
        reads()
        assert len(read) == 2 and all(kind is None and head != commit for kind, head in read)
        shutil.rmtree(layout.repository(repository.id))
        hub.git.inner.close()
        with pytest.raises(Refusal):
            hub.git.open(repository.id)
        with pytest.raises(Refusal):
            here.refs.all()
        layout.close()
