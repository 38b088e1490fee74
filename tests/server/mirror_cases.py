"""An origin with content, and a mirror of it, for tests of mirrors."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from kernels_hub.repository.release_entry import ReleaseEntry, chain_problem, disagreement
from kernels_hub.repository.versions import Refs
from kernels_hub.server.commit import AddFile, AddLarge, CommitRequest, DeleteFile
from kernels_hub.server.hub import Hub
from kernels_hub.server.listing import parse_pointer
from kernels_hub.server.mirror.follow import Round, follow_once, following
from kernels_hub.server.mirror.origin import Origin
from kernels_hub.server.packs import BLOB, git_object
from kernels_hub.server.reachable import reach
from kernels_hub.server.refs import BRANCHES, TAGS
from kernels_hub.server.release_log import chain_of
from kernels_hub.server.repositories import Repository
from tests.running_hub import RunningHub

_names = itertools.count()


@dataclass
class Source:
    """An organisation of one test's own on a running Hub, changed as its administrator could."""

    hub: RunningHub
    organisation: str = field(default_factory=lambda: f"org{next(_names)}")

    def __post_init__(self) -> None:
        self.hub.organisation(self.organisation, "ada")

    @property
    def only(self) -> list[str]:
        return [f"{self.organisation}/*"]

    def name(self, short: str = "k") -> str:
        return f"{self.organisation}/{short}"

    def new(self, hub: Hub, short: str = "k", *, private: bool = False) -> Repository:
        return hub.changes.create("kernel", self.organisation, short, private=private, author="ada")

    def repository(self, hub: Hub, short: str = "k") -> Repository:
        return found(hub, self.name(short))

    @contextmanager
    def opened(self, short: str = "k") -> Iterator[tuple[Hub, Repository]]:
        with self.hub.administer() as hub:
            known = hub.repositories.find("kernel", self.organisation, short)
            yield hub, known if known is not None else self.new(hub, short)

    def release(
        self, version: str, content: str | None = None, short: str = "k", *, message: str = ""
    ) -> str:
        """A commit with a small file and a large one, and a release of it."""
        text = content if content is not None else version
        with self.opened(short) as (hub, repo):
            oid = commit(
                hub, repo, {"file": text, f"build/torch-cpu/{text}.py": f"x = {text!r}\n"}, large=text
            )
            hub.changes.create_tag(repo, f"v{version}", oid, message or None, "ada")
        return oid

    def yank(self, versions: dict[str, str], short: str = "k") -> None:
        with self.opened(short) as (hub, repo):
            commit(hub, repo, {"yanked.json": json.dumps(versions)})


def found(hub: Hub, name: str) -> Repository:
    repository = hub.repositories.find("kernel", *name.split("/"))
    assert repository is not None, name
    return repository


def large_content(seed: str, size: int = 200_000) -> bytes:
    return (hashlib.sha256(seed.encode()).digest() * (size // 32 + 1))[:size]


def commit(
    hub: Hub,
    repo: Repository,
    files: dict[str, str | None],
    *,
    large: str | None = None,
    branch: str = "main",
    size: int = 200_000,
) -> str:
    """Files by path; None deletes one. large: what `weights.bin` is made of."""
    operations: list[AddFile | AddLarge | DeleteFile] = [
        DeleteFile(path) if text is None else AddFile(path, git_object(BLOB, text.encode()))
        for path, text in files.items()
    ]
    if large is not None:
        content = large_content(large, size)
        oid = hashlib.sha256(content).hexdigest()
        temporary = hub.layout.temporary()
        temporary.write_bytes(content)
        hub.large_files.adopt(repo, temporary, oid, len(content))
        operations.append(AddLarge("weights.bin", oid, len(content)))
    return hub.changes.commit(repo, branch, CommitRequest("m", None, tuple(operations)), "ada").oid


@dataclass
class Mirror:
    """The root of a mirror, and the waits that its rounds made."""

    root: Path
    address: str
    only: list[str]
    token: str | None = None
    waits: list[float] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def round(self) -> Round:
        """One round, in this process."""
        with Hub(self.root, create=True) as hub:
            return self.round_in(hub)

    def round_in(self, hub: Hub) -> Round:
        with following(hub, self.address):
            origin = Origin(self.address, self.token, wait=self.waits.append)
            return follow_once(hub, origin, self.only, self.lines.append)

    def brought(self) -> Round:
        """A round after which all is as at the origin."""
        done = self.round()
        assert done.is_well, (done, self.lines)
        return done


def log_of(hub: Hub, repo: Repository) -> list[ReleaseEntry]:
    entries = hub.releases.log.entries(chain_of(repo))
    assert chain_problem(entries, chain_of(repo)) is None
    return entries


def shown(hub: Hub, name: str) -> dict[str, object]:
    """All that a repository shows, whole: refs with what they hold, files with their content's names, and the log."""
    repo = found(hub, name)
    content = hub.store.content(repo)
    refs = {one: ref for one, ref in content.refs.all().items() if one.startswith((BRANCHES, TAGS))}
    files = {
        one: {
            entry.path: (entry.mode, entry.oid, entry.large)
            for entry in hub.store.listing(repo, ref.commit).files()
        }
        for one, ref in refs.items()
    }
    return {
        "refs": refs,
        "files": files,
        "log": log_of(hub, repo),
        "private": repo.private,
        "gated": repo.gated,
    }


def check_whole(hub: Hub) -> list[str]:
    """Every repository of a mirror that anybody is shown is whole; which ones."""
    seen = []
    for repo in hub.repositories.all():
        if hub.mirror.is_arriving(repo):
            assert repo.private
            continue
        content = hub.store.content(repo)
        hub.changes.recover(repo)
        refs = content.refs.all()
        reached = reach(content.packs, [(name, ref.oid) for name, ref in refs.items()])
        assert reached.problems == []
        for large in reached.large.values():
            assert hub.large_files.size(repo, large.sha256) == large.size
            assert hub.large_files.sha256(repo, large.sha256) == large.sha256
        tags = {one.removeprefix(TAGS): ref.commit for one, ref in refs.items() if one.startswith(TAGS)}
        branches = {
            one.removeprefix(BRANCHES): ref.commit for one, ref in refs.items() if one.startswith(BRANCHES)
        }
        assert disagreement(Refs(branches, tags), log_of(hub, repo)) is None
        seen.append(repo.full_name)
    return sorted(seen)


def pointers(hub: Hub, name: str) -> set[str]:
    """SHA-256 of every large file that any object of a repository names."""
    packs = hub.store.content(found(hub, name)).packs
    blobs = (packs.read(oid) for oid in packs.oids() if packs.kind(oid) == BLOB)
    return {large.sha256 for blob in blobs if (large := parse_pointer(blob))}


def one_line(text: str) -> bool:
    return "\n" not in text.strip() and re.search(r"Traceback|Error\(", text) is None
