"""Changes to a repository: new ones, commits, branches, tags.

Each holds the repository's lock, writes objects first, and makes them visible by one atomic step: the
change of the refs (or, for a new repository, its row). What fails before that step changed nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from kernels_hub.server.commit import AddFile, AddLarge, CommitRequest, DeleteFile, Operation
from kernels_hub.server.git.seam import Content
from kernels_hub.server.limits import Limits
from kernels_hub.server.listing import EXECUTABLE, REGULAR, Listing, build_trees, pointer
from kernels_hub.server.packs import BLOB, COMMIT, TAG, AnyObject, GitObject, git_object
from kernels_hub.server.paths import checked_ref_name, collision_key, is_commit
from kernels_hub.server.refs import BRANCHES, DEFAULT_BRANCH, TAGS, Ref
from kernels_hub.server.refusal import (
    Refusal,
    bad_request,
    entry_not_found,
    forbidden,
    repository_not_found,
    revision_not_found,
    too_large,
)
from kernels_hub.server.releases import Force, Releases
from kernels_hub.server.repositories import Repository
from kernels_hub.server.store import Store, parse_commit

_ATTRIBUTES = "".join(
    f"*.{suffix} filter=lfs diff=lfs merge=lfs -text\n"
    for suffix in [
        "7z",
        "arrow",
        "bin",
        "bz2",
        "ckpt",
        "ftz",
        "gz",
        "h5",
        "joblib",
        "mlmodel",
        "model",
        "msgpack",
        "npy",
        "npz",
        "onnx",
        "ot",
        "parquet",
        "pb",
        "pickle",
        "pkl",
        "pt",
        "pth",
        "rar",
        "safetensors",
        "tflite",
        "tgz",
        "wasm",
        "xz",
        "zip",
        "zst",
    ]
).encode()
Files = dict[str, tuple[int, str]]


@dataclass(frozen=True)
class Changed:
    """What a commit did: the branch's head, and whether it is a new one."""

    oid: str
    new: bool


@dataclass(frozen=True)
class _Open:
    """A repository whose lock is held."""

    repository: Repository
    content: Content


