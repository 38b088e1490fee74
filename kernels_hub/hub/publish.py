"""Publish a release: look at the Hub, do the next step, look again, until none is left.

What the steps are, and why a publish may die at any of them, is in publish_plan.py. Writes are never
repeated blindly: after one that failed, the Hub's state says whether it happened.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, BinaryIO

from kernels_hub.errors import (
    HubError,
    HubPermissionError,
    OfflineError,
    PublishError,
    RepositoryNotFoundError,
)
from kernels_hub.hub.compare import Comparison, compare
from kernels_hub.hub.connection import Connection
from kernels_hub.hub.http_errors import hub_errors, status_of, wait_asked_for
from kernels_hub.hub.lists import commits_of, files_of
from kernels_hub.hub.publish_plan import (
    Commit,
    CreateBranch,
    CreateRepository,
    CreateTag,
    DeleteBranch,
    Remote,
    RemoteFile,
    Step,
    Tree,
    Unfinished,
    next_step,
    plan,
    previous_release,
)
from kernels_hub.hub.release import Release
from kernels_hub.hub.releases import read_yanked, remote_file, remote_interface
from kernels_hub.repository.versions import MAIN

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_STALE = frozenset({409, 412})
"""Somebody else was first: look again."""
_BUSY = frozenset({408, 429, 500, 502, 503, 504})
_MAX_STALE = 30
_MAX_BUSY = 4
_PATIENCE_S = 15.0
_PAUSE_S = 0.2
_LONGEST_WAIT_S = 60.0


@dataclass(frozen=True)
class Published:
    """What was done, or would be."""

    release: Release
    steps: tuple[Step, ...]
    commit: str | None
    """The release's commit; None in a dry run."""
    comparison: Comparison | None
    """With the release before it in its major; None where there is none, or this one is out."""
    url: str = field(default="")

    @property
    def was_there(self) -> bool:
        """Whether nothing had to be done."""
        return not self.steps


@dataclass
class _Look:
    """How the Hub's state is read; trees and titles of commits never change, and are asked for once."""

    connection: Connection
    release: Release

    def __post_init__(self) -> None:
        self.api: HfApi = self.connection.api
        self.endpoint = self.connection.endpoint
        self.tree: Callable[[str], Tree] = cache(self._tree)
        self.title: Callable[[str], str] = cache(self._title)
        self.content: Callable[[str, str], bytes] = cache(self._content)

    def remote(self) -> Remote:
        release = self.release
        try:
            refs = self.connection.refs(release.repo_id, release.repo_type)
        except OfflineError:
            raise
        except RepositoryNotFoundError:
            return Remote(exists=False)
        return Remote(True, refs, self.tree, self.title, self.content)

    def _tree(self, commit: str) -> Tree:
        release = self.release

        def ask() -> Tree:
            return {
                entry.path: RemoteFile(entry.size, sha256=entry.lfs.sha256)
                if entry.lfs is not None
                else RemoteFile(entry.size, blob=entry.blob_id)
                for entry in files_of(self.api, release.repo_id, release.repo_type, commit)
            }

        return self.connection.ask(f"list the files of {release.repo_id} at {commit[:12]}", ask)

    def _title(self, commit: str) -> str:
        release = self.release

        def ask() -> str:
            newest = next(commits_of(self.api, release.repo_id, release.repo_type, commit), None)
            return newest.title if newest is not None else ""

        return self.connection.ask(f"read the history of {release.repo_id}", ask)

    def _content(self, commit: str, path: str) -> bytes:
        release = self.release
        return remote_file(self.connection, release.repo_id, release.repo_type, commit, path)


