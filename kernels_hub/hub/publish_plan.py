"""Plans the publication of a release: the next step, from what the Hub holds.

    1. no repository                    CreateRepository
    2. no branch to commit to           CreateBranch, from main
    3. the branch holds something else  Commit: one, with its parent, to exactly the release's tree
    4. the branch holds the release     CreateTag v1.2.0, which makes it a release for everyone
    5. a branch of its own is left      DeleteBranch
    6. main shows another card          Commit of README.md, its pictures and kernel.toml

`next_step` looks only at the Hub's state, so a publish that died anywhere goes on where it stopped,
and one that finds nothing left to do does nothing. Before the tag is there nobody takes it for a
release; after that its content never changes.

v<major> follows the highest release. One that is not the highest (1.1.5 after 1.2.0), or a prerelease,
is committed to a branch of its own, which is deleted when the tag holds it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from packaging.version import Version

from kernels_hub.errors import VersionExistsError
from kernels_hub.hub.release import Release, ReleaseFile, is_picture
from kernels_hub.repository.card import CARD_FILE
from kernels_hub.repository.metadata import METADATA_FILE
from kernels_hub.repository.provenance import equal_but_for_provenance
from kernels_hub.repository.source import MANIFEST_FILE
from kernels_hub.repository.variant_files import SIGNATURE_FILE
from kernels_hub.repository.versions import MAIN, Refs

CARD_FILES = (CARD_FILE, MANIFEST_FILE)
"""What `main` shows."""
KEPT = frozenset({".gitattributes"})
"""Files of the Hub's own, which a release leaves as they are."""

_TITLE = re.compile(r"Release (\S+)")
_SHOWN = 5
_MOST_METADATA_BYTES = 1 << 25


@dataclass(frozen=True)
class RemoteFile:
    """A file at a commit; one of the two names of its content is known."""

    size: int
    blob: str | None = None
    sha256: str | None = None

    def holds(self, file: ReleaseFile) -> bool:
        """Whether it has the content of a local file."""
        return file.sha256 == self.sha256 if self.sha256 is not None else file.blob == self.blob


Tree = Mapping[str, RemoteFile]


@dataclass(frozen=True)
class Remote:
    """What a Hub holds of a repository."""

    exists: bool
    refs: Refs = field(default_factory=Refs)
    tree: Callable[[str], Tree] = field(default=lambda _: {}, compare=False)
    """Every file at a commit."""
    title: Callable[[str], str] = field(default=lambda _: "", compare=False)
    """First line of a commit's message."""
    content: Callable[[str, str], bytes] = field(default=lambda _commit, _path: b"", compare=False)
    """A file at a commit, by its path."""


# -- steps ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CreateRepository:
    """Create the repository."""

    repo_id: str

    def __str__(self) -> str:
        return f"create the repository {self.repo_id}"


@dataclass(frozen=True)
class CreateBranch:
    """Create a branch at a commit."""

    branch: str
    commit: str

    def __str__(self) -> str:
        return f"create the branch {self.branch} at {self.commit[:12]}"


@dataclass(frozen=True)
class Commit:
    """One commit."""

    branch: str
    parent: str | None
    title: str
    add: tuple[ReleaseFile, ...]
    delete: tuple[str, ...] = ()

    def __str__(self) -> str:
        size = sum(file.size for file in self.add)
        deleted = f", {len(self.delete)} deleted" if self.delete else ""
        files = f"{len(self.add)} file{'' if len(self.add) == 1 else 's'}"
        return f"commit {self.title!r} to {self.branch}: {files}, {size} bytes{deleted}"


@dataclass(frozen=True)
class CreateTag:
    """Tag a commit: the release is out."""

    tag: str
    commit: str

    def __str__(self) -> str:
        return f"tag {self.commit[:12]} as {self.tag}"


@dataclass(frozen=True)
class DeleteBranch:
    """Delete a branch that only carried a commit to its tag."""

    branch: str

    def __str__(self) -> str:
        return f"delete the branch {self.branch}"


@dataclass(frozen=True)
class Unfinished:
    """No step: the branch holds a release that has no tag, of another publisher or with other content."""

    branch: str
    commit: str
    title: str

    def __str__(self) -> str:
        return f"{self.branch} is at {self.commit[:12]}, {self.title!r}, which has no tag"


Step = CreateRepository | CreateBranch | Commit | CreateTag | DeleteBranch | Unfinished


def next_step(release: Release, remote: Remote, *, replace_unfinished: bool = False) -> Step | None:
    """The next thing to be done; None when the release is out and shown.

    replace_unfinished: commit over a release that has no tag.
    Raises VersionExistsError when the version is out with other content.
    """
    if not remote.exists:
        return CreateRepository(release.repo_id)
    tagged = remote.refs.tags.get(release.tag)
    if tagged is None:
        return _towards_the_tag(release, remote, replace_unfinished=replace_unfinished)
    if differences := _differences(release, remote, tagged):
        shown = ", ".join(differences[:_SHOWN])
        rest = f" and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
        raise VersionExistsError(
            f"{release.repo_id} has {release.version} already, with other content ({shown}{rest}); "
            "a release never changes: raise the version"
        )
    if (own := carrier(release)) in remote.refs.branches:
        return DeleteBranch(own)
    if leads_its_major(release, remote.refs) and release.branch not in remote.refs.branches:
        return CreateBranch(release.branch, tagged)
    return _towards_the_card(release, remote)


def carrier(release: Release) -> str:
    """Branch of a release that v<major> does not move to."""
    return f"release-{release.tag}"


