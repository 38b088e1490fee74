"""The files of a repository at one commit, as far as kernels need them: what is below `build/`."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from kernels_hub.errors import HubError, IntegrityError, MetadataError

BUILD = "build"
_CHUNK = 1 << 20


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

    @classmethod
    def of(cls, commit: str, files: Iterable[File], partial: bool = False) -> Tree:
        """Raises HubError for a path that would leave the folder it is put into."""
        ordered = sorted(files, key=lambda file: file.path)
        return cls(commit, {file.path: file for file in ordered if _wanted(file)}, partial)

    @classmethod
    def of_snapshot(cls, commit: str, folder: Path) -> Tree:
        """What another client left in its cache: names without sizes and hashes."""
        paths = (path for path in (folder / BUILD).rglob("*") if path.is_file())
        return cls.of(commit, (File(path.relative_to(folder).as_posix()) for path in paths), partial=True)

    def variants(self) -> list[str]:
        """Names of the folders below `build/`, in order."""
        return sorted({PurePosixPath(path).parts[1] for path in self.files})

    def variant(self, name: str) -> list[File]:
        """The files of one variant, in order."""
        return [file for path, file in self.files.items() if path.startswith(f"{BUILD}/{name}/")]

    def to_json(self) -> str:
        """For `from_json`; equal trees give equal text."""
        rows = {
            file.path: {"size": file.size, "blob": file.blob, "sha256": file.sha256}
            for file in self.files.values()
        }
        document = {"commit": self.commit, "files": rows, "partial": self.partial}
        return json.dumps(document, indent=1, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Tree:
        """Raises MetadataError for text that `to_json` did not write."""
        try:
            document: dict[str, Any] = json.loads(text)
            rows: dict[str, dict[str, Any]] = document["files"]
            files = [File(path, **row) for path, row in rows.items()]
            return cls.of(document["commit"], files, bool(document["partial"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise MetadataError(f"not a list of files: {error}") from error


def _wanted(file: File) -> bool:
    parts = PurePosixPath(file.path).parts
    if file.path != "/".join(parts) or "\\" in file.path or "\0" in file.path or {"..", "."} & set(parts):
        raise HubError(f"the Hub lists a file {file.path!r}, which is no path inside a repository")
    hidden = any(part == "__pycache__" for part in parts) or file.path.endswith(".pyc")
    return len(parts) > 2 and parts[0] == BUILD and not hidden
