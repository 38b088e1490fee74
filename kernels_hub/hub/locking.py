"""Make a kernels.lock: resolve what a project asks for, and hash every file of every variant."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from kernels_hub.errors import HubError, LockError, MetadataError, RepositoryNotFoundError
from kernels_hub.files import write_atomically
from kernels_hub.hub.cache import RepositoryCache, hub_cache_folder
from kernels_hub.hub.client import list_files
from kernels_hub.hub.connection import Connection
from kernels_hub.hub.locate import Request, locate
from kernels_hub.hub.locked_kernels import Dependency, Lock, LockedKernel
from kernels_hub.hub.tree import BUILD, File, Tree
from kernels_hub.repository.metadata import METADATA_FILE, read_metadata
from kernels_hub.repository.versions import VersionRequest, parse_tag

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Change:
    """What a new lock has different from the former."""

    repo_id: str
    before: str | None
    after: str | None

    def __str__(self) -> str:
        return f"{self.repo_id}: {self.before or 'not locked'} -> {self.after or 'no longer locked'}"


def make_lock(
    dependencies: Iterable[Dependency], former: Lock | None = None, upgrade: Collection[str] | None = ()
) -> Lock:
    """Resolve every dependency, and theirs, to commits and the sha256 of every file.

    former: its entries are kept where they still answer the same request.
    upgrade: ids of repositories to resolve anew although the former lock has them; None for all.

    No code of a repository runs, and large files are not downloaded: the Hub names their sha256.

    Raises VersionError, RepositoryNotFoundError, HubError, OfflineError; MetadataError for kernels that
    depend on one another in a ring.
    """
    hub = Connection()
    kernels: dict[Dependency, LockedKernel] = {}

    def visit(asked: Dependency, chain: tuple[Dependency, ...]) -> None:
        if any(ancestor.repo_id == asked.repo_id for ancestor in chain):
            ring = " -> ".join(map(str, (*chain, asked)))
            raise MetadataError(f"kernels depend on one another in a ring: {ring}")
        key = replace(asked, repo_type=None)
        if key in kernels:
            if not chain:
                kernels[key] = replace(kernels[key], direct=True)
            return
        former_kernel = None if former is None else former.find(asked)
        keep = (
            former_kernel is not None
            and bool(former_kernel.variants)
            and upgrade is not None
            and asked.repo_id not in upgrade
        )
        kernel = former_kernel if keep and former_kernel is not None else _lock(hub, asked)
        kernels[key] = replace(kernel, direct=not chain)
        for dependency in kernel.depends:
            visit(dependency, (*chain, asked))

    for dependency in dependencies:
        visit(dependency, ())
    return Lock(tuple(kernels.values()))


def changes(former: Lock | None, new: Lock) -> list[Change]:
    """What differs, in order of repository."""

    def by_request(lock: Lock | None) -> dict[Dependency, LockedKernel]:
        return {} if lock is None else {Dependency(k.repo_id, k.wanted): k for k in lock.kernels}

    before, after = by_request(former), by_request(new)
    differences = []
    for key in sorted(before.keys() | after.keys(), key=lambda d: (d.repo_id, str(d.wanted))):
        old, fresh = before.get(key), after.get(key)
        if old != fresh:
            differences.append(
                Change(
                    str(key),
                    None if old is None else f"{old.ref} ({old.commit[:12]})",
                    None if fresh is None else f"{fresh.ref} ({fresh.commit[:12]})",
                )
            )
    return differences


def check_lock(lock: Lock, dependencies: Iterable[Dependency]) -> None:
    """Raise LockError unless a lock answers exactly what a project asks for. Asks no Hub."""
    required = {(dependency.repo_id, dependency.wanted) for dependency in dependencies}
    pinned = {(kernel.repo_id, kernel.wanted) for kernel in lock.kernels if kernel.direct}
    everything = {(kernel.repo_id, kernel.wanted) for kernel in lock.kernels}
    needed = {(d.repo_id, d.wanted) for kernel in lock.kernels for d in kernel.depends}
    problems = [
        *(f"{repo}{want} is asked for, but not locked" for repo, want in _sorted(required - pinned)),
        *(f"{repo}{want} is locked, but not asked for" for repo, want in _sorted(pinned - required)),
        *(f"{repo}{want} is depended on, but not locked" for repo, want in _sorted(needed - everything)),
    ]
    if problems:
        raise LockError(f"{lock.where} is out of date: {'; '.join(problems)}. Run: kernels-hub lock")


def check_tags(lock: Lock) -> str | None:
    """Raise LockError where a release's tag is no longer at the commit that a lock pins, or gone.

    Returns None, or why tags could not be compared: this process may not ask the Hub, or it does not answer. What
    was last known of the tags is compared then.
    """
    hub = Connection().of_origin()  # a mirror that is behind does not have every tag yet
    unknown: str | None = "HF_HUB_OFFLINE is set" if hub.is_offline else None
    moved = []
    for (repo_id, repo_type), kernels in _tagged(lock).items():
        tags = None
        if unknown is None:
            try:
                tags = hub.refs(repo_id, repo_type).tags
            except RepositoryNotFoundError as error:
                moved.append(str(error))
                continue
            except HubError as error:
                unknown = str(error)
        remote = tags is not None
        if tags is None:
            known = RepositoryCache(hub_cache_folder(), repo_id, repo_type).read_refs()
            tags = {} if known is None else known.refs.tags
        for kernel in kernels:
            now = tags.get(kernel.ref)
            if now is None and remote:
                moved.append(f"tag {kernel.ref} of {repo_id}, locked at {kernel.commit[:12]}, is gone")
            elif now not in (None, kernel.commit):
                moved.append(
                    f"tag {kernel.ref} of {repo_id} moved: it is at {str(now)[:12]}, locked at {kernel.commit[:12]}"
                )
    if moved:
        raise LockError(
            f"{lock.where} pins releases that changed on the Hub, which releases never do: {'; '.join(moved)}. Ask the "
            "publisher why; what is locked still loads, and kernels-hub lock --upgrade ORG/NAME takes what is there now"
        )
    return unknown


def _tagged(lock: Lock) -> dict[tuple[str, str], list[LockedKernel]]:
    """The kernels that are pinned by a release's tag, by repository."""
    by_repository: dict[tuple[str, str], list[LockedKernel]] = {}
    for kernel in lock.kernels:
        if parse_tag(kernel.ref) is not None:
            by_repository.setdefault((kernel.repo_id, kernel.repo_type), []).append(kernel)
    return by_repository


