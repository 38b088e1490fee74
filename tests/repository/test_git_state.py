"""The commit of files in a work tree, against work trees that git makes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kernels_hub.repository.git_state import GitState, git_state

_AUTHOR = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "commit.gpgsign=false")


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *_AUTHOR, "-C", str(folder), *arguments], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def commit(folder: Path) -> str:
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "change")
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture(params=["sha1", "sha256"])
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    (folder / "layer" / "package").mkdir(parents=True)
    (folder / "layer" / "package" / "a.py").write_bytes(b"a = 1\n")
    (folder / "layer" / "kernel.toml").write_bytes(b"x\n")
    git(tmp_path, "init", "-q", f"--object-format={request.param}", str(folder))
    return folder


def state(folder: Path) -> GitState | None:
    root = folder / "layer"
    files = [file for file in (root / "package").iterdir() if file.is_file()]
    return git_state([root / "kernel.toml", root / "package"], [root / "kernel.toml", *files])


def test_a_clean_tree(tree: Path):
    first = commit(tree)
    assert state(tree) == GitState(first, dirty=False)
    (tree / "other.txt").write_text("of no concern")
    (tree / "layer" / "build").mkdir()
    (tree / "layer" / "build" / "made").write_text("neither")
    second = commit(tree)
    assert second != first
    assert state(tree) == GitState(first, dirty=False)


@pytest.mark.parametrize("change", ["altered", "added", "ignored", "removed", "staged"])
def test_a_dirty_tree(tree: Path, change: str):
    package = tree / "layer" / "package"
    (package / "b.py").write_bytes(b"b = 1\n")
    (tree / ".gitignore").write_text("secret.py\n")
    first = commit(tree)
    match change:
        case "altered":
            (package / "a.py").write_bytes(b"a = 2\n")
        case "added":
            (package / "c.py").write_bytes(b"c = 1\n")
        case "ignored":
            (package / "secret.py").write_bytes(b"c = 1\n")
        case "removed":
            (package / "b.py").unlink()
        case "staged":
            (package / "a.py").write_bytes(b"a = 2\n")
            git(tree, "add", "-A")
    assert state(tree) == GitState(first, dirty=True)


def test_line_ends_of_windows_are_no_difference(tree: Path):
    first = commit(tree)
    (tree / "layer" / "package" / "a.py").write_bytes(b"a = 1\r\n")
    assert state(tree) == GitState(first, dirty=False)


def test_nothing_is_said_of_what_no_commit_holds(tree: Path, tmp_path: Path):
    assert state(tree) is None  # no commit yet
    (tree / "readme").write_text("x")
    git(tree, "add", "readme")
    git(tree, "commit", "-q", "-m", "first")
    assert state(tree) is None  # not in it
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "a.py").write_text("")
    assert git_state([alone], [alone / "a.py"]) is None
    assert git_state([], []) is None


def test_without_git(tree: Path, monkeypatch: pytest.MonkeyPatch):
    commit(tree)
    monkeypatch.setenv("PATH", "")
    assert state(tree) is None


def test_no_command_that_a_work_tree_names_is_run(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    first = commit(tree)
    ran = tmp_path / "ran"
    script = tmp_path / "script"
    script.write_text(f"#!/bin/sh\ntouch {ran}\ncat\n")
    script.chmod(0o755)
    for name in ("core.fsmonitor", "filter.x.clean", "filter.x.smudge", "diff.x.textconv", "gpg.program"):
        git(tree, "config", name, str(script))
    git(tree, "config", "log.showSignature", "true")
    (tree / ".git" / "info" / "attributes").write_text("* filter=x diff=x\n")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert state(tree) == GitState(first, dirty=False)
    assert not ran.exists()
