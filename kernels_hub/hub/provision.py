"""Bring kernels, with all that they depend on, into the cache without loading them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from kernels_hub.errors import LockError
from kernels_hub.hub.bundle import Item
from kernels_hub.hub.cache import RepositoryCache, cache_folder
from kernels_hub.hub.client import best_variant, download_files, list_files
from kernels_hub.hub.connection import Connection
from kernels_hub.hub.locate import Request, locate
from kernels_hub.hub.lock import LOCK_FILE, Dependency, LockedKernel, read_lock
from kernels_hub.hub.tree import BUILD, Tree
from kernels_hub.repository.metadata import read_metadata
from kernels_hub.repository.system import System
from kernels_hub.repository.versions import Wanted

Wish = Dependency | LockedKernel
"""What to bring: a version that is to be resolved, or one that a lock pins."""


def wanted_kernels(texts: Sequence[str], lockfile: Path | None = None) -> list[Wish]:
    """What a command line names; with nothing named, what the project's lock pins.

    Raises VersionError for a text that does not parse, LockError where nothing is named and no lock is there.
    """
    if texts and lockfile is None:
        return [parse_dependency(text) for text in texts]
    path = lockfile or Path(LOCK_FILE)
    if lockfile is None and not path.is_file():
        raise LockError(
            f"name kernels (org/name@1), or run this beside a {LOCK_FILE}; {path.absolute()} is missing"
        )
    lock = read_lock(path)
    if not texts:
        return list(lock.kernels)
    return [lock.direct(parse_dependency(text).repo_id) for text in texts]


def parse_dependency(text: str) -> Dependency:
    """ "org/name", "org/name@1" (branch v1), "org/name@>=1,<2", "org/name@1.2.0", or a revision after the @."""
    repo_id, _, asked = text.partition("@")
    if not asked:
        return Dependency(repo_id, Wanted())
    if asked.isdigit():
        return Dependency(repo_id, Wanted.of(repo_id, int(asked), None))
    if asked[0] in "<>=!~":
        return Dependency(repo_id, Wanted.of(repo_id, asked, None))
    revision = f"v{asked}" if asked[0].isdigit() and asked.count(".") == 2 else asked
    return Dependency(repo_id, Wanted.of(repo_id, None, revision))


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
        place, tree = _find(hub, wish)
        what = str(wish)
        variants = tree.variants() if system is None else [best_variant(what, tree.variants(), system)]
        for name in variants:
            download_files(hub, place, tree, name)
        files = [file for name in variants for file in tree.variant(name)]
        partial = tree.partial or len(variants) < len(tree.variants())
        done[wish] = Item(place, Tree.of(tree.commit, files, partial), place.read_refs())
        if isinstance(wish, Dependency) or not wish.variants:
            queue += _depends(place, tree.commit, variants)
    return list({(item.place.repo_id, item.tree.commit): item for item in done.values()}.values())


def _find(hub: Connection, wish: Wish) -> tuple[RepositoryCache, Tree]:
    if isinstance(wish, LockedKernel):
        place = RepositoryCache(cache_folder(), wish.repo_id, wish.repo_type)
        return place, wish.tree() if wish.variants else list_files(hub, place, wish.commit)
    place, candidates = locate(Request(wish.repo_id, wish.wanted, repo_type=wish.repo_type), hub)
    return place, list_files(hub, place, candidates[0].commit)


def _depends(place: RepositoryCache, commit: str, variants: Iterable[str]) -> list[Wish]:
    found: dict[Wish, None] = {}
    for name in variants:
        metadata = read_metadata(place.snapshot(commit) / BUILD / name, place.repo_id.partition("/")[2])
        for row in metadata.kernel_depends:
            found[Dependency(row.repo_id, Wanted.of(row.repo_id, row.version, row.revision))] = None
    return list(found)
