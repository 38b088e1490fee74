"""What a process keeps open of repositories: opened once, closed to make room, never while it is worked on."""

from __future__ import annotations

import pytest

from kernels_hub.server.git import open_repositories
from kernels_hub.server.git.open_repositories import OpenRepositories


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
