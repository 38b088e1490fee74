"""Publishing that dies, is raced by others, or is refused: whole releases or none, and one clear error."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from random import Random
from typing import Any

import httpx2
import pytest
import torch
from huggingface_hub import CommitOperationAdd, HfApi

from kernels_hub import get_kernel
from kernels_hub.errors import (
    BuildError,
    HubError,
    HubPermissionError,
    OfflineError,
    PublishError,
)
from kernels_hub.hub.release import prepare_release
from tests.combinations import first
from tests.hub.place import Place
from tests.hub.publisher import (
    LAYERS,
    Network,
    network,
    publish_source,
    state_of,
    tree_of,
    write_source,
)


@pytest.fixture
def at(place: Place, monkeypatch: pytest.MonkeyPatch) -> Place:
    """The place, with a token that may write there."""
    monkeypatch.setenv("HF_TOKEN", place.hub.token("maker"))
    monkeypatch.setattr("kernels_hub.hub.publish._PAUSE_S", 0.02)
    return place


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_source(tmp_path / "scale")


def kinds(steps: Any) -> list[type]:
    return [type(step) for step in steps]


# -- a publish that dies ------------------------------------------------------------------------------


def _prepare(case: str, at: Place, repo: str, source: Path) -> tuple[str, Path]:
    """What is there before: the version to publish, and its source."""
    at.api.delete_repo(repo, repo_type="kernel", missing_ok=True)
    if case == "backport":
        publish_source(write_source(source.parent / "old", factor=5), repo, "1.0.0")
        publish_source(write_source(source.parent / "new", factor=6, new=""), repo, "1.2.0")
        return "1.0.1", source
    if case == "next":
        publish_source(write_source(source.parent / "old", factor=5, old=""), repo, "1.0.0")
    return "1.1.0", source


@pytest.mark.parametrize(("case",), first(1, [("backport",), ("next",), ("first",)]))
def test_killed_at_any_step_and_run_again(case: str, at: Place, source: Path):
    repo = at.repo("scale")
    version, path = _prepare(case, at, repo, source)
    with network() as net:
        publish_source(path, repo, version)
    writes = len(net.writes)
    assert writes == {"first": 5, "next": 3, "backport": 4}[case]
    expected = state_of(at.api, repo)
    for step in range(writes):
        for lost in (False, True):
            version, path = _prepare(case, at, repo, source)
            with network(at=step, lost=lost) as net:
                if not lost:
                    net.before = net.die
                with pytest.raises(HubError, match="run the same command again to complete it") as caught:
                    publish_source(path, repo, version)
                assert at.hub.endpoint in str(caught.value)
            between = state_of(at.api, repo) if step or lost else {"tags": {}}
            published = between["tags"].get(f"v{version}")
            assert published in (None, expected["tags"][f"v{version}"])  # all of it, or none
            publish_source(path, repo, version)
            assert state_of(at.api, repo) == expected, (case, step, lost)


def test_an_unfinished_release_of_somebody_else_is_not_covered(
    at: Place, source: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("kernels_hub.hub.publish._PATIENCE_S", 0.3)
    repo = at.repo("scale")
    publish_source(source, repo, "1.0.0")
    other = write_source(source.parent / "other", factor=7)
    with network(at=1) as net:
        net.before = net.die
        with pytest.raises(HubError):
            publish_source(other, repo, "1.1.0")
    before = state_of(at.api, repo)
    assert before["branches"]["v1"][1][0] == "Release 1.1.0"
    write_source(source, factor=3)
    for dry_run in (True, False):
        with pytest.raises(
            PublishError, match=r"'Release 1\.1\.0', which has no tag: somebody is publishing it"
        ):
            publish_source(source, repo, "1.2.0", dry_run=dry_run)
    assert state_of(at.api, repo) == before
    publish_source(source, repo, "1.2.0", replace_unfinished=True)
    assert state_of(at.api, repo)["tags"]["v1.2.0"] == state_of(at.api, repo)["branches"]["v1"]
    publish_source(other, repo, "1.1.0")  # now below the highest: by a branch of its own
    assert set(state_of(at.api, repo)["branches"]) == {"main", "v1"}


VERSIONS = ("0.1.0", "1.0.0", "1.0.1", "1.1.0", "1.2.0rc1", "1.2.0", "2.0.0")


@pytest.mark.parametrize(("seed",), first(1, [(seed,) for seed in range(3)]))
def test_any_order_with_any_deaths_ends_in_the_same_state(
    seed: int, at: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Releases in random order, most of which die somewhere, until each has been run to its end."""
    monkeypatch.setattr("kernels_hub.hub.publish._PATIENCE_S", 0.0)
    random, repo = Random(seed), at.repo("scale")
    sources = {
        v: write_source(tmp_path / v, factor=n + 2, **{f"only_{n}": ""}) for n, v in enumerate(VERSIONS)
    }
    left, deaths = list(VERSIONS), 0
    seen: dict[str, Any] = {}
    while left:
        version = random.choice(left)
        step = random.choice([None, *range(5)])
        with network(at=step, lost=random.random() < 0.5) as net:
            if not net.lost:
                net.before = net.die
            try:
                publish_source(sources[version], repo, version)
                left.remove(version)
            except HubError:
                deaths += 1
            except PublishError as error:
                if "which has no tag" not in str(error):  # that of one that died before
                    raise
        if at.api.repo_exists(repo, repo_type="kernel"):
            tags = {tag: tree for tag, (tree, _) in state_of(at.api, repo)["tags"].items()}
            assert seen.items() <= tags.items()  # what is out never changes
            seen = tags
    assert deaths >= 3
    for version in VERSIONS:
        publish_source(sources[version], repo, version)
    state = {
        kind: {name: tree for name, (tree, _) in found.items()}
        for kind, found in state_of(at.api, repo).items()
    }
    assert set(state["tags"]) == {f"v{version}" for version in VERSIONS}
    assert set(state["branches"]) == {"main", "v0", "v1", "v2"}
    for branch, tag in (("v0", "v0.1.0"), ("v1", "v1.2.0"), ("v2", "v2.0.0")):
        assert state["branches"][branch] == state["tags"][tag]
    for number, version in enumerate(VERSIONS):
        files = {path for path in state["tags"][f"v{version}"] if path.startswith("build/torch-cpu/only_")}
        assert files == {f"build/torch-cpu/only_{number}.py"}
    for path in ("README.md", "kernel.toml"):
        assert state["branches"]["main"][path] == state["tags"]["v2.0.0"][path]


