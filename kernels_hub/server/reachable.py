"""Which git objects and large files the branches and tags of a repository need."""

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
        kind = kind or packs.kind(oid) or 0
        try:
            content = packs.read(oid, kind)
        except KeyError:
            reached.problems.append(f"object {oid} is missing, needed by {needed_by}")
            continue
        if kind == COMMIT:
            info = parse_commit(oid, content)
            waiting.append((info.tree, f"commit {oid}", TREE))
            waiting += [(parent, f"commit {oid}", COMMIT) for parent in info.parents]
        elif kind == TAG:
            waiting.append(
                (content.split(b"\n", 1)[0].removeprefix(b"object ").decode(), f"tag {oid}", COMMIT)
            )
        elif kind == TREE:
            for _, mode, child in parse_tree(content, 20):
                waiting.append((child.decode(), f"tree {oid}", TREE if mode == FOLDER else BLOB))
        elif large := parse_pointer(content):
            reached.large[large.sha256] = large
    return reached
