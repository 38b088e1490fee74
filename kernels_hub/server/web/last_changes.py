"""The commit that last changed each entry of a folder.

The history is walked from a commit along first parents, comparing the folder's tree with that of the commit before.
It ends when every entry is found, after so many commits, or so many seconds: what is older than that is left out.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Mapping

from dulwich.objects import parse_tree

from kernels_hub.server.listing import FOLDER
from kernels_hub.server.packs import TREE, Packs
from kernels_hub.server.refusal import Refusal
from kernels_hub.server.repositories import Repository
from kernels_hub.server.store import CommitInfo, Store

_COMMITS = 1000
_SECONDS = 0.25
_KEPT = 512


class LastChanges:
    """Last changes by folder, kept between requests: a commit's history never changes. Safe from several threads."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._known: OrderedDict[tuple[str, str, str], Mapping[str, CommitInfo]] = OrderedDict()

    def of(self, store: Store, repository: Repository, commit: str, folder: str) -> Mapping[str, CommitInfo]:
        """Name of an entry of the folder ("" for the root) -> the commit that changed it last."""
        key = repository.id, commit, folder
        with self._guard:
            if (known := self._known.get(key)) is not None:
                self._known.move_to_end(key)
                return known
        found = last_changes(store, repository, commit, folder)
        with self._guard:
            self._known[key] = found
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return found


def last_changes(
    store: Store,
    repository: Repository,
    commit: str,
    folder: str,
    *,
    commits: int = _COMMITS,
    seconds: float = _SECONDS,
) -> dict[str, CommitInfo]:
    """Name of an entry of the folder -> the commit that changed it last, for those found within the limits."""
    packs, deadline = store.content(repository).packs, time.monotonic() + seconds
    info = store.commit_info(repository, commit)
    entries = _entries(packs, info.tree, folder)
    waiting, found = dict(entries), dict[str, CommitInfo]()
    for _ in range(commits):
        if not waiting:
            break
        if not info.parents:
            found.update(dict.fromkeys(waiting, info))
            break
        if time.monotonic() > deadline:
            break
        try:
            parent = store.commit_info(repository, info.parents[0])
            before = _entries(packs, parent.tree, folder) if parent.tree != info.tree else entries
        except (KeyError, Refusal):  # damaged: `fsck` says how; the folder itself can be shown
            break
        if before != entries:
            changed = [name for name, oid in waiting.items() if before.get(name) != oid]
            for name in changed:
                found[name] = info
                del waiting[name]
        info, entries = parent, before
    return found


def _entries(packs: Packs, tree: str, folder: str) -> dict[str, str]:
    """Name -> object of a folder's entries; nothing where a tree has no such folder."""
    for part in folder.split("/") if folder else ():
        rows = parse_tree(packs.read(tree, TREE), 20)
        child = next(
            (oid.decode() for name, mode, oid in rows if name.decode() == part and mode == FOLDER), None
        )
        if child is None:
            return {}
        tree = child
    return {name.decode(): oid.decode() for name, _, oid in parse_tree(packs.read(tree, TREE), 20)}
