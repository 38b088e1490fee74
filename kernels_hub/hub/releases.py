"""The releases of a repository on a Hub: which there are, which are yanked, and what each offers."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import Version

from kernels_hub.errors import (
    NoVariantError,
    PublishError,
    RepositoryNotFoundError,
    VersionError,
)
from kernels_hub.hub.cache import RepositoryCache, hub_cache_folder
from kernels_hub.hub.connection import Connection, check_repository_name
from kernels_hub.hub.http_errors import hub_errors, status_of
from kernels_hub.hub.known_refs import YANKED_FILE, parse_yanked
from kernels_hub.hub.lists import commits_of
from kernels_hub.hub.release_log import ReleaseLog, checked_refs
from kernels_hub.hub.tree import BUILD, Tree
from kernels_hub.repository.digest import list_files
from kernels_hub.repository.interface import Interface, interface_of
from kernels_hub.repository.load import KernelFiles
from kernels_hub.repository.metadata import METADATA_FILE, Digest, read_metadata
from kernels_hub.repository.release_entry import forced
from kernels_hub.repository.versions import MAIN, Refs, VersionRequest, parse_tag

if TYPE_CHECKING:
    from huggingface_hub.hf_api import GitCommitInfo

REPO_TYPES = ("kernel", "model")
_TRIES = 8


@dataclass(frozen=True)
class ReleaseRow:
    """One release."""

    version: str
    tag: str
    commit: str
    date: str | None
    """ISO 8601; None where the Hub does not say."""
    yanked: str | None
    """The reason, "" for none; None for a release that is not yanked."""
    branches: tuple[str, ...]
    """Branches that are at its commit."""
    forced: str | None = None
    """What an administrator did to it by force, as the release log tells it."""


@dataclass(frozen=True)
class Releases:
    """What a repository has."""

    repo_id: str
    repo_type: str
    releases: tuple[ReleaseRow, ...]
    """Newest first."""
    branches: Mapping[str, str]
    tags: tuple[str, ...]
    """Tags that are no releases."""
    log: ReleaseLog | None = None
    """The release log, checked; None of a Hub that keeps none."""


def find_repository(connection: Connection, repo_id: str, repo_type: str | None) -> tuple[str, Refs]:
    """Its type, and its branches and tags. Raises RepositoryNotFoundError, HubError, IntegrityError."""
    kind, refs, _ = _find(connection, repo_id, repo_type)
    return kind, refs


def _find(connection: Connection, repo_id: str, repo_type: str | None) -> tuple[str, Refs, ReleaseLog | None]:
    check_repository_name(repo_id)
    types = (repo_type,) if repo_type is not None else REPO_TYPES
    missing: RepositoryNotFoundError | None = None
    for kind in types:
        place = RepositoryCache(hub_cache_folder(), repo_id, kind)

        def ask(one: Connection, place: RepositoryCache = place) -> tuple[Refs, ReleaseLog | None]:
            return checked_refs(one, place, one.refs(place.repo_id, place.repo_type))

        try:
            return kind, *connection.anywhere(f"list the versions of {repo_id}", ask)
        except RepositoryNotFoundError as error:
            missing = missing or error
    assert missing is not None
    raise missing


def list_releases(
    repo_id: str, *, repo_type: str | None = None, connection: Connection | None = None
) -> Releases:
    """Every release of a repository, with its date, and why it is yanked.

    repo_type: "kernel" or "model"; None to find out.
    Raises RepositoryNotFoundError, HubError; IntegrityError where the release log refuses it.
    """
    connection = connection or Connection()
    kind, refs, log = _find(connection, repo_id, repo_type)
    yanked = read_yanked(connection, repo_id, kind, refs)
    changed = {} if log is None else forced(log.entries)
    rows = []
    dates = _dates(connection, repo_id, kind, refs)
    for version, tag in refs.releases().items():
        commit = refs.tags[tag]
        rows.append(
            ReleaseRow(
                version=str(version),
                tag=tag,
                commit=commit,
                date=dates.get(commit),
                yanked=yanked.get(str(version)),
                branches=tuple(sorted(name for name, head in refs.branches.items() if head == commit)),
                forced=str(changed[tag]) if tag in changed else None,
            )
        )
    others = tuple(sorted(tag for tag in refs.tags if parse_tag(tag) is None))
    return Releases(repo_id, kind, tuple(rows), dict(sorted(refs.branches.items())), others, log)


def yank(
    repo_id: str,
    version: str,
    reason: str = "",
    *,
    undo: bool = False,
    repo_type: str | None = None,
    connection: Connection | None = None,
) -> bool:
    """Keep a release from being chosen by a specifier; its exact pin and locks still get it.

    undo: let it be chosen again.
    Returns whether anything changed.

    Raises VersionError for a release that is not there, with those that are; PublishError where others
    keep changing `main`; RepositoryNotFoundError, HubPermissionError, HubError.
    """
    connection = (connection or Connection()).of_origin()
    for _ in range(_TRIES):
        kind, refs = find_repository(connection, repo_id, repo_type)
        release = _existing(repo_id, version, refs)
        known = read_yanked(connection, repo_id, kind, refs)
        remaining = {key: value for key, value in known.items() if key != release}
        if not undo:
            remaining[release] = reason
        if remaining == known:
            return False
        text = json.dumps(dict(sorted(remaining.items())), indent=2, ensure_ascii=False) + "\n"
        title = f"{'Unyank' if undo else 'Yank'} {release}"
        try:
            _commit_yanked(connection, repo_id, kind, refs, title, text)
        except Exception as error:
            if status_of(error) not in (409, 412):
                raise
            continue
        return True
    raise PublishError(f"{repo_id}: {MAIN} changes faster than {version} can be yanked; try again")


def read_yanked(connection: Connection, repo_id: str, repo_type: str, refs: Refs) -> dict[str, str]:
    """Release -> reason, as `yanked.json` on `main` says.

    Raises MetadataError for a file that is not of the form, since writing it again would lose it.
    """
    main = refs.branches.get(MAIN)
    if main is None:
        return {}
    what = f"read {YANKED_FILE} of {repo_id}"

    def ask(one: Connection) -> str | None:
        from huggingface_hub.errors import EntryNotFoundError

        try:
            with hub_errors(one.address, what):
                return str(one.api.hf_hub_download(repo_id, YANKED_FILE, repo_type=repo_type, revision=main))
        except RepositoryNotFoundError as error:
            if isinstance(error.__cause__, EntryNotFoundError):
                return None  # The commit is there, and has none: a mirror can tell as well.
            raise

    if (path := connection.anywhere(what, ask)) is None:
        return {}
    where = f"{repo_id}: {YANKED_FILE} on {MAIN} is not of the form"
    return parse_yanked(Path(path).read_bytes(), where)


def remote_interface(connection: Connection, repo_id: str, repo_type: str, commit: str) -> Interface:
    """The interface of a repository at a commit; only its Python files and metadata are fetched.

    Raises NoVariantError when nothing was built there, MetadataError, HubError.
    """
    tree = connection.tree(repo_id, repo_type, commit)
    paths = [path for path in tree.files if path.endswith(".py") or path.rpartition("/")[2] == METADATA_FILE]
    if not paths:
        raise NoVariantError(f"{repo_id} at {commit[:12]} holds no variants, so it has no interface")
    cache = RepositoryCache(hub_cache_folder(), repo_id, repo_type)
    files = [tree.files[path] for path in paths]
    if not cache.holds(commit, files):
        connection.download(repo_id, repo_type, commit, files, cache.root)
    folder = cache.snapshot(commit)
    kernels = [_kernel(repo_id, folder / BUILD / name) for name in tree.variants()]
    interface = interface_of(kernels)
    variants = {
        kernel.variant: replace(
            interface.variants[kernel.variant],
            files=_listed(kernel, tree),
            nbytes=sum(file.size or 0 for file in tree.variant(kernel.variant)),
        )
        for kernel in kernels
    }
    return replace(interface, variants=variants)


def remote_file(connection: Connection, repo_id: str, repo_type: str, commit: str, path: str) -> bytes:
    """A file of a repository at a commit. Raises KeyError for one that is not there, HubError."""
    file = connection.tree(repo_id, repo_type, commit).files[path]
    cache = RepositoryCache(hub_cache_folder(), repo_id, repo_type)
    if not cache.holds(commit, [file]):
        connection.download(repo_id, repo_type, commit, [file], cache.root)
    return cache.path(commit, file).read_bytes()


def release_commit(
    connection: Connection, repo_id: str, version: str, repo_type: str | None = None
) -> tuple[str, str]:
    """Repository type and commit of a release ("1.2.0"), tag, branch ("v1", "main") or commit.

    Raises VersionError with the nearest that exist.
    """
    kind, refs = find_repository(connection, repo_id, repo_type)
    tagged = refs.releases().get(Version(version)) if parse_tag(f"v{version}") is not None else None
    version_request = VersionRequest.of(repo_id, None, tagged or version)
    candidates = version_request.candidates(refs)
    if not candidates:
        exact_request = (
            VersionRequest.of(repo_id, f"=={version}", None) if parse_tag(f"v{version}") else version_request
        )
        raise exact_request.missing(repo_id, refs)
    return kind, candidates[0].commit


def _existing(repo_id: str, version: str, refs: Refs) -> str:
    parsed = parse_tag(f"v{version.removeprefix('v')}")
    if parsed is None:
        raise VersionError(f"{version!r} is no version of a release: it must read major.minor.patch")
    if parsed not in refs.releases():
        raise VersionRequest.of(repo_id, f"=={parsed}", None).missing(repo_id, refs)
    return str(parsed)


def _commit_yanked(
    connection: Connection, repo_id: str, repo_type: str, refs: Refs, title: str, text: str
) -> None:
    from huggingface_hub import CommitOperationAdd

    with hub_errors(connection.endpoint, f"write {YANKED_FILE} of {repo_id}"):
        connection.api.create_commit(
            repo_id,
            [CommitOperationAdd(YANKED_FILE, text.encode())],
            commit_message=title,
            revision=MAIN,
            parent_commit=refs.branches.get(MAIN),
            repo_type=repo_type,
        )


def _dates(connection: Connection, repo_id: str, repo_type: str, refs: Refs) -> dict[str, str]:
    """When each release was committed. A branch's history tells of most: one question a branch."""
    dates: dict[str, str] = {}
    releases = [refs.tags[tag] for tag in refs.releases().values()]
    heads = [head for name, head in refs.branches.items() if name != MAIN]
    for start in (*heads, *releases):
        if start in dates or not set(releases) - set(dates):
            continue
        what = f"read the history of {repo_id}"

        def ask(one: Connection, start: str = start, what: str = what) -> list[GitCommitInfo]:
            return one.ask(what, lambda: list(commits_of(one.api, repo_id, repo_type, start)))

        commits = connection.anywhere(what, ask)
        dated = (commit for commit in commits if isinstance(commit.created_at, datetime))
        dates |= {commit.commit_id: commit.created_at.isoformat() for commit in dated}
    return dates


def _kernel(repo_id: str, folder: Path) -> KernelFiles:
    metadata = read_metadata(folder, default_name=repo_id.rpartition("/")[2])
    return KernelFiles(metadata.name, folder.name, (folder,), list_files(folder), metadata)


def _listed(kernel: KernelFiles, tree: Tree) -> dict[str, str]:
    """Digest of every file: the sha256 that metadata.json lists, else the Hub's name of the content."""
    digest = kernel.metadata.digest if kernel.metadata is not None else None
    listed = _hexadecimal(digest) if digest is not None and digest.algorithm == "sha256" else {}
    prefix = f"{BUILD}/{kernel.variant}/"
    named = {
        file.path.removeprefix(prefix): file.sha256 or f"git:{file.blob}"
        for file in tree.variant(kernel.variant)
        if not file.path.removeprefix(prefix).startswith(METADATA_FILE)
    }
    return {inside: listed.get(inside, name) for inside, name in named.items()}


def _hexadecimal(digest: Digest) -> dict[str, str]:
    return {inside: base64.b64decode(value).hex() for inside, value in digest.files.items()}
