"""The git commit that files come from, and whether they are what that commit holds.

Only plumbing commands are run, which read objects and run neither hooks, filters, textconv nor a monitor that the
configuration of a work tree may name.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernels_hub.repository.digest import list_files

_TIMEOUT_S = 10.0
_ALGORITHMS = {40: "sha1", 64: "sha256"}
"""By the length of an object's name."""


@dataclass(frozen=True)
class GitState:
    """A commit, and whether files differ from it."""

    commit: str
    """In hexadecimal: 40 digits, or 64 where the repository uses sha256."""
    dirty: bool


def git_state(roots: Sequence[Path], files: Iterable[Path]) -> GitState | None:
    """The last commit that changed what lies at some paths, and whether the files there are those of HEAD.

    roots: folders and files of one work tree. files: those that count, of what lies there; one that HEAD does not
    hold with the same bytes, or a file of HEAD that is gone, makes it dirty. Line ends of Windows are no difference.

    None outside of a work tree, where git is missing or refuses, and where HEAD holds none of the files: an
    environment, say, that lies ignored inside of a work tree.
    """
    if not roots:
        return None
    start = roots[0] if roots[0].is_dir() else roots[0].parent
    top = _git(start, "rev-parse", "--show-toplevel")
    if not top:
        return None
    folder = Path(os.fsdecode(top.removesuffix(b"\n")))
    inside = [relative for root in roots if (relative := _relative(root, folder)) is not None]
    listing = _git(folder, "ls-tree", "-r", "-z", "HEAD", "--", *inside) if inside else None
    if not listing:
        return None
    tracked = _tracked(listing)
    names = {_relative(file, folder): file for file in files}
    if not any(name in tracked for name in names):
        return None
    commit = _git(folder, "rev-list", "--max-count=1", "HEAD", "--", *inside)
    if not commit:
        return None
    dirty = any(name is None or not _is_blob(file, tracked.get(name)) for name, file in names.items())
    present = {_relative(path, folder) for root in roots for path in _files(root)}
    dirty = dirty or any(name not in present and "__pycache__" not in name for name in tracked)
    return GitState(commit.decode("ascii").strip(), dirty)


def _git(folder: Path, *arguments: str) -> bytes | None:
    """The output of a git command; None where it fails."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= {"GIT_LITERAL_PATHSPECS": "1", "GIT_NO_LAZY_FETCH": "1", "GIT_OPTIONAL_LOCKS": "0"}
    command = ["git", "-c", "core.fsmonitor=false", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def _files(root: Path) -> Iterable[Path]:
    return list_files(root).values() if root.is_dir() else [root]


def _relative(path: Path, folder: Path) -> str | None:
    """Where a path lies in a work tree, as git spells it; None outside of it."""
    try:
        return path.resolve().relative_to(folder.resolve()).as_posix()
    except (OSError, ValueError):
        return None


def _tracked(listing: bytes) -> Mapping[str, str]:
    """Path -> name of the blob, of what `git ls-tree -z` prints; links and submodules are left out."""
    tracked = {}
    for line in listing.split(b"\0"):
        described, _, name = line.partition(b"\t")
        mode, _, rest = described.partition(b" ")
        if mode in (b"100644", b"100755"):
            tracked[os.fsdecode(name)] = rest.rpartition(b" ")[2].decode("ascii")
    return tracked


def _is_blob(file: Path, name: str | None) -> bool:
    """Whether a file has the content that git has under a name."""
    algorithm = _ALGORITHMS.get(len(name or ""))
    if algorithm is None:
        return False
    content = file.read_bytes()
    return any(
        hashlib.new(algorithm, b"blob %d\0" % len(text) + text, usedforsecurity=False).hexdigest() == name
        for text in (content, content.replace(b"\r\n", b"\n"))
    )
