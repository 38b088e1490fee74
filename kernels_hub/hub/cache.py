"""Where fetched repositories lie: Hugging Face's cache, plus what it does not keep.

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
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernels_hub.errors import MetadataError
from kernels_hub.hub.tree import File, Tree
from kernels_hub.repository.versions import Refs, is_commit

_OWN = ".kernels_hub"


@dataclass(frozen=True)
class KnownRefs:
    """The refs of a repository as a Hub told them."""

    refs: Refs
    yanked: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Release -> reason."""
    asked: float = 0.0
    """When the question was asked, in seconds since the epoch."""


def cache_folder() -> Path:
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
        return self.folder / "snapshots" / commit

    def path(self, commit: str, file: File) -> Path:
        """Where a file of a commit lies, if it was fetched."""
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

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """One process of this machine at a time; released when a process dies."""
        from filelock import FileLock

        path = self.root / ".locks" / self.folder.name / f"kernels_hub.{name.replace('/', '_')}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path):
            yield

    # -- refs ---------------------------------------------------------------------------------------

    def read_refs(self) -> KnownRefs | None:
        """What was last told of the branches and tags; else the refs that another client left."""
        document = self._read("refs.json")
        if document is not None:
            with contextlib.suppress(KeyError, TypeError, ValueError):
                refs = Refs(dict(document["branches"]), dict(document["tags"]))
                return KnownRefs(refs, dict(document["yanked"]), float(document["asked"]))
        branches = {}
        for path in (self.folder / "refs").rglob("*"):
            if path.is_file() and is_commit(commit := path.read_text(encoding="utf-8").strip()):
                branches[path.relative_to(self.folder / "refs").as_posix()] = commit
        return KnownRefs(Refs(branches)) if branches else None

    def write_refs(self, known: KnownRefs) -> None:
        """Keep them, and write the branches the way that other clients look versions up offline."""
        self._write(
            "refs.json",
            {
                "asked": known.asked,
                "branches": dict(known.refs.branches),
                "tags": dict(known.refs.tags),
                "yanked": dict(known.yanked),
            },
        )

    def write_ref(self, name: str, commit: str) -> None:
        """Note where a branch is, in the Hub client's own place, once its files are here."""
        path = self.folder / "refs" / name
        if not path.resolve().is_relative_to((self.folder / "refs").resolve()):
            raise MetadataError(f"{self.repo_id}: {name!r} is no name for a branch")
        _replace(path, commit)

    # -- trees, publisher ---------------------------------------------------------------------------

    def read_tree(self, commit: str) -> Tree | None:
        """The files of a commit, if they were ever listed."""
        try:
            tree = Tree.from_json((self.folder / _OWN / "trees" / f"{commit}.json").read_bytes())
        except (OSError, MetadataError):
            return None
        return tree if tree.commit == commit else None

    def write_tree(self, tree: Tree) -> None:
        """Keep the list of files of a commit."""
        _replace(self.folder / _OWN / "trees" / f"{tree.commit}.json", tree.to_json())

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
        except (OSError, ValueError):
            return None
        return document if isinstance(document, dict) else None

    def _write(self, name: str, document: dict[str, Any]) -> None:
        _replace(self.folder / _OWN / name, json.dumps(document, indent=1, sort_keys=True) + "\n")


def _replace(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(handle, "w", encoding="utf-8", newline="\n") as stream:  # noqa: PTH123 (a descriptor)
            stream.write(text)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
