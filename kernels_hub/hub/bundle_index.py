"""bundle.json, the index of a bundle: what it may say, and what it must not contradict.

{"format": 1, "repositories": [
    {"repository": "org/name", "type": "kernel", "branches": {"v1": commit}, "tags": {"v1.0.0": commit},
     "yanked": {"0.1.0": reason},
     "tree": {"commit": commit, "partial": false, "files": {path: {"size": n, "blob": …, "sha256": …}}}}]}
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from kernels_hub.contained_paths import relative_path_problem
from kernels_hub.errors import MetadataError
from kernels_hub.hub.tree import BUILD, File, Tree
from kernels_hub.parsing import CommitId, RepositoryId, Sha256, Struct, Text, parse_json
from kernels_hub.repository.versions import Refs, parse_tag

INDEX = "bundle.json"
FORMAT = 1
_ANEW = "copy the bundle again, or make it anew: kernels-hub bundle"


class FileRow(Struct, frozen=True, forbid_unknown_fields=True):
    """One file below `build/`."""

    sha256: Sha256
    size: Annotated[int, Meta(ge=0, le=1 << 50)] | None = None
    blob: CommitId | None = None
    """Git's name for the content, of files that are stored in git."""


class TreeRow(Struct, frozen=True, forbid_unknown_fields=True):
    """The files of one commit."""

    commit: CommitId
    files: dict[str, FileRow]
    partial: bool


class RepositoryRow(Struct, frozen=True, forbid_unknown_fields=True):
    """One repository at one commit."""

    repository: RepositoryId
    type: Literal["kernel", "model"]
    branches: dict[str, CommitId]
    tags: dict[str, CommitId]
    yanked: dict[Text, Text]
    tree: TreeRow

    def files(self) -> Tree:
        """Its files, as the cache lists them."""
        files = (
            File(path, file.size, blob=file.blob, sha256=file.sha256)
            for path, file in self.tree.files.items()
        )
        return Tree.of(self.tree.commit, files, self.tree.partial)

    def refs(self) -> Refs:
        """Its branches and tags."""
        return Refs(self.branches, self.tags)


class _Format(Struct, frozen=True):
    format: int


class _Index(Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    repositories: list[RepositoryRow]


def parse_index(data: bytes, source: Path, most_bytes: int) -> list[RepositoryRow]:
    """The rows of an index. Raises MetadataError for one that is malformed or contradicts itself."""
    where = f"{source} is no bundle: its {INDEX}"
    found = parse_json(data, _Format, where=where, most_bytes=most_bytes, advice=_ANEW).format
    if found != FORMAT:
        raise MetadataError(f"{source} has format {found}, this release reads {FORMAT}; upgrade kernels_hub")
    rows = parse_json(
        data, _Index, where=where, most_bytes=most_bytes, advice=_ANEW, unique_keys=True
    ).repositories
    for row in rows:
        if problem := _problem(row):
            raise MetadataError(f"{where}: {row.repository}: {problem}; {_ANEW}")
    if problem := _contradiction(rows):
        raise MetadataError(f"{where}: {problem}; {_ANEW}")
    return rows


def sizes(rows: list[RepositoryRow]) -> dict[str, int | None]:
    """sha256 -> size of every content that the index names; None where it does not say."""
    found: dict[str, int | None] = {}
    for row in rows:
        for file in row.tree.files.values():
            found[file.sha256] = file.size if file.size is not None else found.get(file.sha256)
    return found


def _problem(row: RepositoryRow) -> str | None:
    """What is wrong with one repository's row by itself."""
    for kind, refs in (("branch", row.branches), ("tag", row.tags)):
        for name, commit in refs.items():
            if (wrong := relative_path_problem(name)) is not None:
                return f"{name[:100]!r} is no name for a {kind}: {wrong}"
            if commit != row.tree.commit:
                return f"{kind} {name!r} is at {commit[:12]}, which the row does not carry"
    parents: set[str] = set()
    for path in row.tree.files:
        if (wrong := relative_path_problem(path)) is not None:
            return f"{path[:100]!r} is no path inside a repository: {wrong}"
        parts = path.split("/")
        if len(parts) < 3 or parts[0] != BUILD or "__pycache__" in parts or path.endswith(".pyc"):
            return f"{path[:100]!r} is no file of a variant, {BUILD}/<variant>/…"
        parents.update("/".join(parts[:count]) for count in range(2, len(parts)))
    if both := sorted(parents & row.tree.files.keys()):
        return f"{both[0][:100]!r} is both a file and a folder"
    return None


def _contradiction(rows: list[RepositoryRow]) -> str | None:
    """Two rows, or two names, that cannot both be right."""
    seen: set[tuple[str, str, str]] = set()
    releases: dict[tuple[str, str, str], str] = {}
    sized: dict[str, int] = {}
    for row in rows:
        key = (row.type, row.repository.casefold(), row.tree.commit)
        if key in seen:
            return f"{row.repository} at {row.tree.commit[:12]} stands there twice"
        seen.add(key)
        for name, commit in row.tags.items():
            release = (row.type, row.repository.casefold(), release_of(name))
            if releases.setdefault(release, commit) != commit:
                return f"{row.repository} has the tag {name!r} at two commits"
        for file in row.tree.files.values():
            if file.size is not None and sized.setdefault(file.sha256, file.size) != file.size:
                return f"it gives two sizes for {file.sha256[:12]}"
    return None


def release_of(tag: str) -> str:
    """A tag as references see it: those that stand for one version are one."""
    version = parse_tag(tag)
    return tag if version is None else f"v{version}"


def rebound(known: Mapping[str, str], arrived: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """(tag, known commit, arrived commit) of every tag, or release, that would change its commit."""
    before = {release_of(tag): commit for tag, commit in known.items()}
    return [
        (tag, before[release_of(tag)], commit)
        for tag, commit in sorted(arrived.items())
        if before.get(release_of(tag), commit) != commit
    ]
