"""Publishing to a running Hub: what lies there afterwards."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import CommitOperationAdd

from kernels_hub import get_kernel
from kernels_hub.errors import (
    MetadataError,
    PublishError,
    VersionExistsError,
)
from kernels_hub.hub.publish_plan import Commit, CreateBranch, CreateRepository, CreateTag, DeleteBranch
from kernels_hub.hub.release import prepare_release
from kernels_hub.repository.build import build_repository
from kernels_hub.repository.bundled import bundled_folder
from kernels_hub.repository.digest import compute_digest, list_files
from kernels_hub.repository.metadata import read_metadata
from kernels_hub.trust.keys import load_signing_key, new_key
from tests.hub.place import Place
from tests.hub.publisher import (
    LAYERS,
    MANIFEST,
    network,
    publish_source,
    state_of,
    tree_of,
    write_source,
)
from tests.repository.test_git_state import commit, git
from tests.warm_process import run_script


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


@pytest.mark.parametrize("signed", [False, True])
def test_the_same_content_of_another_commit_is_the_same(
    at: Place, source: Path, tmp_path: Path, signed: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("KERNELS_HUB_KEYS", str(tmp_path / "keys"))
    key = load_signing_key(new_key("ada").name) if signed else None
    repo = at.repo("scale")
    publish_source(source, repo, "1.2.0", key=key)
    before = state_of(at.api, repo)
    git(tmp_path, "init", "-q", str(source))
    commit(source)
    with network() as net:
        again = publish_source(source, repo, "1.2.0", key=key)
    assert again.was_there
    assert net.writes == []
    assert state_of(at.api, repo) == before
    write_source(source, factor=3)
    with pytest.raises(VersionExistsError, match=r"layers\.py"):
        publish_source(source, repo, "1.2.0", key=key)


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


def test_verify_holds_where_it_was_published_from(at: Place, source: Path, monkeypatch: pytest.MonkeyPatch):
    """`publish --sign PATH`, then `verify PATH`; a build of another release stays as it was, which is said."""
    from kernels_hub.cli.publish import publish as command
    from kernels_hub.cli.verify import _variants, _verify
    from kernels_hub.repository.build import build_repository

    new_key("left")
    for version, signed in (("1.2.0", True), ("1.3.0", False)):
        build_repository(source, source, version="1.2.0")
        (signature := source / "build" / "torch-cpu" / "metadata.json.ed25519").unlink(missing_ok=True)
        command(source, repo=at.repo("left"), version=version, sign="left")
        rows = [_verify(folder, None, at.repo("left")) for folder in _variants(source)]
        assert [row.problem is None for row in rows] == [signed], rows
        assert signature.exists() is signed


def test_a_signed_release(at: Place, source: Path):
    from kernels_hub.trust.signed_variant import verify_signed

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


def test_pictures_of_the_card(at: Place, source: Path, tmp_path: Path):
    """They go with it, to the tag and to main; nothing else of the repository does, and no link is followed."""
    (tmp_path / "outside.svg").write_text("<svg/>")
    (source / "docs").mkdir()
    for name, size in (("graph.svg", 9), ("docs/a b.png", 9), ("unused.svg", 9), ("huge.png", (1 << 20) + 1)):
        (source / name).write_bytes(b"x" * size)
    (source / "link.svg").symlink_to(tmp_path / "outside.svg")
    shown = "graph.svg docs/a%20b.png huge.png link.svg ../outside.svg missing.svg layers.py https://x.example/y.png"
    (source / "README.md").write_text("# Scale\n\n" + "\n".join(f"![it]({one})" for one in shown.split()))
    repo = at.repo("scale")
    publish_source(source, repo, "1.2.0")
    pictures = {"graph.svg", "docs/a b.png"}
    state = state_of(at.api, repo)
    for tree in (state["tags"]["v1.2.0"][0], state["branches"]["main"][0]):
        assert {path for path in tree if path.endswith(("svg", "png"))} == pictures
    # As the card they belong to, they are no part of what a release is.
    for path, text in (("graph.svg", "<svg>new</svg>"), ("README.md", "# Scale\n")):
        (source / path).write_text(text)
        steps = publish_source(source, repo, "1.2.0").steps
        assert [(type(step), step.branch, [file.path for file in step.add]) for step in steps] == [
            (Commit, "main", [path])
        ]


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


@pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")  # huggingface_hub's own
def test_equal_large_files_in_several_variants(at: Place, source: Path):
    """One content under several paths, sent from several threads: each thread reads all of it."""
    repo = at.repo("scale")
    manifest = source / "kernel.toml"
    (sources,) = [line for line in manifest.read_text().splitlines() if line.startswith("sources")]
    more = "".join(f"\n[backends.{name}]\n{sources}\n" for name in ("cuda", "rocm", "xpu"))
    manifest.write_text(manifest.read_text() + more)
    data = random.Random(0).randbytes(1 << 20)
    folder = next(path for path in source.iterdir() if (path / "__init__.py").is_file())
    for name in ("one", "two", "three"):
        (folder / f"{name}.safetensors").write_bytes(data + name.encode())
    publish_source(source, repo, "1.0.0")
    for backend in ("cpu", "cuda", "rocm", "xpu"):
        path = f"build/torch-{backend}/two.safetensors"
        fetched = at.api.hf_hub_download(repo, path, revision="v1.0.0", repo_type="kernel")
        assert Path(fetched).read_bytes() == data + b"two"


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
        done = run_script(THEIRS, repo, str(wanted), env=at.environment(), timeout=120)  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        value, theirs = json.loads(done.stdout.splitlines()[-1])
        assert theirs == release
        assert value == pytest.approx(expected, rel=1e-6)
    for version, release in ((1, "1.1.0"), ("==1.0.0", "1.0.0"), (">=1", "2.0.0")):
        kernel = get_kernel(repo, version=version, trust_remote_code=True)
        assert kernel.RELEASE == release
        torch.testing.assert_close(kernel.silu(torch.ones(1)), torch.tensor([expected]))
