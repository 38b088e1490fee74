"""Git data below the root, the default: `repositories/<id>/git`, a bare repository for each.

Processes on several machines may share the folder. Locks are `flock`s of files beside it.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from kernels_hub.files import flush_folder, move_into_place
from kernels_hub.server.database import Database
from kernels_hub.server.durable import locked, try_lock, write_flushed
from kernels_hub.server.git.open_repositories import OpenRepositories
from kernels_hub.server.git.pack_files import PackFiles
from kernels_hub.server.git.packed_refs import PackedRefs, PendingChange
from kernels_hub.server.git.seam import LOCK_SECONDS, Content, GitStore
from kernels_hub.server.layout import RootPaths
from kernels_hub.server.packs import AnyObject, ByteCache
from kernels_hub.server.refs import BRANCHES, DEFAULT_BRANCH, Ref
from kernels_hub.server.refusal import repository_not_found
from kernels_hub.server.repositories import Repository

_CACHE_BYTES = 16 << 20
_CONFIG = b"[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = true\n[gc]\n\tauto = 0\n"
_LOCK_FILE_SECONDS = 3600


def prepare_bare(git: Path, description: str) -> None:
    """Make an empty bare repository, flushed; it has no `packed-refs` yet."""
    for folder in ("objects/pack", "objects/info", "refs/heads", "refs/tags"):
        (git / folder).mkdir(parents=True)
    write_flushed(git / "HEAD", f"ref: {BRANCHES}{DEFAULT_BRANCH}\n".encode())
    write_flushed(git / "config", _CONFIG)
    write_flushed(git / "description", f"{description}\n".encode())
    for folder in ("objects/pack", "objects", "refs", "."):
        flush_folder(git / folder)


class FolderGit(GitStore):
    """Implements `GitStore` with the folders of a root's repositories."""

    has_several_roots = False

    def __init__(self, layout: RootPaths, database: Database) -> None:
        self.description = f"files in {layout.repositories}"
        self._layout = layout
        self._database = database
        self._cache = ByteCache(_CACHE_BYTES)
        self._open = OpenRepositories(self._begin, lambda content: content.packs.close())

    # -- locks

    @contextmanager
    def locked(self, repository: str, timeout: float = LOCK_SECONDS) -> Iterator[None]:
        """Hold the lock file of a repository; 503 when it stays taken."""
        with locked(self._layout.lock(repository), timeout):
            yield

    @contextmanager
    def try_locked(self, repository: str) -> Iterator[bool]:
        """Hold the lock file of a repository if nobody does. Raises OSError where something else is in its place."""
        descriptor = try_lock(self._layout.lock(repository))
        try:
            yield descriptor is not None
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def drop_lock(self, repository: str) -> None:
        """Remove the lock file of a repository that is gone."""
        self._layout.lock(repository).unlink(missing_ok=True)

    @contextmanager
    def alone(self, work: str, timeout: float = 0.0) -> Iterator[bool]:
        """Hold the lock file of some work, `<work>.lock` of the root."""
        end, pause = time.monotonic() + timeout, 0.001
        while (descriptor := try_lock(self._layout.root / f"{work}.lock")) is None and time.monotonic() < end:
            time.sleep(pause)
            pause = min(2 * pause, 0.1)
        try:
            yield descriptor is not None
        finally:
            if descriptor is not None:
                os.close(descriptor)

    # -- repositories

    def create(
        self,
        repository: str,
        objects: Iterable[AnyObject],
        refs: Mapping[str, Ref],
        insert: Callable[[], Repository | None],
    ) -> Repository | None:
        """Make a folder elsewhere, rename it to its place, and add the row last."""
        home = self._layout.temporary()
        (home / "lfs").mkdir(parents=True)
        prepare_bare(home / "git", repository)
        flush_folder(home)
        packs = PackFiles(home / "git", ByteCache(0), self._layout.temporary)
        packs.write(objects)
        packs.close()
        PackedRefs(home / "git", self._layout.temporary).replace(refs)
        # Under the lock: a sweep takes a folder without a row for what a crash left.
        with self.locked(repository):
            move_into_place(home, self._layout.repository(repository), durable=True, overwrite=False)
            made = insert()
            if made is None:
                self.remove(repository)
        if made is None:
            self.drop_lock(repository)
        return made

    def open(self, repository: str) -> Content:
        """The git side of a repository, opened once a process. Refuses one that was deleted meanwhile."""
        return self._open.get(repository)

    def _begin(self, repository: str) -> Content:
        git = self._layout.repository(repository) / "git"
        if not git.is_dir():
            raise repository_not_found(anonymous=False)
        pending = PendingChange(self._database, repository)
        return Content(
            PackFiles(git, self._cache, self._layout.temporary),
            PackedRefs(git, self._layout.temporary, pending),
        )

    def exists(self, repository: str) -> bool:
        """Whether there is a folder."""
        return (self._layout.repository(repository) / "git").is_dir()

    def remove(self, repository: str) -> None:
        """Remove the folder of a repository, with the large files that lie in it."""
        self._open.close(repository)
        home = self._layout.repository(repository)
        if home.is_dir():
            trash = self._layout.temporary()
            home.rename(trash)
            flush_folder(self._layout.repositories)
            shutil.rmtree(trash)

    def copy(self, repository: str, target: Path) -> None:
        """Copy the folder as it is."""
        shutil.copytree(self._layout.repository(repository) / "git", target)

    # -- upkeep

    def sweep(self, has_row: Callable[[str], bool], recover: Callable[[str], None]) -> list[str]:
        """Set folders without a row aside, complete interrupted changes, and remove packs without an index.

        A folder without a row is most likely a repository that was being made or deleted, but a hub.sqlite that was put
        back from an old copy leaves the same.
        """
        found: list[str] = []
        for home in folders_in(self._layout.repositories):
            try:
                descriptor = try_lock(self._layout.lock(home.name))
            except OSError:
                continue  # A folder in the place of its lock: `fsck` says what is wrong with a repository.
            if descriptor is None:
                continue  # Somebody is at work in it: it is no leftover.
            try:
                found += self._sweep_one(home, has_row, recover)
            finally:
                os.close(descriptor)
        for path in entries_in(self._layout.locks):
            if path.is_dir():
                continue
            gone = not self._layout.repository(path.name).exists() and not has_row(path.name)
            if gone and time.time() - changed_at(path) > _LOCK_FILE_SECONDS:
                path.unlink(missing_ok=True)
        return found

    def _sweep_one(
        self, home: Path, has_row: Callable[[str], bool], recover: Callable[[str], None]
    ) -> list[str]:
        if not has_row(home.name):
            self._set_aside(home.name)
            return [f"to orphans/, a repository without a row (being made or deleted?): {home.name}"]
        recover(home.name)
        found = []
        for path in entries_in(home / "git" / "objects" / "pack"):
            other = {".pack": ".idx", ".idx": ".pack"}.get(path.suffix)
            if other and not path.with_suffix(other).exists():
                path.unlink()
                found.append(f"half of a pack: {home.name}/{path.name}")
        return found

    def _set_aside(self, repository: str) -> None:
        """Move the files of a repository that has no row to where nothing looks for them."""
        self._layout.orphans.mkdir(exist_ok=True)
        self._layout.repository(repository).rename(self._layout.orphans / repository)
        flush_folder(self._layout.orphans)
        flush_folder(self._layout.repositories)

    def strays(self, has_row: Callable[[str], bool]) -> list[str]:  # noqa: ARG002
        """None: what is in no repository is set aside at the next start."""
        return []

    def collect(self, has_row: Callable[[str], bool], before: float, *, prune: bool) -> list[str]:  # noqa: ARG002
        """Remove what was set aside, when that is asked for."""
        found = []
        if prune and self._layout.orphans.is_dir():
            for orphan in sorted(self._layout.orphans.iterdir()):
                shutil.rmtree(orphan)
                found.append(f"a repository without a row: {orphan.name}")
        return found

    def close(self) -> None:
        """Close every file."""
        self._open.close_all()


def folders_in(folder: Path) -> list[Path]:
    """The folders in a folder; links to folders are not among them."""
    return [path for path in entries_in(folder) if path.is_dir() and not path.is_symlink()]


def entries_in(folder: Path) -> list[Path]:
    """What is in a folder: nothing where it is missing, is none or cannot be read."""
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def changed_at(path: Path) -> float:
    """When a file was changed, in seconds since the epoch; now, where it is gone."""
    try:
        return path.lstat().st_mtime
    except OSError:
        return time.time()
