"""A client remembers a Hub's release log, and refuses one that does not go on from there."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kernels_hub.errors import HubPermissionError, IntegrityError, KernelsHubError
from kernels_hub.hub import client
from kernels_hub.hub.cache import RepositoryCache
from kernels_hub.hub.connection import Connection
from kernels_hub.hub.locked_kernels import Dependency
from kernels_hub.hub.locking import make_lock
from kernels_hub.hub.release_log import _Page, checked_refs
from kernels_hub.hub.releases import list_releases, release_commit, yank
from kernels_hub.parsing import parse_json
from kernels_hub.repository.release_entry import START, ReleaseEntry
from kernels_hub.repository.versions import Refs, VersionRequest
from kernels_hub.server.hub import Hub
from kernels_hub.server.refs import TAGS, Ref
from kernels_hub.server.releases import Force
from kernels_hub.server.repositories import Repository
from tests import hub_databases
from tests.fuzz.harness import budget
from tests.fuzz.harness import run as run_variants
from tests.fuzz.mutations import either, mutate_bytes, mutate_json
from tests.git_folder import change_refs
from tests.hub.place import Place


def rows(place: Place, statement: str, *values: object) -> None:
    """Change the log past the server, as somebody with the disk could."""
    with place.hub.administer() as hub, hub_databases.unguarded(hub, "release_log"):
        hub.database.change(statement, *(values or (f"kernel/{place.repo()}",)))


def opened(place: Place, change: Callable[[Hub, Repository], object]) -> None:
    with place.hub.administer() as hub:
        repository = hub.repositories.find("kernel", *place.repo().split("/"))
        assert repository is not None
        change(hub, repository)


def rewrite(place: Place, number: int, **fields: Any) -> None:
    """Another history, sound in itself: every entry from a number on is hashed anew."""
    chain = f"kernel/{place.repo()}"
    with place.hub.administer() as hub:
        entries = hub.releases.log.entries(chain)
    previous = entries[number].previous
    for entry in entries[number:]:
        given = fields if entry.index == number else {}
        new = msgspec.structs.replace(entry, previous=previous, **given)
        rows(
            place,
            "UPDATE release_log SET document = ?, hash = ? WHERE chain = ? AND number = ?",
            *(new.canonical().decode(), new.hash, chain, entry.index),
        )
        previous = new.hash


def ways(place: Place) -> dict[str, Callable[[], object]]:
    """Every way in which a version is resolved online."""
    return {
        "fetch": lambda: place.get(version=">=1"),
        "versions": lambda: list_releases(place.repo()),
        "diff": lambda: release_commit(Connection(), place.repo(), "1.0.0"),
        "yank": lambda: yank(place.repo(), "1.0.0"),
        "lock": lambda: lock(place),
    }


def lock(place: Place) -> None:
    make_lock([Dependency(place.repo(), VersionRequest.of(place.repo(), ">=1", None))])


def refused(place: Place, match: str) -> None:
    for name, way in ways(place).items():
        client.forget()
        with pytest.raises(IntegrityError, match=match) as found:
            way()
        assert "versions" in str(found.value) and "--accept" in str(found.value), name


def test_what_is_known_is_remembered_and_new_entries_are_asked_for(
    place: Place, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HF_TOKEN", place.api.token)
    place.release("1.0.0", 1)
    assert place.get(version=">=1").VALUE == 1
    memory = json.loads((place.cache_of() / "release_log.json").read_bytes())
    (entries,) = memory["hubs"].values()
    assert [entry["tag"] for entry in entries] == ["v1.0.0"]
    place.release("1.1.0", 2)
    client.forget()
    assert place.get(version=">=1").VALUE == 2
    for way in ways(place).values():
        client.forget()
        way()
    log = list_releases(place.repo()).log
    assert log is not None and [entry.kind for entry in log.entries] == ["release", "release", "yank"]
    assert log.known == 3 and log.head == log.entries[-1].hash


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (lambda place: rewrite(place, 0, actor="somebody"), r"rewritten: 2 of the 2 entries(.|\n)*#0: it was #0 release"),
        (lambda place: rewrite(place, 1, commit="0" * 40), r"rewritten: 1 of the 2 entries(.|\n)*#1: it was"),
        (lambda place: rows(place, "DELETE FROM release_log WHERE chain = ? AND number = 1"), r"now it is nothing"),
        (lambda place: rows(place, "DELETE FROM release_log WHERE chain = ?"), r"2 of the 2 entries"),
    ],
    ids=["first changed", "last changed", "last gone", "all gone"],
)  # fmt: skip
def test_a_log_that_does_not_go_on_is_refused(place: Place, damage: Callable[[Place], None], match: str):
    place.release("1.0.0", 1)
    place.release("1.1.0", 2)
    place.get(version=">=1")
    damage(place)
    refused(place, match)
    assert place.get(version="==1.1.0").VALUE == 2, "what is pinned and here needs no Hub"


def test_a_tag_that_is_not_where_the_log_says_is_refused(place: Place):
    place.release("1.0.0", 1)
    commit = place.put(2)

    def at(commit: str | None, tag: str = "v1.0.0") -> Callable[[Hub, Repository], None]:
        return lambda hub, repository: change_refs(
            hub, repository, {TAGS + tag: Ref(commit) if commit else None}
        )

    opened(place, at(commit))
    refused(place, rf"the tag v1\.0\.0 at {commit[:12]}, and the log has #0 release v1\.0\.0")
    opened(place, at(None))
    refused(place, r"no tag v1\.0\.0, and the log has #0")
    opened(place, at(commit, "v9.0.0"))
    refused(place, r"the tag v9\.0\.0 at .*, of which the log has nothing")


def test_a_log_that_is_gone_is_missed(place: Place, monkeypatch: pytest.MonkeyPatch):
    place.release("1.0.0", 1)
    place.get(version=">=1")
    monkeypatch.setattr(Connection, "release_log", lambda *_: None)
    refused(place, "had 1 entries.*now it has no log at all")


def test_a_hub_without_a_log_works(place: Place, monkeypatch: pytest.MonkeyPatch):
    asked: list[str] = []
    monkeypatch.setattr(Connection, "release_log", lambda self, *_: asked.append(self.endpoint))
    place.release("1.0.0", 1)
    assert place.get(version=">=1").VALUE == 1
    assert list_releases(place.repo()).log is None and asked
    assert not (place.cache_of() / "release_log.json").exists()


def test_hugging_faces_hub_is_not_asked(monkeypatch: pytest.MonkeyPatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "https://huggingface.co")
    assert Connection().release_log("org/name", "kernel", 0, 100) is None


def test_the_log_as_it_is_can_be_accepted(place: Place, capsys: pytest.CaptureFixture[str]):
    place.release("1.0.0", 1)
    place.get(version=">=1")
    rewrite(place, 0, actor="some\u202ebody")
    client.forget()
    code, said = run(capsys, "versions", place.repo(), "--verify")
    assert code == 1 and "rewritten" in said and "\u202e" not in said
    assert run(capsys, "versions", place.repo(), "--accept")[0] == 1
    code, said = run(capsys, "versions", place.repo(), "--verify", "--accept")
    assert code == 0 and "verified: 1 entries" in said and "\u202e" not in said
    client.forget()
    assert place.get(version=">=1").VALUE == 1


def test_a_forced_move_is_told(
    place: Place, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
):
    place.release("1.0.0", 1)
    place.get(version=">=1")
    commit = place.put(2)
    opened(
        place, lambda hub, repo: hub.changes.force_tag(repo, "v1.0.0", commit, "root", Force("leak\x1b[2J"))
    )
    client.forget()
    with caplog.at_level(logging.WARNING, "kernels_hub"):
        assert place.get(version=">=1").VALUE == 2
    assert "the release v1.0.0 was moved by force" in caplog.text and "leak" in caplog.text
    assert "\x1b" not in caplog.text
    code, said = run(capsys, "versions", place.repo(), "--verify")
    assert code == 0 and "changed by force: #1 forced-move v1.0.0" in said and "\x1b" not in said
    code, said = run(capsys, "versions", place.repo(), "--verify", "--json")
    assert [entry["kind"] for entry in json.loads(said)["log"]["entries"]] == ["release", "forced-move"]


def test_a_memory_that_is_garbled_is_said(place: Place):
    place.release("1.0.0", 1)
    place.get(version=">=1")
    path = place.cache_of() / "release_log.json"
    path.write_bytes(path.read_bytes()[:-5])
    client.forget()
    with pytest.raises(IntegrityError, match="remove it to begin anew"):
        place.get(version=">=1")


@pytest.mark.parametrize(
    "answer",
    [b"", b"[]", b"{}", b"\xff", b"[" * 100_000, b'{"format": 2, "length": 0, "head": "", "entries": []}'],
)
def test_an_answer_that_is_no_log_is_refused(place: Place, monkeypatch: pytest.MonkeyPatch, answer: bytes):
    monkeypatch.setattr(Connection, "release_log", lambda *_: answer)
    with pytest.raises(IntegrityError, match="release log of"):
        checked_refs(Connection(), RepositoryCache(place.cache, place.repo(), "kernel"), Refs())


def test_another_repositorys_log_is_refused(place: Place, monkeypatch: pytest.MonkeyPatch):
    place.release("1.0.0", 1)
    place.release("1.0.0", 1, name="other")
    real = Connection.release_log
    monkeypatch.setattr(
        Connection,
        "release_log",
        lambda self, repo, kind, after, most: real(self, place.repo("other"), kind, after, most),
    )
    with pytest.raises(IntegrityError, match="is of kernel/.*/other, not of"):
        list_releases(place.repo())


def test_a_release_between_the_two_questions_is_no_trouble(place: Place, monkeypatch: pytest.MonkeyPatch):
    place.release("1.0.0", 1)
    real = Connection.refs
    left = [lambda: place.release("1.1.0", 2)]

    def refs(self: Connection, *arguments: Any) -> Refs:
        found = real(self, *arguments)
        if left:
            left.pop()()
        return found

    monkeypatch.setattr(Connection, "refs", refs)
    assert place.get(version=">=1").VALUE == 2


def test_an_answer_that_is_too_long_is_cut(place: Place):
    place.release("1.0.0", 1)
    with pytest.raises(KernelsHubError, match="more than 100 bytes"):
        Connection().release_log(place.repo(), "kernel", 0, 100)


def test_a_release_that_cannot_be_deleted_is_said_by_this_library(place: Place):
    from kernels_hub.hub.http_errors import hub_errors

    place.release("1.0.0", 1)
    with (
        pytest.raises(HubPermissionError, match=r"v1\.0\.0 of .* is a release, which is never deleted"),
        hub_errors("here", "delete v1.0.0"),
    ):
        place.api.delete_tag(place.repo(), tag="v1.0.0", repo_type="kernel")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    from kernels_hub.cli import main

    with pytest.raises(SystemExit) as done:
        main([*arguments])
    out, err = capsys.readouterr()
    return int(done.value.code or 0), out + err


def test_an_entry_is_hashed_over_all_of_it():
    fields: dict[str, Any] = {
        "index": 0, "previous": "0" * 64, "kind": "release", "repository": "kernel/a/b", "tag": "v1.0.0",
        "commit": "1" * 40, "digest": "2" * 64, "actor": "ada", "time": "2026-01-01T00:00:00Z", "note": "",
    }  # fmt: skip
    one = ReleaseEntry(**fields)
    others = {
        "index": 1, "previous": "1" * 64, "kind": "yank", "repository": "kernel/a/c", "tag": "v1.0.1",
        "commit": "3" * 40, "digest": "3" * 64, "actor": "bob", "time": "2026-01-01T00:00:01Z", "note": "x",
    }  # fmt: skip
    assert set(others) == set(ReleaseEntry.__struct_fields__)
    hashes = {ReleaseEntry(**{**fields, name: value}).hash for name, value in others.items()}
    assert len(hashes | {one.hash}) == len(fields) + 1


def test_any_answer_is_refused_or_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Variants of a log: only this library's error, and none is taken that differs in meaning."""
    place = RepositoryCache(tmp_path, "org/name", "kernel")
    entries: list[ReleaseEntry] = []
    for number in range(4):
        previous = entries[-1].hash if entries else START
        kind = "yank" if number == 3 else "release"
        entries.append(
            ReleaseEntry(
                index=number, previous=previous, kind=kind, repository="kernel/org/name",
                tag=f"v1.{min(number, 2)}.0", commit=f"{min(number, 2)}" * 40, digest="d" * 64, actor="ada",
                time="2026-11-23T16:00:00Z", note="slow" if number == 3 else "",
            )
        )  # fmt: skip
    documents = [json.loads(entry.canonical()) for entry in entries]
    page = {
        "format": 1,
        "repository": "kernel/org/name",
        "length": 4,
        "head": entries[-1].hash,
        "entries": documents,
    }
    refs = Refs({}, {f"v1.{number}.0": f"{number}" * 40 for number in range(3)})
    answer = [b""]
    monkeypatch.setattr(
        Connection, "release_log", lambda self, repo, kind, after, most: answer[0] if not after else EMPTY
    )
    monkeypatch.setattr(Connection, "refs", lambda *_: refs)
    taken = 0

    def parse(data: bytes) -> object:
        nonlocal taken
        parsed = parse_json(data, _Page, where="log", error=IntegrityError)
        answer[0] = data
        with suppress(IntegrityError):
            _, log = checked_refs(Connection(), place, refs)
            assert log is not None and list(log.entries) == entries
            taken += 1
        (place.folder / ".kernels_hub" / "release_log.json").unlink(missing_ok=True)
        return parsed

    seeds = [json.dumps(page).encode()]
    mutate = either(mutate_json, mutate_json, mutate_bytes)
    tally = run_variants("release-log", seeds, mutate, parse, (IntegrityError,), count=budget())
    assert taken > tally.total / 100, "some variants mean the same, and are taken"
    print(f"{tally.total} variants, {tally.parsed} parse, {taken} mean the same and are taken")


EMPTY = json.dumps({"format": 1, "length": 4, "head": "0" * 64, "entries": []}).encode()
