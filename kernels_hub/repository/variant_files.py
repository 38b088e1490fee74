"""The files of a downloaded variant against the listing in its metadata.json.

Stricter than what local folders get: exactly the listed files are there, none is a link out of the
folder (but for those of Hugging Face's cache, into the blobs of the same repository), and each is
hashed as a stream. Nothing is parsed here that has not been verified before, where it is signed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import stat
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from kernels_hub.errors import IntegrityError, MetadataError
from kernels_hub.repository.metadata import DIGEST_ALGORITHMS, METADATA_FILE

SIGNATURE_FILE = f"{METADATA_FILE}.ed25519"
BUNDLE_FILE = f"{METADATA_FILE}.sigstore"
UNLISTED = frozenset({METADATA_FILE, SIGNATURE_FILE, BUNDLE_FILE})
"""What a listing cannot hold: itself, and signatures over it."""

_BYTECODE = "__pycache__"
_MAX_METADATA = 32 * 1024 * 1024
_CHUNK = 1024 * 1024
_SHOWN = 5


@dataclass(frozen=True)
class Listing:
    """What a metadata.json says that trust depends on."""

    name: str
    version: int | None
    release: str | None
    algorithm: str | None
    """One of `DIGEST_ALGORITHMS`; None where it lists no files."""
    files: Mapping[str, bytes] = field(hash=False)
    """Path inside -> digest."""


UNKNOWN = Listing("", None, None, None, {})
"""Of a variant without metadata.json."""


def read_bounded(path: Path, limit: int = _MAX_METADATA) -> bytes | None:
    """A regular file's bytes, at most `limit` of them; None where there is none.

    Raises IntegrityError for one that is larger, is no file, or links to where it must not.
    """
    try:
        with _open(path, blobs_folder(path.parent)) as file:
            content = file.read(limit + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise IntegrityError(f"{_shown(path)} cannot be read: {error.strerror}") from error
    if len(content) > limit:
        raise IntegrityError(f"{path} is larger than {limit} bytes, which nothing of the kind is")
    return content


def parse_listing(content: bytes, where: Path) -> Listing:
    """The listing in the bytes of a metadata.json. Raises MetadataError naming file and key."""
    try:
        document = json.loads(content.decode(), object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise MetadataError(f"{where} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise MetadataError(f"{where}: expected an object, got {type(document).__name__}")
    name = _get(document, "name", str, where)
    if not name:
        raise MetadataError(f"{where}: key 'name': expected the kernel's name, got none")
    extension = _get(document, "kernels-hub", dict, where) or {}
    digest = _get(document, "digest", dict, where)
    algorithm, files = (None, {}) if digest is None else _digests(digest, where)
    return Listing(
        name,
        _get(document, "version", int, where),
        _get(extension, "release", str, where),
        algorithm,
        files,
    )


def verify_files(folder: Path, listing: Listing) -> dict[str, str]:
    """Check every file of a variant against its listing; sha256, in hexadecimal, of each.

    A listing without digests verifies nothing: the result is what the files are now.
    The result also has metadata.json, as it is now; signatures over it are left out.

    Raises IntegrityError naming each file that differs, is missing, or is not listed.
    """
    algorithm = listing.algorithm or "sha256"
    found = {inside: _hash(path, folder, algorithm) for inside, path in _walk(folder)}
    sha256 = {
        inside: digest for inside, (_, digest) in found.items() if inside not in (SIGNATURE_FILE, BUNDLE_FILE)
    }
    if listing.algorithm is None:
        return sha256
    present = found.keys() - UNLISTED
    problems = [
        *(f"{_shown(inside)} is missing" for inside in sorted(listing.files.keys() - present)),
        *(f"{_shown(inside)} is not listed" for inside in sorted(present - listing.files.keys())),
        *(
            f"{_shown(inside)} has other content than listed"
            for inside in sorted(listing.files.keys() & present)
            if found[inside][0] != listing.files[inside]
        ),
    ]
    if problems:
        rest = len(problems) - _SHOWN
        raise IntegrityError(
            f"{folder} is not what its {METADATA_FILE} lists: {'; '.join(problems[:_SHOWN])}"
            + (f"; and {rest} more" if rest > 0 else "")
            + ". Its code was not imported; fetch or build it again"
        )
    return sha256


def check_portable(listing: Listing, where: Path) -> None:
    """Raise MetadataError where two listed files would be one on some file system."""
    seen: dict[str, str] = {}
    for inside in sorted(listing.files):
        key = unicodedata.normalize("NFC", inside).casefold()
        if (other := seen.setdefault(key, inside)) != inside:
            raise MetadataError(f"{where}: {other!r} and {inside!r} are one file on some systems; rename one")


def blobs_folder(folder: Path) -> str | None:
    """Where the files of a snapshot in Hugging Face's cache may link to; None outside of a cache.

    `<cache>/kernels--org--name/snapshots/<commit>/build/<variant>` -> `<cache>/kernels--org--name/blobs`
    """
    for parent in Path(os.path.abspath(folder)).parents:  # noqa: PTH100 (links stay as they are)
        if parent.name == "snapshots":
            blobs = parent.parent / "blobs"
            return os.path.realpath(blobs) if blobs.is_dir() else None
    return None


# -- reading ----------------------------------------------------------------------------------------


def _walk(folder: Path, inside: str = "") -> Iterator[tuple[str, Path]]:
    try:
        with os.scandir(folder / inside) as scan:
            entries = sorted(scan, key=lambda entry: entry.name)
    except OSError as error:
        raise IntegrityError(f"{_shown(folder / inside)} cannot be read: {error.strerror}") from error
    for entry in entries:
        path = f"{inside}/{entry.name}" if inside else entry.name
        if not entry.is_dir(follow_symlinks=False):
            yield path, Path(entry.path)
        elif entry.name == _BYTECODE:
            _check_bytecode(Path(entry.path))
        else:
            yield from _walk(folder, path)


def _check_bytecode(folder: Path) -> None:
    """What other clients leave beside sources is never read, so it need not be listed; nothing else may hide there."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.endswith(".pyc") or not entry.is_file(follow_symlinks=False):
                raise IntegrityError(
                    f"{_shown(entry.path)} is not bytecode that Python keeps; remove it, or fetch again"
                )


