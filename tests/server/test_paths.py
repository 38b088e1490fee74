"""Names and refs, against what git and file systems do with them."""

from __future__ import annotations

import subprocess
import unicodedata
from contextlib import suppress
from pathlib import Path, PurePosixPath, PureWindowsPath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels_hub.server.git.packed_refs import PackedRefs
from kernels_hub.server.hub import Hub
from kernels_hub.server.listing import build_trees
from kernels_hub.server.paths import checked_path, checked_ref_name, collision_key
from kernels_hub.server.refs import BRANCHES, TAGS, Ref
from kernels_hub.server.refusal import Refusal

parts = st.one_of(
    st.sampled_from(
        ["..", ".", "", ".git", ".GIT", "a", "b.py", "c:", "\\", "con", "x ", "x.", "\0", "git~1", "ﬁ"]
    ),
    st.text(max_size=5),
)
paths = st.lists(parts, min_size=1, max_size=4).map("/".join)


@given(paths)
@settings(max_examples=500)
def test_a_path_that_is_allowed_stays_inside(path: str):
    with suppress(Refusal):
        checked_path(path)
        for kind in (PurePosixPath, PureWindowsPath):
            joined = kind("/root") / path
            assert joined.parts[: len(kind("/root").parts)] == kind("/root").parts
            assert ".." not in joined.parts
        assert str(PurePosixPath(path)) == path, "it has one spelling"
        plain = unicodedata.normalize("NFKC", path).lower().split("/")
        assert ".git" not in plain and "" not in plain
        assert path.isprintable() or not any(ord(character) < 32 for character in path)


@given(paths)
def test_one_key_for_what_a_disk_may_confuse(path: str):
    with suppress(UnicodeEncodeError):
        path.encode()
        for other in (path.upper(), path.lower(), unicodedata.normalize("NFD", path)):
            if other.lower() == path.lower() or other == unicodedata.normalize("NFD", path):
                assert collision_key(other) == collision_key(path)


@given(st.one_of(st.text(max_size=12), st.lists(parts, max_size=3).map("/".join)))
@settings(max_examples=150, deadline=None)
def test_a_ref_that_is_allowed_is_one_for_git(name: str):
    with suppress(Refusal):
        checked_ref_name(name)
        done = subprocess.run(
            ["git", "check-ref-format", BRANCHES.encode() + name.encode()], capture_output=True
        )
        assert done.returncode == 0, name


@given(
    st.dictionaries(
        st.text(alphabet="aAbBéü1-._/", min_size=1, max_size=8),
        st.tuples(st.sampled_from("12"), st.booleans()),
        max_size=8,
    )
)
@settings(max_examples=60, deadline=None)
def test_refs_are_read_as_they_were_written(names: dict[str, tuple[str, bool]]):
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        counter = iter(range(1000))
        refs = PackedRefs(Path(folder), lambda: Path(folder) / f"t{next(counter)}")
        refs.replace({})
        expected = {}
        for name, (digit, annotated) in names.items():
            with suppress(Refusal):
                full = (TAGS if annotated else BRANCHES) + checked_ref_name(name)
                expected[full] = Ref(digit * 40, "3" * 40 if annotated else None)
                refs.change({full: expected[full]})
        fresh = PackedRefs(Path(folder), lambda: Path(folder) / "t")
        assert dict(fresh.all()) == dict(refs.all()) == expected
        for full in expected:
            refs.change({full: None})
        assert dict(refs.all()) == {}


names = st.text(alphabet="ab.-0é", min_size=1, max_size=3)


@given(
    st.dictionaries(st.lists(names, min_size=1, max_size=3).map("/".join), st.binary(max_size=3), max_size=12)
)
@settings(max_examples=25, deadline=None)
def test_trees_are_those_of_git(tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]):
    from kernels_hub.server.packs import BLOB, git_object

    allowed = {}
    for path, content in files.items():
        with suppress(Refusal):
            below = any(other.startswith(path + "/") or path.startswith(other + "/") for other in allowed)
            if not below:
                allowed[checked_path(path)] = git_object(BLOB, content)
    tree, _ = build_trees({path: (0o100644, blob.oid) for path, blob in allowed.items()})
    folder = tmp_path_factory.mktemp("git")
    subprocess.run(["git", "init", "-q", folder], check=True)
    rows = b"".join(b"100644 %s\t%s\0" % (blob.oid.encode(), path.encode()) for path, blob in allowed.items())
    command = ["git", "-C", str(folder)]
    subprocess.run([*command, "update-index", "-z", "--index-info"], input=rows, check=True)
    written = subprocess.run(
        [*command, "write-tree", "--missing-ok"], capture_output=True, text=True, check=True
    )
    assert written.stdout.strip() == tree


@pytest.mark.git_folder
def test_a_repository_is_found_by_its_id_alone(tmp_path: Path):
    with Hub(tmp_path / "root", create=True) as hub:
        hub.accounts.add_user("ada")
        made = hub.changes.create("kernel", "ada", "k", private=False, author="ada")
        assert [path.name for path in hub.layout.repositories.iterdir()] == [made.id]
        assert hub.repositories.rename(made, "ada", "other")
        found = hub.repositories.find("kernel", "ADA", "Other")
        assert found is not None and found.id == made.id and hub.store.resolve(found, "main")
