"""Bundles that mean harm: files elsewhere, releases of others, more than a machine holds, code without trust."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import random
import shutil
import tarfile
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from kernels_hub.errors import IntegrityError, KernelsHubError, MetadataError, SignatureError, TrustError
from kernels_hub.hub.bundle import BundleLimits, Item, read_bundle, write_bundle
from kernels_hub.hub.cache import KnownRefs, RepositoryCache
from kernels_hub.hub.locked_kernels import Lock, LockedKernel
from kernels_hub.hub.tree import File, Tree
from kernels_hub.repository.versions import Refs, VersionRequest
from kernels_hub.trust.policy_edit import add_rule
from kernels_hub.trust.signature import sign_variant
from tests.fuzz.harness import budget, limited
from tests.fuzz.mutations import HOSTILE_TEXTS
from tests.hub.trust_cases import key, make_variant

COMMIT, OTHER = "c" * 40, "d" * 40
CODE = b"VALUE = 1\n"
SHA256 = hashlib.sha256(CODE).hexdigest()


@pytest.fixture(autouse=True)
def _default_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("KERNELS_HUB_TRUST", raising=False)


def row(**changes: Any) -> dict[str, Any]:
    file = {"size": len(CODE), "blob": None, "sha256": SHA256}
    tree = {"commit": COMMIT, "partial": False, "files": {"build/torch-cpu/__init__.py": file}}
    return {
        "repository": "org/x", "type": "kernel", "branches": {"main": COMMIT}, "tags": {"v1.0.0": COMMIT},
        "yanked": {}, "tree": tree, **changes,
    }  # fmt: skip


def archive(path: Path, rows: list[dict[str, Any]], *blobs: bytes, index: bytes | None = None) -> Path:
    members = {
        "bundle.json": json.dumps({"format": 1, "repositories": rows}).encode() if index is None else index
    }
    members |= {f"blobs/{hashlib.sha256(blob).hexdigest()}": blob for blob in blobs}
    with tarfile.open(path, "w:gz") as tar:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def unpack(path: Path, root: Path, **options: Any) -> list[Item]:
    return read_bundle(path, root, **{"trust_remote_code": True, **options})


def everything(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


def test_a_good_one_is_unpacked(tmp_path: Path) -> None:
    (item,) = unpack(archive(tmp_path / "x.bundle", [row()], CODE), tmp_path / "to")
    assert (item.place.snapshot(COMMIT) / "build/torch-cpu/__init__.py").read_bytes() == CODE


# -- files elsewhere --------------------------------------------------------------------------------


@pytest.mark.parametrize("key_", ["blob", "sha256"])
@pytest.mark.parametrize(
    "name", ["../../../../../.bashrc", "/{home}/.bashrc", "..", "a" * 39, "A" * 40, "é" * 40, "c" * 40 + "\n"]
)
def test_a_content_has_no_path_for_a_name(tmp_path: Path, name: str, key_: str) -> None:
    home = tmp_path / "home"
    root = home / ".cache" / "hub"
    (home / ".bashrc").parent.mkdir()
    (home / ".bashrc").write_bytes(b"mine")
    hostile = row()
    hostile["tree"]["files"]["build/torch-cpu/__init__.py"][key_] = name.replace("{home}", str(home)[1:])
    with pytest.raises(MetadataError, match=r"bundle\.json"):
        unpack(archive(tmp_path / "x.bundle", [hostile], CODE), root)
    assert everything(home) == {".bashrc": b"mine"}


def test_what_the_cache_calls_a_content_is_its_content(tmp_path: Path) -> None:
    """A blob under the git name of another file would be taken for that file later."""
    hostile = row()
    hostile["tree"]["files"]["build/torch-cpu/__init__.py"]["blob"] = "a" * 40
    with pytest.raises(IntegrityError, match="git blob"):
        unpack(archive(tmp_path / "x.bundle", [hostile], CODE), tmp_path / "to")
    assert everything(tmp_path / "to") == {}


@pytest.mark.parametrize(
    "where", ["blobs", "snapshots", f"snapshots/{COMMIT}", f"snapshots/{COMMIT}/build", "refs"]
)
def test_no_link_in_the_cache_is_followed(tmp_path: Path, where: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    place = tmp_path / "to" / "kernels--org--x" / where
    place.parent.mkdir(parents=True)
    place.symlink_to(outside)
    with pytest.raises(IntegrityError, match="link"):
        unpack(archive(tmp_path / "x.bundle", [row()], CODE), tmp_path / "to")
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"repository": "a--b/c"},  # the cache folder of a/b--c
        {"repository": "org/x\n"},
        {"tags": {"../../evil": COMMIT}},
        {"tags": {"v1.0.0": OTHER}},
        {"branches": {"main": "../../x"}},
        {"branches": {"/tmp/evil": COMMIT}},
        {"yanked": {"1.0.0": 1}},
        {"yanked": []},
        {"surprise": 1},
        {"tree": {"commit": COMMIT, "partial": False, "files": []}},
        {"tree": {"commit": COMMIT.upper(), "partial": False, "files": {}}},
        {"tree": {"commit": COMMIT, "partial": "no", "files": {}}},
    ],
    ids=str,
)
def test_a_row_that_is_not_of_the_form(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(MetadataError, match=r"bundle\.json"):
        unpack(archive(tmp_path / "x.bundle", [row(**changes)], CODE), tmp_path / "to")
    assert not (tmp_path / "to").exists()


@pytest.mark.parametrize(
    "paths",
    [("build/a/x", "build/a/x/y"), ("build/a/../b/x",), ("build/a//x",), ("README.md",), ("build/x",)],
)
def test_paths_of_files(tmp_path: Path, paths: tuple[str, ...]) -> None:
    file = row()["tree"]["files"]["build/torch-cpu/__init__.py"]
    tree = {"commit": COMMIT, "partial": False, "files": dict.fromkeys(paths, file)}
    with pytest.raises(MetadataError, match=r"bundle\.json"):
        unpack(archive(tmp_path / "x.bundle", [row(tree=tree)], CODE), tmp_path / "to")


def test_two_rows_do_not_contradict_each_other(tmp_path: Path) -> None:
    other = row()
    other["tree"] = {**other["tree"], "commit": OTHER}
    other |= {"tags": {"v1.0.0": OTHER}, "branches": {}}
    for rows in ([row(), row()], [row(), other], [row(), {**other, "tags": {"v01.0.0": OTHER}}]):
        with pytest.raises(MetadataError, match="twice|two commits"):
            unpack(archive(tmp_path / "x.bundle", rows, CODE), tmp_path / "to")
    twice = json.dumps({"format": 1, "repositories": [row()]}).replace(
        '"partial"', '"commit": "' + OTHER + '", "partial"'
    )
    with pytest.raises(MetadataError, match="twice"):
        unpack(archive(tmp_path / "x.bundle", [], CODE, index=twice.encode()), tmp_path / "to")


# -- releases that are known ------------------------------------------------------------------------


@pytest.mark.parametrize("tag", ["v1.0.0", "v01.0.0"])
def test_a_known_release_keeps_its_commit(tmp_path: Path, tag: str) -> None:
    place = RepositoryCache(tmp_path / "to", "org/x", "kernel")
    place.write_refs(KnownRefs(Refs({}, {"v1.0.0": OTHER}), {}, 5.0))
    before = everything(tmp_path / "to")
    with pytest.raises(IntegrityError, match=r"a release never changes.*remove"):
        unpack(archive(tmp_path / "x.bundle", [row(tags={tag: COMMIT})], CODE), tmp_path / "to")
    assert everything(tmp_path / "to") == before


def test_a_known_commit_keeps_its_files(tmp_path: Path) -> None:
    place = RepositoryCache(tmp_path / "to", "org/x", "kernel")
    for known in (
        Tree.of(COMMIT, [File("build/torch-cpu/__init__.py", len(CODE), sha256="e" * 64)]),
        Tree.of(COMMIT, [File("build/torch-cpu/layers.py", 1, sha256="e" * 64)]),
    ):
        place.write_tree(known)
        with pytest.raises(IntegrityError, match="a commit never changes"):
            unpack(archive(tmp_path / "x.bundle", [row()], CODE), tmp_path / "to")
        assert place.read_tree(COMMIT) == known
    place.write_tree(Tree.of(COMMIT, [File("build/torch-cpu/layers.py", 1, sha256="e" * 64)], partial=True))
    unpack(archive(tmp_path / "x.bundle", [row()], CODE), tmp_path / "to")
    merged = place.read_tree(COMMIT)
    assert merged is not None and len(merged.files) == 2 and merged.bundled


# -- trust ------------------------------------------------------------------------------------------


def refused(path: Path, root: Path, match: str, **options: Any) -> None:
    with pytest.raises(TrustError, match=match):
        read_bundle(path, root, **options)
    assert not root.exists()


def test_nothing_is_unpacked_that_the_policy_does_not_admit(tmp_path: Path) -> None:
    path, root = archive(tmp_path / "x.bundle", [row()], CODE), tmp_path / "to"
    refused(path, root, "kernels-hub trust allow org/x")
    refused(path, root, "org/x", trust_remote_code=("org/other",))
    add_rule("deny", "org/*")
    refused(path, root, "denies it", trust_remote_code=True)


def test_an_allowed_repository_is_unpacked(tmp_path: Path) -> None:
    add_rule("allow", "org/x")
    path = archive(tmp_path / "x.bundle", [row(), row(repository="org/y")], CODE)
    refused(path, tmp_path / "to", "org/y")  # all or nothing
    assert len(read_bundle(archive(tmp_path / "x.bundle", [row()], CODE), tmp_path / "to")) == 1


def test_what_a_lock_pins_is_unpacked(tmp_path: Path) -> None:
    path, root = archive(tmp_path / "x.bundle", [row()], CODE), tmp_path / "to"

    def lock(commit: str, sha256: str) -> Lock:
        variants = {"torch-cpu": {"__init__.py": sha256}}
        return Lock((LockedKernel("org/x", "kernel", VersionRequest(1), "v1", commit, True, variants),))

    refused(path, root, "org/x", lock=lock(OTHER, SHA256))
    refused(path, root, "org/x", lock=lock(COMMIT, "0" * 64))
    assert len(read_bundle(path, root, lock=lock(COMMIT, SHA256))) == 1


def test_signatures_are_verified_before_anything_is_there(tmp_path: Path) -> None:
    """Also for the release that the bundle says it is, not only for some."""
    own, root = key("own"), tmp_path / "to"
    place = RepositoryCache(tmp_path / "from", "org/doubling", "kernel")
    folder = make_variant(place.snapshot(COMMIT) / "build" / "torch-cpu", release="1.2.0")

    def bundle(tag: str) -> Path:
        snapshot = place.snapshot(COMMIT)
        files = [
            File(path.relative_to(snapshot).as_posix()) for path in snapshot.rglob("*") if path.is_file()
        ]
        item = Item(place, Tree.of(COMMIT, files), KnownRefs(Refs({}, {tag: COMMIT})))
        write_bundle([item], tmp_path / "x.bundle")
        return tmp_path / "x.bundle"

    add_rule("signature", "org/*", signers=[own.public])
    for sign in (None, key("another"), own):
        if sign is not None:
            sign_variant(folder, sign, repo_id="org/doubling", release="1.2.0")
        if sign is not own:
            with pytest.raises(SignatureError):
                read_bundle(bundle("v1.2.0"), root, trust_remote_code=True)
            assert everything(root) == {}
    with pytest.raises(SignatureError, match="made for version"):
        read_bundle(bundle("v9.0.0"), root)
    assert everything(root) == {}
    assert len(read_bundle(bundle("v1.2.0"), root)) == 1


def test_the_listing_of_a_variant_holds(tmp_path: Path) -> None:
    place = RepositoryCache(tmp_path / "from", "org/x", "kernel")
    folder = place.snapshot(COMMIT) / "build" / "torch-cpu"
    make_variant(folder)
    (folder / "layers.py").write_bytes(b"another")
    files = [
        File(path.relative_to(place.snapshot(COMMIT)).as_posix())
        for path in place.snapshot(COMMIT).rglob("*")
        if path.is_file()
    ]
    write_bundle([Item(place, Tree.of(COMMIT, files), None)], tmp_path / "x.bundle")
    with pytest.raises(IntegrityError, match=r"layers\.py has other content"):
        unpack(tmp_path / "x.bundle", tmp_path / "to")
    assert everything(tmp_path / "to") == {}


# -- more than a machine holds ----------------------------------------------------------------------


def zeros(path: Path, size: int, claimed: int | None) -> Path:
    """A bundle of one file of zeros, without the zeros in memory."""
    digest, chunk = hashlib.sha256(), bytes(1 << 20)
    for _ in range(size >> 20):
        digest.update(chunk)
    sha256 = digest.hexdigest()
    bomb = row()
    bomb["tree"]["files"] = {"build/torch-cpu/x.so": {"size": claimed, "blob": None, "sha256": sha256}}
    index = json.dumps({"format": 1, "repositories": [bomb]}).encode()

    class Zeros(io.RawIOBase):
        def read(self, count: int = -1) -> bytes:
            return bytes(count)

    with tarfile.open(path, "w:gz", compresslevel=9) as tar:
        member = tarfile.TarInfo("bundle.json")
        member.size = len(index)
        tar.addfile(member, io.BytesIO(index))
        member = tarfile.TarInfo(f"blobs/{sha256}")
        member.size = size
        tar.addfile(member, Zeros())
    return path


@pytest.mark.parametrize("claimed", [96 << 20, None, 1], ids=["said", "not said", "another size said"])
def test_what_would_become_too_much_is_not_unpacked(tmp_path: Path, claimed: int | None) -> None:
    path = zeros(tmp_path / "x.bundle", 96 << 20, claimed)
    assert path.stat().st_size < 1 << 20
    tracemalloc.start()
    try:
        with pytest.raises(MetadataError, match="--max-unpacked"):
            unpack(path, tmp_path / "to")
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert everything(tmp_path / "to") == {}
    if claimed != 1:
        unpack(path, tmp_path / "to", limits=BundleLimits(unpacked=100 << 20, ratio=None))
        blob = next((tmp_path / "to" / "kernels--org--x" / "blobs").iterdir())
        assert blob.stat().st_size == 96 << 20


@pytest.mark.parametrize(
    "index",
    [
        b'{"format": 1, "repositories": [' + b"[]," * (1 << 20) + b"[]]}",
        b'{"format": 1, "repositories": [' + b"[]," * (8 << 20) + b"[]]}",
        b"[" * (4 << 20),
        b'{"format": 1, "x": "' + b"a" * (1 << 28) + b'"}',
        pytest.param(
            b'{"format": 1, "repositories": [' + b"{}," * (1 << 20) + b"{}]}", marks=pytest.mark.exhaustive
        ),
    ],
    ids=["lists", "more lists", "depth", "a long text", "objects"],
)
def test_an_index_that_grows_in_memory(tmp_path: Path, index: bytes) -> None:
    path = archive(tmp_path / "x.bundle", [], index=index)
    tracemalloc.start()
    try:
        with pytest.raises(MetadataError, match=r"bundle\.json"):
            unpack(path, tmp_path / "to")
        assert tracemalloc.get_traced_memory()[1] < 200 << 20
    finally:
        tracemalloc.stop()


def test_too_many_files(tmp_path: Path) -> None:
    many = row()
    many["tree"]["files"] = {
        f"build/torch-cpu/{number}": {"size": 1, "blob": None, "sha256": f"{number:064x}"}
        for number in range(30)
    }
    path = archive(tmp_path / "x.bundle", [many])
    with pytest.raises(MetadataError, match="--max-files"):
        unpack(path, tmp_path / "to", limits=BundleLimits(files=29))


def test_a_header_is_not_followed_into_memory(tmp_path: Path) -> None:
    """PAX headers and long names are as large as they say: 3 MB become 3 GiB before a limit on files sees them."""
    index = json.dumps({"format": 1, "repositories": []}).encode()
    for kind in (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_SPARSE, tarfile.XGLTYPE):
        header = tarfile.TarInfo("bundle.json")
        header.type, header.size = kind, 1 << 33
        with gzip.open(tmp_path / "x.bundle", "wb", compresslevel=1) as packed:
            packed.write(header.tobuf(tarfile.GNU_FORMAT) + index + bytes(8 << 20))
        with pytest.raises(MetadataError):
            unpack(tmp_path / "x.bundle", tmp_path / "to")


@pytest.mark.skipif(
    not Path("/proc/self/mem").exists(), reason="needs a file whose reads fail: Linux's /proc"
)
def test_a_disk_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(
        IntegrityError, match="/proc/self/mem is no bundle, or cut short: .*Input/output error"
    ):
        read_bundle(Path("/proc/self/mem"), tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_what_lies_behind_the_last_file_is_bounded(tmp_path: Path) -> None:
    path = archive(tmp_path / "x.bundle", [row()], CODE)
    with path.open("ab") as file:
        file.write(gzip.compress(bytes(64 << 20)))
    with pytest.raises(MetadataError, match="behind its last file"):
        unpack(path, tmp_path / "to")


# -- every value that is a path ---------------------------------------------------------------------


def _mutated(chance: random.Random) -> tuple[dict[str, Any], bool]:
    """A row in which one value that becomes a part of a path differs; whether it is still the same row."""
    found, file = row(), row()["tree"]["files"]["build/torch-cpu/__init__.py"]

    def damaged(text: str) -> str:
        hostile = chance.choice(HOSTILE_TEXTS)
        at = chance.randrange(len(text) + 1)
        return chance.choice(
            (hostile, text[:at] + hostile + text[at:], text[:at] + "/" + hostile, text.swapcase())
        )

    match chance.randrange(8):
        case 0:
            found["repository"] = damaged("org/x")
        case 1:
            found["type"] = damaged("kernel")
        case 2:
            found["branches"] = {damaged("main"): COMMIT}
        case 3:
            found["tags"] = {damaged("v1.0.0"): COMMIT}
        case 4:
            found["tree"]["commit"] = damaged(COMMIT)
        case 5:
            found["tree"]["files"] = {damaged("build/torch-cpu/__init__.py"): file}
        case 6:
            found["tree"]["files"]["build/torch-cpu/__init__.py"]["sha256"] = damaged(SHA256)
        case _:
            found["tree"]["files"]["build/torch-cpu/__init__.py"]["blob"] = damaged("a" * 40)
    return found, found == row()


def test_no_value_writes_outside_of_its_place(tmp_path: Path) -> None:
    """Nothing appears beside the repository's own folder, whatever any value says; what is accepted is as it says."""
    chance = random.Random(0)
    outside = tmp_path / "a" / "b"
    accepted = 0
    for number in range(budget(150, 10_000)):
        root = outside / f"cache{number}"
        hostile, _ = _mutated(chance)
        index = json.dumps({"format": 1, "repositories": [hostile]}).encode("utf-8", "surrogatepass")
        path = archive(tmp_path / "x.bundle", [], CODE, index=index)
        try:
            with limited("bundle", index):
                (item,) = unpack(path, root)
        except KernelsHubError:
            assert everything(outside) == {}
        else:
            accepted += 1
            folder = root / f"{hostile['type']}s--{hostile['repository'].replace('/', '--')}"
            assert {path.name for path in root.iterdir()} <= {folder.name, ".locks"}
            assert item.place.folder == folder
            for path in hostile["tree"]["files"]:
                assert (folder / "snapshots" / COMMIT / path).resolve().parent == folder / "blobs"
                assert (folder / "snapshots" / COMMIT / path).read_bytes() == CODE
        for left in (outside / f"cache{number}",):
            if left.exists():
                shutil.rmtree(left)
        assert sorted(path.name for path in tmp_path.iterdir() if path.name != "config") in (
            ["a", "x.bundle"],
            ["x.bundle"],
        )
    assert accepted > 10
