"""Copies of packs on the local disk, to read from: `<root>/cache/<repository id>/git/objects/pack`.

What lies here may be removed at any time, also while servers run. The repositories used longest ago are removed where
all of them take more than a number of bytes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from kernels_hub.server.git.pack_bucket import sha256_in
from kernels_hub.server.git.rows import PackRow
from kernels_hub.server.objects.store import Content

_CHUNK = 1 << 20
_LOOK_EVERY = 16
"""How often the whole cache is counted: whenever a 16th of what it may hold was added."""


class PackCache:
    """The local copies of one root. Several processes may share the folder; all of them appear whole."""

    def __init__(self, folder: Path, most_bytes: int, temporary: Callable[[], Path]) -> None:
        """temporary: gives new paths on the disk of the folder."""
        self._folder = folder
        self._most_bytes = most_bytes
        self._temporary = temporary
        self._guard = threading.Lock()
        self._added = most_bytes

    def git(self, repository: str) -> Path:
        """The folder of a repository that looks like a bare one to whoever reads packs; it is in use now."""
        git = self._folder / repository / "git"
        (git / "objects" / "pack").mkdir(parents=True, exist_ok=True)
        os.utime(git.parent)
        return git

    def _pack(self, repository: str, name: str) -> Path:
        return self._folder / repository / "git" / "objects" / "pack" / f"pack-{name}.pack"

    def has(self, repository: str, name: str) -> bool:
        """Whether a pack is here."""
        pack = self._pack(repository, name)
        return pack.exists() and pack.with_suffix(".idx").exists()

    def is_whole(self, repository: str, row: PackRow) -> bool:
        """Whether a pack is here, and what its name says."""
        digest, size, pack = hashlib.sha256(), 0, self._pack(repository, row.name)
        try:
            for path in (pack, pack.with_suffix(".idx")):
                with path.open("rb") as file:
                    while data := file.read(_CHUNK):
                        digest.update(data)
                        size += len(data)
        except FileNotFoundError:
            return False
        return size == row.size and digest.hexdigest() == sha256_in(row.name)

    def take_in(self, repository: str, row: PackRow, content: Content) -> bool:
        """Keep a pack as it comes from the store; False where it is not what its name says."""
        pack, index = self._temporary(), self._temporary()
        digest, left = hashlib.sha256(), row.pack_bytes
        try:
            with closing(content), pack.open("xb") as first, index.open("xb") as second:
                while data := content.read(_CHUNK):
                    digest.update(data)
                    first.write(data[:left])
                    second.write(data[left:])
                    left = max(0, left - len(data))
                size = first.tell() + second.tell()
            if size != row.size or digest.hexdigest() != sha256_in(row.name):
                return False
            self.place(repository, row, pack, index)
        finally:
            pack.unlink(missing_ok=True)
            index.unlink(missing_ok=True)
        return True

    def place(self, repository: str, row: PackRow, pack: Path, index: Path) -> None:
        """Move a pack and its index here, which are whole."""
        target = self._pack(repository, row.name)
        while True:
            self.git(repository)
            try:
                pack.replace(target)
                index.replace(target.with_suffix(".idx"))
                break
            except FileNotFoundError:  # the folder was removed meanwhile
                if not pack.exists():
                    break
        self._make_room(row.size)

    def keep_only(self, repository: str, names: set[str]) -> bool:
        """Remove the other packs of a repository; whether there were any."""
        folder, found = self._folder / repository / "git" / "objects" / "pack", False
        for path in list(folder.iterdir()) if folder.is_dir() else ():
            if path.stem.removeprefix("pack-") not in names:
                path.unlink(missing_ok=True)
                found = True
        return found

    def remove(self, repository: str) -> None:
        """Remove the copies of a repository."""
        trash = self._temporary()
        with suppress(FileNotFoundError):
            (self._folder / repository).rename(trash)
            shutil.rmtree(trash, ignore_errors=True)

    def _make_room(self, added: int) -> None:
        with self._guard:
            self._added += added
            if self._added < self._most_bytes // _LOOK_EVERY:
                return
            self._added = 0
        sizes = []
        for home in self._folder.iterdir():
            with suppress(OSError):
                files = (home / "git" / "objects" / "pack").iterdir()
                sizes.append((home.stat().st_mtime, home.name, sum(path.stat().st_size for path in files)))
        total = sum(size for _, _, size in sizes)
        for _, repository, size in sorted(sizes)[:-1]:  # the one that was just used stays, whatever its size
            if total <= self._most_bytes:
                return
            self.remove(repository)
            total -= size
