"""Bundles: written from one cache, read into another, whole or not at all."""

from __future__ import annotations

import gzip
import io
import json
import random
import tarfile
from pathlib import Path
from typing import Any

import pytest

from kernels_hub.errors import (
    HubError,
    IntegrityError,
    KernelsHubError,
    MetadataError,
    RepositoryNotFoundError,
)
from kernels_hub.hub import bundle
from kernels_hub.hub.bundle import Item, write_bundle
from kernels_hub.hub.cache import KnownRefs, RepositoryCache
from kernels_hub.hub.tree import File, Tree
from kernels_hub.repository.versions import Refs
from tests.hub.small_kernels import write_variant

COMMIT = "c" * 40


@pytest.fixture(autouse=True)
def _default_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("KERNELS_HUB_TRUST", raising=False)


def read_bundle(source: Path, root: Path, **options: Any) -> list[Item]:
    return bundle.read_bundle(source, root, **{"trust_remote_code": True, **options})


def item(root: Path, name: str = "small", variants: tuple[str, ...] = ("torch-cpu", "torch-cuda")) -> Item:
    place = RepositoryCache(root, f"org/{name}", "kernel")
    snapshot = place.snapshot(COMMIT)
    for variant in variants:
        write_variant(snapshot / "build" / variant, variant, name=name)
    files = [
        File(path.relative_to(snapshot).as_posix(), path.stat().st_size)
        for path in snapshot.rglob("*")
        if path.is_file()
    ]
    known = KnownRefs(
        Refs({"main": COMMIT, "v1": COMMIT, "v0": "d" * 40}, {"v1.0.0": COMMIT}), {"0.1.0": "bad"}
    )
    return Item(place, Tree.of(COMMIT, files), known)


def content(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and ".locks" not in path.parts
    }


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    write_bundle([item(tmp_path / "from"), item(tmp_path / "from", "other")], tmp_path / "kernels.bundle")
    return tmp_path / "kernels.bundle"


def test_what_arrives_is_what_left(archive: Path, tmp_path: Path) -> None:
    items = read_bundle(archive, tmp_path / "to")
    assert [(i.place.repo_id, i.tree.commit, i.tree.variants()) for i in items] == [
        ("org/other", COMMIT, ["torch-cpu", "torch-cuda"]),
        ("org/small", COMMIT, ["torch-cpu", "torch-cuda"]),
    ]
    for arrived in items:
        former = RepositoryCache(tmp_path / "from", arrived.place.repo_id, "kernel")
        for file in arrived.tree.files.values():
            path = arrived.place.path(COMMIT, file)
            assert path.read_bytes() == former.path(COMMIT, file).read_bytes()
            assert path.is_symlink() and path.resolve().parent == arrived.place.folder / "blobs"
        known = arrived.place.read_refs()
        assert known is not None
        assert known.refs == Refs(
            {"main": COMMIT, "v1": COMMIT}, {"v1.0.0": COMMIT}
        )  # only what is at this commit
        assert known.yanked == {"0.1.0": "bad"}
        assert (arrived.place.folder / "refs" / "v1").read_text() == COMMIT
        assert arrived.place.read_tree(COMMIT) == arrived.tree
        assert arrived.place.read_publisher() is None  # an archive vouches for nobody


