"""Packs are never written over: a pack whose objects are all there already serves, a damaged one is left beside."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from dulwich.repo import Repo

from kernels_hub.server.git.pack_files import PackFiles
from kernels_hub.server.packs import BLOB, ByteCache, GitObject, git_object


@pytest.fixture
def git(tmp_path: Path) -> Path:
    (tmp_path / "k" / "git").mkdir(parents=True)
    Repo.init_bare(str(tmp_path / "k" / "git")).close()
    return tmp_path / "k" / "git"


@pytest.fixture
def opened(git: Path) -> Iterator[Callable[[], PackFiles]]:
    """Opens the packs anew: without a cache of objects, so that all are read from disk."""
    numbers, made = itertools.count(), []

    def make() -> PackFiles:
        made.append(PackFiles(git, ByteCache(0), lambda: git.parent / f"temporary-{next(numbers)}"))
        return made[-1]

    yield make
    for packs in made:
        packs.close()


def blobs(seed: int, count: int = 20) -> list[GitObject]:
    source = random.Random(seed)
    return [git_object(BLOB, source.randbytes(source.randrange(1, 2000))) for _ in range(count)]


def assert_holds(packs: PackFiles, objects: list[GitObject]):
    for one in objects:
        assert packs.read_stored(one.oid) == (one.kind, one.content)


@pytest.mark.parametrize("seed", range(4))
def test_joining_again_after_a_crash_changes_no_pack_that_was_read(opened, seed: int):
    """As when the process died after the joined pack was complete, and before those that it holds were dropped."""
    first, second = blobs(2 * seed), blobs(2 * seed + 1)
    packs = opened()
    packs.write(first)
    packs.write(second)
    before = {path: path.read_bytes() for old in packs.names() for path in (old, old.with_suffix(".idx"))}
    joined = packs.merge(packs.names())
    assert joined is not None and packs.names() == [joined]
    for path, content in before.items():
        path.write_bytes(content)
    again = opened()
    assert_holds(again, first[:1])  # it has read the index
    files = [path.read_bytes() for path in (joined, joined.with_suffix(".idx"))]
    assert again.merge(reversed(again.names())) == joined
    assert [path.read_bytes() for path in (joined, joined.with_suffix(".idx"))] == files
    assert again.names() == [joined]
    for one in (again, opened()):
        assert_holds(one, first + second)


def test_a_damaged_pack_of_the_same_objects_is_not_taken_for_them(opened):
    objects = blobs(0)
    opened().write(objects)
    (damaged,) = opened().names()
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.chmod(0o644)
    damaged.write_bytes(content)
    packs = opened()
    packs.write(reversed(objects))
    (new,) = set(packs.names()) - {damaged}
    damaged.unlink()
    damaged.with_suffix(".idx").unlink()
    assert opened().names() == [new]
    assert_holds(opened(), objects)


def test_the_same_objects_are_written_once(opened):
    objects = blobs(0)
    packs = opened()
    size = packs.write(objects)
    (path,) = packs.names()
    made = path.stat().st_mtime_ns, path.read_bytes()
    assert opened().write(reversed(objects)) == size
    assert packs.names() == [path] and (path.stat().st_mtime_ns, path.read_bytes()) == made
    assert_holds(opened(), objects)
