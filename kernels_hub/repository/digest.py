"""The files of a folder: listing them, telling whether they changed, and checking their digests.

Digests are Hugging Face's: base64 of sha256 or sha512, of every file but metadata.json, its
signatures and the bytecode that Python itself caches.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from kernels_hub.errors import IntegrityError
from kernels_hub.repository.metadata import METADATA_FILE, Digest

_UNHASHED = frozenset({METADATA_FILE, f"{METADATA_FILE}.sigstore", f"{METADATA_FILE}.ed25519"})
_SHOWN_VIOLATIONS = 5

Fingerprint = tuple[tuple[str, int, int, int], ...]


def list_files(folder: Path) -> dict[str, Path]:
    """Path inside -> file, sorted, without `__pycache__`."""
    root = os.path.join(folder, "")  # noqa: PTH118 (a string prefix)
    found = {entry.path[len(root) :].replace(os.sep, "/"): Path(entry.path) for entry in _walk(root)}
    return dict(sorted(found.items()))


def fingerprint(roots: Iterable[Path]) -> Fingerprint:
    """Name, inode, size and modification time of every file in the folders (or of the files) given.

    Equal for equal content, unless someone forges modification times; some microseconds a file.
    """
    stamps: list[tuple[str, int, int, int]] = []
    for root in roots:
        if root.is_dir():
            entries = [(entry.path, entry.stat()) for entry in _walk(str(root))]
        else:
            entries = [(str(root), root.stat())]
        stamps.extend((path, stat.st_ino, stat.st_size, stat.st_mtime_ns) for path, stat in entries)
    return tuple(sorted(stamps))


def content_digest(sha256: Mapping[str, str]) -> str:
    """One digest, in hexadecimal, for a set of files: of every path and that file's own sha256."""
    digest = hashlib.sha256()
    for inside, own in sorted(sha256.items()):
        digest.update(f"{inside}\0{own}\0".encode())
    return digest.hexdigest()


def file_sha256(path: Path) -> str:
    """sha256 of a file, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def compute_digest(files: Mapping[str, Path], algorithm: str = "sha256") -> Digest:
    """Digests of a variant's files, as metadata.json lists them."""
    return Digest(
        algorithm,
        {
            inside: base64.b64encode(hashlib.new(algorithm, path.read_bytes()).digest()).decode()
            for inside, path in sorted(files.items())
            if inside not in _UNHASHED
        },
    )


def verify_digest(expected: Digest, files: Mapping[str, Path], where: Path) -> None:
    """Raise IntegrityError naming each file that differs, is missing or is not listed."""
    actual = compute_digest(files, expected.algorithm).files
    problems = [
        *(f"{path} is missing" for path in sorted(expected.files.keys() - actual.keys())),
        *(f"{path} is not listed" for path in sorted(actual.keys() - expected.files.keys())),
        *(
            f"{path} has {expected.algorithm} {actual[path]}, expected {expected.files[path]}"
            for path in sorted(expected.files.keys() & actual.keys())
            if actual[path] != expected.files[path]
        ),
    ]
    if problems:
        shown = "; ".join(problems[:_SHOWN_VIOLATIONS])
        rest = len(problems) - _SHOWN_VIOLATIONS
        raise IntegrityError(
            f"{where} does not match the digest in its {METADATA_FILE}: {shown}"
            + (f"; and {rest} more" if rest > 0 else "")
            + ". Its code was not imported; fetch or build it again"
        )


def _walk(folder: str) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if entry.name != "__pycache__":
                    yield from _walk(entry.path)
            elif entry.is_file():
                yield entry
