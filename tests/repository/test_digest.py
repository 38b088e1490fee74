"""Listing, fingerprints and digests, the latter against Hugging Face's own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from kernels._rust import Digest as PeerDigest
from kernels._rust import DigestAlgorithm

from kernels_hub.errors import MetadataError
from kernels_hub.repository.digest import (
    compute_digest,
    content_digest,
    file_sha256,
    fingerprint,
    list_files,
    verify_digest,
)
from kernels_hub.repository.metadata import Digest

FILES = {
    "__init__.py": "import os\n",
    "layers.py": "",
    "sub/deep/a.txt": "é",
    ".hidden": "h",
    "metadata.json": "{}",
}


@pytest.fixture
def folder(tmp_path: Path, write_files) -> Path:
    return write_files(tmp_path / "variant", FILES)


def test_list_files(folder: Path) -> None:
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "layers.cpython-311.pyc").write_bytes(b"bytecode")
    (folder / "empty").mkdir()
    (folder / "loop").symlink_to(folder, target_is_directory=True)
    (folder / "dangling").symlink_to(folder / "nowhere")
    listed = list_files(folder)
    assert list(listed) == sorted(FILES)
    assert all(path == folder / inside for inside, path in listed.items())


def test_linked_files_are_files(folder: Path, tmp_path: Path) -> None:
    """A Hub cache's snapshots consist of links."""
    blob = tmp_path / "blob"
    blob.write_text("VALUE = 1")
    (folder / "linked.py").symlink_to(blob)
    assert list_files(folder)["linked.py"] == folder / "linked.py"


@pytest.mark.parametrize("algorithm", ["sha256", "sha512"])
def test_digests_are_hugging_faces(folder: Path, algorithm: str) -> None:
    (folder / "metadata.json.sigstore").write_text("{}")
    theirs = PeerDigest.hash_variant(getattr(DigestAlgorithm, algorithm.upper()), folder)
    ours = compute_digest(list_files(folder), algorithm)
    assert ours == Digest(algorithm, theirs.files)
    verify_digest(ours, list_files(folder), folder)


def _edit(folder: Path) -> None:
    (folder / "layers.py").write_text("x")


def _add(folder: Path) -> None:
    (folder / "extra.py").write_text("")


def _add_bytecode(folder: Path) -> None:
    (folder / "extra.pyc").write_bytes(b"")


def _remove(folder: Path) -> None:
    (folder / "sub" / "deep" / "a.txt").unlink()


def _replace_by_a_folder(folder: Path) -> None:
    (folder / "layers.py").unlink()
    (folder / "layers.py").mkdir()


VIOLATIONS = {
    _edit: "layers.py has sha256 LXEWQrcmsEQBYnyp+6wy9chTD7GQPMTbAiWHF5IaSIE=, expected 47DEQ",
    _add: "extra.py is not listed",
    _add_bytecode: "extra.pyc is not listed",
    _remove: "sub/deep/a.txt is missing",
    _replace_by_a_folder: "layers.py is missing",
}


@pytest.mark.parametrize("change", VIOLATIONS, ids=lambda change: change.__name__)
def test_violations_name_the_file(folder: Path, change) -> None:
    expected = compute_digest(list_files(folder))
    change(folder)
    with pytest.raises(MetadataError) as caught:
        verify_digest(expected, list_files(folder), folder)
    message = str(caught.value)
    assert VIOLATIONS[change] in message
    assert message.startswith(f"{folder} does not match the digest")
    assert "not imported" in message


def test_many_violations_are_counted(folder: Path) -> None:
    for index in range(20):
        (folder / f"extra{index}.py").write_text("")
    with pytest.raises(MetadataError, match="and 15 more"):
        verify_digest(compute_digest({k: folder / k for k in FILES}), list_files(folder), folder)


def test_metadata_is_not_part_of_its_own_digest(folder: Path) -> None:
    expected = compute_digest(list_files(folder))
    (folder / "metadata.json").write_text('{"name": "other"}')
    verify_digest(expected, list_files(folder), folder)


def test_content_digest_sees_names_and_bytes(folder: Path) -> None:
    def digest_now(prefix: str = "") -> str:
        return content_digest(
            {prefix + inside: file_sha256(path) for inside, path in list_files(folder).items()}
        )

    digest = digest_now()
    assert digest_now() == digest
    assert digest_now("x") != digest
    (folder / "layers.py").write_text("x")
    assert digest_now() != digest


def test_fingerprint_changes_with_files(folder: Path) -> None:
    before = fingerprint([folder])
    assert fingerprint([folder]) == before
    os.utime(folder / "layers.py", ns=(0, 1))
    touched = fingerprint([folder])
    assert touched != before
    (folder / "sub" / "new.py").write_text("")
    assert fingerprint([folder]) != touched
    assert fingerprint([folder / "layers.py"]) != fingerprint([folder / "__init__.py"])
