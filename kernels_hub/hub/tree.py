"""The files of a repository at one commit, below `build/`."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kernels_hub.contained_paths import relative_path_problem
from kernels_hub.errors import HubError, IntegrityError, MetadataError
from kernels_hub.repository.versions import is_commit

BUILD = "build"
_CHUNK = 1 << 20
_BLOB = re.compile(r"[0-9a-f]{40}", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True)
class File:
    """One file and what is known of its content."""

    path: str
    """In the repository, with "/"."""
    size: int | None = None
    blob: str | None = None
    """Git's name for the content, of files that are stored in git."""
    sha256: str | None = None
    """Of files in large file storage, and of all that a lock pins."""

    def check(self, path: Path) -> str:
        """Read a file on disk once, compare it with what is known, and return its sha256.

        Raises IntegrityError for one that is missing or has other content.
        """
        try:
            with path.open("rb") as stream:
                size = os.fstat(stream.fileno()).st_size
                sha256 = hashlib.sha256()
                blob = hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)
                while chunk := stream.read(_CHUNK):
                    sha256.update(chunk)
                    if self.blob is not None:
                        blob.update(chunk)
        except FileNotFoundError as error:
            raise IntegrityError(f"{path} is missing; nothing of its kernel was imported") from error
        for what, expected, actual in (
            ("size", self.size, size),
            ("git blob", self.blob, blob.hexdigest()),
            ("sha256", self.sha256, sha256.hexdigest()),
        ):
            if expected is not None and expected != actual:
                raise IntegrityError(
                    f"{path} has {what} {actual}, expected {expected}; nothing of its kernel was imported"
                )
        return sha256.hexdigest()

    def is_well_formed(self) -> bool:
        """Whether its path is text, its size a number, and the names of its content hexadecimal of their length."""
        sized = self.size is None or (type(self.size) is int and self.size >= 0)
        return isinstance(self.path, str) and sized and _is(_BLOB, self.blob) and _is(_SHA256, self.sha256)

    @property
    def name_in_cache(self) -> str | None:
        """What the Hub's clients call the content in their cache: its ETag."""
        return self.sha256 if self.blob is None else self.blob


@dataclass(frozen=True)
class Tree:
    """The files below `build/` at one commit."""

    commit: str
    files: Mapping[str, File] = field(hash=False)
    partial: bool = False
    """Whether there are other variants, which were not brought along."""
    bundled: bool = False
    """Whether files of it came in a bundle: no Hub said that they are its publisher's."""

    @classmethod
    def of(cls, commit: str, files: Iterable[File], partial: bool = False, bundled: bool = False) -> Tree:
        """Raises HubError for a path that would leave the folder it is put into."""
        ordered = sorted(files, key=lambda file: file.path)
        return cls(commit, {file.path: file for file in ordered if _wanted(file)}, partial, bundled)

    @classmethod
    def of_snapshot(cls, commit: str, folder: Path) -> Tree:
        """What another client left in its cache: names without sizes and hashes."""
        paths = (path for path in (folder / BUILD).rglob("*") if path.is_file())
        return cls.of(commit, (File(path.relative_to(folder).as_posix()) for path in paths), partial=True)

    def variants(self) -> list[str]:
        """Names of the folders below `build/`, in order."""
        return sorted({path.split("/")[1] for path in self.files})

    def variant(self, name: str) -> list[File]:
        """The files of one variant, in order."""
        return [file for path, file in self.files.items() if path.startswith(f"{BUILD}/{name}/")]

    def to_json(self) -> str:
        """For `from_json`; equal trees give equal text."""
        rows = {
            file.path: {"size": file.size, "blob": file.blob, "sha256": file.sha256}
            for file in self.files.values()
        }
        document: dict[str, object] = {"commit": self.commit, "files": rows, "partial": self.partial}
        if self.bundled:
            document["bundled"] = True
        return json.dumps(document, indent=1, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Tree:
        """Raises MetadataError for text that `to_json` did not write."""
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise MetadataError(f"not a list of files: {error}") from error
        match document:  # by hand: on the way of every load, where importing msgspec would take longer
            case {"commit": str(commit), "files": dict(rows), "partial": bool(partial)} if is_commit(commit):
                files = [_file(path, row) for path, row in rows.items()]
                return cls.of(commit, files, partial, document.get("bundled") is True)
            case _:
                raise MetadataError("not a list of files: expected a commit, files and partial")


def _file(path: str, row: object) -> File:
    match row:
        case {"size": size, "blob": blob, "sha256": sha256} if (
            file := File(path, size, blob, sha256)
        ).is_well_formed():
            return file
        case _:
            raise MetadataError(
                f"not a list of files: {path[:100]!r}: expected a size and the names of a content in hexadecimal"
            )


def _is(pattern: re.Pattern[str], name: object) -> bool:
    return name is None or (isinstance(name, str) and pattern.fullmatch(name) is not None)


def _wanted(file: File) -> bool:
    if (problem := relative_path_problem(file.path)) is not None:
        raise HubError(
            f"the Hub lists a file {file.path[:100]!r}, which is no path inside a repository: {problem}"
        )
    parts = file.path.split("/")
    hidden = "__pycache__" in parts or file.path.endswith(".pyc")
    return len(parts) > 2 and parts[0] == BUILD and not hidden
