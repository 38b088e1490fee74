"""A mirror whose origin is away, lies, was rewritten or goes in circles; each is one clear line, and nothing is lost."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from kernels_hub.errors import KernelsHubError
from kernels_hub.server.hub import Hub
from kernels_hub.server.limits import Limits
from kernels_hub.server.maintenance import check, collect_garbage
from kernels_hub.server.mirror import origin as origin_module
from kernels_hub.server.mirror import state as state_module
from kernels_hub.server.mirror.follow import following
from kernels_hub.server.refs import TAGS, Ref
from tests.faulty_proxy import Changed, Cut, Endless, FaultyProxy, Gone, Seen, Status, json_changed
from tests.git_folder import change_refs
from tests.object_store import objects_for
from tests.running_hub import RunningHub, start_hub
from tests.server.mirror_cases import Mirror, Source, check_whole, commit, found, one_line, pointers, shown


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    with start_hub(tmp_path_factory.mktemp("origin") / "root") as running:
        yield running


@pytest.fixture(scope="module")
def proxy(origin: RunningHub) -> Iterator[FaultyProxy]:
    with FaultyProxy(origin.endpoint) as running:
        yield running


@pytest.fixture
def source(origin: RunningHub, proxy: FaultyProxy) -> Source:
    proxy.fault, proxy.down = (lambda _: None), False
    proxy.seen.clear()
    return Source(origin)


@pytest.fixture
def mirror(source: Source, proxy: FaultyProxy, tmp_path: Path) -> Mirror:
    return Mirror(tmp_path / "mirror", proxy.endpoint, source.only)


def state_of(mirror: Mirror, name: str) -> dict[str, object]:
    with Hub(mirror.root) as hub:
        check_whole(hub)
        return shown(hub, name)


def rewrite(source: Source, number: int, **fields: Any) -> None:
    """Another history at the origin, sound in itself: every entry from a number on is hashed anew."""
    with source.opened() as (hub, repo):
        chain = f"kernel/{repo.full_name}"
        entries = hub.releases.log.entries(chain)
    rows = sqlite3.connect(source.hub.root / "hub.sqlite", timeout=30)
    for trigger in ("UPDATE", "DELETE"):
        rows.execute(f"DROP TRIGGER IF EXISTS release_log_{trigger}")
    previous = entries[number].previous
    for entry in entries[number:]:
        new = msgspec.structs.replace(entry, previous=previous, **(fields if entry.index == number else {}))
        rows.execute(
            "UPDATE release_log SET document = ?, hash = ? WHERE chain = ? AND number = ?",
            (new.canonical().decode(), new.hash, chain, entry.index),
        )
        previous = new.hash
    rows.commit()
    rows.close()


# -- a log that does not go on ------------------------------------------------------------------------


@pytest.mark.git_folder
def test_a_rewritten_log_is_refused_as_a_whole_and_what_was_held_stays(source: Source, mirror: Mirror):
    source.release("1.0.0")
    source.release("1.0.0", short="other")
    mirror.brought()
    before = state_of(mirror, source.name())
    source.release("1.1.0")
    source.release("1.1.0", short="other")
    rewrite(source, 0, actor="somebody else")
    done = mirror.round()
    assert list(done.problems) == [source.name()] and done.brought == [source.name("other")]
    assert (
        "refused: its release log does not go on from the 1 entries that are held"
        in done.problems[source.name()]
    )
    assert one_line(done.problems[source.name()])
    assert state_of(mirror, source.name()) == before
    # It is told to whoever looks.
    log = subprocess.run(
        [sys.executable, "-m", "kernels_hub", "hub", "log", "--root", str(mirror.root)],
        env=os.environ | {"KERNELS_HUB_OBJECTS": objects_for(mirror.root) or ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert log.returncode == 1
    assert f"PROBLEM: kernel/{source.name()}: refused: its release log does not go on" in log.stdout
    with Hub(mirror.root) as hub:
        assert mirror.round_in(hub).problems.keys() == {source.name()}  # and again, until it is put right
    rewrite(source, 0, actor="ada")
    assert mirror.brought().brought == [source.name()]
    with Hub(mirror.root) as hub:
        row = hub.mirror.row(found(hub, source.name()))
        assert row is not None and row.problem == ""


@pytest.mark.git_folder
@pytest.mark.parametrize("how", ["shorter", "same length", "tag past the log", "tag without an entry"])
def test_a_log_that_is_not_the_one_that_was_shown(how: str, source: Source, mirror: Mirror):
    first = source.release("1.0.0")
    source.release("1.1.0")
    mirror.brought()
    before = state_of(mirror, source.name())
    if how == "shorter":
        rows = sqlite3.connect(source.hub.root / "hub.sqlite", timeout=30)
        rows.execute("DROP TRIGGER IF EXISTS release_log_DELETE")
        rows.execute("DELETE FROM release_log WHERE chain = ? AND number = 1", (f"kernel/{source.name()}",))
        rows.commit()
        rows.close()
    elif how == "same length":
        rewrite(source, 1, note="another")
    else:
        tag = "v1.1.0" if how == "tag past the log" else "v3.0.0"
        with source.opened() as (hub, repo):
            change_refs(hub, repo, {TAGS + tag: Ref(first)})
    said = mirror.round().problems[source.name()]
    expected = {
        "shorter": "its release log was cut",
        "same length": "its release log was rewritten",
        "tag past the log": "the tag v1.1.0 at",
        "tag without an entry": "the tag v3.0.0 at",
    }
    assert said.startswith("refused: ") and expected[how] in said
    assert state_of(mirror, source.name()) == before


@pytest.mark.git_folder
def test_content_that_is_not_what_the_log_says_is_refused(source: Source, mirror: Mirror):
    """Names of git objects are SHA-1; a release's digest in the log is not."""
    source.release("1.0.0")
    mirror.brought()
    before = state_of(mirror, source.name())
    source.release("1.1.0")
    rewrite(source, 1, digest="0" * 64)
    assert "the content of v1.1.0 is not what its release log says" in mirror.round().problems[source.name()]
    assert state_of(mirror, source.name()) == before


