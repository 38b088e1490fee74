"""Fetch kernels: from a reference to files on disk that may be imported.

    locate (which commit) -> admit (may its code run) -> list (its files) -> choose (a variant)
    -> download -> check (every file's content, signatures) -> a KernelFiles

Everything is done once a process for a reference, whatever the number of threads; downloads once a
machine, whatever the number of processes; and what is pinned and present is not asked for at all.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from kernels_hub.errors import (
    HubError,
    HubPermissionError,
    IntegrityError,
    NoVariantError,
    OfflineError,
    RepositoryNotFoundError,
    VersionError,
)
from kernels_hub.hub.cache import RepositoryCache, hub_cache_folder
from kernels_hub.hub.connection import Connection, download_of
from kernels_hub.hub.endpoints import RESTING
from kernels_hub.hub.locate import Request, locate
from kernels_hub.hub.locked_kernels import LockedKernel
from kernels_hub.hub.tree import BUILD, File, Tree
from kernels_hub.repository.load import KernelFiles
from kernels_hub.repository.local import read_variant
from kernels_hub.repository.system import System
from kernels_hub.repository.variants import VariantAccepted, VariantRejected, rank
from kernels_hub.repository.versions import MAIN, Pinned
from kernels_hub.trust.decision import Admission, RemoteCode, admit, check_signature

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


@dataclass(frozen=True)
class Fetched:
    """A kernel's files, checked, and what they are."""

    repo_id: str
    repo_type: str
    pinned: Pinned
    files: KernelFiles
    admission: Admission
    served_by: tuple[str, ...] = ()
    """The addresses that answered, where one of them was a mirror's."""


class _Once(Generic[_T]):
    """Values computed once for each key; other threads wait. A failure is forgotten and can be retried."""

    def __init__(self) -> None:
        self._known: dict[Hashable, _T] = {}
        self._locks: dict[Hashable, threading.Lock] = {}

    def get(self, key: Hashable, compute: Callable[[], _T]) -> _T:
        try:
            return self._known[key]
        except KeyError:
            pass
        with self._locks.setdefault(key, threading.Lock()):
            if key not in self._known:
                self._known[key] = compute()
            return self._known[key]

    def clear(self) -> None:
        self._known.clear()


_LOCATED: _Once[tuple[RepositoryCache, list[Pinned]]] = _Once()
_FETCHED: _Once[Fetched] = _Once()


def fetch(request: Request) -> Fetched:
    """The files of a kernel on a Hub, for this machine.

    Raises VersionError for a version that does not exist, with the nearest; RepositoryNotFoundError;
    NoVariantError with each variant's reason; TrustError before anything is downloaded;
    SignatureError and IntegrityError before anything is imported; OfflineError for what is neither
    cached nor may be asked for; HubError for a Hub that fails, HubPermissionError for one that refuses.
    """
    return _FETCHED.get(request, lambda: _fetch(request))


def fetch_locked(
    locked: LockedKernel,
    backend: str | None,
    trust_remote_code: bool | tuple[str, ...] = False,
    download: bool = True,
) -> Fetched:
    """The files of a kernel that a lock pins; each is compared with the sha256 that the lock holds.

    download: whether to fetch what is not in the cache; otherwise OfflineError.

    Raises as `fetch` does.
    """
    key = (locked, backend, trust_remote_code)
    return _FETCHED.get(key, lambda: _fetch_locked(locked, backend, trust_remote_code, download))


def forget() -> None:
    """Let the next `fetch` of everything ask again: for long-lived processes and tests."""
    _LOCATED.clear()
    _FETCHED.clear()
    RESTING.clear()


def judge(request: Request) -> list[VariantAccepted | VariantRejected]:
    """Every variant of a kernel on a Hub, accepted ones best first; nothing but the list is fetched."""
    hub = Connection(request.user_agent, request.local_files_only)
    cache, candidates = _locate_once(request, hub)
    tree = list_files(hub, cache, candidates[0].commit)
    return rank(tree.variants(), System.detect(request.backend)).decisions


def preview(request: Request) -> tuple[str, Pinned, str]:
    """Repository, commit and variant that `fetch` would choose; the Hub is asked for lists only."""
    hub = Connection(request.user_agent, request.local_files_only)
    cache, candidates = _locate_once(request, hub)
    pinned = candidates[0]
    tree = list_files(hub, cache, pinned.commit)
    variant = best_variant(f"{cache.repo_id}@{pinned.ref}", tree.variants(), System.detect(request.backend))
    return cache.repo_id, pinned, variant


def _locate_once(request: Request, hub: Connection) -> tuple[RepositoryCache, list[Pinned]]:
    key = (request.repo_id, request.repo_type, request.wanted, hub.is_offline)
    return _LOCATED.get(key, lambda: locate(request, hub))


# -- a version --------------------------------------------------------------------------------------


