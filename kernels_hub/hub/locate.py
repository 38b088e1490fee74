"""Resolves a reference to a repository and a commit: asks the Hub, or its cached refs.

A commit, and a release's tag whose files are here, are never asked for. Everything else is asked for
once a process, and of processes that ask at the same time one asks for all. Where the Hub cannot be
reached, what is cached serves, with a warning; offline, it serves without.
"""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from kernels_hub.errors import HubError, HubPermissionError, OfflineError, RepositoryNotFoundError
from kernels_hub.hub.cache import KnownRefs, RepositoryCache, hub_cache_folder
from kernels_hub.hub.connection import Connection, check_repository_name
from kernels_hub.hub.known_refs import known_refs
from kernels_hub.hub.tree import BUILD
from kernels_hub.repository.versions import Pinned, Refs, VersionRequest

logger = logging.getLogger(__name__)

REPO_TYPES = ("kernel", "model")
MAX_AGE_VARIABLE = "KERNELS_HUB_REFS_MAX_AGE"


@dataclass(frozen=True)
class Request:
    """What a reference asks for."""

    repo_id: str
    wanted: VersionRequest
    backend: str | None = None
    """Device type; None for the one that torch was built for."""
    repo_type: str | None = None
    """"kernel" or "model"; None to find out."""
    trust_remote_code: bool | tuple[str, ...] = False
    user_agent: str | dict[str, str] | None = field(default=None, compare=False)
    local_files_only: bool = False
    """Use what is in the cache; the Hub is not asked."""

    def __str__(self) -> str:
        return f"{self.repo_id}{self.wanted}"


def locate(request: Request, hub: Connection) -> tuple[RepositoryCache, list[Pinned]]:
    """The repository's cache and the commits that fit, best first; those in the cache where no Hub can be asked."""
    check_repository_name(request.repo_id)
    root = hub_cache_folder()
    types = [request.repo_type] if request.repo_type else _types_by_presence(root, request.repo_id)
    if hub.is_offline:
        return _locate_offline(request, [RepositoryCache(root, request.repo_id, kind) for kind in types])
    for repo_type in types:
        cache = RepositoryCache(root, request.repo_id, repo_type)
        if pinned := _immutable(request.wanted, cache):
            return cache, [pinned]
    missing: RepositoryNotFoundError | None = None
    for repo_type in types:
        cache = RepositoryCache(root, request.repo_id, repo_type)
        try:
            known = _ask_refs(hub, cache, request.wanted)
        except RepositoryNotFoundError as error:
            missing = missing or error
            continue
        except HubPermissionError:
            raise
        except HubError as error:
            here = _in_cache(request.wanted, cache)
            if not here:
                raise
            logger.warning("%s; using %s of %s from the cache", error, here[0], request.repo_id)
            return cache, here
        fitting = _candidates(request.wanted, known)
        if not fitting:
            raise request.wanted.missing(request.repo_id, known.refs, known.yanked)
        return cache, fitting
    raise RepositoryNotFoundError(
        f"no repository {request.repo_id} at {hub.endpoint}, neither as a kernel nor as a model, "
        "or a private one that this token may not see; "
        "check the name, HF_ENDPOINT and HF_TOKEN"
    ) from missing


def _types_by_presence(root: Path, repo_id: str) -> list[str]:
    """Kernel before model, unless only the latter was fetched before."""
    return sorted(REPO_TYPES, key=lambda kind: not RepositoryCache(root, repo_id, kind).folder.is_dir())


def _immutable(wanted: VersionRequest, place: RepositoryCache) -> Pinned | None:
    """What needs no question: a commit, or the tag of a release that was seen before, with its files."""
    if wanted.commit is not None:
        pinned = Pinned(wanted.commit, wanted.commit)
        return pinned if place.read_tree(pinned.commit) is not None else None
    if wanted.release is None or (known := place.read_refs()) is None:
        return None
    commit = known.refs.tags.get(wanted.release)
    if commit is None:
        return None
    pinned = Pinned(commit, wanted.release)
    return pinned if has_any_variant(place, pinned) else None


def has_any_variant(place: RepositoryCache, pinned: Pinned) -> bool:
    """Whether at least one variant of a commit is in the cache in full."""
    tree = place.read_tree(pinned.commit)
    if tree is None:
        return (place.snapshot(pinned.commit) / BUILD).is_dir()
    return any(place.holds(pinned.commit, tree.variant(name)) for name in tree.variants())


def _in_cache(wanted: VersionRequest, cache: RepositoryCache) -> list[Pinned]:
    """The commits that fit, of those that were known when the Hub was last asked, and are in the cache."""
    fitting = _candidates(wanted, cache.read_refs() or KnownRefs(Refs()))
    return [pinned for pinned in fitting if has_any_variant(cache, pinned)]


def _candidates(wanted: VersionRequest, known: KnownRefs) -> list[Pinned]:
    return wanted.candidates(known.refs, known.yanked)


def _ask_refs(hub: Connection, place: RepositoryCache, wanted: VersionRequest) -> KnownRefs:
    """The refs as they are now. Of processes that ask at the same time, one asks the Hub for all."""
    came = time.time()
    oldest = came - float(os.environ.get(MAX_AGE_VARIABLE) or 0)
    with place.lock("refs"):
        known = place.read_refs()
        if known is not None and known.asked >= oldest:
            return known
        known = known_refs(hub, place, lambda found: bool(_candidates(wanted, found)))
        place.write_refs(known)
    return known


def _locate_offline(request: Request, places: list[RepositoryCache]) -> tuple[RepositoryCache, list[Pinned]]:
    for cache in places:
        if here := _in_cache(request.wanted, cache):
            return cache, here
    raise OfflineError(
        f"{request} is not available offline: HF_HUB_OFFLINE is set and {places[0].root} has no local snapshot of it; "
        f"fetch it once online (kernels-hub download {request.repo_id}), bring it in a bundle, "
        f"or set LOCAL_KERNELS={request.repo_id}=/path/to/repository"
    )
