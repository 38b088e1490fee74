"""A mirror holds what its origin does, follows it, and serves it read-only to unmodified clients."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from email.message import Message
from pathlib import Path

import pytest
from huggingface_hub import HfApi

from kernels_hub.cli.mirror import _token
from kernels_hub.errors import KernelsHubError
from kernels_hub.server.hub import Hub
from kernels_hub.server.maintenance import backup, check
from kernels_hub.server.mirror.pull import KEPT
from kernels_hub.server.refusal import Refusal
from kernels_hub.server.releases import Force
from tests.faulty_proxy import FaultyProxy
from tests.running_hub import RunningHub, start_hub
from tests.server.mirror_cases import Mirror, Source, check_whole, commit, found, large_content, shown

PROGRAM = """
import sys
from kernels import get_kernel

kernel = get_kernel(sys.argv[1], version=1, backend="cpu")
print(kernel.VALUE, kernel.__file__)
"""


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    with start_hub(tmp_path_factory.mktemp("origin") / "root") as running:
        yield running


@pytest.fixture
def source(origin: RunningHub) -> Source:
    return Source(origin)


@pytest.fixture
def mirror(source: Source, tmp_path: Path) -> Mirror:
    return Mirror(tmp_path / "mirror", source.hub.endpoint, source.only)


def both(source: Source, mirror: Mirror, short: str = "k") -> tuple[dict[str, object], dict[str, object]]:
    with source.hub.administer() as hub:
        there = shown(hub, source.name(short))
    with Hub(mirror.root) as hub:
        return there, shown(hub, source.name(short))


def text_of(address: str) -> str:
    with urllib.request.urlopen(address, timeout=20) as answer:
        return str(answer.read().decode())


def refusal(asked: str | urllib.request.Request) -> tuple[int, Message]:
    """Status and headers of an answer that is none."""
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(asked, timeout=20)
    refused.value.close()
    return refused.value.code, refused.value.headers


def test_everything_arrives_as_it_is(source: Source, mirror: Mirror):
    source.release("1.0.0", message="an annotated tag")
    source.release("1.1.0")
    source.yank({"1.0.0": "wrong"})
    with source.opened() as (hub, repo):
        hub.changes.create_branch(repo, "next", None, author="ada")
        commit(hub, repo, {"deep/er/and/deeper": "x", "file": None}, branch="next")
    mirror.brought()
    there, here = both(source, mirror)
    assert here == there and len(there["log"]) == 3  # type: ignore[arg-type]
    with Hub(mirror.root) as hub:
        assert check_whole(hub) == [source.name()]
        assert check(hub) == []


def test_a_round_asks_only_for_what_is_new(source: Source, mirror: Mirror):
    source.release("1.0.0")
    source.release("1.0.0", short="other")
    with FaultyProxy(source.hub.endpoint) as proxy:
        mirror.address = proxy.endpoint
        mirror.brought()
        proxy.seen.clear()
        assert mirror.brought().brought == []
        assert proxy.paths() == ["/api/mirror/repositories?after="]
        oid = source.release("1.1.0")
        proxy.seen.clear()
        assert mirror.brought().brought == [source.name()]
        assert proxy.paths("other") == []
        assert [path for path in proxy.paths("release-log") if not path.endswith("after=1")] == []
        assert proxy.paths("/resolve/") == [f"/kernels/{source.name()}/resolve/{oid}/weights.bin"]
    there, here = both(source, mirror)
    assert here == there


def test_a_branch_moves_back_and_a_yank_is_taken_back(source: Source, mirror: Mirror):
    first = source.release("1.0.0")
    source.yank({"1.0.0": "wrong"})
    with source.opened() as (hub, repo):
        hub.changes.create_branch(repo, "v1", None, author="ada")
    mirror.brought()
    with source.opened() as (hub, repo):
        hub.changes.create_branch(repo, "v1", first, overwrite=True, author="ada")
    source.yank({})
    mirror.brought()
    there, here = both(source, mirror)
    assert here == there
    assert [entry.kind for entry in there["log"]] == ["release", "yank", "unyank"]  # type: ignore[attr-defined]


def test_a_release_that_the_origin_deleted_keeps_its_commit(source: Source, mirror: Mirror):
    first, second = source.release("1.0.0"), source.release("1.1.0")
    mirror.brought()
    with source.opened() as (hub, repo):
        hub.changes.delete_tag(repo, "v1.1.0", "ada", force=Force("a leak"))
        hub.changes.force_tag(repo, "v1.0.0", second, "ada", Force("oops"))
    mirror.brought()
    there, here = both(source, mirror)
    assert here == there
    with Hub(mirror.root) as hub:
        repo = found(hub, source.name())
        kept = {name for name in hub.store.content(repo).refs.all() if name.startswith(KEPT)}
        assert kept == {f"{KEPT}v1.1.0/{second}", f"{KEPT}v1.0.0/{first}"}
        assert hub.releases.changed(repo)["v1.1.0"].note == "a leak"
        assert check(hub) == []


def test_a_repository_that_was_deleted_stays_and_is_told(source: Source, mirror: Mirror):
    source.release("1.0.0")
    source.release("1.0.0", short="other")
    mirror.brought()
    with source.opened() as (hub, repo):
        hub.store.delete(repo, "ada")
    done = mirror.brought()
    assert done.gone == [source.name()] and mirror.brought().gone == []
    with Hub(mirror.root) as hub:
        assert check_whole(hub) == [source.name(), source.name("other")]
        assert not found(hub, source.name()).private
        row = hub.mirror.row(found(hub, source.name()))
        assert row is not None and row.gone
    with start_hub(mirror.root) as serving:
        status = json.loads(text_of(serving.endpoint + "/api/mirror/status"))
        assert [row["repository"] for row in status["notAsAtTheOrigin"]] == [f"kernel/{source.name()}"]
        assert "The origin has it no more" in text_of(f"{serving.endpoint}/kernels/{source.name()}")
        assert text_of(f"{serving.endpoint}/kernels/{source.name()}/resolve/v1.0.0/file") == "1.0.0"


def test_a_name_that_is_used_again_goes_on_with_its_log(source: Source, mirror: Mirror):
    source.release("1.0.0")
    mirror.brought()
    with source.opened() as (hub, repo):
        hub.store.delete(repo, "ada")
    source.release("2.0.0")
    assert "the next round brings it" in mirror.round().problems[source.name()]
    mirror.brought()
    there, here = both(source, mirror)
    assert here == there
    assert [entry.kind for entry in there["log"]] == ["release", "delete", "release"]  # type: ignore[attr-defined]


def test_a_repository_that_was_renamed_is_renamed_here(source: Source, mirror: Mirror):
    source.release("1.0.0")
    mirror.brought()
    with source.opened() as (hub, repo):
        hub.changes.rename(repo, source.organisation, "renamed", "ada")
    with FaultyProxy(source.hub.endpoint) as proxy, Hub(mirror.root) as hub:
        mirror.address = proxy.endpoint
        hub.mirror.begin(proxy.endpoint)
        assert mirror.round_in(hub).is_well
        assert proxy.paths("/objects") == [] and proxy.paths("/resolve/") == []
    there, here = both(source, mirror, "renamed")
    assert here == there
    with Hub(mirror.root) as hub:
        assert check(hub) == []


# -- who sees it --------------------------------------------------------------------------------------


def test_private_repositories_come_with_a_token_alone_and_stay_private(source: Source, mirror: Mirror):
    source.release("1.0.0")
    with source.hub.administer() as hub:
        source.new(hub, "secret", private=True)
    mirror.brought()
    with Hub(mirror.root) as hub:
        assert check_whole(hub) == [source.name()]
    mirror.token = source.hub.token("ada", "read")
    mirror.brought()
    with Hub(mirror.root) as hub:
        assert check_whole(hub) == [source.name(), source.name("secret")]
        assert found(hub, source.name("secret")).private
    with start_hub(mirror.root) as serving:
        api = HfApi(serving.endpoint, token=False)
        assert [item.id for item in api.list_models(author=source.organisation)] == []
        assert refusal(f"{serving.endpoint}/api/kernels/{source.name('secret')}")[0] == 401


def test_what_was_made_private_becomes_private_and_comes_back(source: Source, mirror: Mirror):
    source.release("1.0.0")
    mirror.brought()
    for private in (True, False):
        with source.opened() as (hub, repo):
            hub.repositories.set_private(repo, private)
        mirror.brought()
        with Hub(mirror.root) as hub:
            repo = found(hub, source.name())
            row = hub.mirror.row(repo)
            assert repo.private is private and row is not None and bool(row.gone) is private


def test_a_gated_repository_needs_a_token_that_may_download(source: Source, mirror: Mirror):
    source.release("1.0.0")
    with source.opened() as (hub, repo):
        hub.repositories.set_gated(repo, "manual")
    done = mirror.round()
    assert "answers 401" in done.problems[source.name()]
    with Hub(mirror.root) as hub:
        assert check_whole(hub) == []
    mirror.token = source.hub.token("ada", "read")
    mirror.brought()
    with Hub(mirror.root) as hub:
        assert found(hub, source.name()).gated == "manual"


def test_the_flag_of_a_publisher_follows(source: Source, mirror: Mirror):
    source.release("1.0.0")
    for trusted in (True, False):
        with source.hub.administer() as hub:
            hub.accounts.set_trusted(source.organisation, trusted)
        mirror.brought()
        with Hub(mirror.root) as hub:
            assert hub.accounts.required(source.organisation, "org").trusted is trusted
            assert hub.accounts.members(source.organisation) == []


# -- serving it ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served(
    origin: RunningHub, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Source, RunningHub]]:
    """A mirror that is served, of an organisation with a kernel."""
    source = Source(origin)
    with origin.administer() as hub:
        hub.accounts.set_trusted(source.organisation, True)
    source.release("1.0.0")
    with source.opened() as (hub, repo):
        files = {"build/torch-cpu/__init__.py": "VALUE = 'mirrored'\n", "README.md": "# k\n"}
        metadata = {
            "version": 1,
            "name": "mirrored",
            "id": "_mirrored_1",
            "license": "MIT",
            "backend": {"type": "cpu"},
        }
        files["build/torch-cpu/metadata.json"] = json.dumps({**metadata, "python-depends": []})
        oid = commit(hub, repo, files)
        hub.changes.create_branch(repo, "v1", oid, author="ada")
    mirror = Mirror(tmp_path_factory.mktemp("served") / "root", origin.endpoint, source.only)
    mirror.brought()
    with start_hub(mirror.root, workers=2) as serving:
        yield source, serving


def test_huggingface_hub_reads_it(served: tuple[Source, RunningHub], tmp_path: Path):
    source, serving = served
    api = HfApi(serving.endpoint, token=False)
    refs = api.list_repo_refs(source.name(), repo_type="kernel")
    assert {ref.name for ref in refs.tags} == {"v1.0.0"}
    folder = api.snapshot_download(
        source.name(), repo_type="kernel", revision="v1.0.0", cache_dir=tmp_path / "cache"
    )
    assert (Path(folder) / "weights.bin").read_bytes() == large_content("1.0.0")
    paths = api.get_paths_info(source.name(), ["file", "weights.bin"], repo_type="kernel")
    assert {path.path for path in paths} == {"file", "weights.bin"}
    assert [item.title for item in api.list_repo_commits(source.name(), repo_type="kernel")][
        -1
    ] == "initial commit"


@pytest.mark.exhaustive
def test_hf_kernels_loads_from_it(served: tuple[Source, RunningHub], tmp_path: Path):
    source, serving = served
    home = {"HF_HOME": str(tmp_path), "HF_HUB_CACHE": str(tmp_path / "hub")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, source.name()],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_ENDPOINT": serving.endpoint, **home},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("mirrored")


def test_its_pages_and_health_say_of_what_it_is_a_mirror(served: tuple[Source, RunningHub]):
    source, serving = served
    health = text_of(serving.endpoint + "/health").splitlines()
    assert health[:2] == ["ok", f"mirror of {source.hub.endpoint}"] and health[2].startswith("caught up ")
    for path in ("/", f"/kernels/{source.name()}"):
        page = text_of(serving.endpoint + path)
        assert "A read-only mirror of" in page and source.hub.endpoint in page
    status = json.loads(text_of(serving.endpoint + "/api/mirror/status"))
    assert status["mirrorOf"] == source.hub.endpoint and status["ageSeconds"] >= 0
    assert refusal(source.hub.endpoint + "/api/mirror/status")[0] == 404
    assert text_of(source.hub.endpoint + "/health") == "ok\n"


@pytest.mark.parametrize("with_token", [False, True], ids=["anonymous", "with a token"])
def test_every_change_is_refused_with_the_origin_named(served: tuple[Source, RunningHub], with_token: bool):
    source, serving = served
    home = f"/api/kernels/{source.name()}"
    asked = [
        ("POST", "/api/repos/create"),
        ("DELETE", "/api/repos/delete"),
        ("POST", "/api/repos/move"),
        ("PUT", f"{home}/settings"),
        ("POST", f"{home}/user-access-request"),
        ("POST", f"{home}/user-access-request/grant"),
        ("POST", f"{home}/branch/new"),
        ("DELETE", f"{home}/branch/v1"),
        ("POST", f"{home}/tag/main"),
        ("DELETE", f"{home}/tag/v1.0.0"),
        ("POST", f"{home}/preupload/main"),
        ("POST", f"{home}/commit/main"),
        ("POST", f"/kernels/{source.name()}.git/info/lfs/objects/batch"),
        ("POST", f"/kernels/{source.name()}.git/info/lfs/verify"),
        ("PUT", f"/lfs/{'0' * 32}/{'0' * 64}"),
        *([("GET", f"{home}/xet-write-token/main")] if with_token else []),
    ]
    headers = {"Authorization": f"Bearer {serving.token('ada')}"} if with_token else {}
    for method, path in asked:
        request = urllib.request.Request(serving.endpoint + path, b"{}", headers, method=method)
        status, answered = refusal(request)
        assert status == 403, (method, path)
        assert f"read-only mirror of {source.hub.endpoint}" in answered["X-Error-Message"]
        assert answered["X-Mirror-Of"] == source.hub.endpoint


def test_every_route_that_writes_is_refused():
    """A new route says that it changes nothing, or a mirror refuses it."""
    from kernels_hub.server.app import routes

    reads = sorted(
        f"{' '.join(sorted(route.methods - {'GET', 'HEAD'}))} {route.template}"
        for route in routes()
        if route.reads and not route.methods <= {"GET", "HEAD"}
    )
    assert reads == [
        "POST /api/mirror/hidden",
        "POST /api/validate-yaml",
        "POST /api/{type:datasets|spaces}/{rest:rest}",
        "POST /api/{type:models|kernels}/{namespace}/{name}/objects",
        "POST /api/{type:models|kernels}/{namespace}/{name}/paths-info/{revision}",
        "POST /login",
        "POST /logout",
        "POST /settings/tokens",
        "POST /v1/telemetry",
    ]


@pytest.mark.exhaustive
def test_a_mirror_can_be_mirrored(served: tuple[Source, RunningHub], tmp_path: Path):
    source, serving = served
    second = Mirror(tmp_path / "second", serving.endpoint, [])
    second.brought()
    there, here = both(source, second)
    assert here == there
    with Hub(second.root) as hub:
        origin = hub.mirror.origin()
        assert origin is not None and len(origin.path) == 2


# -- the command, and a copy that is carried ----------------------------------------------------------


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kernels_hub", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )


def test_the_command_and_a_copy_that_is_carried(source: Source, mirror: Mirror, tmp_path: Path):
    source.release("1.0.0")
    with source.hub.administer() as hub:
        source.new(hub, "secret", private=True)
    (tmp_path / "token").write_text(source.hub.token("ada", "read") + "\n")
    follow = [
        "mirror",
        "--from",
        source.hub.endpoint,
        "--root",
        str(mirror.root),
        "--only",
        *source.only,
        "--once",
    ]
    done = command(*follow, "--token-file", str(tmp_path / "token"))
    assert done.returncode == 0, done.stderr
    assert f"{source.name()}: as at the origin, 1 new entries in its log" in done.stdout
    assert f"{source.hub.endpoint}: 2 repositories, 2 brought up to date" in done.stdout
    away = command(*follow, KERNELS_HUB_ORIGIN_TOKEN="hf_wrong")
    assert away.returncode == 1 and "give a token of the origin" in away.stdout
    assert "what is here stays as it was" in away.stdout and away.stderr == ""
    with Hub(mirror.root) as hub:
        backup(hub, tmp_path / "disk")
    with Hub(tmp_path / "disk") as hub:
        origin = hub.mirror.origin()
        assert origin is not None and origin.address == source.hub.endpoint
        assert check_whole(hub) == [source.name(), source.name("secret")] and check(hub) == []
        with pytest.raises(Refusal, match="read-only mirror"):
            commit(hub, found(hub, source.name()), {"a": "b"})


@pytest.mark.parametrize("content", [None, "", "two words", "é"])
def test_a_file_that_holds_no_token(content: str | None, tmp_path: Path):
    if content is not None:
        (tmp_path / "token").write_text(content, encoding="utf-8")
    with pytest.raises(KernelsHubError, match="token"):
        _token(tmp_path / "token")
