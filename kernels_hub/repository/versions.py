"""Versions of a repository: which tag or branch a reference means.

A release 1.2.0 is the tag v1.2.0; the branch v1 follows the newest release of its major. A reference
says which one it wants by a PEP 440 specifier over the tags, by the int N of a branch vN, or by a
revision; with none of them it wants `main`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from kernels_hub.errors import VersionError

MAIN = "main"
_TAG = re.compile(r"v(\d+\.\d+\.\d+\S*)", re.ASCII)
_BRANCH = re.compile(r"v(\d+)", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHOWN = 5


@dataclass(frozen=True)
class Refs:
    """The branches and tags of a repository, with the commits that they are at."""

    branches: Mapping[str, str] = field(default_factory=dict, hash=False)
    tags: Mapping[str, str] = field(default_factory=dict, hash=False)

    def releases(self) -> dict[Version, str]:
        """Release -> tag, newest first; tags that are no versions are left out."""
        found = {version: tag for tag in self.tags if (version := parse_tag(tag)) is not None}
        return dict(sorted(found.items(), reverse=True))


@dataclass(frozen=True)
class Pinned:
    """A commit, and by what name it was found."""

    commit: str
    ref: str
    """The tag, branch or commit that was chosen."""

    @property
    def release(self) -> str | None:
        """The full version where a release's tag was chosen."""
        version = parse_tag(self.ref)
        return None if version is None else str(version)

    @property
    def version(self) -> str | int | None:
        """The release of a tag, the N of a branch vN; None for everything else."""
        branch = _BRANCH.fullmatch(self.ref)
        return self.release if branch is None else int(branch[1])

    def __str__(self) -> str:
        return self.commit[:12] if self.ref == self.commit else f"{self.ref} ({self.commit[:12]})"


@dataclass(frozen=True)
class VersionRequest:
    """The version that a reference asks for. Build it with `of`, which checks it."""

    version: str | int | None = None
    revision: str | None = None

    @classmethod
    def of(cls, repo_id: str, version: object, revision: object) -> VersionRequest:
        """Raise VersionError unless at most one of both is given and it is well formed."""
        if version is not None and revision is not None:
            raise VersionError(f"{repo_id}: give version={version!r} or revision={revision!r}, not both")
        if isinstance(version, str):
            try:
                SpecifierSet(version)
            except InvalidSpecifier as error:
                raise VersionError(
                    f"{repo_id}: version {version!r} is not a specifier; write for example '>=0.1,<0.2' or '==1.2.0'"
                ) from error
        elif isinstance(version, bool) or not (version is None or isinstance(version, int)):
            raise VersionError(
                f"{repo_id}: a version is a specifier string or the int N of a branch vN, got {version!r}"
            )
        elif isinstance(version, int) and version < 0:
            raise VersionError(f"{repo_id}: version {version} is negative; branches are named v0, v1 …")
        if revision is not None and (not isinstance(revision, str) or not revision):
            raise VersionError(f"{repo_id}: a revision is a branch, tag or commit, got {revision!r}")
        return cls(version, revision)

    def __str__(self) -> str:
        """As it follows a repository's name: "@v1", " >=1,<2", "@main"."""
        if self.revision is not None:
            return f"@{self.revision}"
        if isinstance(self.version, int):
            return f"@v{self.version}"
        return f" {self.version}" if self.version else f"@{MAIN}"

    @property
    def commit(self) -> str | None:
        """The commit, where that is what is wanted."""
        return self.revision if self.revision is not None and is_commit(self.revision) else None

    @property
    def release(self) -> str | None:
        """The tag of the one release that fits, where the specifier names it: "==1.2.0" is v1.2.0."""
        if not isinstance(self.version, str):
            return None
        specifiers = list(SpecifierSet(self.version))
        if len(specifiers) != 1 or specifiers[0].operator not in {"==", "==="}:
            return None
        text = specifiers[0].version
        return f"v{text}" if parse_tag(f"v{text}") is not None else None

    def candidates(self, refs: Refs, yanked: Iterable[str] = ()) -> list[Pinned]:
        """What fits, best first; empty if nothing does.

        yanked: releases that only their own exact specifier may choose.
        """
        if isinstance(self.version, str):
            return self._matching_releases(refs, frozenset(yanked))
        if self.commit is not None:
            return [Pinned(self.commit, self.commit)]
        name = f"v{self.version}" if self.version is not None else self.revision or MAIN
        name = name.removeprefix("refs/heads/").removeprefix("refs/tags/")
        named = [places[name] for places in (refs.branches, refs.tags) if name in places]
        return [Pinned(named[0], name)] if named else []

    def _matching_releases(self, refs: Refs, yanked: frozenset[str]) -> list[Pinned]:
        specifier = SpecifierSet(str(self.version))
        releases = refs.releases()
        fitting = set(specifier.filter(releases, prereleases=specifier.prereleases or False))
        if self.release is None:
            fitting = {version for version in fitting if str(version) not in yanked}
        return [Pinned(refs.tags[tag], tag) for version, tag in releases.items() if version in fitting]

    def missing(self, repo_id: str, refs: Refs, yanked: Iterable[str] = ()) -> VersionError:
        """The error for a repository that has nothing that fits: what there is, the nearest first."""
        releases = list(refs.releases())
        if isinstance(self.version, str):
            gone = [str(version) for version in releases if str(version) in set(yanked)]
            known = _nearest(releases, self.version)
            text = f"its releases nearest to that are {', '.join(known)}" if known else "it has no releases"
            if gone:
                text += f"; {', '.join(gone)} {'is' if len(gone) == 1 else 'are'} yanked"
            if not known and refs.branches:
                text += f"; its branches are {', '.join(sorted(refs.branches))}"
            return VersionError(f"{repo_id} has no release {self.version}: {text}")
        wanted = f"v{self.version}" if self.version is not None else self.revision or MAIN
        names = [*refs.branches, *refs.tags]
        close = get_close_matches(wanted, names, n=_SHOWN, cutoff=0.3) or sorted(names)[:_SHOWN]
        kind = "branch" if self.version is not None or self.revision is None else "branch or tag"
        return VersionError(
            f"{repo_id} has no {kind} {wanted!r}: "
            + (f"the nearest are {', '.join(close)}" if close else "it has none at all")
        )


def parse_tag(tag: str) -> Version | None:
    """The version that a tag v<major>.<minor>.<patch> stands for, prereleases included; else None."""
    match = _TAG.fullmatch(tag)
    if match is None:
        return None
    try:
        return Version(match[1])
    except InvalidVersion:
        return None


def is_commit(revision: str) -> bool:
    """Whether a revision is a full commit id, which no push can change."""
    return _COMMIT.fullmatch(revision) is not None


def _nearest(releases: list[Version], specifier: str) -> list[str]:
    """A few releases around the versions that a specifier names, newest first."""
    named = []
    for part in SpecifierSet(specifier):
        try:
            named.append(Version(part.version.removesuffix(".*")))
        except InvalidVersion:
            continue
    if not named or len(releases) <= _SHOWN:
        return [str(version) for version in releases[:_SHOWN]]
    above = [version for version in releases if version >= max(named)]
    start = max(0, min(len(above) - 2, len(releases) - _SHOWN))
    return [str(version) for version in releases[start : start + _SHOWN]]
