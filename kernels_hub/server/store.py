"""The content of every repository of a root: made, opened, read, deleted. `changes.py` changes it."""

from __future__ import annotations

import datetime
import logging
import re
import shutil
import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from kernels_hub.files import flush_folder
from kernels_hub.repository.release_entry import version_key
from kernels_hub.server.durable import locked, write_flushed
from kernels_hub.server.layout import RootPaths
from kernels_hub.server.lfs import LargeFiles
from kernels_hub.server.listing import Listing, Listings
from kernels_hub.server.packs import COMMIT, TAG, ByteCache, Packs
from kernels_hub.server.paths import is_commit
from kernels_hub.server.refs import BRANCHES, TAGS, Refs
from kernels_hub.server.refusal import Refusal, repository_not_found, revision_not_found
from kernels_hub.server.releases import Releases
from kernels_hub.server.repositories import Repositories, Repository

DEFAULT_BRANCH = "main"
_OPEN = 128
_CACHE_BYTES = 16 << 20
_CONFIG = b"[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = true\n[gc]\n\tauto = 0\n"
_PERSON = re.compile(rb"(.*) <[^>]*> (\d+) [+-]\d{4}")
log = logging.getLogger("kernels_hub.server")


@dataclass(frozen=True)
class Content:
    """The git side of one repository."""

    packs: Packs
    refs: Refs


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
        self, layout: RootPaths, repositories: Repositories, large_files: LargeFiles, releases: Releases
    ) -> None:
        self.layout = layout
        self.releases = releases
        self.repositories = repositories
        self.large_files = large_files
        self._cache = ByteCache(_CACHE_BYTES)
        self._listings = Listings()
        self._open: OrderedDict[str, Content] = OrderedDict()
        self._guard = threading.Lock()

    # -- whole repositories

    def prepare(self, identifier: str) -> Path:
        """A new, empty repository, ready to be renamed to its place."""
        home = self.layout.temporary()
        for folder in ("git/objects/pack", "git/objects/info", "git/refs/heads", "git/refs/tags", "lfs"):
            (home / folder).mkdir(parents=True)
        write_flushed(home / "git" / "HEAD", f"ref: {BRANCHES}{DEFAULT_BRANCH}\n".encode())
        write_flushed(home / "git" / "config", _CONFIG)
        write_flushed(home / "git" / "description", f"{identifier}\n".encode())
        for folder in ("git/objects/pack", "git/objects", "git/refs", "git", "."):
            flush_folder(home / folder)
        return home

    def content(self, repository: Repository) -> Content:
        """The git side of a repository, opened once a process. Refuses one that was deleted meanwhile."""
        with self._guard:
            if (known := self._open.get(repository.id)) is not None:
                self._open.move_to_end(repository.id)
                return known
            git = self.layout.repository(repository.id) / "git"
            if not git.is_dir():
                raise repository_not_found(anonymous=False)
            content = Content(
                Packs(git, self._cache, self.layout.temporary), Refs(git, self.layout.temporary)
            )
            self._open[repository.id] = content
            if len(self._open) > _OPEN:
                # Whoever still reads from it opens its files again.
                self._open.popitem(last=False)[1].packs.close()
            return content

    def at(self, home: Path) -> Content:
        """The git side of a repository that is not in its place yet."""
        git = home / "git"
        return Content(Packs(git, ByteCache(0), self.layout.temporary), Refs(git, self.layout.temporary))

    def delete(self, repository: Repository, actor: str = "") -> None:
        """Delete a repository: the row first, then its files, which nobody finds any more.

        The release log keeps its releases, each with its end: none of them comes back with other content.
        """
        with locked(self.layout.lock(repository.id)):
            with self.repositories.transaction():
                now = self.repositories.by_id(repository.id)
                if now is None or not self.repositories.delete(now):
                    raise repository_not_found(anonymous=False)
                self.releases.bury(now, actor)
                self.releases.audit.record("repository.delete", now.full_name, type=now.type)
            self.discard(repository.id)
        self.layout.lock(repository.id).unlink(missing_ok=True)

    def discard(self, identifier: str) -> None:
        """Remove the files of a repository that has no row."""
        with self._guard:
            if (content := self._open.pop(identifier, None)) is not None:
                content.packs.close()
        home = self.layout.repository(identifier)
        if home.is_dir():
            trash = self.layout.temporary()
            home.rename(trash)
            flush_folder(self.layout.repositories)
            shutil.rmtree(trash)
        try:
            self.large_files.objects.remove_all(identifier)
        except Refusal as refusal:
            # Nobody finds them any more: `gc --prune` removes what is left.
            log.warning(
                "the large files of the deleted repository %s are left: %s", identifier, refusal.message
            )

    def set_aside(self, identifier: str) -> None:
        """Move the files of a repository that has no row to where nothing looks for them."""
        self.layout.orphans.mkdir(exist_ok=True)
        self.layout.repository(identifier).rename(self.layout.orphans / identifier)
        flush_folder(self.layout.orphans)
        flush_folder(self.layout.repositories)

    def bytes_of(self, repository: Repository) -> int:
        """What a repository takes on disk: its packs and its large files."""
        packs = self.content(repository).packs.names()
        return self.large_files.total(repository) + sum(pack.stat().st_size for pack in packs)

    def close(self) -> None:
        """Close every file."""
        with self._guard:
            for content in self._open.values():
                content.packs.close()
            self._open.clear()

    # -- reading

    def resolve(self, repository: Repository, revision: str) -> str:
        """The commit of a branch, tag or commit id; RevisionNotFound otherwise."""
        content = self.content(repository)
        refs = content.refs.all()
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
