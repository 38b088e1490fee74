"""Paths from outside stay inside the folder that they belong to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels_hub.contained_paths import inside, open_inside, relative_path_problem
from kernels_hub.errors import IntegrityError
from tests.fuzz.mutations import HOSTILE_TEXTS

LEADING_OUT = (
    "",
    ".",
    "..",
    "../x",
    "a/../b",
    "/etc/x",
    "a//b",
    "a/",
    "a\\..\\b",
    "C:x",
    "a\0b",
    "a\nb",
    "\ud800",
    "x" * 2000,
)


@pytest.mark.parametrize("text", LEADING_OUT)
def test_a_path_that_leads_outside_is_refused(tmp_path: Path, text: str) -> None:
    assert relative_path_problem(text)
    with pytest.raises(IntegrityError):
        inside(tmp_path, text)
    with pytest.raises(IntegrityError):
        open_inside(tmp_path, text, os.O_WRONLY | os.O_CREAT)
    assert list(tmp_path.iterdir()) == []


@given(st.lists(st.one_of(st.sampled_from(HOSTILE_TEXTS), st.text(max_size=8)), max_size=4))
def test_what_is_accepted_lies_inside(parts: list[str]) -> None:
    text = "/".join(parts)
    if relative_path_problem(text) is None:
        folder = Path("/nowhere/folder")
        assert Path(os.path.normpath(folder / text)).is_relative_to(folder)
        assert os.path.normpath(folder / text) != str(folder)


def test_a_file_is_opened_with_its_folders(tmp_path: Path) -> None:
    with os.fdopen(open_inside(tmp_path, "a/b/c", os.O_WRONLY | os.O_CREAT), "wb") as file:
        file.write(b"x")
    with os.fdopen(open_inside(tmp_path, "a/b/c"), "rb") as file:
        assert file.read() == b"x"
    assert inside(tmp_path, "a/b/c") == tmp_path / "a/b/c"
    with pytest.raises(FileNotFoundError):
        open_inside(tmp_path, "a/missing/c")


@pytest.mark.parametrize("relative", ["link", "link/file", "folder/link", "folder/link/file"])
def test_no_link_is_followed(tmp_path: Path, relative: str) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    (outside / "file").write_bytes(b"theirs")
    (root / "folder").mkdir(parents=True)
    target = outside / "file" if relative.endswith("link") else outside
    for place in (root / "link", root / "folder" / "link"):
        place.symlink_to(target)
    for flags in (os.O_RDONLY, os.O_WRONLY | os.O_CREAT | os.O_TRUNC):
        with pytest.raises(IntegrityError, match="link"):
            open_inside(root, relative, flags)
    with pytest.raises(IntegrityError, match="link"):
        inside(root, relative)
    assert (outside / "file").read_bytes() == b"theirs"