# -- an origin that is away, or answers otherwise -----------------------------------------------------


def test_it_catches_up_after_an_outage(tmp_path: Path):
    with start_hub(tmp_path / "origin") as first:
        source = Source(first)
        source.release("1.0.0")
        with FaultyProxy(first.endpoint) as proxy:
            mirror = Mirror(tmp_path / "mirror", proxy.endpoint, source.only)
            mirror.brought()
            before = state_of(mirror, source.name())
            first.kill()
            done = mirror.round()
            assert f"{proxy.endpoint} cannot be reached, or breaks off" in done.failed and one_line(
                done.failed
            )
            assert state_of(mirror, source.name()) == before
            with Hub(mirror.root) as hub:
                row = hub.mirror.origin()
                assert row is not None and row.problem and row.caught_up < row.tried
            with start_hub(tmp_path / "origin") as again:
                source.hub = again
                source.release("1.1.0")
                source.yank({"1.0.0": "wrong"})
                proxy.target = again.endpoint
                assert mirror.brought().brought == [source.name()]
                with again.administer() as hub:
                    assert shown(hub, source.name()) == state_of(mirror, source.name())


def once(word: str, fault: object, at: int = 0) -> Callable[[Seen], Any]:
    """One answer with a fault: that to the request number `at` whose path has a word."""
    seen = 0

    def choose(request: Seen) -> object:
        nonlocal seen
        if word not in request.path:
            return None
        seen += 1
        return fault if seen == at + 1 else None

    return choose


