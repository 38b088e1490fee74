"""The git side of a repository as git's own binary and tests of its files find it, wherever a Hub keeps it."""

from __future__ import annotations

from pathlib import Path

from kernels_hub.server.hub import Hub
from kernels_hub.server.refs import RefChanges
from kernels_hub.server.repositories import Repository


def bare(hub: Hub, repo: Repository) -> Path:
    """A bare repository: the folder that the Hub has, or a copy of what is in its store."""
    if not hub.git.has_several_roots:
        return hub.layout.repository(repo.id) / "git"
    target = hub.layout.temporary()
    with hub.git.locked(repo.id):
        hub.git.copy(repo.id, target)
    return target


def change_refs(hub: Hub, repo: Repository, changes: RefChanges) -> None:
    """Change refs past every rule of releases, as somebody who has the root does."""
    with hub.git.locked(repo.id):
        hub.store.content(repo).refs.change(changes)
