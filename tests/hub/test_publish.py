"""Publishing to a running Hub: what lies there afterwards, also when it died on the way."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import textwrap
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch
from huggingface_hub import CommitOperationAdd

from kernels_hub import get_kernel
from kernels_hub.errors import (
    BuildError,
    HubError,
    HubPermissionError,
    MetadataError,
    OfflineError,
    PublishError,
    VersionExistsError,
)
from kernels_hub.hub.keys import load_signing_key, new_key
from kernels_hub.hub.publish_plan import Commit, CreateBranch, CreateRepository, CreateTag, DeleteBranch
from kernels_hub.hub.release import prepare_release
from kernels_hub.repository.build import build_repository
from kernels_hub.repository.bundled import bundled_folder
from kernels_hub.repository.digest import compute_digest, list_files
from kernels_hub.repository.metadata import read_metadata
from tests.hub.place import Place
from tests.hub.publisher import (
    LAYERS,
    MANIFEST,
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


# -- what lies on the Hub afterwards ------------------------------------------------------------------


def test_the_first_release(at: Place, source: Path):
    repo = at.repo("scale")
    done = publish_source(source, repo, "1.2.0")
    assert kinds(done.steps) == [CreateRepository, CreateBranch, Commit, CreateTag, Commit]
    state = state_of(at.api, repo)
    assert set(state["branches"]) == {"main", "v1"}
    assert set(state["tags"]) == {"v1.2.0"}
    assert state["tags"]["v1.2.0"] == state["branches"]["v1"]
    tree, titles = state["tags"]["v1.2.0"]
    build = {f"build/torch-cpu/{name}.py" for name in ("__init__", "layers")}
    assert set(tree) - {".gitattributes"} == {
        *build,
        "build/torch-cpu/metadata.json",
        "README.md",
        "kernel.toml",
    }
    assert titles[0] == "Release 1.2.0"
    shown, _ = state["branches"]["main"]
    assert set(shown) - {".gitattributes"} == {"README.md", "kernel.toml"}
    assert len(at.requests("POST", "/commit/v1")) >= 1
    assert sum("/commit/v1" in line for line in at.requests("/commit/")) == 1


def test_what_the_files_say(at: Place, source: Path):
    repo = at.repo("scale")
    publish_source(source, repo, "1.2.0")

    def text(path: str, revision: str) -> str:
        return Path(at.api.hf_hub_download(repo, path, revision=revision, repo_type="kernel")).read_text()

    metadata = json.loads(text("build/torch-cpu/metadata.json", "v1.2.0"))
    assert (metadata["version"], metadata["kernels-hub"]["release"]) == (1, "1.2.0")
    assert text("kernel.toml", "main") == MANIFEST.replace('"0.1.0"', '"1.2.0"')
    assert "Release 1.2.0 of the kernel `scale`." in text("README.md", "main")
    assert f'LayerRepository("{repo}", layer_name="Scale", version=">=1.2.0,<2")' in text("README.md", "v1")
    assert (source / "kernel.toml").read_text() == MANIFEST
    assert not (source / "build").exists()


def test_again_does_nothing(at: Place, source: Path):
    repo = at.repo("scale")
    publish_source(source, repo, "1.2.0")
    before = state_of(at.api, repo)
    with network() as net:
        again = publish_source(source, repo, "1.2.0")
    assert again.was_there
    assert net.writes == []
    assert state_of(at.api, repo) == before
    assert again.commit == at.api.repo_info(repo, revision="v1.2.0", repo_type="kernel").sha


def test_a_version_never_changes(at: Place, source: Path):
    repo = at.repo("scale")
    publish_source(source, repo, "1.2.0")
    before = state_of(at.api, repo)
    write_source(source, factor=3, more="")
    with network() as net, pytest.raises(VersionExistsError) as caught:
        publish_source(source, repo, "1.2.0", allow_breaking=True, replace_unfinished=True)
    assert f"{repo} has 1.2.0 already, with other content" in str(caught.value)
    assert "build/torch-cpu/layers.py" in str(caught.value)
    assert "build/torch-cpu/more.py" in str(caught.value)
    assert net.writes == []
    assert state_of(at.api, repo) == before


def test_the_next_release_replaces_the_files(at: Place, source: Path):
    repo = at.repo("scale")
    (source / "package" / "old.py").write_text("")
    publish_source(source, repo, "1.2.0")
    (source / "package" / "old.py").unlink()
    write_source(source, factor=3, new="x = 1\n")
    extra = [CommitOperationAdd("yanked.json", b"{}"), CommitOperationAdd("notes/a.txt", b"a")]
    at.api.create_commit(repo, extra, commit_message="more", revision="main", repo_type="kernel")
    extra = [CommitOperationAdd("build/torch-cuda/x.py", b"a"), CommitOperationAdd(".gitattributes", b"")]
    at.api.create_commit(repo, extra, commit_message="by hand", revision="v1", repo_type="kernel")
    publish_source(source, repo, "1.3.0")
    paths = set(tree_of(at.api, repo, "v1"))
    names = ("__init__.py", "layers.py", "metadata.json", "new.py")
    assert paths == {*(f"build/torch-cpu/{n}" for n in names), "README.md", "kernel.toml", ".gitattributes"}
    assert "build/torch-cpu/old.py" in tree_of(at.api, repo, "v1.2.0")
    assert {"yanked.json", "notes/a.txt"} <= set(tree_of(at.api, repo, "main"))
    publish_source(source, repo, "2.0.0")
    assert "notes/a.txt" not in tree_of(at.api, repo, "v2.0.0")


def test_a_lower_release_and_a_prerelease_move_no_branch(at: Place, source: Path):
    repo = at.repo("scale")
    publish_source(source, repo, "1.0.0")
    write_source(source, factor=4)
    publish_source(source, repo, "1.2.0")
    before = state_of(at.api, repo)
    write_source(source, factor=3)
    done = publish_source(source, repo, "1.0.1")
    assert kinds(done.steps) == [CreateBranch, Commit, CreateTag, DeleteBranch]
    publish_source(source, repo, "1.3.0rc1")
    after = state_of(at.api, repo)
    assert after["branches"] == before["branches"]
    assert set(after["tags"]) == {"v1.0.0", "v1.0.1", "v1.2.0", "v1.3.0rc1"}
    assert after["tags"]["v1.0.1"][1][:2] == ["Release 1.0.1", "Release 1.0.0"]
    assert get_kernel(repo, version=1, trust_remote_code=True).layers.Scale()(torch.ones(1)) == 4
    assert get_kernel(repo, version="<1.2", trust_remote_code=True).layers.Scale()(torch.ones(1)) == 3


def test_a_model_repository(at: Place, source: Path):
    repo = at.repo("scale")
    publish_source(source, repo, "1.2.0", repo_type="model")
    assert set(state_of(at.api, repo, "model")["tags"]) == {"v1.2.0"}
    kernel = get_kernel(repo, version="==1.2.0", trust_remote_code=True)
    assert kernel.layers.Scale()(torch.ones(1)) == 2


def test_a_private_repository(at: Place, source: Path):
    repo = at.repo("scale")
    publish_source(source, repo, "1.2.0", private=True)
    assert at.api.repo_info(repo, repo_type="kernel").private is True
    publish_source(source, repo, "1.2.1", private=True)


def test_a_built_tree(at: Place, source: Path, tmp_path: Path):
    build_repository(source, tmp_path / "out", version="1.2.0")
    with pytest.raises(PublishError, match=r"was built as 1\.2\.0, not 1\.3\.0"):
        publish_source(tmp_path / "out", at.repo("scale"), "1.3.0")
    done = publish_source(tmp_path / "out", at.repo("scale"), None)
    assert str(done.release.version) == "1.2.0"
    tree = tree_of(at.api, at.repo("scale"), "v1.2.0")
    assert {"README.md", "build/torch-cpu/layers.py"} <= set(tree)
    (tmp_path / "out" / "build" / "torch-cpu" / "layers.py").write_text("x")
    with pytest.raises(MetadataError, match="does not match the digest"):
        publish_source(tmp_path / "out", at.repo("scale"), None)


def test_a_signed_release(at: Place, source: Path):
    from kernels_hub.hub.signed_variant import verify_signed

    new_key("maker")
    key = load_signing_key("maker")
    done = publish_source(source, at.repo("scale"), "1.2.0", key=key)
    assert "build/torch-cpu/metadata.json.ed25519" in done.release.files
    folder = Path(
        at.api.snapshot_download(
            at.repo("scale"), repo_type="kernel", revision="v1", allow_patterns=["build/*"]
        )
    )
    verified = verify_signed(folder / "build" / "torch-cpu", None, at.repo("scale"), "1.2.0")
    assert (verified.repository, verified.release) == (at.repo("scale"), "1.2.0")
    assert publish_source(source, at.repo("scale"), "1.2.0", key=key).was_there


def test_another_card(at: Place, source: Path):
    """It is not what a release is: main shows the new one, the tag keeps its own."""
    repo = at.repo("scale")
    publish_source(source, repo, "1.2.0")
    before = state_of(at.api, repo)
    (source / "README.md").write_text("# Better words\n")
    done = publish_source(source, repo, "1.2.0")
    assert [(type(step), step.branch) for step in done.steps] == [(Commit, "main")]
    after = state_of(at.api, repo)
    assert after["tags"] == before["tags"]
    assert after["branches"]["v1"] == before["branches"]["v1"]
    shown = at.api.hf_hub_download(repo, "README.md", repo_type="kernel")
    assert "# Better words\n" in Path(shown).read_text()


@pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")  # huggingface_hub's own
@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_a_large_native_file(at: Place, source: Path, tmp_path: Path):
    """Large file storage, with hf_xet installed: still one commit, and known again."""
    repo, variant = at.repo("scale"), "torch213-cpu-x86_64-linux"
    build_repository(source, tmp_path / "out", version="1.2.0")
    folder = (tmp_path / "out" / "build" / "torch-cpu").rename(tmp_path / "out" / "build" / variant)
    code = tmp_path / "big.c"
    code.write_text("const unsigned char filler[12 << 20] = {1, 2, 3};\n")
    command = ["gcc", "-shared", "-fPIC", str(code), "-o", str(folder / "libbig.so")]
    subprocess.run(command, check=True)
    with pytest.raises(MetadataError, match=r"libbig\.so is not listed"):
        publish_source(tmp_path / "out", repo, "1.2.0")
    metadata = read_metadata(folder)
    digest = compute_digest(list_files(folder))
    (folder / "metadata.json").write_text(replace(metadata, digest=digest).to_json())
    publish_source(tmp_path / "out", repo, "1.2.0")
    assert sum("/commit/v1" in line for line in at.requests("/commit/")) == 1
    entries = {
        e.path: e for e in at.api.list_repo_tree(repo, recursive=True, revision="v1.2.0", repo_type="kernel")
    }
    assert entries[f"build/{variant}/libbig.so"].lfs.size > 12 << 20
    assert publish_source(tmp_path / "out", repo, "1.2.0").was_there
    fetched = at.api.hf_hub_download(repo, f"build/{variant}/libbig.so", revision="v1", repo_type="kernel")
    assert Path(fetched).read_bytes() == (folder / "libbig.so").read_bytes()


def test_a_broken_manifest_is_not_passed_over_for_an_old_build(source: Path):
    build_repository(source, source)
    (source / "kernel.toml").write_text("[kernel")
    with pytest.raises(MetadataError, match="is not TOML"), prepare_release(source, "o/n", "0.1.0"):
        pass


def test_a_release_that_was_fetched_can_be_published_elsewhere(at: Place, source: Path):
    publish_source(source, at.repo("scale"), "1.2.0")
    folder = at.api.snapshot_download(at.repo("scale"), repo_type="kernel", revision="v1.2.0")
    publish_source(Path(folder), at.repo("copy"), None)
    one, other = (tree_of(at.api, at.repo(name), "v1.2.0") for name in ("scale", "copy"))
    assert {path for path in one if one[path] != other[path]} == {"README.md"}


# -- a dry run ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [None, "1.0.0", "1.5.0"])
def test_a_dry_run_says_what_happens_then(first: str | None, at: Place, source: Path):
    repo = at.repo("scale")
    if first:
        publish_source(source, repo, first)
        write_source(source, factor=3)
    with network() as net:
        planned = publish_source(source, repo, "1.2.0", dry_run=True)
    assert net.writes == []
    assert planned.commit is None
    done = publish_source(source, repo, "1.2.0")
    assert kinds(planned.steps) == kinds(done.steps)
    for one, other in zip(planned.steps, done.steps, strict=True):
        if isinstance(one, Commit) and isinstance(other, Commit):
            assert (one.branch, one.title, one.delete) == (other.branch, other.title, other.delete)
            assert [(f.path, f.size, f.sha256) for f in one.add] == [
                (f.path, f.size, f.sha256) for f in other.add
            ]


# -- which version a change needs ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "allowed"),
    [
        ("1.2.0", "1.3.0", False),
        ("1.2.0", "2.0.0", True),
        ("0.2.0", "0.2.1", False),
        ("0.2.0", "0.3.0", True),
    ],
)
def test_a_breaking_change(first: str, second: str, allowed: bool, at: Place, source: Path):
    repo = at.repo("scale")
    publish_source(source, repo, first)
    layers = source / "package" / "layers.py"
    layers.write_text(LAYERS.format(factor=2).replace("forward(self, x)", "forward(self, x, y=1)"))
    before = state_of(at.api, repo)
    if not allowed:
        with pytest.raises(PublishError, match="would break code that uses") as caught:
            publish_source(source, repo, second)
        assert "layer Scale takes (x, y=1), took (x)" in str(caught.value)
        assert state_of(at.api, repo) == before
    publish_source(source, repo, second, allow_breaking=not allowed)
    assert f"v{second}" in state_of(at.api, repo)["tags"]


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


@pytest.mark.parametrize("case", ["first", "next", "backport"])
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


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_hub_that_stumbles_once(status: int, at: Place, source: Path):
    def stumble(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(status, request=request)

    with network(at=2, before=stumble):
        publish_source(source, at.repo("scale"), "1.0.0")
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


# -- both clients load what was published -------------------------------------------------------------

THEIRS = textwrap.dedent(
    """
    import json, sys, torch
    from kernels import get_kernel
    repo, version = sys.argv[1], int(sys.argv[2])
    kernel = get_kernel(repo, version=version, backend="cpu", trust_remote_code=True)
    print(json.dumps([kernel.silu(torch.ones(1)).item(), kernel.RELEASE]))
    """
)


def test_two_versions_of_a_bundled_repository_in_both_clients(at: Place, tmp_path: Path):
    source = tmp_path / "layers"
    for name in ("activation", "native", "registration"):
        shutil.copytree(bundled_folder() / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    repo = at.repo("activation")
    entry = source / "activation" / "package" / "__init__.py"
    text = entry.read_text()
    for version in ("1.0.0", "1.1.0", "2.0.0"):
        entry.write_text(f"{text}\nRELEASE = {version!r}\n")
        publish_source(source / "activation", repo, version)
    expected = torch.nn.functional.silu(torch.ones(1)).item()
    for wanted, release in ((1, "1.1.0"), (2, "2.0.0")):
        done = subprocess.run(
            [sys.executable, "-c", THEIRS, repo, str(wanted)],
            env=at.environment(), capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        value, theirs = json.loads(done.stdout.splitlines()[-1])
        assert theirs == release
        assert value == pytest.approx(expected, rel=1e-6)
    for version, release in ((1, "1.1.0"), ("==1.0.0", "1.0.0"), (">=1", "2.0.0")):
        kernel = get_kernel(repo, version=version, trust_remote_code=True)
        assert kernel.RELEASE == release
        torch.testing.assert_close(kernel.silu(torch.ones(1)), torch.tensor([expected]))
