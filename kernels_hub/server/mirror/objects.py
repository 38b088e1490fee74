"""Brings the git objects and large files of a repository from its origin, each under the name of its content.

An object is written only when everything that it names is here: blobs and large files first, then the trees and the
commits of some commits at a time, oldest first. So whatever is here is here with all below it, whenever the process
dies, and the next round asks for the rest alone. Nothing of it is seen before a ref leads there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from dulwich.objects import parse_tree

from kernels_hub.errors import IntegrityError
from kernels_hub.server.durable import make_folders
from kernels_hub.server.hub import Hub
from kernels_hub.server.listing import EXECUTABLE, FOLDER, REGULAR, Large, parse_pointer
from kernels_hub.server.mirror.documents import MOST_HISTORY, MOST_OIDS, RepositoryDocument
from kernels_hub.server.mirror.origin import Origin
from kernels_hub.server.packs import BLOB, COMMIT, TAG, TREE, GitObject
from kernels_hub.server.paths import checked_path, is_commit
from kernels_hub.server.refs import Ref
from kernels_hub.server.refusal import Refusal, repository_not_found
from kernels_hub.server.repositories import Repository
from kernels_hub.server.store import CommitInfo, parse_commit

_GROUP = 16
"""Commits whose new trees are in memory at a time."""
_MOST_COMMITS = 500_000
_PACK_BYTES = 32 << 20
Place = tuple[str, str]
"""A commit, and the path in it where a blob was found."""


class Objects:
    """What one repository needs, asked for and written."""

    def __init__(self, hub: Hub, origin: Origin, row: RepositoryDocument, repository: Repository) -> None:
        self._hub, self._origin, self._row, self._repository = hub, origin, row, repository
        self._packs = hub.store.content(repository).packs

    def bring(self, refs: Mapping[str, Ref], known: Iterable[str]) -> None:
        """Have everything that refs lead to. known: commits that are here for certain."""
        commits = self._missing_commits([ref.commit for ref in refs.values()], list(known))
        waiting = list(commits.items())
        for start in range(0, len(waiting), _GROUP):
            self._bring_group(dict(waiting[start : start + _GROUP]))
        tags = {ref.oid: ref for ref in refs.values() if ref.peeled is not None}
        new = list(self._asked([oid for oid in tags if not self._has(oid)], TAG))
        for tag in new:
            target = tag.content.split(b"\n", 1)[0]
            if target != b"object " + (tags[tag.oid].peeled or "").encode():
                raise IntegrityError(f"the tag object {tag.oid} does not lead to the commit of its tag")
        self._write(new)

    # -- commits

    def _missing_commits(self, tips: list[str], known: list[str]) -> dict[str, GitObject]:
        """The commits that are not here, oldest first."""
        found: dict[str, GitObject] = {}
        parents: dict[str, tuple[str, ...]] = {}
        wanted = [tip for tip in dict.fromkeys(tips) if not self._has(tip)]
        while wanted:
            pool = {
                item.oid: item
                for item in self._origin.objects(self._row, wanted, history=MOST_HISTORY, known=known)
                if item.kind == COMMIT
            }
            waiting, missing = list(wanted), list[str]()
            for oid in waiting:
                if oid in found or self._has(oid):
                    continue
                if (item := pool.get(oid)) is None:
                    missing.append(oid)
                    continue
                found[oid], parents[oid] = item, _parsed(item).parents
                waiting += parents[oid]
            if wanted[0] not in found:
                raise IntegrityError(f"the origin does not send the commit {wanted[0]}, which it names")
            if len(found) > _MOST_COMMITS:
                raise IntegrityError(f"more than {_MOST_COMMITS} commits are new: a mirror takes no more")
            wanted = list(dict.fromkeys(missing))
        return {oid: found[oid] for oid in _oldest_first(parents)}

    def _bring_group(self, commits: dict[str, GitObject]) -> None:
        """Everything of some commits; the commits themselves last."""
        trees: dict[str, GitObject] = {}
        blobs: dict[str, Place] = {}
        level = {_parsed(item).tree: (oid, "") for oid, item in commits.items()}
        while level:
            places = {oid: at for oid, at in level.items() if oid not in trees and not self._has(oid)}
            level = {}
            for tree in self._asked(list(places), TREE):
                trees[tree.oid] = tree
                commit, prefix = places[tree.oid]
                for path, mode, oid in _entries(tree, prefix):
                    if mode == FOLDER:
                        level.setdefault(oid, (commit, path + "/"))
                    else:
                        blobs.setdefault(oid, (commit, path))
            if len(blobs) > self._hub.limits.max_files * _GROUP:
                raise IntegrityError(f"more than {self._hub.limits.max_files} files in a commit")
        self._bring_blobs({oid: place for oid, place in blobs.items() if not self._has(oid)})
        self._write([*trees.values(), *commits.values()])

    def _bring_blobs(self, places: dict[str, Place]) -> None:
        batch: list[GitObject] = []
        size = 0
        for blob in self._asked(list(places), BLOB):
            if (large := parse_pointer(blob.content)) is not None:
                self._bring_large(large, places[blob.oid])
            batch.append(blob)
            size += len(blob.content)
            if size > _PACK_BYTES:
                self._write(batch)
                batch, size = [], 0
        self._write(batch)

    def _asked(self, oids: list[str], kind: int) -> Iterator[GitObject]:
        """Objects by id, one answer in memory at a time."""
        left = dict.fromkeys(oids)
        while left:
            asked = list(left)[:MOST_OIDS]
            found = 0
            for item in self._origin.objects(self._row, asked):
                if item.oid not in left or item.kind != kind:
                    raise IntegrityError(f"the origin sends the object {item.oid}, which was not asked for")
                del left[item.oid]
                found += 1
                yield item
            if not found:
                raise IntegrityError(f"the origin does not send the object {asked[0]}, which it names")

    def _has(self, oid: str) -> bool:
        return self._packs.kind(oid) is not None

    def _write(self, objects: list[GitObject]) -> None:
        if not objects:
            return
        self._hub.check_space(self._repository, sum(len(item.content) for item in objects))
        with self._hub.git.locked(self._repository.id):
            if self._hub.repositories.by_id(self._repository.id) is None:
                raise repository_not_found(anonymous=False)
            self._packs.add(objects)
            self._packs.merge_many()

    # -- large files

    def _bring_large(self, large: Large, place: Place) -> None:
        """A large file, unless it is here; what came of it before the process died is not asked for again."""
        hub, (commit, path) = self._hub, place
        if hub.large_files.touch(self._repository, large.sha256, large.size):
            return
        if large.size > (most := hub.limits.max_file_bytes):
            raise IntegrityError(
                f"{path} has {large.size} bytes, and this mirror takes files of {most} at most"
            )
        part = self._part(large)
        here = part.stat().st_size if part.is_file() else 0
        hub.check_space(self._repository, max(0, large.size - here))
        with part.open("a+b") as file:
            self._origin.download(self._row, commit, path, large.size, file)
        try:
            hub.large_files.adopt(self._repository, part, large.sha256, large.size)
        except Refusal as refusal:
            raise IntegrityError(f"{path} of {commit[:12]}: {refusal.message}") from refusal
        finally:
            part.parent.rmdir()

    def _part(self, large: Large) -> Path:
        """Where a large file is gathered: among the uploads in parts, of which the sweep drops the abandoned."""
        folder = self._hub.layout.multipart / f"mirror-{large.sha256}"
        make_folders(folder, self._hub.layout.multipart)
        return folder / "content"


def _parsed(commit: GitObject) -> CommitInfo:
    try:
        info = parse_commit(commit.oid, commit.content)
    except (Refusal, KeyError, IndexError, ValueError, OverflowError, OSError) as error:
        raise IntegrityError(f"{commit.oid} is no commit that can be read: {error}") from error
    if not all(map(is_commit, (info.tree, *info.parents))):
        raise IntegrityError(f"the commit {commit.oid} names what are no objects")
    return info


def _entries(tree: GitObject, prefix: str) -> Iterator[tuple[str, int, str]]:
    """What is in a tree: path, mode, id. Only what a commit to a Hub may hold is taken."""
    try:
        rows = list(parse_tree(tree.content, 20, strict=True))
    except Exception as error:  # dulwich raises all kinds where bytes are damaged
        raise IntegrityError(f"{tree.oid} is no tree that can be read: {error}") from error
    for name, mode, oid in rows:
        try:
            path = checked_path(prefix + name.decode())
        except (Refusal, UnicodeDecodeError) as error:
            raise IntegrityError(
                f"the tree {tree.oid} holds a name that no file may have: {error}"
            ) from error
        if b"/" in name or mode not in (REGULAR, EXECUTABLE, FOLDER):
            raise IntegrityError(f"{path} is neither a file nor a folder (mode {mode:o})")
        yield path, mode, oid.decode()


def _oldest_first(parents: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Every key after those that it names."""
    done: dict[str, None] = {}
    for start in parents:
        stack = [start]
        while stack:
            waiting = [one for one in parents[stack[-1]] if one in parents and one not in done]
            if waiting:
                stack.append(waiting[0])
            else:
                done[stack.pop()] = None
    return list(done)