def test_equal_items_give_equal_bytes(archive: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.bundle"
    write_bundle([item(tmp_path / "from2", "other"), item(tmp_path / "from2")], again)
    assert again.read_bytes() == archive.read_bytes()


def test_reading_twice_and_repairing(archive: Path, tmp_path: Path) -> None:
    read_bundle(archive, tmp_path / "to")
    before = content(tmp_path / "to")
    blob = next((tmp_path / "to" / "kernels--org--small" / "blobs").iterdir())
    blob.write_bytes(b"damaged")
    read_bundle(archive, tmp_path / "to")
    assert content(tmp_path / "to") == before


def test_a_part_of_the_variants_is_marked_as_one(tmp_path: Path) -> None:
    whole = item(tmp_path / "from")
    part = Item(whole.place, Tree.of(COMMIT, whole.tree.variant("torch-cpu"), partial=True), whole.known)
    write_bundle([part], tmp_path / "part.bundle")
    write_bundle([whole], tmp_path / "whole.bundle")
    (arrived,) = read_bundle(tmp_path / "part.bundle", tmp_path / "to")
    tree = arrived.place.read_tree(COMMIT)
    assert tree is not None and tree.partial and tree.variants() == ["torch-cpu"]
    read_bundle(tmp_path / "whole.bundle", tmp_path / "to")
    read_bundle(tmp_path / "part.bundle", tmp_path / "to")
    tree = arrived.place.read_tree(COMMIT)
    assert tree is not None and not tree.partial and tree.variants() == ["torch-cpu", "torch-cuda"]


def test_a_damaged_cache_is_not_carried_on(tmp_path: Path) -> None:
    damaged = item(tmp_path / "from")
    file = next(iter(damaged.tree.files.values()))
    damaged.place.path(COMMIT, file).write_bytes(b"?" * (file.size or 0) + b"?")
    with pytest.raises(IntegrityError):
        write_bundle([damaged], tmp_path / "x.bundle")
    assert [path.name for path in tmp_path.iterdir()] == ["from"]


def test_any_changed_or_missing_byte_is_refused(archive: Path, tmp_path: Path) -> None:
    """Random flips and cuts: an error of this library, and an untouched cache, or an intact content."""
    good = archive.read_bytes()
    expected = content_of(read_bundle(archive, tmp_path / "good"))
    random_ = random.Random(0)
    for number in range(60):
        data = bytearray(good)
        if number % 3:
            data[random_.randrange(len(data))] ^= 1 << random_.randrange(8)
        else:
            data = data[: random_.randrange(len(data))]
        archive.write_bytes(data)
        to = tmp_path / f"to{number}"
        try:
            items = read_bundle(archive, to)
        except KernelsHubError:
            assert content(to) == {}
        else:  # a flip in the header of gzip or in padding, which changes nothing that counts
            assert content_of(items) == expected


def content_of(items: list[Item]) -> dict[tuple[str, str], bytes]:
    return {
        (i.place.repo_id, f.path): i.place.path(i.tree.commit, f).read_bytes()
        for i in items
        for f in i.tree.files.values()
    }


def forge(path: Path, members: list[tuple[str, bytes, str | None]]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, data, link in members:
            member = tarfile.TarInfo(name)
            if link is not None:
                member.type, member.linkname = tarfile.SYMTYPE, link
                archive.addfile(member)
            else:
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


def index(**changes: object) -> bytes:
    row = {
        "repository": "org/x", "type": "kernel", "branches": {}, "tags": {}, "yanked": {},
        "tree": {"commit": COMMIT, "partial": False, "files": {}},
    }  # fmt: skip
    return json.dumps({"format": 1, "repositories": [{**row, **changes}]}).encode()


def files(path: str, sha256: str = "0" * 64) -> dict[str, object]:
    return {"commit": COMMIT, "partial": False, "files": {path: {"size": 1, "blob": None, "sha256": sha256}}}


@pytest.mark.parametrize(
    "members",
    [
        [],
        [("bundle.json", b"{", None)],
        [("bundle.json", b'{"format": 2, "repositories": []}', None)],
        [("bundle.json", b'{"format": 1}', None)],
        [("blobs/" + "0" * 64, b"x", None)],
        [("bundle.json", index(), None), ("../evil", b"x", None)],
        [("bundle.json", index(), None), ("blobs/../../evil", b"x", None)],
        [("bundle.json", index(), None), ("blobs/x", b"", "/etc/passwd")],
        [("bundle.json", index(repository="../evil/x"), None)],
        [("bundle.json", index(repository="org/.."), None)],
        [("bundle.json", index(type="space"), None)],
        [("bundle.json", index(tree={"commit": "../x", "partial": False, "files": {}}), None)],
        [("bundle.json", index(tree=files("build/../../../evil")), None)],
        [("bundle.json", index(tree=files("build/torch-cpu/x")), None)],
        [("bundle.json", index(branches={"../../evil": COMMIT}, tree=files("README.md")), None)],
    ],
    ids=lambda members: "+".join(name for name, _, _ in members) or "empty",
)
def test_forged_archives(members: list[tuple[str, bytes, str | None]], tmp_path: Path) -> None:
    forge(tmp_path / "forged.bundle", members)
    with pytest.raises((MetadataError, HubError)):
        read_bundle(tmp_path / "forged.bundle", tmp_path / "a" / "b" / "to")
    assert list(tmp_path.rglob("*evil*")) == []


def test_what_is_no_archive(tmp_path: Path) -> None:
    with pytest.raises(RepositoryNotFoundError):
        read_bundle(tmp_path / "none.bundle", tmp_path / "to")
    for data in (b"", b"text", gzip.compress(b"text")):
        (tmp_path / "x.bundle").write_bytes(data)
        with pytest.raises((IntegrityError, MetadataError)):
            read_bundle(tmp_path / "x.bundle", tmp_path / "to")
