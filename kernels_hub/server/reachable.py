"""Finds the git objects and large files that the branches and tags of a repository need."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from dulwich.objects import parse_tree

from kernels_hub.server.listing import FOLDER, Large, parse_pointer
from kernels_hub.server.packs import BLOB, COMMIT, TAG, TREE, Packs
from kernels_hub.server.store import parse_commit


@dataclass
class Reached:
    """What a walk found; `problems` names what it looked for in vain."""

    objects: set[str] = field(default_factory=set)
    large: dict[str, Large] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def reach(packs: Packs, starts: Iterable[tuple[str, str]]) -> Reached:
    """Walk from named ids (name, id) to everything below them."""
    reached = Reached()
    waiting = [(oid, name, 0) for name, oid in starts]
    while waiting:
        oid, needed_by, kind = waiting.pop()
        if oid in reached.objects:
            continue
        reached.objects.add(oid)
        try:
            waiting += _below(packs, oid, kind, reached)
        except KeyError:
            reached.problems.append(f"object {oid} is missing, needed by {needed_by}")
        except Exception as error:  # noqa: BLE001 -- a damaged pack fails in any of dulwich's and zlib's ways
            reached.problems.append(
                f"object {oid}, needed by {needed_by}, cannot be read: {type(error).__name__}: {error}"
            )
    return reached


def _below(packs: Packs, oid: str, kind: int, reached: Reached) -> list[tuple[str, str, int]]:
    """What an object points to: id, by what it is needed, kind."""
    kind = kind or packs.kind(oid) or 0
    content = packs.read(oid, kind)
    if kind == COMMIT:
        info, name = parse_commit(oid, content), f"commit {oid}"
        return [(info.tree, name, TREE), *((parent, name, COMMIT) for parent in info.parents)]
    if kind == TAG:
        target = content.split(b"\n", 1)[0].removeprefix(b"object ").decode()
        return [(target, f"tag {oid}", COMMIT)]
    if kind == TREE:
        return [
            (child.decode(), f"tree {oid}", TREE if mode == FOLDER else BLOB)
            for _, mode, child in parse_tree(content, 20)
        ]
    if large := parse_pointer(content):
        reached.large[large.sha256] = large
    return []
