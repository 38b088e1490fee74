"""Listing of a commit: every file and folder with size, id and, for large files, their SHA-256.

Trees are read once; since they never change, listings are kept by the id of their tree.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dulwich.objects import parse_tree

from kernels_hub.server.packs import BLOB, TREE, GitObject, Packs, git_object

REGULAR, EXECUTABLE, FOLDER = 0o100644, 0o100755, 0o40000
_POINTER = re.compile(
    rb"version https://git-lfs\.github\.com/spec/v1\noid sha256:([0-9a-f]{64})\nsize (0|[1-9][0-9]{0,18})\n"
)
_LIKE_A_POINTER = re.compile(rb"\s*version https?://(git-lfs|hawser)\.github\.com/spec/")
_POINTER_BYTES = 1024
_MAX_ENTRIES = 100_000


@dataclass(frozen=True, slots=True)
class Large:
    """A file kept outside git: what its pointer says."""

    sha256: str
    size: int
    pointer_size: int

    def to_dict(self, digest_key: str) -> dict[str, object]:
        """As the API says it. digest_key: the name of the digest, which differs from answer to answer."""
        return {digest_key: self.sha256, "size": self.size, "pointerSize": self.pointer_size}


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or folder of a commit. `size` is the file's own, also for a large one."""

    path: str
    mode: int
    oid: str
    size: int
    large: Large | None = None

    @property
    def is_folder(self) -> bool:
        """Whether this is a folder."""
        return self.mode == FOLDER


@dataclass(frozen=True)
class Listing:
    """Every entry of a tree by path, in git's order, folders before what is in them."""

    tree: str
    entries: Mapping[str, Entry]

    def files(self) -> Iterator[Entry]:
        """The files."""
        return (entry for entry in self.entries.values() if not entry.is_folder)


def pointer(sha256: str, size: int) -> bytes:
    """What git holds in place of a large file."""
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n".encode()


def parse_pointer(content: bytes) -> Large | None:
    """The large file that a blob stands for, if it is a pointer."""
    if len(content) <= _POINTER_BYTES and (match := _POINTER.fullmatch(content)):
        return Large(match[1].decode(), int(match[2]), len(content))
    return None


def looks_like_pointer(content: bytes) -> bool:
    """Whether somebody's client might take a regular file for a pointer; such files are refused."""
    return len(content) <= _POINTER_BYTES and _LIKE_A_POINTER.match(content) is not None


class Listings:
    """Listings and sizes, kept while there is room; one for all repositories of a process."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._listings: OrderedDict[str, Listing] = OrderedDict()
        self._entries = 0
        self._blobs: dict[str, tuple[int, Large | None]] = {}

    def of_tree(self, packs: Packs, tree: str) -> Listing:
        """The listing of a tree. Raises KeyError where an object is missing."""
        with self._guard:
            if (known := self._listings.get(tree)) is not None:
                self._listings.move_to_end(tree)
                return known
        entries: dict[str, Entry] = {}
        self._walk(packs, tree, "", entries)
        listing = Listing(tree, entries)
        with self._guard:
            if tree not in self._listings:
                self._listings[tree] = listing
                self._entries += len(entries)
            while self._entries > _MAX_ENTRIES and len(self._listings) > 1:
                self._entries -= len(self._listings.popitem(last=False)[1].entries)
        return listing

    def _walk(self, packs: Packs, tree: str, prefix: str, entries: dict[str, Entry]) -> None:
        for name, mode, raw in parse_tree(packs.read(tree, TREE), 20):
            path, oid = prefix + name.decode(), raw.decode()
            if mode == FOLDER:
                entries[path] = Entry(path, mode, oid, 0)
                self._walk(packs, oid, path + "/", entries)
            else:
                size, large = self._blob(packs, oid)
                entries[path] = Entry(path, mode, oid, large.size if large else size, large)

    def _blob(self, packs: Packs, oid: str) -> tuple[int, Large | None]:
        if (known := self._blobs.get(oid)) is None:
            content = packs.read(oid, BLOB)
            known = (len(content), parse_pointer(content))
            with self._guard:
                if len(self._blobs) >= _MAX_ENTRIES:
                    self._blobs.clear()
                self._blobs[oid] = known
        return known


def build_trees(files: Mapping[str, tuple[int, str]]) -> tuple[str, list[GitObject]]:
    """The tree of a set of files (path: mode and blob): its id, and every tree object that it takes."""
    root: dict[str, object] = {}
    for path, leaf in files.items():
        *folders, name = path.split("/")
        node = root
        for folder in folders:
            child = node.setdefault(folder, {})
            assert isinstance(child, dict), f"{path} is below a file"
            node = child
        node[name] = leaf
    objects: list[GitObject] = []
    return _build(root, objects), objects


def _build(node: Mapping[str, object], objects: list[GitObject]) -> str:
    rows = []
    for name, child in node.items():
        encoded = name.encode()
        if isinstance(child, dict):
            rows.append((encoded + b"/", encoded, FOLDER, _build(child, objects)))
        else:
            assert isinstance(child, tuple)
            rows.append((encoded, encoded, child[0], child[1]))
    content = b"".join(b"%o %s\0%s" % (mode, name, bytes.fromhex(oid)) for _, name, mode, oid in sorted(rows))
    objects.append(tree := git_object(TREE, content))
    return tree.oid
