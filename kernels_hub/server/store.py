"""The content of every repository of a root: made, opened, read, deleted. `changes.py` changes it."""

from __future__ import annotations

import datetime
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass

from kernels_hub.repository.release_entry import version_key
from kernels_hub.server.git.seam import Content, GitStore
from kernels_hub.server.lfs import LargeFiles
from kernels_hub.server.listing import Listing, Listings
from kernels_hub.server.packs import COMMIT, TAG
from kernels_hub.server.paths import is_commit
from kernels_hub.server.refs import BRANCHES, TAGS, Ref
from kernels_hub.server.refusal import Refusal, repository_not_found, revision_not_found
from kernels_hub.server.releases import Releases
from kernels_hub.server.repositories import Repositories, Repository

_PERSON = re.compile(rb"(.*) <[^>]*> (\d+) [+-]\d{4}")
log = logging.getLogger("kernels_hub.server")


@dataclass(frozen=True)
class CommitInfo:
    """A commit."""

    oid: str
    tree: str
    parents: tuple[str, ...]
    author: str
    date: str
    message: str

    @property
    def title(self) -> str:
        """The first line of the message."""
        return self.message.split("\n", 1)[0]


class Store:
    """Content by repository."""

    def __init__(
        self, git: GitStore, repositories: Repositories, large_files: LargeFiles, releases: Releases
    ) -> None:
        self.git = git
        self.releases = releases
        self.repositories = repositories
        self.large_files = large_files
        self._listings = Listings()

    # -- whole repositories

    def content(self, repository: Repository) -> Content:
        """The git side of a repository. Refuses one that was deleted meanwhile."""
        return self.git.open(repository.id)

    def delete(self, repository: Repository, actor: str = "") -> None:
        """Delete a repository: the row first, then its files, which nobody finds any more.

        The release log keeps its releases, each with its end: none of them comes back with other content.
        """
        with self.git.locked(repository.id):
            with self.repositories.transaction():
                now = self.repositories.by_id(repository.id)
                if now is None or not self.repositories.delete(now):
                    raise repository_not_found(anonymous=False)
                self.releases.bury(now, actor)
                self.releases.audit.record("repository.delete", now.full_name, type=now.type)
            self._discard(repository.id)
        self.git.drop_lock(repository.id)

    def _discard(self, identifier: str) -> None:
        """Remove the files of a repository that has no row."""
        try:
            self.git.remove(identifier)
            self.large_files.objects.remove_all(identifier)
        except Refusal as refusal:
            # Nobody finds them any more: `gc --prune` removes what is left.
            log.warning("the files of the deleted repository %s are left: %s", identifier, refusal.message)

    def bytes_of(self, repository: Repository) -> int:
        """What a repository takes where it is kept: its packs and its large files."""
        packs = self.content(repository).packs.kept()
        return self.large_files.total(repository) + sum(pack.size for pack in packs)

    # -- reading

    def resolve(self, repository: Repository, revision: str, refs: Mapping[str, Ref] | None = None) -> str:
        """The commit of a branch, tag or commit id; RevisionNotFound otherwise. refs: as they were read before."""
        content = self.content(repository)
        refs = content.refs.all() if refs is None else refs
        # A release's tag before a branch of its name, which older roots may have.
        order = (TAGS, BRANCHES) if version_key(revision) else (BRANCHES, TAGS)
        for name in (revision, *(place + revision for place in order)):
            if name.startswith("refs/") and (ref := refs.get(name)) is not None:
                return ref.commit
        if is_commit(revision) and content.packs.kind(revision) == COMMIT:
            return revision
        raise revision_not_found(revision)

    def commit_info(self, repository: Repository, oid: str) -> CommitInfo:
        """A commit, by its id."""
        return parse_commit(oid, self.content(repository).packs.read(oid, COMMIT))

    def listing(self, repository: Repository, commit: str) -> Listing:
        """Everything in a commit."""
        packs = self.content(repository).packs
        return self._listings.of_tree(packs, parse_commit(commit, packs.read(commit, COMMIT)).tree)

    def listing_of(self, content: Content, tree: str) -> Listing:
        """Everything in a tree."""
        return self._listings.of_tree(content.packs, tree)

    def blob(self, repository: Repository, oid: str) -> bytes:
        """The content of a file that is kept in git."""
        return self.content(repository).packs.read(oid)

    def tag_message(self, repository: Repository, oid: str) -> str | None:
        """The message of an annotated tag."""
        try:
            return self.content(repository).packs.read(oid, TAG).decode().split("\n\n", 1)[1].strip()
        except (KeyError, IndexError):
            return None

    def history(self, repository: Repository, oid: str, count: int) -> tuple[list[CommitInfo], str | None]:
        """Commits from one on, newest first, and the id to go on with."""
        infos: list[CommitInfo] = []
        following: str | None = oid
        while following is not None and len(infos) < count:
            infos.append(info := self.commit_info(repository, following))
            following = info.parents[0] if info.parents else None
        return infos, following


def parse_commit(oid: str, content: bytes) -> CommitInfo:
    """A commit object as a record."""
    header, _, message = content.partition(b"\n\n")
    fields: dict[bytes, list[bytes]] = {}
    for line in header.split(b"\n"):
        key, _, value = line.partition(b" ")
        fields.setdefault(key, []).append(value)
    person = _PERSON.fullmatch(fields[b"author"][0])
    if person is None:
        raise Refusal(500, f"commit {oid} has no readable author")
    date = datetime.datetime.fromtimestamp(int(person[2]), datetime.UTC)
    return CommitInfo(
        oid,
        fields[b"tree"][0].decode(),
        tuple(parent.decode() for parent in fields.get(b"parent", ())),
        person[1].decode("utf-8", "replace"),
        timestamp(date.timestamp()),
        message.decode("utf-8", "replace").rstrip("\n"),
    )


def timestamp(seconds: float) -> str:
    """A time as clients parse it."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