@pytest.mark.git_folder
@pytest.mark.parametrize(
    ("word", "fault"),
    [
        ("/repositories", Status(503)),
        ("/objects", Cut(100)),
        pytest.param("/resolve/", Cut(50_000), marks=pytest.mark.own_addresses),
        *(
            pytest.param(word, fault, marks=pytest.mark.exhaustive)
            for word, fault in (
                *(("/state", Gone()), ("/release-log", Cut(20))),
                *(("/objects", Status(500)), ("/resolve/", Gone())),
            )
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_an_answer_that_is_cut_is_asked_for_again(
    word: str, fault: object, source: Source, proxy: FaultyProxy, mirror: Mirror
):
    source.release("1.0.0")
    proxy.fault = once(word, fault)
    mirror.brought()
    assert len(mirror.waits) == 1
    with source.hub.administer() as hub:
        assert shown(hub, source.name()) == state_of(mirror, source.name())
    if isinstance(fault, Cut) and word == "/resolve/":
        ranges = [one.headers.get("range") for one in proxy.seen if word in one.path]
        assert ranges == [None, "bytes=50000-"]


@pytest.mark.git_folder
@pytest.mark.own_addresses
def test_what_came_of_a_large_file_is_kept_until_the_next_round(
    source: Source, proxy: FaultyProxy, mirror: Mirror
):
    source.release("1.0.0")
    proxy.fault = lambda request: Cut(30_000) if "/resolve/" in request.path else None
    assert "received 30000 bytes, expected 110000" in mirror.round().failed
    proxy.fault = lambda _: None
    proxy.seen.clear()
    mirror.brought()
    assert [one.headers.get("range") for one in proxy.seen if "/resolve/" in one.path] == ["bytes=120000-"]


def test_a_repository_that_is_arriving_is_shown_to_nobody(source: Source, proxy: FaultyProxy, mirror: Mirror):
    source.release("1.0.0")
    source.release("1.0.0", short="other")
    proxy.fault = lambda request: Gone() if f"/{source.name()}/resolve/" in request.path else None
    mirror.round()
    with Hub(mirror.root) as hub:
        repo = found(hub, source.name())
        assert hub.mirror.is_arriving(repo) and check(hub) == []
    with start_hub(mirror.root) as serving:
        for path in ("/", "/api/kernels?author=" + source.organisation, "/api/mirror/repositories"):
            with urllib.request.urlopen(serving.endpoint + path, timeout=20) as answer:
                assert source.name() not in answer.read().decode()
    proxy.fault = lambda _: None
    mirror.brought()
    with Hub(mirror.root) as hub:
        assert check_whole(hub) == [source.name(), source.name("other")]


def test_the_wait_that_the_origin_asks_for_is_kept(source: Source, proxy: FaultyProxy, mirror: Mirror):
    source.release("1.0.0")
    proxy.fault = once("/state", Status(429, {"Retry-After": "17"}))
    mirror.brought()
    assert mirror.waits == [17.0]
    proxy.fault = lambda request: Status(429, {"Retry-After": "4000"})
    done = mirror.round()
    assert "answers 429" in done.failed and mirror.waits == [17.0]  # a round does not wait for an hour


def test_requests_are_no_more_than_it_may_make(source: Source, proxy: FaultyProxy):
    source.release("1.0.0")
    waits: list[float] = []

    class EnoughError(Exception):
        pass

    def wait(seconds: float) -> None:
        waits.append(seconds)
        raise EnoughError

    asked = origin_module.Origin(proxy.endpoint, requests_per_minute=2, wait=wait)
    for _ in range(2):
        list(asked.repositories())
    with pytest.raises(EnoughError):
        list(asked.repositories())
    assert len(proxy.paths("/repositories")) == 2 and waits == [30]


Answer = tuple[str, object, str]


def row(change: Callable[[dict[str, Any]], object]) -> Changed:
    """The rows of a feed, each changed."""

    def body(document: Any) -> None:
        for one in document["repositories"]:
            change(one)

    return json_changed(body)


def refs(change: Callable[[dict[str, Any]], object]) -> Changed:
    return json_changed(lambda document: (change(document["refs"]), document)[1])


WRONG: dict[str, Answer] = {
    "no JSON": ("/state", Changed(lambda _: b"<html>"), "JSON is malformed"),
    "another format": ("/state", json_changed(lambda document: {**document, "format": 2}), "format"),
    "an object changed": ("/objects", Changed(lambda body: body.replace(b"tree ", b"Tree ", 1)), ""),
    "a byte of a commit": ("/objects", Changed(lambda body: body[:-1] + b"?"), "does not send the commit"),
    "a byte of a tree": (
        "/objects",
        Changed(lambda body: body if body.startswith(b"commit") else body[:-1] + b"?"),
        "was not asked for",
    ),
    "nothing": ("/objects", Changed(lambda _: b""), "does not send the commit"),
    "noise": ("/objects", Changed(lambda _: b"\xff" * 100), "no git objects, from byte 0 on"),
    "half an object": ("/objects", Changed(lambda body: body[:-1]), "no git objects, from byte"),
    "wrong file": ("/resolve/", Changed(lambda body: b"?" + body[1:]), "has other content"),
    "longer file": ("/resolve/", Changed(lambda body: body + b"?"), "sends more than the 200000 bytes"),
    "endless file": ("/resolve/", Endless(), "sends more than the 200000 bytes"),
    "endless document": ("/state", Endless(), "answers with more than"),
    "a ref that is none": (
        "/state",
        refs(lambda one: one.update({"refs/heads/../x": ["0" * 40, None]})),
        "cannot name a branch",
    ),
    "a ref of its own": (
        "/state",
        refs(lambda one: one.update({"refs/kept/x": ["0" * 40, None]})),
        "refs/kept/x",
    ),
    "no main": ("/state", refs(lambda one: one.pop("refs/heads/main")), "no branch main"),
    "a commit that is missing": (
        "/state",
        refs(lambda one: one.update({"refs/heads/x": ["1" * 40, None]})),
        "404",
    ),
    "a name that is a path": (
        "/repositories",
        row(lambda one: one.update(name="..")),
        "cannot name a repository",
    ),
    "an account of the server's": (
        "/repositories",
        row(lambda one: one.update(namespace="api")),
        "cannot name an account",
    ),
    "a repository that is hidden": ("/repositories", row(lambda one: one.update(name="other")), "401"),
}


QUICK = (
    "a byte of a commit",
    "nothing",
    "wrong file",
    "endless document",
    "a ref that is none",
    "a name that is a path",
)


@pytest.mark.git_folder
@pytest.mark.parametrize(
    "what",
    [
        pytest.param(
            what,
            marks=[
                *([] if what in QUICK else [pytest.mark.exhaustive]),
                *([pytest.mark.own_addresses] if WRONG[what][0] == "/resolve/" else []),
            ],
        )
        for what in WRONG
    ],
)
def test_a_wrong_answer_is_one_line_and_changes_nothing(
    what: str, source: Source, proxy: FaultyProxy, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(origin_module, "_MOST_DOCUMENT", 1 << 20)
    word, fault, expected = WRONG[what]
    source.release("1.0.0")
    own = source.name()
    if word == "/repositories":
        mirror.only = []

        def only_ours(request: Seen) -> object:
            return fault if "/repositories" in request.path else None

        with source.hub.administer() as hub:  # rows of other tests' repositories would change with it
            others = [one.id for one in hub.repositories.all() if one.full_name != own]
        inner = fault.change  # type: ignore[attr-defined]

        def without_others(body: bytes) -> bytes:
            document = json.loads(body)
            document["repositories"] = [one for one in document["repositories"] if one["id"] not in others]
            return bytes(inner(json.dumps(document).encode()))

        fault = Changed(without_others)
        proxy.fault = only_ours  # type: ignore[assignment]
    else:
        proxy.fault = lambda request: fault if word in request.path else None  # type: ignore[assignment, return-value]
    done = mirror.round()
    told = [*done.problems.values(), *filter(None, [done.failed])]
    assert len(told) == 1 and expected in told[0] and one_line(told[0]), told
    with Hub(mirror.root) as hub:
        assert check_whole(hub) == []
    proxy.fault = lambda _: None
    mirror.only = source.only
    mirror.brought()
    with source.hub.administer() as hub:
        assert shown(hub, own) == state_of(mirror, own)
    with Hub(mirror.root) as hub:
        assert check(hub) == []


def test_a_feed_in_circles_ends(source: Source, proxy: FaultyProxy, mirror: Mirror):
    source.release("1.0.0")
    proxy.fault = lambda request: (
        json_changed(lambda document: {**document, "after": "0" * 32})
        if "/repositories" in request.path
        else None
    )
    assert "in circles" in mirror.round().failed


def test_a_hub_of_another_kind_is_named(source: Source, proxy: FaultyProxy, mirror: Mirror):
    proxy.fault = lambda _: Status(404)
    assert "only those can be mirrored" in mirror.round().failed
    with Hub(mirror.root) as hub:
        assert hub.mirror.origin() is None  # a mistyped address makes no mirror


def test_a_wrong_token_is_named(source: Source, proxy: FaultyProxy, mirror: Mirror):
    mirror.token = "hf_wrong"
    assert "give a token of the origin" in mirror.round().failed


# -- the token ----------------------------------------------------------------------------------------


def test_the_token_goes_to_the_origin_alone(
    source: Source, proxy: FaultyProxy, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
):
    """An origin that keeps large files elsewhere leads there; HF_TOKEN is none of a mirror's."""
    source.release("1.0.0")
    token = source.hub.token("ada", "read")
    monkeypatch.setenv("HF_TOKEN", source.hub.token("ada"))
    with FaultyProxy(source.hub.endpoint) as elsewhere:
        proxy.fault = lambda request: (
            Status(302, {"Location": elsewhere.endpoint + request.path})
            if "/resolve/" in request.path
            else None
        )
        mirror.token = token
        mirror.brought()
        assert {one.token for one in proxy.seen} == {token}
        assert len(elsewhere.seen) == 1 and elsewhere.seen[0].token is None
        mirror.token = None
        source.release("1.1.0")
        proxy.seen.clear()
        mirror.brought()
        assert {one.token for one in proxy.seen} == {None}


# -- this machine -------------------------------------------------------------------------------------


def test_a_full_disk_is_told_and_nothing_is_lost(
    source: Source, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
):
    source.release("1.0.0")
    mirror.brought()
    before = state_of(mirror, source.name())
    source.release("1.1.0")
    full = SimpleNamespace(total=1, used=1, free=0)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda _: full)
        done = mirror.round()
    assert "disk is full" in done.failed and one_line(done.failed)
    assert state_of(mirror, source.name()) == before
    mirror.brought()


def test_a_file_larger_than_the_mirror_takes(source: Source, mirror: Mirror):
    source.release("1.0.0")
    with Hub(mirror.root, create=True, limits=Limits(max_file_bytes=1000)) as hub:
        assert "takes files of 1000 at most" in mirror.round_in(hub).problems[source.name()]


@pytest.mark.parametrize("seconds", [-3600.0, 3600.0], ids=["behind", "ahead"])
def test_a_clock_an_hour_apart(
    seconds: float, source: Source, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
):
    """The origin's clock is never asked; one of the mirror's own that was put back gives no age below nothing."""
    source.release("1.0.0")
    mirror.brought()
    with Hub(mirror.root) as hub:
        origin = hub.mirror.origin()
        assert origin is not None
        real = time.time
        monkeypatch.setattr(state_module.time, "time", lambda: real() + seconds)
        age = origin.age()
        assert age is not None and max(0.0, seconds) <= age < max(0.0, seconds) + 600
        monkeypatch.undo()
        source.release("1.1.0")
        assert mirror.round_in(hub).is_well


def test_one_process_mirrors_into_a_root(source: Source, mirror: Mirror):
    source.release("1.0.0")
    mirror.brought()
    with Hub(mirror.root) as hub, following(hub, mirror.address):
        with pytest.raises(KernelsHubError, match="another process mirrors into"):
            mirror.round()
        with pytest.raises(KernelsHubError, match="brings objects here that no ref leads to yet"):
            collect_garbage(hub, prune=True)
        collect_garbage(hub)
    with Hub(mirror.root) as hub:
        collect_garbage(hub, prune=True)
        assert check_whole(hub) == [source.name()]
        assert pointers(hub, source.name())


def test_a_root_of_another_kind_is_refused(source: Source, mirror: Mirror, tmp_path: Path):
    with Hub(tmp_path / "own", create=True) as hub:
        hub.accounts.add_user("ada")
        commit(hub, hub.changes.create("kernel", "ada", "k", private=False, author="ada"), {"a": "b"})
    with pytest.raises(KernelsHubError, match="has 1 repositories of its own"):
        Mirror(tmp_path / "own", mirror.address, []).round()
    mirror.brought()
    with pytest.raises(KernelsHubError, match="this root mirrors .*, not http://127.0.0.1:9"):
        Mirror(mirror.root, "http://127.0.0.1:9", []).round()
    for wrong in ("ftp://hub", "http://a b", "http://u:p@hub", "http://hub:99999", "hub"):
        with pytest.raises(KernelsHubError, match="is no address of a Hub"):
            Mirror(tmp_path / "new", wrong, []).round()


@pytest.mark.exhaustive
def test_mirrors_in_a_circle_are_refused(source: Source, mirror: Mirror, tmp_path: Path):
    source.release("1.0.0")
    mirror.brought()
    with start_hub(mirror.root) as serving:
        itself = Mirror(mirror.root, serving.endpoint, [])
        with Hub(mirror.root) as hub:
            hub.mirror.begin(serving.endpoint)
        assert "is this mirror itself" in itself.round().failed
        second = Mirror(tmp_path / "second", serving.endpoint, [])
        second.brought()
        with start_hub(second.root) as other:
            with Hub(mirror.root) as hub:
                hub.mirror.begin(other.endpoint)
            back = Mirror(mirror.root, other.endpoint, [])
            assert "mirrors this mirror in turn: mirrors in a circle" in back.round().failed