class Changes:
    """Everything that changes the content of a repository."""

    def __init__(self, store: Store, limits: Limits, releases: Releases) -> None:
        self._store = store
        self._limits = limits
        self._releases = releases

    def create(self, kind: str, namespace: str, name: str, *, private: bool, author: str) -> Repository:
        """A new repository with its first commit. 409, or 400 where a name differs only in case."""
        self._releases.mirror.check_writable()
        self._check_free_name(kind, namespace, name)
        identifier = self._store.repositories.new_id()
        attributes = git_object(BLOB, _ATTRIBUTES)
        tree, trees = build_trees({".gitattributes": (REGULAR, attributes.oid)})
        commit = _commit_object(tree, (), author, "initial commit")
        repository = self._store.git.create(
            identifier,
            [attributes, *trees, commit],
            {BRANCHES + DEFAULT_BRANCH: Ref(commit.oid)},
            lambda: self._store.repositories.insert(identifier, kind, namespace, name, private=private),
        )
        if repository is None:
            self._check_free_name(kind, namespace, name)
            raise Refusal(409, "You already created this repository")
        return repository

    def receive(self, kind: str, namespace: str, name: str, origin_id: str) -> Repository:
        """A repository of a mirror, empty and hidden until it is whole. 409 where the name is taken."""
        identifier = self._store.repositories.new_id()

        def insert() -> Repository | None:
            with self._store.repositories.transaction():
                made = self._store.repositories.insert(identifier, kind, namespace, name, private=True)
                if made is not None:
                    self._releases.mirror.note(made, origin_id)
            return made

        repository = self._store.git.create(identifier, (), {}, insert)
        if repository is None:
            raise Refusal(409, f"{namespace}/{name} is here already, as another repository of the origin")
        return repository

    def _check_free_name(self, kind: str, namespace: str, name: str) -> None:
        known = self._store.repositories.find(kind, namespace, name)
        if known is None:
            return
        if known.name != name:
            raise bad_request(
                f"There is {known.full_name} already, which differs only in case from {namespace}/{name}"
            )
        raise Refusal(409, f"You already created this {kind} repo: {known.full_name}")

    @contextmanager
    def _changing(self, repository: Repository) -> Iterator[_Open]:
        """The repository under its lock, as it is now; unless it was deleted meanwhile."""
        with self._store.git.locked(repository.id):
            now = self._store.repositories.by_id(repository.id)
            if now is None:
                self._store.git.drop_lock(repository.id)
                raise repository_not_found(anonymous=False)
            self._store.repositories.mark_changed(now)
            content = self._store.content(now)
            self._releases.recover(now, content.packs, content.refs)
            yield _Open(now, content)

    def _write(
        self, at: _Open, changes: Mapping[str, Ref | None], actor: str, force: Force | None = None
    ) -> None:
        content = at.content
        self._releases.write(at.repository, content.packs, content.refs, changes, actor, force)

    def recover(self, repository: Repository) -> None:
        """Complete what a crash interrupted, if anything. Waits for whoever works on the repository."""
        if self._releases.needs_recovery(repository):
            with self._changing(repository):
                pass

    def rename(self, repository: Repository, namespace: str, name: str, actor: str) -> None:
        """Give a repository another name. 409 where that is taken, or released these versions with other content."""
        with self._changing(repository) as at:
            old, content = at.repository, at.content
            new = replace(old, namespace=namespace, name=name)
            if new.full_name == old.full_name:
                return
            refs = content.refs.all()
            with self._store.repositories.transaction():
                if not self._store.repositories.rename(old, namespace, name):
                    raise Refusal(409, f"There is {new.full_name} already")
                if new.full_name.lower() != old.full_name.lower():
                    self._releases.rename(old, new, refs, content.packs, actor)
                self._releases.audit.record(
                    "repository.rename", old.full_name, type=old.type, to=new.full_name
                )

    # -- commits

    def commit(self, repository: Repository, branch: str, request: CommitRequest, author: str) -> Changed:
        """Commit to a branch; the same tree again is the current head, not a new commit.

        412 when `request.parent` is not the head; 400 or 404 when the operations do not fit.
        """
        with self._changing(repository) as at:
            content = at.content
            head = _branch_head(content, branch)
            if request.parent is not None and not _same_commit(request.parent, head):
                raise Refusal(
                    412,
                    f"The branch {branch} is at {head}, not at {request.parent[:64]}: somebody committed first",
                )
            tree_of_head = parse_commit(head, content.packs.read(head, COMMIT)).tree
            listing = self._store.listing_of(content, tree_of_head)
            files, blobs = self._apply(repository, listing, request.operations, head)
            tree, trees = build_trees(files)
            if tree == tree_of_head:
                return Changed(head, new=False)
            known = {entry.oid for entry in listing.entries.values()}
            commit = _commit_object(tree, (head,), author, request.message)
            new = [item for item in (*blobs, *trees) if item.oid not in known]
            content.packs.write([*new, commit])
            self._write(at, {BRANCHES + branch: Ref(commit.oid)}, author)
            # The commit stands: a full disk must not make it look refused.
            with suppress(OSError):
                content.packs.merge_many()
            return Changed(commit.oid, new=True)

    def _apply(
        self, repository: Repository, listing: Listing, operations: tuple[Operation, ...], head: str
    ) -> tuple[Files, list[AnyObject]]:
        files: Files = {entry.path: (entry.mode, entry.oid) for entry in listing.files()}
        blobs: list[AnyObject] = []
        added: set[str] = set()
        for operation in operations:
            path = operation.path
            if isinstance(operation, AddFile | AddLarge):
                blob: AnyObject = (
                    operation.blob if isinstance(operation, AddFile) else self._pointer(repository, operation)
                )
                # An executable file stays one; nothing in the protocol makes one.
                mode = EXECUTABLE if files.get(path, (REGULAR, ""))[0] == EXECUTABLE else REGULAR
                files[path] = (mode, blob.oid)
                blobs.append(blob)
                added.add(path)
            elif isinstance(operation, DeleteFile):
                if files.pop(path, None) is None:
                    raise entry_not_found(path, head)
                added.discard(path)
            else:
                inside = [name for name in files if name.startswith(path + "/")]
                if not inside:
                    raise entry_not_found(path, head)
                for name in inside:
                    del files[name]
                    added.discard(name)
        if len(files) > self._limits.max_files and added:
            raise too_large(
                f"A repository may have {self._limits.max_files} files; this commit makes {len(files)}"
            )
        _check_names(files, added)
        return files, blobs

    def _pointer(self, repository: Repository, operation: AddLarge) -> GitObject:
        size = self._store.large_files.size(repository, operation.sha256)
        if size is None:
            raise bad_request(
                f"{operation.path}: this repository has no large file {operation.sha256}; upload it first"
            )
        if operation.size is not None and operation.size != size:
            raise bad_request(
                f"{operation.path}: the large file {operation.sha256} has {size} bytes, not {operation.size}"
            )
        return git_object(BLOB, pointer(operation.sha256, size))

    # -- branches and tags

    def create_branch(
        self,
        repository: Repository,
        branch: str,
        start: str | None,
        *,
        overwrite: bool = False,
        author: str = "",
    ) -> None:
        """A branch at a revision (default: the head of main). 409 where there is one; 403 for a release's name."""
        checked_ref_name(branch)
        with self._changing(repository) as at:
            refs = at.content.refs.all()
            if BRANCHES + branch in refs and not overwrite:
                raise Refusal(409, f"Reference already exists: {BRANCHES}{branch}")
            commit = self._store.resolve(at.repository, start or DEFAULT_BRANCH)
            _check_ref_folders(refs, BRANCHES + branch)
            self._write(at, {BRANCHES + branch: Ref(commit)}, author)

    def delete_branch(self, repository: Repository, branch: str, author: str = "") -> None:
        """Delete a branch other than main."""
        if branch == DEFAULT_BRANCH:
            raise forbidden(f"The branch {DEFAULT_BRANCH} cannot be deleted")
        self._delete_ref(repository, BRANCHES + branch, branch, author)

    def create_tag(
        self, repository: Repository, tag: object, revision: str, message: str | None, author: str
    ) -> None:
        """A tag at a revision, annotated where there is a message; a tag vX.Y.Z is a release from now on.

        409 where there is one. 409 or 403 where the version was released before, in another spelling or with
        other content.
        """
        name = checked_ref_name(tag)
        with self._changing(repository) as at:
            content = at.content
            refs = content.refs.all()
            if TAGS + name in refs:
                raise Refusal(409, f"Tag reference exists already: {TAGS}{name}")
            commit = self._store.resolve(at.repository, revision)
            _check_ref_folders(refs, TAGS + name)
            ref = Ref(commit)
            if message:
                annotated = _tag_object(commit, name, author, message)
                content.packs.write([annotated])
                ref = Ref(annotated.oid, commit)
            self._write(at, {TAGS + name: ref}, author)

    def delete_tag(
        self, repository: Repository, tag: str, author: str = "", *, force: Force | None = None
    ) -> None:
        """Delete a tag; 403 for a release, except by force."""
        self._delete_ref(repository, TAGS + tag, tag, author, force)

    def force_tag(self, repository: Repository, tag: str, revision: str, author: str, force: Force) -> None:
        """Put a release's tag at another commit, also a deleted one's: an administrator's act, which is logged.

        404 for a version that was never released, 409 where the tag is at the commit.
        """
        name = checked_ref_name(tag)
        with self._changing(repository) as at:
            refs = at.content.refs.all()
            commit = self._store.resolve(at.repository, revision)
            if TAGS + name not in refs and not self._releases.knows(at.repository, name):
                raise revision_not_found(name)
            if (now := refs.get(TAGS + name)) is not None and now.commit == commit:
                raise Refusal(409, f"{name} of {at.repository.full_name} is at {commit} already")
            _check_ref_folders(refs, TAGS + name)
            self._write(at, {TAGS + name: Ref(commit)}, author, force)

    def _delete_ref(
        self, repository: Repository, full: str, name: str, author: str, force: Force | None = None
    ) -> None:
        with self._changing(repository) as at:
            if full not in at.content.refs.all():
                raise revision_not_found(name)
            self._write(at, {full: None}, author, force)