def _fetch(request: Request) -> Fetched:
    hub = Connection(request.user_agent, request.local_files_only)
    cache, candidates = _locate_once(request, hub)
    system = System.detect(request.backend)
    candidate, pinned, admission, tree = _choose(request, hub, cache, candidates, system)
    if not tree.files and pinned.ref == MAIN:
        raise _nothing_on_main(cache)
    variant = best_variant(f"{cache.repo_id}@{pinned.ref}", tree.variants(), system)
    folder = download_files(hub, cache, tree, variant)
    _note_branches(cache, pinned.commit)
    return _checked(hub, cache, candidate, pinned, admission, tree.variant(variant), folder)


def _choose(
    request: Request, hub: Connection, place: RepositoryCache, candidates: list[Pinned], system: System
) -> tuple[RemoteCode, Pinned, Admission, Tree]:
    """The best commit; offline the best one of which a variant for this machine is here in full."""
    for pinned in candidates if hub.is_offline else candidates[:1]:
        candidate = _candidate(hub, place, pinned, request.trust_remote_code)
        admission = _admit(hub, place, candidate)
        tree = list_files(hub, place, pinned.commit)
        if not hub.is_offline:
            return candidate, pinned, admission, tree
        complete = [name for name in tree.variants() if place.holds(pinned.commit, tree.variant(name))]
        if rank(complete, system).best is not None:
            here = {file.path: file for name in complete for file in tree.variant(name)}
            return candidate, pinned, admission, Tree(pinned.commit, here)
    raise OfflineError(
        f"{request} is not available offline for {system.backend}: HF_HUB_OFFLINE is set, and of what "
        f"{place.folder} holds ({', '.join(map(str, candidates))}) no variant that runs here is complete; "
        "fetch it once online, or bring it in a bundle"
    )


def _admit(hub: Connection, place: RepositoryCache, candidate: RemoteCode) -> Admission:
    """Ask the policy, before anything is downloaded. Raises TrustError; HubError for network trouble."""

    def is_trusted_publisher(organisation: str) -> bool:
        recorded, tree = place.read_publisher(), place.read_tree(candidate.commit)
        bundled = tree is not None and tree.bundled
        if hub.is_offline:
            if recorded is None or bundled:
                before = "its files came in a bundle" if bundled else "it was not asked before"
                raise OfflineError(
                    f"cannot ask the Hub whether {organisation} is a trusted publisher: HF_HUB_OFFLINE is set, and "
                    f"{before}; allow it by name: kernels-hub trust allow {place.repo_id!r}"
                )
            return recorded
        if recorded and tree is not None and not bundled:
            return True  # it was when these files were fetched
        try:
            trusted = hub.is_trusted_publisher(organisation)
        except HubPermissionError:
            raise
        except HubError as error:
            # No mirror is believed about that. What the Hub itself once said holds, as it does offline.
            if recorded and not bundled and len(hub.endpoints) > 1:
                logger.warning("%s; it was one when it was last asked", error)
                return True
            raise
        place.write_publisher(trusted)
        return trusted and (not bundled or _confirm(hub, place, candidate.commit))

    return admit(candidate, is_trusted_publisher)


def _confirm(hub: Connection, place: RepositoryCache, commit: str) -> bool:
    """Whether the Hub has a commit whose files came in a bundle: a publisher that it vouches for must have made them.

    Raises IntegrityError for a file that is not the Hub's.
    """
    try:
        listed = hub.tree(place.repo_id, place.repo_type, commit)
    except (VersionError, RepositoryNotFoundError):
        return False
    for file in listed.files.values():
        if (path := place.path(commit, file)).is_file():
            file.check(path)
    place.write_tree(listed)
    return True


def _candidate(
    hub: Connection,
    place: RepositoryCache,
    pinned: Pinned,
    trust_remote_code: bool | tuple[str, ...],
    locked: bool = False,
) -> RemoteCode:
    return RemoteCode(
        place.repo_id,
        place.repo_type,
        pinned.commit,
        hub.endpoint,
        trust_remote_code,
        locked,
        pinned.version,
    )


def list_files(hub: Connection, place: RepositoryCache, commit: str) -> Tree:
    """The files of a commit: as listed before, or asked for once and kept."""
    tree = place.read_tree(commit)
    if tree is not None and (hub.is_offline or not tree.partial):
        return tree
    if hub.is_offline:
        return Tree.of_snapshot(commit, place.snapshot(commit))
    tree = hub.tree(place.repo_id, place.repo_type, commit)
    place.write_tree(tree)
    return tree


def best_variant(what: str, names: list[str], system: System) -> str:
    """The variant to use. Raises NoVariantError with the reason for each that is rejected."""
    ranking = rank(names, system)
    if ranking.best is not None:
        return str(ranking.best)
    torch = "" if system.torch_version is None else f", torch {'.'.join(map(str, system.torch_version))}"
    reasons = "".join(f"\n  {decision}" for decision in ranking.rejected)
    raise NoVariantError(
        f"no variant of {what} runs here ({system.backend} on {system.cpu}-{system.os}{torch}). "
        f"Its variants:{reasons or f' none, there is nothing in {BUILD}/'}"
    )