def publish(
    release: Release,
    *,
    private: bool = False,
    dry_run: bool = False,
    allow_breaking: bool = False,
    replace_unfinished: bool = False,
    connection: Connection | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> Published:
    """Bring a release to the Hub, or complete one that was begun; nothing is done for one that is out.

    private: of a repository that is created now.
    dry_run: only say what would be done; no call that writes.
    allow_breaking: also where users of the release before would break without a higher major version.
    replace_unfinished: commit over another release that was begun on the branch and never tagged.
    report: called with each step before it is done.

    Raises VersionExistsError (a PublishError) for a version that is out with other content;
    PublishError for a breaking change, for somebody else's unfinished release, and where others
    publish so fast that it never gets its turn; HubPermissionError where the Hub refuses the account;
    HubError where the Hub cannot be reached or fails: run it again to complete it.
    """
    connection = (connection or Connection()).of_origin()
    _check_client(connection.api, release.repo_type)
    look = _Look(connection, release)
    guard = _Guard(connection, release, allow_breaking)
    remote = look.remote()
    next_step(release, remote)  # a version that is out with other content is refused before anything else
    comparison = guard.check(remote)
    url = f"{connection.endpoint}/{'kernels/' if release.repo_type == 'kernel' else ''}{release.repo_id}"
    if dry_run:
        steps = plan(release, remote, replace_unfinished=replace_unfinished)
        if steps and isinstance(steps[-1], Unfinished):
            raise _not_ours(release, steps[-1])
        return Published(release, tuple(steps), None, comparison, url)
    steps = _Publisher(release, look, guard, private, replace_unfinished, report).run()
    return Published(release, tuple(steps), look.remote().refs.tags[release.tag], comparison, url)


class _Reached(Exception):
    """create_commit has accepted the repository's type."""


def _check_client(api: HfApi, repo_type: str) -> None:
    """Raise PublishError where the installed huggingface_hub cannot commit to repositories of a type.

    Older ones create kernel repositories and refuse to upload to them. They look at the type before they
    look at the operations, so this sends nothing.
    """

    def operations() -> Iterator[Any]:
        raise _Reached
        yield

    try:
        api.create_commit("org/name", operations(), commit_message="probe", repo_type=repo_type)
    except _Reached:
        return
    except ValueError as error:
        import huggingface_hub

        raise PublishError(
            f"huggingface_hub {huggingface_hub.__version__} cannot upload to {repo_type} repositories; "
            "upgrade it (pip install -U huggingface_hub), or publish with --repo-type model"
        ) from error


@dataclass
class _Guard:
    """Holds a release against the one before it, again whenever others have published meanwhile."""

    connection: Connection
    release: Release
    allow_breaking: bool
    _checked: dict[frozenset[str], Comparison | None] = field(default_factory=dict)

    def check(self, remote: Remote) -> Comparison | None:
        """The comparison; None where there is nothing to compare with, or the release is out already.

        Raises PublishError for a change that needs a higher major version.
        """
        tags = frozenset(remote.refs.tags)
        if self.release.tag in tags:
            return None
        if tags not in self._checked:
            self._checked[tags] = self._compare(remote)
        return self._checked[tags]

    def _compare(self, remote: Remote) -> Comparison | None:
        release = self.release
        if not remote.refs.tags:
            return None
        yanked = read_yanked(self.connection, release.repo_id, release.repo_type, remote.refs)
        previous = previous_release(release, remote.refs, yanked)
        if previous is None:
            return None
        before = remote_interface(self.connection, release.repo_id, release.repo_type, previous[1])
        comparison = compare(before, release.interface)
        old = str(previous[0])
        if not self.allow_breaking and not comparison.allows(old, str(release.version)):
            lines = "".join(f"\n  {change}" for change in comparison.breaking)
            raise PublishError(
                f"{release.repo_id} {release.version} would break code that uses {old}; publish it as "
                f"{comparison.next_version(old)}, or with --allow-breaking:{lines}"
            )
        return comparison


@dataclass
class _Publisher:
    """One run of the loop."""

    release: Release
    look: _Look
    guard: _Guard
    private: bool
    replace_unfinished: bool
    report: Callable[[str], None]
    _done: list[Step] = field(default_factory=list)
    _stale: int = 0
    _busy: int = 0

    def run(self) -> list[Step]:
        """Do what is left; returns the steps that were taken."""
        patience = time.monotonic() + _PATIENCE_S
        while True:
            try:
                step = self._next()
                if step is None:
                    return self._done
                if isinstance(step, Unfinished):
                    if time.monotonic() > patience:
                        raise _not_ours(self.release, step)
                    time.sleep(_pause(1))
                    continue
                self.report(str(step))
                _do(step, self.release, self.look, self.private)
            except HubError as error:
                self._wait_or_raise(error)
                continue
            patience = time.monotonic() + _PATIENCE_S
            self._done.append(step)

    def _next(self) -> Step | None:
        remote = self.look.remote()
        step = next_step(self.release, remote, replace_unfinished=self.replace_unfinished)
        if isinstance(step, Commit | CreateTag):
            self.guard.check(remote)
        return step

    def _wait_or_raise(self, error: HubError) -> None:
        status = status_of(error)
        if status in _STALE and self._stale < _MAX_STALE:
            self._stale += 1
            time.sleep(_pause(min(self._stale, 5)))
        elif status in _BUSY and self._busy < _MAX_BUSY:
            self._busy += 1
            wait_s = min(wait_asked_for(error) or 0.0, _LONGEST_WAIT_S)
            time.sleep(max(wait_s, _pause(2 ** (self._busy + 1))))
        elif status in _STALE:
            raise PublishError(
                f"{self.release.repo_id} changes faster than {self.release.version} can be published: {error}; "
                "run the same command again when the others are done"
            ) from error
        else:
            raise _resumable(self.release, error) from error


def _do(step: Step, release: Release, look: _Look, private: bool) -> None:
    api: Any = look.api
    target = {"repo_id": release.repo_id, "repo_type": release.repo_type}
    with hub_errors(look.endpoint, f"{step} of {release.repo_id}"):
        match step:
            case CreateRepository():
                _create_repository(release, look, private)
            case CreateBranch(branch=branch, commit=commit):
                api.create_branch(**target, branch=branch, revision=commit)
            case CreateTag(tag=tag, commit=commit):
                api.create_tag(**target, tag=tag, revision=commit, tag_message=release.title)
            case DeleteBranch(branch=branch):
                api.delete_branch(**target, branch=branch)
            case Commit():
                _commit(step, release, look)
            case Unfinished():
                raise AssertionError(f"{step} is nothing to do")


def _create_repository(release: Release, look: _Look, private: bool) -> None:
    try:
        with hub_errors(look.endpoint, f"create the {release.repo_type} repository {release.repo_id}"):
            look.api.create_repo(
                release.repo_id,
                repo_type=release.repo_type,
                private=private or None,
                exist_ok=True,
            )
    except HubPermissionError as error:
        if release.repo_type != "kernel":
            raise
        raise HubPermissionError(
            f"{error}. A Hub may keep kernel repositories for some accounts: "
            "if this account may create others there, publish with --repo-type model"
        ) from error


def _commit(step: Commit, release: Release, look: _Look) -> None:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete
    from huggingface_hub.errors import HfHubHTTPError

    with ExitStack() as stack:
        try:
            created = look.api.create_commit(
                release.repo_id,
                [
                    *(CommitOperationDelete(path, is_folder=False) for path in step.delete),
                    *(CommitOperationAdd(path, content) for path, content in _additions(step, stack)),
                ],
                commit_message=step.title,
                revision=step.branch,
                parent_commit=step.parent,
                repo_type=release.repo_type,
            )
        except ValueError as error:
            if isinstance(error, HfHubHTTPError):
                raise
            raise PublishError(
                f"{release.repo_id}: the Hub does not take the card or a path: {error}"
            ) from error
    if step.branch != MAIN:
        _check_commit(created.oid, step, release, look)


def _additions(step: Commit, stack: ExitStack) -> Iterator[tuple[str, BinaryIO | str]]:
    """Where each file goes, and its content.

    File objects, not paths: with them huggingface_hub uploads and commits in one go even where the Hub offers no Xet
    storage. Of equal large files it sends the last, once for each, from several threads: that one is a path, which
    every thread opens for itself.
    """
    left = Counter(file.sha256 for file in step.add)
    several = {sha256 for sha256, count in left.items() if count > 1}
    for file in step.add:
        left[file.sha256] -= 1
        is_last = file.sha256 in several and left[file.sha256] == 0
        yield file.path, str(file.local) if is_last else file.open(stack)


def _check_commit(commit: str, step: Commit, release: Release, look: _Look) -> None:
    """Nothing is tagged that is not what was to be published: a Hub may leave out ignored files."""
    tree = look.tree(commit)
    wrong = [path for path, file in release.files.items() if path not in tree or not tree[path].holds(file)]
    wrong += [path for path in step.delete if path in tree]
    if wrong:
        raise PublishError(
            f"{release.repo_id}: after the commit {commit[:12]} to {step.branch}, {', '.join(wrong[:5])} "
            f"{'is' if len(wrong) == 1 else 'are'} not as sent; is there a .gitignore in the repository? "
            f"{release.version} was not tagged"
        )


def _not_ours(release: Release, step: Unfinished) -> PublishError:
    return PublishError(
        f"{release.repo_id}: {step}: somebody is publishing it, or died on the way. Run that publish again to "
        f"complete it, or put {release.version} in its place with --replace-unfinished"
    )


def _resumable(release: Release, error: HubError) -> HubError:
    if isinstance(error, HubPermissionError):
        return error
    return HubError(
        f"{error}. {release.version} may be half published: run the same command again to complete it"
    )


def _pause(factor: float) -> float:
    return _PAUSE_S * factor * random.uniform(0.5, 1.5)  # noqa: S311 (jitter)
