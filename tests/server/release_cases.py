"""Commits and releases of a Hub in this process, and what its log says of them."""

from __future__ import annotations

from pathlib import Path

from kernels_hub.repository.release_entry import ReleaseEntry, chain_problem
from kernels_hub.server.commit import AddFile, CommitRequest
from kernels_hub.server.hub import Hub
from kernels_hub.server.packs import BLOB, git_object
from kernels_hub.server.refs import TAGS
from kernels_hub.server.repositories import Repository

CHAIN = "kernel/ada/k"


def new(hub: Hub, name: str = "k") -> Repository:
    return hub.changes.create("kernel", "ada", name, private=False, author="ada")


def commit(hub: Hub, repo: Repository, path: str, content: str, branch: str = "main") -> str:
    operations = (AddFile(path, git_object(BLOB, content.encode())),)
    return hub.changes.commit(repo, branch, CommitRequest("m", None, operations), "ada").oid


def release(hub: Hub, repo: Repository, tag: str, content: str | None = None) -> str:
    oid = commit(hub, repo, "file", content) if content is not None else hub.store.resolve(repo, "main")
    hub.changes.create_tag(repo, tag, oid, None, "ada")
    return oid


def log(hub: Hub, chain: str = CHAIN) -> list[ReleaseEntry]:
    entries = hub.releases.log.entries(chain)
    assert chain_problem(entries, chain) is None
    return entries


def kinds(hub: Hub, chain: str = CHAIN) -> list[tuple[str, str]]:
    return [(entry.kind, entry.tag) for entry in log(hub, chain)]


def tags(hub: Hub, repo: Repository) -> dict[str, str]:
    refs = hub.store.content(repo).refs.all()
    return {name.removeprefix(TAGS): ref.commit for name, ref in refs.items() if name.startswith(TAGS)}


def packed(hub: Hub, repo: Repository) -> Path:
    return hub.layout.repository(repo.id) / "git" / "packed-refs"