def write_lock(lock: Lock, path: Path, for_peer: bool = False) -> None:
    """Write the file whole or not at all."""
    text = lock.to_peer_json() if for_peer else lock.to_json()
    write_atomically(path, text)


def _sorted(pairs: set[tuple[str, VersionRequest]]) -> list[tuple[str, VersionRequest]]:
    return sorted(pairs, key=lambda pair: (pair[0], str(pair[1])))


def _lock(hub: Connection, asked: Dependency) -> LockedKernel:
    cache, candidates = locate(Request(asked.repo_id, asked.wanted, repo_type=asked.repo_type), hub)
    pinned = candidates[0]
    logger.info("locking %s at %s", asked, pinned)
    tree = list_files(hub, cache, pinned.commit)
    if not tree.files:
        raise LockError(f"{asked} cannot be locked: {cache.repo_id} has nothing in {BUILD}/ at {pinned}")
    _fetch_small(hub, cache, tree)
    variants = {
        name: {
            file.path.removeprefix(f"{BUILD}/{name}/"): _sha256(cache, tree, file)
            for file in tree.variant(name)
        }
        for name in tree.variants()
    }
    depends: dict[Dependency, None] = {}
    for name in variants:
        metadata = read_metadata(cache.snapshot(tree.commit) / BUILD / name, cache.repo_id.partition("/")[2])
        for row in metadata.kernel_depends:
            depends[Dependency(row.repo_id, VersionRequest.of(row.repo_id, row.version, row.revision))] = None
    return LockedKernel(
        cache.repo_id,
        cache.repo_type,
        asked.wanted,
        pinned.ref,
        pinned.commit,
        True,
        variants,
        tuple(sorted(depends, key=lambda d: (d.repo_id, str(d.wanted)))),
    )


def _fetch_small(hub: Connection, place: RepositoryCache, tree: Tree) -> None:
    """Download the files whose sha256 the Hub does not name: those in git itself, which are small."""
    missing = [
        file
        for file in tree.files.values()
        if (file.sha256 is None or file.path.endswith(f"/{METADATA_FILE}"))
        and not place.holds(tree.commit, [file])
    ]
    if missing:
        with place.lock(f"{tree.commit}.lock"):
            hub.download(place.repo_id, place.repo_type, tree.commit, missing, place.root)


def _sha256(place: RepositoryCache, tree: Tree, file: File) -> str:
    return file.sha256 if file.sha256 is not None else file.check(place.path(tree.commit, file))