def _branch_head(content: Content, branch: str) -> str:
    refs = content.refs.all()
    if (ref := refs.get(BRANCHES + branch)) is not None:
        return ref.commit
    if TAGS + branch in refs or is_commit(branch):
        raise bad_request(f"{branch} is not a branch; commits go to branches")
    raise revision_not_found(branch)


def _same_commit(asked: str, head: str) -> bool:
    return len(asked) >= 7 and head.startswith(asked.lower())


def _check_names(files: Mapping[str, object], added: set[str]) -> None:
    """Refuse a path below a file, a file in a folder's place, and names that differ only in case."""
    if not added:
        return
    folders: set[str] = set()
    for path in files:
        end = path.rfind("/")
        while end > 0 and (folder := path[:end]) not in folders:
            folders.add(folder)
            end = path.rfind("/", 0, end)
    keys: dict[str, str] = {}
    for path in (*files, *folders):
        other = keys.setdefault(collision_key(path), path)
        if other == path and not (path in files and path in folders):
            continue
        if not any(_touches(name, path) or _touches(name, other) for name in added):
            continue  # An old collision is no reason to refuse something else.
        if path in files and path in folders:
            raise bad_request(f"{path!r} would be a file and a folder at once")
        raise bad_request(f"{other!r} and {path!r} differ only in case: some clients could not hold both")


def _touches(added: str, path: str) -> bool:
    return added == path or added.startswith(path + "/")


def _check_ref_folders(refs: Mapping[str, Ref], full: str) -> None:
    """Refuse a ref below another one: git could not hold both as files."""
    for other in refs:
        if other.startswith(full + "/") or full.startswith(other + "/"):
            raise Refusal(409, f"{full} and {other} cannot exist together")


def _person(name: str) -> str:
    return f"{name} <{name}@users.noreply> {int(time.time())} +0000"


def _commit_object(tree: str, parents: tuple[str, ...], author: str, message: str) -> GitObject:
    lines = [f"tree {tree}", *(f"parent {parent}" for parent in parents)]
    lines += [f"author {_person(author)}", f"committer {_person(author)}", "", message, ""]
    return git_object(COMMIT, "\n".join(lines).encode())


def _tag_object(commit: str, name: str, author: str, message: str) -> GitObject:
    if "\0" in message or len(message) > 65536:
        raise bad_request("A tag's message is text of at most 65536 characters")
    try:
        lines = [
            f"object {commit}",
            "type commit",
            f"tag {name}",
            f"tagger {_person(author)}",
            "",
            message,
            "",
        ]
        return git_object(TAG, "\n".join(lines).encode())
    except UnicodeEncodeError:
        raise bad_request("A tag's message is text") from None