# -- others at the same time --------------------------------------------------------------------------


@pytest.mark.parametrize("victim", ["/commit/v1", "/commit/main"])
def test_a_branch_that_moves_meanwhile(victim: str, at: Place, source: Path):
    """Another commit, between the look at the branch and the commit to it: 412, and a look again."""
    repo = at.repo("scale")
    publish_source(source, repo, "1.0.0")
    write_source(source, factor=3)
    refused: list[int] = []

    def intrude(request: httpx2.Request) -> None:
        if victim in request.url.path and not refused:
            refused.append(1)
            net.at = None
            extra = [CommitOperationAdd("build/torch-cpu/intruder.py", b"")]
            branch = victim.rpartition("/")[2]
            at.api.create_commit(
                repo, extra, commit_message="in between", revision=branch, repo_type="kernel"
            )

    with network(at=0 if "v1" in victim else 2) as net:
        net.before = intrude
        publish_source(source, repo, "1.1.0")
    assert refused == [1]
    assert "build/torch-cpu/intruder.py" not in tree_of(at.api, repo, "v1.1.0")
    assert at.hub.requests()[-1].status == 200
    assert any(r.status == 412 for r in at.hub.requests() if repo in r.path)
    assert state_of(at.api, repo)["tags"]["v1.1.0"][1][0] == "Release 1.1.0"


