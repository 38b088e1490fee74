"""Yank, versions and diff against a running Hub, and the commands that publish."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch
from huggingface_hub import CommitOperationAdd

from kernels_hub import get_kernel
from kernels_hub.errors import MetadataError, PublishError, RepositoryNotFoundError, VersionError
from kernels_hub.hub import client, releases
from tests.cli.conftest import Run
from tests.cli.conftest import run as run  # noqa: PLC0414 (a fixture of this module)
from tests.hub.place import Place
from tests.hub.publisher import LAYERS, network, publish_source, state_of, tree_of, write_source


@pytest.fixture
def at(place: Place, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("HF_TOKEN", place.hub.token("maker"))
    return place


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_source(tmp_path / "scale")


@pytest.fixture
def three(at: Place, source: Path) -> str:
    """A repository with 1.0.0 (factor 2), 1.1.0 (3) and 2.0.0 (4)."""
    for factor, version in ((2, "1.0.0"), (3, "1.1.0"), (4, "2.0.0")):
        publish_source(write_source(source, factor=factor), at.repo("scale"), version)
    return at.repo("scale")


def factor(repo: str, version: Any) -> float:
    client.forget()
    return get_kernel(repo, version=version, trust_remote_code=True).layers.Scale()(torch.ones(1)).item()


# -- yank ---------------------------------------------------------------------------------------------


def test_yank(three: str, at: Place):
    assert factor(three, ">=1,<2") == 3
    assert releases.yank(three, "1.1.0", "wrong") is True
    before = state_of(at.api, three)
    assert releases.yank(three, "v1.1.0", "wrong") is False
    assert state_of(at.api, three) == before
    assert factor(three, ">=1,<2") == 2
    assert factor(three, "==1.1.0") == 3
    assert {"README.md", "kernel.toml", "yanked.json"} <= set(tree_of(at.api, three, "main"))
    assert releases.yank(three, "1.1.0", undo=True) is True
    assert releases.yank(three, "1.1.0", undo=True) is False
    assert factor(three, ">=1,<2") == 3


def test_a_yanked_release_is_not_compared_with(three: str, source: Path):
    layers = source / "package" / "layers.py"
    layers.write_text(LAYERS.format(factor=2).replace("(self, x)", "(self, y)"))
    publish_source(source, three, "1.2.0", allow_breaking=True)
    releases.yank(three, "1.2.0", "renamed an argument")
    publish_source(write_source(source, factor=9), three, "1.2.1")


def test_two_yanks_at_once(three: str, at: Place):
    def intrude(request: httpx2.Request) -> None:
        net.at = None
        file = CommitOperationAdd("yanked.json", b'{"1.0.0": "old"}')
        at.api.create_commit(three, [file], commit_message="Yank 1.0.0", revision="main", repo_type="kernel")

    with network(at=0) as net:
        net.before = intrude
        releases.yank(three, "1.1.0", "wrong")
    found = {row.version: row.yanked for row in releases.list_releases(three).releases}
    assert found == {"2.0.0": None, "1.1.0": "wrong", "1.0.0": "old"}


def test_what_cannot_be_yanked(three: str, at: Place):
    with pytest.raises(
        VersionError, match=r"has no release ==1\.5\.0: its releases nearest to that are 2\.0\.0, 1"
    ):
        releases.yank(three, "1.5.0", "x")
    with pytest.raises(VersionError, match=r"must read major\.minor\.patch"):
        releases.yank(three, "main", "x")
    with pytest.raises(RepositoryNotFoundError):
        releases.yank(at.repo("none"), "1.0.0", "x")
    bad = CommitOperationAdd("yanked.json", b"[]")
    at.api.create_commit(three, [bad], commit_message="x", revision="main", repo_type="kernel")
    with pytest.raises(MetadataError, match=r"yanked\.json on main is not of the form"):
        releases.yank(three, "1.0.0", "x")


def test_main_that_never_rests(three: str, at: Place, monkeypatch: pytest.MonkeyPatch):
    def refuse(request: httpx2.Request) -> httpx2.Response:
        net.at = len(net.writes)
        return httpx2.Response(412, request=request)

    with network(at=0, before=refuse) as net, pytest.raises(PublishError, match="changes faster"):
        releases.yank(three, "1.0.0", "x")


# -- the commands -------------------------------------------------------------------------------------


def test_versions(three: str, run: Run):
    releases.yank(three, "1.1.0", "wrong")
    text = run("versions", three).out.splitlines()
    assert [line.split()[0] for line in text[:3]] == ["2.0.0", "1.1.0", "1.0.0"]
    assert "v2" in text[0]
    assert text[1].endswith("yanked: wrong")
    found = json.loads(run("versions", three, "--json").out)
    assert [row["version"] for row in found["releases"]] == ["2.0.0", "1.1.0", "1.0.0"]
    assert [row["yanked"] for row in found["releases"]] == [None, "wrong", None]
    assert all(row["date"].startswith("20") for row in found["releases"])
    assert set(found["branches"]) == {"main", "v1", "v2"}
    assert found["repo_type"] == "kernel"


def test_versions_of_nothing(at: Place, run: Run):
    at.api.create_repo(at.repo("empty"), repo_type="model")
    assert f"{at.repo('empty')} has no releases" in run("versions", at.repo("empty")).out
    missing = run("versions", at.repo("none"))
    assert (missing.code, missing.out) == (1, "")
    assert missing.err.startswith("kernels-hub: ")


def test_yank_command(three: str, run: Run):
    assert run("yank", three, "1.0.0").code == 2  # a reason is needed
    out = run("yank", three, "1.0.0", "--reason", "slow").out
    assert "is yanked" in out
    assert "note" not in out
    assert "note: v1 is still at it" in run("yank", three, "v1.1.0", "--reason", "slow").out
    assert json.loads(run("yank", three, "1.0.0", "--reason", "slow", "--json").out)["changed"] is False
    assert "can be chosen again" in run("yank", three, "1.0.0", "--undo").out


def test_yank_of_a_prerelease_as_people_spell_it(at: Place, source: Path, run: Run):
    publish_source(source, at.repo("scale"), "1.0.0-rc1")
    done = json.loads(run("yank", at.repo("scale"), "1.0.0-rc1", "--reason", "x", "--json").out)
    assert done["changed"] is True
    assert releases.list_releases(at.repo("scale")).releases[0].yanked == "x"


def test_diff(three: str, source: Path, run: Run):
    out = run("diff", f"{three}@1.0.0", "1.1.0").out
    assert "  ~ build/torch-cpu/layers.py" in out
    assert "a patch change: at least 1.0.1" in out
    write_source(source, factor=4, more="")
    layers = source / "package" / "layers.py"
    layers.write_text(layers.read_text().replace("has_backward = True", "has_backward = False"))
    found = json.loads(run("diff", f"{three}@v2", source, "--json").out)
    assert (found["bump"], found["next_version"], found["old"]["version"]) == ("major", "3.0.0", "2.0.0")
    assert found["changes"] == [
        {"bump": "major", "what": "layer Scale has has_backward=False, had True", "variants": []}
    ]
    assert {(file["path"], file["change"]) for file in found["files"]} == {
        ("build/torch-cpu/layers.py", "changed"),
        ("build/torch-cpu/more.py", "added"),
    }
    assert "no difference" in run("diff", f"{three}@2.0.0", f"{three}@v2").out


def test_diff_fetches_no_native_files(at: Place, run: Run):
    at.put(1, name="native", extra={"build/torch-cpu/big.so": "\x7fELF"}, tag="v1.0.0")
    at.put(2, name="native", extra={"build/torch-cpu/big.so": "\x7fELF2"}, tag="v1.1.0")
    out = run("diff", f"{at.repo('native')}@1.0.0", "1.1.0").out
    assert "  ~ build/torch-cpu/big.so" in out
    assert not [line for line in at.requests("GET") if "big.so" in line]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("{three}@1.0.0", "1.7.0", "has no release ==1.7.0: its releases nearest to that are"),
        ("{three}@1.0.0", "nonsense", "has no branch or tag 'nonsense'"),
        ("nowhere", "1.0.0", "neither a folder nor org/name@version"),
        ("{source}", "1.0.0", "nor a version of A, which is a folder"),
    ],
)
def test_diff_of_what_is_not_there(old: str, new: str, expected: str, three: str, source: Path, run: Run):
    result = run("diff", old.format(three=three, source=source), new)
    assert result.code in (1, 2)
    assert expected in " ".join(result.err.replace("│", " ").split())


def test_from_init_to_a_second_release(at: Place, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    repo = at.repo("my-relu")
    assert run("init", "my-relu").code == 0
    built = json.loads(run("build", "my-relu", "-o", "out", "--backend", "cpu", "--json").out)
    assert [row["variant"] for row in built["variants"]] == ["torch-cpu"]
    assert built["variants"][0]["files"] == 5
    planned = run("publish", "my-relu", "--repo", repo, "--dry-run")
    assert "nothing was sent: this is a dry run" in planned.out
    assert "3. commit 'Release 0.1.0' to v0: 17 files" in planned.out
    assert "   README.md " in planned.out
    assert not at.api.repo_exists(repo, repo_type="kernel")
    done = run("publish", "my-relu", "--repo", repo, "--version", "0.2.0")
    assert done.code == 0, done.err
    assert f"published {repo} 0.2.0" in done.out
    assert "tag " in done.err
    again = json.loads(run("publish", "my-relu", "--repo", repo, "--version", "0.2.0", "--json").out)
    assert again["already_published"] is True
    assert again["commit"] == at.api.repo_info(repo, revision="v0.2.0", repo_type="kernel").sha
    planned = json.loads(
        run("publish", "my-relu", "--repo", repo, "--version", "0.2.1", "--dry-run", "--json").out
    )
    assert [step["step"] for step in planned["steps"]] == ["commit", "create_tag", "commit"]
    paths = [file["path"] for file in planned["steps"][0]["add"]]
    assert paths == [
        "README.md",
        *(f"build/torch-{b}/metadata.json" for b in ("cpu", "cuda", "rocm")),
        "kernel.toml",
    ]
    assert (planned["previous"], planned["bump"]) == ("0.2.0", "none")
    kernel = get_kernel(repo, version=0, trust_remote_code=True)
    torch.testing.assert_close(kernel.squared_relu(torch.tensor([-1.0, 3.0])), torch.tensor([0.0, 9.0]))


def test_publish_refuses(at: Place, source: Path, run: Run):
    bad = run("publish", source, "--repo", "scale", "--version", "1.0.0")
    assert (bad.code, bad.out) == (1, "")
    assert bad.err == "kernels-hub: 'scale' is no repository to publish to: expected 'org/name'\n"
    (source / "package" / "layers.py").write_text("import numpy\n")
    bad = run("publish", source, "--repo", at.repo("scale"), "--version", "1.0.0")
    assert "layers.py:1: imports numpy, which is not declared" in bad.err
    assert not at.api.repo_exists(at.repo("scale"), repo_type="kernel")
    assert run("publish", source, "--repo", at.repo("scale"), "--sign", "nobody").code == 1


def test_build_refuses(at: Place, source: Path, tmp_path: Path, run: Run):
    (source / "package" / "layers.py").write_text("import numpy\n")
    bad = run("build", source, "-o", tmp_path / "out")
    assert (bad.code, bad.out) == (1, "")
    assert "kernel 'scale' has 2 problems, nothing was written:" in bad.err
    assert not (tmp_path / "out").exists()
    assert run("build", source, "--manylinux", "new").code == 2
    assert run("build", tmp_path / "nowhere").code == 1


def test_build_shows_a_table(at: Place, source: Path, tmp_path: Path, run: Run):
    lines = run("build", source, "-o", tmp_path / "out").out.splitlines()
    assert lines[0].split() == ["variant", "files", "bytes", "id"]
    assert lines[1].split()[:2] == ["torch-cpu", "3"]
    assert lines[2] == f"built into {tmp_path / 'out' / 'build'}"


def test_init_refuses(at: Place, tmp_path: Path, run: Run):
    assert "cannot be a kernel's name" in run("init", "No_Name", "--path", tmp_path / "x").err
    made = json.loads(run("init", "fine", "--path", tmp_path / "x", "--json").out)
    assert str(tmp_path / "x" / "kernel.toml") in made["files"]
    assert "is not empty" in run("init", "fine", "--path", tmp_path / "x").err