def _nothing_on_main(place: RepositoryCache) -> NoVariantError:
    """Releases lie on tags; a reference without a version looks at `main`, which may hold the card alone."""
    known = place.read_refs()
    releases = [] if known is None else list(known.refs.releases())
    newest = next((version for version in releases if not version.is_prerelease), None)
    advice = f"say version='~={newest.major}.{newest.minor}'" if newest else "give a version or a revision"
    return NoVariantError(
        f"{place.repo_id} has no variants on {MAIN}: there is nothing in {BUILD}/; "
        + (f"its releases are {', '.join(map(str, releases[:5]))}: " if releases else "")
        + advice
    )


def _note_branches(place: RepositoryCache, commit: str) -> None:
    """Write the branches at this commit as the Hub's own client does, so that others find them offline."""
    known = place.read_refs()
    for name, at in {} if known is None else known.refs.branches.items():
        if at == commit:
            place.write_ref(name, commit)


# -- a lock -----------------------------------------------------------------------------------------


def _fetch_locked(
    locked: LockedKernel, backend: str | None, trust_remote_code: bool | tuple[str, ...], download: bool
) -> Fetched:
    hub = Connection()
    cache = RepositoryCache(hub_cache_folder(), locked.repo_id, locked.repo_type)
    pinned = Pinned(locked.commit, locked.ref)
    candidate = _candidate(hub, cache, pinned, trust_remote_code, locked=bool(locked.variants))
    admission = _admit(hub, cache, candidate)
    tree = locked.tree() if locked.variants else list_files(hub, cache, locked.commit)
    variant = best_variant(f"{locked.repo_id} as locked", tree.variants(), System.detect(backend))
    folder = download_files(hub, cache, tree, variant, download)
    return _checked(hub, cache, candidate, pinned, admission, tree.variant(variant), folder, download)


# -- files ------------------------------------------------------------------------------------------


def download_files(
    hub: Connection, place: RepositoryCache, tree: Tree, variant: str, download: bool = True
) -> Path:
    """The variant's folder in the cache, with every file there; downloaded by one process of a machine."""
    files = tree.variant(variant)
    folder = place.snapshot(tree.commit) / BUILD / variant
    if place.holds(tree.commit, files):
        return folder
    if hub.is_offline or not download:
        why = "HF_HUB_OFFLINE is set" if hub.is_offline else "nothing may be downloaded here"
        raise OfflineError(
            f"{place.repo_id}@{tree.commit[:12]}, variant {variant}, is not in {place.root}, and {why}; "
            "fetch it first: kernels-hub download"
        )
    with place.lock(f"{tree.commit}.{variant}"):
        absent = [file for file in files if not place.holds(tree.commit, [file])]
        if absent:
            logger.info("downloading %s@%s, variant %s", place.repo_id, tree.commit[:12], variant)
            hub.download(place.repo_id, place.repo_type, tree.commit, absent, place.root)
            _repair(hub, place, tree.commit, files)
    return folder


def _sha256(
    hub: Connection, place: RepositoryCache, commit: str, files: list[File], folder: Path, download: bool
) -> dict[Path, str]:
    """The SHA-256 of each file; what lies in the cache with other content is fetched anew, where that may be."""

    def read() -> dict[Path, str]:
        return {(path := place.path(commit, file)): file.check(path) for file in files}

    try:
        return read()
    except IntegrityError:
        if hub.is_offline or not download:
            raise
    with place.lock(f"{commit}.{folder.name}"):
        _repair(hub, place, commit, files)
    return read()


def _repair(hub: Connection, place: RepositoryCache, commit: str, files: list[File]) -> None:
    """Fetch what is damaged, once more; if that does not help, remove it and raise IntegrityError."""
    damaged = []
    for file in files:
        try:
            file.check(place.path(commit, file))
        except IntegrityError as error:
            logger.warning("%s; downloading it again", error)
            hub.distrust(download_of(place.repo_id, file))
            damaged.append(file)
    if damaged:
        hub.download(place.repo_id, place.repo_type, commit, damaged, place.root, force=True)
        for file in damaged:
            try:
                file.check(place.path(commit, file))
            except IntegrityError:
                place.discard(commit, damaged)
                raise


def _checked(
    hub: Connection,
    place: RepositoryCache,
    candidate: RemoteCode,
    pinned: Pinned,
    admission: Admission,
    files: list[File],
    folder: Path,
    download: bool = True,
) -> Fetched:
    """The variant as a snapshot in which nothing can change unseen before it is imported."""
    sha256 = _sha256(hub, place, pinned.commit, files, folder, download)
    for inside, signed in check_signature(admission, candidate, folder).items():
        if sha256.get(folder / inside, signed) != signed:
            raise IntegrityError(
                f"{folder / inside} was changed while it was verified; nothing of it was imported"
            )
    kernel = read_variant(folder).seal(sha256)
    served = tuple(dict.fromkeys(hub.served.values()))
    by_mirrors = served if any(address != hub.endpoint for address in served) else ()
    return Fetched(place.repo_id, place.repo_type, pinned, kernel, admission, by_mirrors)
