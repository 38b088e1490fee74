"""Files that appear whole or not at all, and the folders that the library keeps files in.

Imports the standard library alone: a copy of this file is shipped wherever these functions are needed without the
library.

Environment:
    KERNELS_HUB_CACHE   folder of the cache (default: $XDG_CACHE_HOME/kernels_hub or ~/.cache/kernels_hub)
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


@contextmanager
def replacing(
    path: Path,
    *,
    mode: int = 0o644,
    beside: Path | None = None,
    durable: bool = False,
    overwrite: bool = True,
    dir_fd: int | None = None,
) -> Iterator[IO[bytes]]:
    """A new file that takes the place of `path` when the block ends, whole; after an error all is as it was.

    mode: its permissions, less nothing (the umask does not count). The folder is created where it is missing.
    beside: a folder of the same file system to write it in, where others would mind a file under another name.
    durable: content and name are on the disk when the block has ended, and a loss of power in between leaves the old
    file or the new one.
    overwrite: False to raise FileExistsError where there is a file already, whoever made it meanwhile.
    dir_fd: the handle of an open folder that holds `path`, which is a bare name then: no path is looked up.
    """
    if dir_fd is None:
        path.parent.mkdir(parents=True, exist_ok=True)
    temporary = (beside or path.parent) / _temporary_name(path.name)
    descriptor = os.open(temporary, _NEW_FILE, 0o600, dir_fd=dir_fd)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            if dir_fd is None:
                temporary.chmod(mode)
            else:
                os.fchmod(descriptor, mode)
            if durable:
                os.fsync(descriptor)
        if overwrite:
            os.replace(temporary, path, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
        else:
            os.link(temporary, path, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
            os.unlink(temporary, dir_fd=dir_fd)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=dir_fd)
        raise
    if durable:
        flush_folder(path.parent)


def write_atomically(
    path: Path,
    content: bytes | str,
    *,
    mode: int = 0o644,
    beside: Path | None = None,
    durable: bool = False,
    overwrite: bool = True,
) -> None:
    """Write a whole file, or leave what was there; see `replacing`. Text is UTF-8."""
    with replacing(path, mode=mode, beside=beside, durable=durable, overwrite=overwrite) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def link_atomically(path: Path, target: str, *, dir_fd: int | None = None) -> bool:
    """Put a symbolic link to `target` in place of a file or link, which is there until then; dir_fd as in `replacing`.

    Returns False, with nothing done, where the system has no symbolic links.
    """
    temporary = path.with_name(_temporary_name(path.name))
    try:
        os.symlink(target, temporary, dir_fd=dir_fd)
    except OSError:
        return False
    try:
        os.replace(temporary, path, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    except BaseException:
        os.unlink(temporary, dir_fd=dir_fd)
        raise
    return True


def move_into_place(finished: Path, path: Path, *, durable: bool = False, overwrite: bool = True) -> Path:
    """Move a finished file or folder to `path`, on the same file system, where it appears whole; returns `path`.

    A file that was there is replaced. A folder that was there is set aside first, comes back where the move fails, and
    is removed after it.
    durable: the name is on the disk when this returns (flush the content before).
    overwrite: False to raise OSError where there is a file, or a folder that is not empty.
    """
    if not finished.is_dir() and not overwrite:
        os.link(finished, path)
        finished.unlink()
    elif finished.is_dir() and path.is_dir() and overwrite:
        with set_aside(path.parent, [path.name], beside=path.parent):
            finished.rename(path)
    else:
        finished.replace(path)
    if durable:
        flush_folder(path.parent)
    return path


@contextmanager
def set_aside(folder: Path, names: Iterable[str], *, beside: Path | None = None) -> Iterator[None]:
    """Files and folders of these names make room for new ones; after an error they are back, and what is new is gone.

    folder: created where it is missing, and removed after an error where it was.
    beside: the folder of the same file system that holds them meanwhile; that of `folder` by default.
    """
    names = tuple(names)
    was_there = folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    with scratch_folder(beside or folder.parent, f".{folder.name[:100]}-former-") as former:
        moved = [name for name in names if os.path.lexists(folder / name)]
        for name in moved:
            (folder / name).rename(former / name)
        try:
            yield
        except BaseException:
            for name in names:
                path = folder / name
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(
                    missing_ok=True
                )
            for name in moved:
                (former / name).rename(folder / name)
            if not was_there:
                folder.rmdir()
            raise


def _temporary_name(name: str) -> str:
    return f".{name[:100]}.{os.urandom(8).hex()}.tmp"


_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_NEW_FILE |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


def flush_folder(folder: Path) -> None:
    """Make the names in a folder survive a loss of power."""
    if os.name == "nt":  # folders cannot be opened there
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def cache_folder(name: str) -> Path:
    """Where files of one kind are cached, which need not exist yet: `<cache>/<name>`."""
    if folder := os.environ.get("KERNELS_HUB_CACHE"):
        return Path(folder) / name
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "kernels_hub" / name


def read_shipped(path: Path) -> bytes:
    """A file that was shipped with the package that this copy belongs to.

    It is read by the loader that imported the package: the library's returns what was verified, and raises where a file
    was changed since; Python's own reads the file. Raises OSError.
    """
    get_data = getattr(None if __spec__ is None else __spec__.loader, "get_data", None)
    return path.read_bytes() if get_data is None else bytes(get_data(str(path)))


@contextmanager
def scratch_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """A folder to make something in, its owner's alone (0700), which goes when the block ends.

    A child that is forked meanwhile and ends leaves it alone, as tempfile.TemporaryDirectory does not.
    """
    folder = Path(tempfile.mkdtemp(dir=parent, prefix=prefix, suffix=".tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class PrivateFolder:
    """A folder of this process, for where the cache cannot be used; made when first asked for.

    It lies under the system's temporary one, is its owner's alone (0700), and is removed when the process ends. Those
    of processes that were killed, or ended at once, are removed by the next one that makes one of the name.
    name: the beginning of its name, after "kernels_hub-".
    """

    def __init__(self, name: str) -> None:
        self._prefix = f"kernels_hub-{name}-"
        self._lock = threading.Lock()
        self._made: Path | None = None

    def get(self) -> Path:
        """The folder. Raises OSError where none can be made."""
        with self._lock:
            if self._made is None:
                self._made = Path(tempfile.mkdtemp(prefix=self._prefix))
                _hold(self._made)
                atexit.register(_remove, self._made, os.getpid())
                for left in _left_behind(self._made.parent, self._prefix):
                    shutil.rmtree(left, ignore_errors=True)
            return self._made

    def made(self) -> tuple[Path, ...]:
        """The folder if this process has asked for it, as something to iterate over."""
        return () if self._made is None else (self._made,)


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # not a process that was forked off it
        shutil.rmtree(folder, ignore_errors=True)


_OWNER = ".owner"
"""A file that is locked as long as a process has a folder, or one that was forked off it."""
_NEW_S = 60
"""A folder that is younger may not be locked yet."""


def _hold(folder: Path) -> None:
    if fcntl is not None:
        with suppress(OSError):  # a file system without locks: nobody else's folder is touched there
            fcntl.flock(os.open(folder / _OWNER, _NEW_FILE, 0o600), fcntl.LOCK_EX | fcntl.LOCK_NB)


def _left_behind(parent: Path, prefix: str) -> Iterator[Path]:
    """The folders of this user that no process has any more, locked until the next one is asked for."""
    if fcntl is None:
        return
    oldest = time.time() - _NEW_S
    with suppress(OSError), os.scandir(parent) as found:
        for one in found:
            with suppress(OSError):
                if not one.name.startswith(prefix) or not one.is_dir(follow_symlinks=False):
                    continue
                status = one.stat(follow_symlinks=False)
                if status.st_uid != os.getuid() or status.st_mtime > oldest:
                    continue
                owner = os.open(Path(one.path, _OWNER), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    yield Path(one.path)
                finally:
                    os.close(owner)