def _hash(path: Path, folder: Path, algorithm: str) -> tuple[bytes, str]:
    """(digest by the algorithm, sha256 in hexadecimal), from one reading."""
    sha256 = hashlib.sha256()
    other = sha256 if algorithm == "sha256" else hashlib.new(algorithm)
    try:
        with _open(path, blobs_folder(folder)) as file:
            while chunk := file.read(_CHUNK):
                sha256.update(chunk)
                if other is not sha256:
                    other.update(chunk)
    except OSError as error:
        raise IntegrityError(f"{_shown(path)} cannot be read: {error.strerror}") from error
    return other.digest(), sha256.hexdigest()


def _open(path: Path, blobs: str | None) -> BinaryIO:
    """A regular file for reading; a link only as Hugging Face's cache has them."""
    target = os.fspath(path)
    if path.is_symlink():
        target = os.path.realpath(path)
        if blobs is None or os.path.dirname(target) != blobs:  # noqa: PTH120
            raise IntegrityError(
                f"{_shown(path)} is a link to {_shown(target)}; expected a file. Its code was not imported"
            )
    flags = (
        os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    )
    descriptor = os.open(target, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise IntegrityError(f"{_shown(path)} is not a file. Its code was not imported")
    return os.fdopen(descriptor, "rb")


def _shown(path: str | Path) -> str:
    """A name that others chose, on a terminal."""
    text = str(path)
    return text if text.isprintable() else repr(text)


# -- parsing ----------------------------------------------------------------------------------------


def _get(document: Mapping[str, object], key: str, kind: type, where: Path) -> Any:
    value = document.get(key)
    if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
        raise MetadataError(f"{where}: key {key!r}: expected {kind.__name__}, got {type(value).__name__}")
    return value


def _digests(digest: Mapping[str, object], where: Path) -> tuple[str, dict[str, bytes]]:
    algorithm = _get(digest, "algorithm", str, where)
    if algorithm not in DIGEST_ALGORITHMS:
        raise MetadataError(
            f"{where}: key 'digest.algorithm': expected one of {', '.join(DIGEST_ALGORITHMS)}, got {algorithm!r}"
        )
    files: dict[str, bytes] = {}
    for inside, text in (_get(digest, "files", dict, where) or {}).items():
        try:
            files[inside] = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError, TypeError) as error:
            raise MetadataError(
                f"{where}: key 'digest.files.{inside}': expected base64, got {text!r}"
            ) from error
    return algorithm, files


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        # Parsers disagree about which of the two counts.
        raise ValueError("a key stands twice in one object")
    return document
