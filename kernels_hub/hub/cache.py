"""The cache of fetched repositories: Hugging Face's, plus what that does not keep.

    <cache>/kernels--org--name/
        blobs/ refs/ snapshots/            the Hub client's own: other clients share the files
        .kernels_hub/refs.json             branches, tags and yanked releases, when last asked
        .kernels_hub/trees/<commit>.json   the files of a commit
        .kernels_hub/publisher.json        whether the Hub vouched for the publisher

With these a version resolves offline as it did online, and copying the folder to another machine
carries all of it. Files are replaced by a rename, so readers need no lock.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernels_hub.contained_paths import relative_path_problem, replacing_inside
from kernels_hub.errors import HubError, IntegrityError, MetadataError
from kernels_hub.files import write_atomically
from kernels_hub.hub.tree import File, Tree
from kernels_hub.repository.versions import Refs, is_commit

_OWN = ".kernels_hub"
_LONGEST_REF = 100
_LATEST = 1e12


@dataclass(frozen=True)
class KnownRefs:
    """The refs of a repository as a Hub told them."""

    refs: Refs
    yanked: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Release -> reason."""
    asked: float = 0.0
    """When the question was asked, in seconds since the epoch."""
    later: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Releases that the Hub has, as this machine knows, and the mirror that answered does not yet: tag -> commit."""


def hub_cache_folder() -> Path:
    """KERNELS_CACHE, which HF `kernels` reads too, or the Hub client's cache."""
    if folder := os.environ.get("KERNELS_CACHE"):
        return Path(folder).expanduser()
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


@dataclass(frozen=True)
class RepositoryCache:
    """The cached part of one repository."""

    root: Path
    repo_id: str
    repo_type: str

    @property
    def folder(self) -> Path:
        """Of the repository."""
        return self.root / "--".join((f"{self.repo_type}s", *self.repo_id.split("/")))

    def snapshot(self, commit: str) -> Path:
        """The folder that holds the files of a commit, as far as they were fetched."""
        return self.folder / "snapshots" / _commit(commit)

    def path(self, commit: str, file: File) -> Path:
        """Where a file of a commit lies, if it was fetched. Raises IntegrityError for a path that leads outside."""
        if (problem := relative_path_problem(file.path)) is not None:
            raise IntegrityError(f"{file.path[:100]!r} is no path inside {self.repo_id}: {problem}")
        return self.snapshot(commit) / file.path

    def holds(self, commit: str, files: list[File]) -> bool:
        """Whether every file is there, by name and size."""
        for file in files:
            try:
                size = self.path(commit, file).stat().st_size
            except OSError:
                return False
            if file.size is not None and size != file.size:
                return False
        return bool(files)

    def discard(self, commit: str, files: list[File]) -> None:
        """Remove files of a commit that were refused, and the content that they link to: they are fetched anew."""
        blobs = self.folder / "blobs"
        for file in files:
            path = self.path(commit, file)
            content = path.resolve()
            path.unlink(missing_ok=True)
            if content.parent == blobs.resolve():
                content.unlink(missing_ok=True)

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """One process of this machine at a time; released when a process dies."""
        from filelock import FileLock

        flat = name.replace("/", "_")
        path = self.root / ".locks" / self.folder.name / f"kernels_hub.{flat}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path):
            yield

    # -- refs ---------------------------------------------------------------------------------------

    def read_refs(self) -> KnownRefs | None:
        """What was last told of the branches and tags; else the refs that another client left."""
        if (known := _known_refs(self._read("refs.json"))) is not None:
            return known
        branches = {}
        for path in (self.folder / "refs").rglob("*"):
            with contextlib.suppress(OSError, UnicodeDecodeError):
                with path.open("rb") as file:
                    commit = file.read(_LONGEST_REF).decode("ascii").strip()
                if is_commit(commit):
                    branches[path.relative_to(self.folder / "refs").as_posix()] = commit
        return KnownRefs(Refs(branches)) if branches else None

    def write_refs(self, known: KnownRefs) -> None:
        """Keep them, and write the branches the way that other clients look versions up offline.

        What a mirror does not have yet is kept beside what it has, and no other process takes that for an answer.
        """
        self._write(
            "refs.json",
            {
                "asked": 0.0 if known.later else known.asked,
                "branches": dict(known.refs.branches),
                "tags": {**known.later, **known.refs.tags},
                "yanked": dict(known.yanked),
            },
        )

    def write_ref(self, name: str, commit: str) -> None:
        """Note where a branch is, in the Hub client's own place, once its files are here."""
        if (problem := relative_path_problem(name)) is not None:
            raise MetadataError(f"{self.repo_id}: {name[:100]!r} is no name for a branch: {problem}")
        self.folder.mkdir(parents=True, exist_ok=True)
        with replacing_inside(self.folder, f"refs/{name}") as file:
            file.write(commit.encode())

    # -- trees, publisher ---------------------------------------------------------------------------

    def read_tree(self, commit: str) -> Tree | None:
        """The files of a commit, if they were ever listed."""
        try:
            tree = Tree.from_json((self.folder / _OWN / "trees" / f"{_commit(commit)}.json").read_bytes())
        except (OSError, MetadataError, HubError):
            return None
        return tree if tree.commit == commit else None

    def write_tree(self, tree: Tree) -> None:
        """Keep the list of files of a commit."""
        write_atomically(self.folder / _OWN / "trees" / f"{_commit(tree.commit)}.json", tree.to_json())

    def read_publisher(self) -> bool | None:
        """Whether the Hub vouched for the publisher when last asked; None if it never was."""
        document = self._read("publisher.json")
        trusted = None if document is None else document.get("trusted")
        return trusted if isinstance(trusted, bool) else None

    def write_publisher(self, trusted: bool) -> None:
        """Keep the Hub's answer for offline use."""
        self._write("publisher.json", {"asked": time.time(), "trusted": trusted})

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            document = json.loads((self.folder / _OWN / name).read_bytes())
        except (OSError, ValueError, RecursionError):
            return None
        return document if isinstance(document, dict) else None

    def _write(self, name: str, document: dict[str, Any]) -> None:
        write_atomically(self.folder / _OWN / name, json.dumps(document, indent=1, sort_keys=True) + "\n")


def _commit(commit: str) -> str:
    """A commit as the name of a file. Raises IntegrityError for what is none."""
    if not is_commit(commit):
        raise IntegrityError(f"{commit[:100]!r} is no commit: expected 40 hexadecimal digits")
    return commit


def _known_refs(document: dict[str, Any] | None) -> KnownRefs | None:
    """What refs.json says; None where it does not say it well.

    By hand: on the way of every load, where importing msgspec would take longer.
    """
    match document:
        case {
            "branches": dict(branches),
            "tags": dict(tags),
            "yanked": dict(yanked),
            "asked": int() | float() as asked,
        }:
            commits = (*branches.values(), *tags.values())
            if (
                0 <= asked < _LATEST
                and all(isinstance(commit, str) and is_commit(commit) for commit in commits)
                and all(isinstance(reason, str) for reason in yanked.values())
            ):
                return KnownRefs(Refs(branches, tags), yanked, float(asked))
    return None