def _race(publishers: list[Any]) -> list[Exception | None]:
    results: list[Exception | None] = [None] * len(publishers)
    barrier = threading.Barrier(len(publishers))

    def go(index: int) -> None:
        barrier.wait()
        try:
            publishers[index]()
        except Exception as error:  # noqa: BLE001 (the test looks at it)
            results[index] = error

    threads = [threading.Thread(target=go, args=(index,)) for index in range(len(publishers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_several_versions_at_once(at: Place, tmp_path: Path):
    repo = at.repo("scale")
    versions = ["1.0.0", "1.0.1", "1.1.0", "1.2.0"]
    sources = [write_source(tmp_path / f"s{n}", factor=n + 2) for n in range(len(versions))]
    results = _race(
        [lambda s=s, v=v: publish_source(s, repo, v) for s, v in zip(sources, versions, strict=True)]
    )
    assert results == [None] * len(versions)
    state = state_of(at.api, repo)
    assert set(state["tags"]) == {f"v{version}" for version in versions}
    assert set(state["branches"]) == {"main", "v1"}
    assert state["branches"]["v1"] == state["tags"]["v1.2.0"]
    assert state["branches"]["main"][0]["README.md"] == state["tags"]["v1.2.0"][0]["README.md"]
    for number, version in enumerate(versions):
        kernel = get_kernel(repo, version=f"=={version}", trust_remote_code=True)
        assert kernel.layers.Scale()(torch.ones(1)) == number + 2


def test_one_version_twice_at_once(at: Place, tmp_path: Path):
    """Equal content: both are content. Other content: one wins, and nothing of the other is left."""
    repo = at.repo("scale")
    same = write_source(tmp_path / "same")
    assert _race([lambda: publish_source(same, repo, "1.0.0")] * 3) == [None] * 3
    sources = [write_source(tmp_path / f"s{n}", factor=n + 3) for n in range(3)]
    results = _race([lambda s=s: publish_source(s, repo, "1.1.0") for s in sources])
    assert sorted(type(r).__name__ for r in results) == ["NoneType", *["VersionExistsError"] * 2]
    state = state_of(at.api, repo)
    assert state["branches"]["v1"] == state["tags"]["v1.1.0"]
    won = get_kernel(repo, version="==1.1.0", trust_remote_code=True).layers.Scale()(torch.ones(1))
    assert won == results.index(None) + 3


# -- refusals -----------------------------------------------------------------------------------------


def test_an_account_that_may_not(at: Place, source: Path, monkeypatch: pytest.MonkeyPatch):
    repo = at.repo("scale")
    monkeypatch.setenv("HF_TOKEN", at.hub.token("stranger"))
    with pytest.raises(HubPermissionError, match="publish with --repo-type model") as caught:
        publish_source(source, repo, "1.0.0")
    assert at.hub.endpoint in str(caught.value)
    monkeypatch.setenv("HF_TOKEN", at.hub.token("maker"))
    publish_source(source, repo, "1.0.0")
    before = state_of(at.api, repo)
    for token in (at.hub.token("stranger"), at.hub.token("maker", "read")):
        monkeypatch.setenv("HF_TOKEN", token)
        with pytest.raises(HubPermissionError):
            publish_source(source, repo, "1.1.0")
    assert state_of(at.api, repo) == before


def test_kernel_repositories_that_a_hub_keeps_for_others(at: Place, source: Path):
    """As huggingface.co does."""

    def refuse(request: httpx2.Request) -> httpx2.Response | None:
        if b'"kernel"' not in request.content:
            return None
        return httpx2.Response(403, json={"error": "no kernel repositories for you"}, request=request)

    with network(at=0, before=refuse), pytest.raises(HubPermissionError) as caught:
        publish_source(source, at.repo("scale"), "1.0.0")
    assert "--repo-type model" in str(caught.value)
    assert "no kernel repositories for you" in str(caught.value)
    with network(at=0, before=refuse):
        publish_source(source, at.repo("scale"), "1.0.0", repo_type="model")


@pytest.mark.parametrize(("status", "wait"), [(500, 0), (503, 0), (429, 1)])
def test_a_hub_that_stumbles_once(status: int, wait: int, at: Place, source: Path):
    def stumble(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(status, headers={"Retry-After": str(wait)}, request=request)

    start = time.monotonic()
    with network(at=2, before=stumble):
        publish_source(source, at.repo("scale"), "1.0.0")
    assert time.monotonic() - start >= wait
    assert set(state_of(at.api, at.repo("scale"))["tags"]) == {"v1.0.0"}


def test_commits_that_always_come_too_late(at: Place, source: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("kernels_hub.hub.publish._MAX_STALE", 3)

    def refuse(request: httpx2.Request) -> httpx2.Response:
        net.at = len(net.writes)
        return httpx2.Response(412, request=request)

    with network(at=2, before=refuse) as net, pytest.raises(PublishError, match="changes faster than 1"):
        publish_source(source, at.repo("scale"), "1.0.0")
    assert len(net.writes) == 6
    assert state_of(at.api, at.repo("scale"))["tags"] == {}


def test_a_client_library_that_knows_no_kernel_repositories(
    at: Place, source: Path, monkeypatch: pytest.MonkeyPatch
):
    """huggingface_hub 1.10 creates them, and then refuses to upload."""
    real = HfApi.create_commit

    def create_commit(self: HfApi, repo_id: str, operations: Any, **options: Any) -> Any:
        if options.get("repo_type") not in (None, "model"):
            raise ValueError("Invalid repo type, must be one of [None, 'model', 'dataset', 'space']")
        return real(self, repo_id, operations, **options)

    monkeypatch.setattr(HfApi, "create_commit", create_commit)
    with (
        network() as net,
        pytest.raises(PublishError, match=r"huggingface_hub \S+ cannot upload to kernel repos"),
    ):
        publish_source(source, at.repo("scale"), "1.0.0")
    assert net.writes == []
    publish_source(source, at.repo("scale"), "1.0.0", repo_type="model")


def test_offline(at: Place, source: Path):
    at.offline()
    with pytest.raises(OfflineError, match="HF_HUB_OFFLINE"):
        publish_source(source, at.repo("scale"), "1.0.0", dry_run=True)


def test_a_breaking_release_that_comes_in_between(at: Place, source: Path):
    """Somebody publishes 1.1.0 with one more layer while 1.2.0, which lacks it, is on its way."""
    repo = at.repo("scale")
    publish_source(source, repo, "1.0.0")
    other = write_source(source.parent / "other", factor=3)
    layers = other / "package" / "layers.py"
    layers.write_text(
        layers.read_text() + LAYERS.format(factor=4).replace("Scale", "More").partition("nn\n")[2]
    )
    manifest = other / "kernel.toml"
    manifest.write_text(manifest.read_text().replace('["Scale"]', '["Scale", "More"]'))

    def intrude(request: httpx2.Request) -> None:
        net.at = None
        publish_source(other, repo, "1.1.0")

    write_source(source, factor=9)
    with network(at=0) as net:
        net.before = intrude
        with pytest.raises(PublishError, match=r"would break code that uses 1\.1\.0"):
            publish_source(source, repo, "1.2.0")
    state = state_of(at.api, repo)
    assert set(state["tags"]) == {"v1.0.0", "v1.1.0"}
    assert state["branches"]["v1"] == state["tags"]["v1.1.0"]


def test_nobody_there(at: Place, source: Path):
    at.at("http://127.0.0.1:1")
    with pytest.raises(HubError, match=r"at http://127\.0\.0\.1:1: the Hub cannot be reached"):
        publish_source(source, "org/name", "1.0.0")


@pytest.mark.parametrize("version", ["1.2", "1", "one", "1.2.3.4", "1!1.2.0", "1.2.0+local", ""])
def test_a_bad_version(version: str, source: Path):
    with (
        pytest.raises(PublishError, match=r"must read major\.minor\.patch"),
        prepare_release(source, "o/n", version),
    ):
        pass


@pytest.mark.parametrize("repo_id", ["name", "a/b/c", "/a", "a/", "../a", "a/..", "a b/c", "a/b--c"])
def test_a_bad_repository(repo_id: str, source: Path):
    with pytest.raises(PublishError, match="expected 'org/name'"), prepare_release(source, repo_id, "1.0.0"):
        pass


def test_code_that_breaks_the_contract(source: Path):
    (source / "package" / "layers.py").write_text("import numpy\n")
    with pytest.raises(BuildError, match="has 2 problems"), prepare_release(source, "o/n", "1.0.0"):
        pass


def test_a_release_without_a_tag_hides_nothing(at: Place):
    """The network fixture itself: it does count, and it does fail."""
    with network(at=0) as net:
        net.before = net.die
        with pytest.raises(httpx2.HTTPError):
            at.api.create_repo(at.repo("never"), repo_type="kernel")
        assert isinstance(net, Network)
        assert net.writes == ["POST /api/repos/create"]
    assert not at.api.repo_exists(at.repo("never"), repo_type="kernel")
