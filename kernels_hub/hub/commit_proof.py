"""Proves that files are those of a commit: by the git objects that lead from its id to each of them.

A commit's id names its tree, a tree names what is in it, each by the hash of its content. So whoever lists the files of
a commit, a mirror for one, cannot list others without naming other ids. The objects come from `POST …/objects`, which
the Hubs of this library answer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping

from kernels_hub.errors import IntegrityError
from kernels_hub.hub.tree import BUILD, File

_FOLDER = b"40000"
_AT_ONCE = 1000
_MOST_TREES = 20_000


def check_commit(
    commit: str, files: Mapping[str, File], fetch: Callable[[list[str]], bytes], where: str
) -> None:
    """Raise IntegrityError unless these are the files below `build/` of a commit, all of them.

    files: by path, each with the name of its content. fetch: the objects of some ids, as many as come, each with git's
    header. where: who lists the files, for the message.
    """
    root = _read([commit], fetch, where)[commit]
    header, _, tree = root.partition(b"\n")[0].partition(b" ")
    if header != b"tree":
        raise _refused(where, commit, "what it sends for the commit is none")
    held = dict(_entries(_read([tree.decode("ascii", "replace")], fetch, where).popitem()[1], where, commit))
    mode, oid = held.get(BUILD, (b"", ""))
    found: dict[str, str] = {}
    level = {f"{BUILD}/": oid} if mode == _FOLDER else {}
    seen = 0
    while level:
        seen += len(level)
        if seen > _MOST_TREES:
            raise _refused(where, commit, f"it has more than {_MOST_TREES} folders")
        trees = _read(list(dict.fromkeys(level.values())), fetch, where)
        below: dict[str, str] = {}
        for prefix, oid in level.items():
            for name, (mode, child) in _entries(trees[oid], where, commit):
                if mode == _FOLDER:
                    below[f"{prefix}{name}/"] = child
                else:
                    found[prefix + name] = child
        level = below
    listed = {path: _blob(file) for path, file in files.items()}
    if listed != found:
        wrong = sorted(path for path in {*listed, *found} if listed.get(path) != found.get(path))
        raise _refused(where, commit, f"it lists another {wrong[0][:200]!r} than the commit has")


def _read(oids: list[str], fetch: Callable[[list[str]], bytes], where: str) -> dict[str, bytes]:
    """Objects by id; each has the content that its id says."""
    found: dict[str, bytes] = {}
    while missing := [oid for oid in oids if oid not in found]:
        came = dict(_objects(fetch(missing[:_AT_ONCE])))
        if missing[0] not in came:
            raise _refused(where, missing[0], "it does not send the object of that id")
        found |= {oid: came[oid] for oid in missing if oid in came}
    return found


def _objects(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Id and content of each object; nothing of what is cut or is none, which is missed then."""
    start = 0
    while (end := data.find(b"\0", start, start + 32)) >= 0:
        length = data[start:end].rpartition(b" ")[2]
        if not length.isdigit() or len(length) > 12:
            return
        stop = end + 1 + int(length)
        # Over kind, size and content, as git has it; a content that is cut has another id.
        yield hashlib.sha1(data[start:stop], usedforsecurity=False).hexdigest(), data[end + 1 : stop]
        start = stop


def _entries(tree: bytes, where: str, commit: str) -> Iterator[tuple[str, tuple[bytes, str]]]:
    """Name -> mode and id, of a tree."""
    start = 0
    while start < len(tree):
        end = tree.find(b"\0", start)
        mode, _, name = tree[start : max(end, start)].partition(b" ")
        if end < 0 or end + 21 > len(tree) or not name:
            raise _refused(where, commit, "what it sends for a folder is none")
        yield name.decode("utf-8", "surrogateescape"), (mode, tree[end + 1 : end + 21].hex())
        start = end + 21


def _blob(file: File) -> str | None:
    """Git's name of a file's content: of what stands there in place of a large one."""
    if file.sha256 is None or file.blob is not None:
        return file.blob
    pointer = (
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{file.sha256}\nsize {file.size}\n".encode()
    )
    return hashlib.sha1(b"blob %d\0" % len(pointer) + pointer, usedforsecurity=False).hexdigest()


def _refused(where: str, oid: str, problem: str) -> IntegrityError:
    return IntegrityError(
        f"{where} cannot prove what is in {oid[:12]}: {problem}; nothing of it was used. Mirrors are those that "
        "`kernels-hub mirror` makes"
    )