def leads_its_major(release: Release, refs: Refs) -> bool:
    """Whether v<major> belongs to this release: it is the highest, and no prerelease."""
    others = (version for version in refs.releases() if version.major == release.version.major)
    return not release.version.is_prerelease and all(
        version <= release.version for version in others if not version.is_prerelease
    )


def previous_release(release: Release, refs: Refs, yanked: Mapping[str, str]) -> tuple[Version, str] | None:
    """The release that this one follows in its major, and its commit."""
    for version, tag in refs.releases().items():
        if (
            version.major == release.version.major
            and version < release.version
            and not version.is_prerelease
            and str(version) not in yanked
        ):
            return version, refs.tags[tag]
    return None


def _towards_the_tag(release: Release, remote: Remote, *, replace_unfinished: bool) -> Step:
    branches = remote.refs.branches
    leads = leads_its_major(release, remote.refs)
    branch = release.branch if leads else carrier(release)
    head = branches.get(branch)
    if head is None:
        if MAIN not in branches:  # a repository without any commit
            return _card_commit(release, None, {})
        previous = previous_release(release, remote.refs, {})
        return CreateBranch(branch, branches[MAIN] if leads or previous is None else previous[1])
    tree = remote.tree(head)
    if not _differences(release, remote, head):
        return CreateTag(release.tag, head)
    if not replace_unfinished and (title := _unfinished(remote, head)) is not None:
        return Unfinished(branch, head, title)
    return Commit(
        branch,
        head,
        release.title,
        tuple(file for path, file in release.files.items() if not _holds(tree, path, file)),
        tuple(sorted(path for path in tree if path not in release.files and path not in KEPT)),
    )


def _unfinished(remote: Remote, head: str) -> str | None:
    """The title of a commit that a publisher made, and did not tag yet."""
    if head in remote.refs.tags.values():
        return None
    title = remote.title(head)
    match = _TITLE.fullmatch(title)
    return title if match is not None and f"v{match[1]}" not in remote.refs.tags else None


def _towards_the_card(release: Release, remote: Remote) -> Step | None:
    """main shows the highest release of all; a prerelease only where there is nothing else."""
    releases = remote.refs.releases()
    highest = next((version for version in releases if not version.is_prerelease), max(releases))
    if release.version != highest:
        return None
    head = remote.refs.branches.get(MAIN)
    tree = {} if head is None else remote.tree(head)
    commit = _card_commit(release, head, tree)
    return commit if commit.add else None


def _card_commit(release: Release, head: str | None, tree: Tree) -> Commit:
    shown = (*CARD_FILES, *sorted(release.pictures))
    shown_files = [release.files[path] for path in shown if path in release.files]
    add = tuple(file for file in shown_files if not _holds(tree, file.path, file))
    return Commit(MAIN, head, f"Card of {release.version}", add)


def _differences(release: Release, remote: Remote, commit: str) -> list[str]:
    """Paths at which a commit is not the release.

    What may differ between builds of the same content does not count: the card, which another version of this library
    may have written, and its pictures; where the variants come from, and then the signatures over that.
    """
    tree = remote.tree(commit)
    changed = [path for path, file in release.files.items() if not _holds(tree, path, file)]
    added = [path for path in sorted(tree) if path not in release.files]
    rebuilt = {
        path.rpartition("/")[0]
        for path in changed
        if path.rpartition("/")[2] == METADATA_FILE
        and path in tree
        and tree[path].size <= _MOST_METADATA_BYTES
        and equal_but_for_provenance(release.files[path].local.read_bytes(), remote.content(commit, path))
    }

    def counts(path: str) -> bool:
        folder, _, name = path.rpartition("/")
        if folder in rebuilt and name in (METADATA_FILE, SIGNATURE_FILE):
            return path not in tree
        return path not in KEPT and path != CARD_FILE and not is_picture(path)

    return list(filter(counts, changed + added))


def _holds(tree: Tree, path: str, file: ReleaseFile) -> bool:
    return path in tree and tree[path].holds(file)


# -- a dry run --------------------------------------------------------------------------------------


def plan(release: Release, remote: Remote, *, replace_unfinished: bool = False) -> list[Step]:
    """Every step, in order, as far as the Hub's state is now. Nothing is written."""
    trees: dict[str, Tree] = {}

    def tree(commit: str) -> Tree:
        return trees[commit] if commit in trees else remote.tree(commit)

    state = replace(remote, tree=tree)
    steps: list[Step] = []
    while (step := next_step(release, state, replace_unfinished=replace_unfinished)) is not None:
        steps.append(step)
        if isinstance(step, Unfinished):
            break
        state = _after(state, step, trees, f"commit-{len(steps)}")
    return steps


def _after(state: Remote, step: Step, trees: dict[str, Tree], new: str) -> Remote:
    branches, tags = dict(state.refs.branches), dict(state.refs.tags)
    match step:
        case CreateRepository():
            trees[new] = {}
            branches[MAIN] = new
        case CreateBranch(branch=branch, commit=commit):
            branches[branch] = commit
        case CreateTag(tag=tag, commit=commit):
            tags[tag] = commit
        case DeleteBranch(branch=branch):
            del branches[branch]
        case Commit(branch=branch, parent=parent):
            remaining = {} if parent is None else dict(state.tree(parent))
            for path in step.delete:
                del remaining[path]
            remaining |= {file.path: RemoteFile(file.size, file.blob, file.sha256) for file in step.add}
            trees[new] = remaining
            branches[branch] = new
        case Unfinished():
            return state
    return replace(state, exists=True, refs=Refs(branches, tags))
