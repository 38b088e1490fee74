"""Bring kernels, with all that they depend on, into the cache without loading them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from kernels_hub.errors import LockError
from kernels_hub.hub.bundle import Item
from kernels_hub.hub.cache import RepositoryCache, hub_cache_folder
from kernels_hub.hub.client import best_variant, download_files, list_files
from kernels_hub.hub.connection import Connection
from kernels_hub.hub.locate import Request, locate
from kernels_hub.hub.lock import read_lock
from kernels_hub.hub.locked_kernels import LOCK_FILE, Dependency, LockedKernel
from kernels_hub.hub.tree import BUILD, Tree
from kernels_hub.repository.metadata import read_metadata
from kernels_hub.repository.system import System
from kernels_hub.repository.versions import VersionRequest

Wish = Dependency | LockedKernel
"""What to bring: a version that is to be resolved, or one that a lock pins."""


def wanted_kernels(texts: Sequence[str], lockfile: Path | None = None) -> list[Wish]:
    """What a command line names; with nothing named, what the project's lock pins.

    Raises VersionError for a text that does not parse, LockError where nothing is named and no lock is there.
    """
    if texts and lockfile is None:
        return [parse_dependency(text) for text in texts]
    path = lockfile or Path(LOCK_FILE)
    if lockfile is None and not path.exists():
        raise LockError(
            f"name kernels (org/name@1), or run this beside a {LOCK_FILE}; {path.absolute()} is missing"
        )
    lock = read_lock(path)
    if not texts:
        return list(lock.kernels)
    return [lock.direct(parse_dependency(text).repo_id) for text in texts]


def parse_dependency(text: str) -> Dependency:
    """ "org/name", "org/name@1" (branch v1), "org/name@>=1,<2", "org/name@1.2.0", or a revision after the @."""
    repo_id, _, version = text.partition("@")
    if not version:
        return Dependency(repo_id, VersionRequest())
    if version.isdigit():
        return Dependency(repo_id, VersionRequest.of(repo_id, int(version), None))
    if version[0] in "<>=!~":
        return Dependency(repo_id, VersionRequest.of(repo_id, version, None))
    revision = f"v{version}" if version[0].isdigit() and version.count(".") == 2 else version
    return Dependency(repo_id, VersionRequest.of(repo_id, None, revision))


def provision(wishes: Iterable[Wish], backend: str | None = None, all_variants: bool = False) -> list[Item]:
    """Download kernels and their dependencies; each file is checked against what the Hub or the lock says.

    backend: device type whose variant to take; None for torch's.
    all_variants: take the variants for every device and platform instead.

    Raises as `hub.client.fetch` does, TrustError excepted: nothing is imported.
    """
    hub = Connection()
    system = None if all_variants else System.detect(backend)
    done: dict[Wish, Item] = {}
    queue = list(wishes)
    while queue:
        wish = queue.pop(0)
        if wish in done:
            continue
        cache, tree = _find(hub, wish)
        what = str(wish)
        variants = tree.variants() if system is None else [best_variant(what, tree.variants(), system)]
        for name in variants:
            download_files(hub, cache, tree, name)
        files = [file for name in variants for file in tree.variant(name)]
        partial = tree.partial or len(variants) < len(tree.variants())
        done[wish] = Item(cache, Tree.of(tree.commit, files, partial), cache.read_refs())
        if isinstance(wish, Dependency) or not wish.variants:
            queue += _depends(cache, tree.commit, variants)
    return list({(item.place.repo_id, item.tree.commit): item for item in done.values()}.values())


def _find(hub: Connection, wish: Wish) -> tuple[RepositoryCache, Tree]:
    if isinstance(wish, LockedKernel):
        cache = RepositoryCache(hub_cache_folder(), wish.repo_id, wish.repo_type)
        return cache, wish.tree() if wish.variants else list_files(hub, cache, wish.commit)
    cache, candidates = locate(Request(wish.repo_id, wish.wanted, repo_type=wish.repo_type), hub)
    return cache, list_files(hub, cache, candidates[0].commit)


def _depends(place: RepositoryCache, commit: str, variants: Iterable[str]) -> list[Wish]:
    depends: dict[Wish, None] = {}
    for name in variants:
        metadata = read_metadata(place.snapshot(commit) / BUILD / name, place.repo_id.partition("/")[2])
        for row in metadata.kernel_depends:
            depends[Dependency(row.repo_id, VersionRequest.of(row.repo_id, row.version, row.revision))] = None
    return list(depends)
