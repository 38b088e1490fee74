"""Paths from outside (an archive, an index, a lock, a request) that must stay inside a folder.

They are opened relative to a handle of the folder that they belong to, part by part and following no symbolic link,
so that neither their spelling nor what lies on the disk leads outside. `inside` is the only function that joins such
a path to a folder; a test looks for any other.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from kernels_hub.errors import IntegrityError
from kernels_hub.files import link_atomically, replacing

MOST_PATH_BYTES = 1024
MOST_PART_BYTES = 255
_BY_HANDLE = os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")


def relative_path_problem(text: str) -> str | None:
    """What keeps text from being a path inside a folder, on any system; None where it is one."""
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        return "it holds characters that are not Unicode text"
    if not text:
        return "it is empty"
    if len(encoded) > MOST_PATH_BYTES:
        return f"it has {len(encoded):,} bytes, at most {MOST_PATH_BYTES:,} are allowed"
    if any(character < " " or character == "\x7f" for character in text):
        return "it holds a control character"
    if "\\" in text or ":" in text:
        return "it holds '\\' or ':', which separate parts and drives on Windows"
    for part in text.split("/"):
        if part in ("", ".", ".."):
            return "it is absolute, or has an empty part" if not part else f"it has the part {part!r}"
        if len(part.encode()) > MOST_PART_BYTES:
            return f"a part of it is longer than {MOST_PART_BYTES} bytes"
    return None


def inside(folder: Path, relative: str) -> Path:
    """The path of `relative` inside `folder`.

    relative: a path from outside, with forward slashes.

    Raises IntegrityError for a path that leads outside by its spelling, or through a symbolic link that is on
    the disk below `folder` (`folder` itself may be one). To open a file that others may replace meanwhile use
    `open_inside`.
    """
    if problem := relative_path_problem(relative):
        raise IntegrityError(f"{relative[:100]!r} is no path inside {folder}: {problem}")
    path = folder
    for part in relative.split("/"):
        path = path / part
        if path.is_symlink():
            raise IntegrityError(f"{path} is a symbolic link; {relative!r} must lie inside {folder} itself")
    return path


def open_inside(folder: Path, relative: str, flags: int = os.O_RDONLY, mode: int = 0o666) -> int:
    """Open `relative` inside `folder` by directory handles, following no symbolic link below `folder`.

    flags, mode: those of `os.open`; with O_CREAT the folders between are created.

    Returns the descriptor. Raises IntegrityError for a path that leads outside, or through something that is no
    folder; OSError where the file cannot be opened.
    """
    if problem := relative_path_problem(relative):
        raise IntegrityError(f"{relative[:100]!r} is no path inside {folder}: {problem}")
    if not _BY_HANDLE:  # Windows: no handles of folders; links are looked for by name
        path = inside(folder, relative)
        if flags & os.O_CREAT:
            path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, flags | getattr(os, "O_BINARY", 0), mode)
    with _parent(folder, relative, create=bool(flags & os.O_CREAT)) as (handle, name):
        try:
            return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=handle)
        except OSError as error:
            if _is_link(name, handle):
                raise IntegrityError(
                    f"{relative!r} inside {folder} is a symbolic link; files from outside are never written or "
                    "read through one"
                ) from error
            raise


@contextmanager
def replacing_inside(folder: Path, relative: str, *, mode: int = 0o644) -> Iterator[IO[bytes]]:
    """`replacing` for a path from outside: by directory handles, following no symbolic link below `folder`.

    A link that lies at the path itself is replaced, not followed. Raises IntegrityError as `open_inside` does.
    """
    if problem := relative_path_problem(relative):
        raise IntegrityError(f"{relative[:100]!r} is no path inside {folder}: {problem}")
    if not _BY_HANDLE:
        with replacing(inside(folder, relative), mode=mode) as file:
            yield file
        return
    with (
        _no_folder_there(folder, relative),
        _parent(folder, relative, create=True) as (handle, name),
        replacing(Path(name), mode=mode, dir_fd=handle) as file,
    ):
        yield file


def link_inside(folder: Path, relative: str, target: str) -> bool:
    """`link_atomically` for a path from outside: puts a symbolic link to `target` in place of a file or link.

    Returns False, with nothing done, where the system has no symbolic links. Raises IntegrityError as
    `open_inside` does.
    """
    if problem := relative_path_problem(relative):
        raise IntegrityError(f"{relative[:100]!r} is no path inside {folder}: {problem}")
    if not _BY_HANDLE:
        path = inside(folder, relative)
        path.parent.mkdir(parents=True, exist_ok=True)
        return link_atomically(path, target)
    with _no_folder_there(folder, relative), _parent(folder, relative, create=True) as (handle, name):
        return link_atomically(Path(name), target, dir_fd=handle)


@contextmanager
def _no_folder_there(folder: Path, relative: str) -> Iterator[None]:
    try:
        yield
    except (IsADirectoryError, NotADirectoryError) as error:
        raise IntegrityError(f"{relative!r} inside {folder} is a folder, where a file belongs") from error


@contextmanager
def _parent(folder: Path, relative: str, *, create: bool) -> Iterator[tuple[int, str]]:
    """A handle of the folder that holds `relative`, reached part by part, and the name inside of it."""
    *parents, name = relative.split("/")
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parents:
            if create:
                with suppress(FileExistsError):
                    os.mkdir(part, dir_fd=handle)
            handle, outer = _open_folder(part, handle, folder, relative), handle
            os.close(outer)
        yield handle, name
    finally:
        os.close(handle)


def _open_folder(part: str, handle: int, folder: Path, relative: str) -> int:
    try:
        return os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=handle)
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise IntegrityError(
            f"{relative!r} inside {folder}: {part!r} is a symbolic link or no folder; nothing was opened"
        ) from error


def _is_link(name: str, handle: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode)
    except OSError:
        return False
