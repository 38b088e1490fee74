"""Files on disk: paths that stay inside their folder, and files that appear whole or not at all.

Paths that come from outside (an archive, an index, a lock, a request) are opened relative to a handle of the
folder that they belong to, part by part and following no symbolic link, so that neither their spelling nor what
lies on the disk leads outside. `inside` is the only function that joins such a path to a folder; a test looks
for any other.
"""

from __future__ import annotations

import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from kernels_hub.errors import IntegrityError

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
    with _parent(folder, relative, create=True) as (handle, name):
        temporary = _temporary_name()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, 0o600, dir_fd=handle)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                os.fchmod(descriptor, mode)
            _rename(temporary, name, handle, folder, relative)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=handle)
            raise


def link_inside(folder: Path, relative: str, target: str) -> bool:
    """Put a symbolic link to `target` at a path from outside, in place of a file or link that is there.

    Returns False, with nothing done, where the system has no symbolic links. Raises IntegrityError as
    `open_inside` does.
    """
    if problem := relative_path_problem(relative):
        raise IntegrityError(f"{relative[:100]!r} is no path inside {folder}: {problem}")
    if not _BY_HANDLE:
        path = inside(folder, relative)
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_name(_temporary_name())
        try:
            scratch.symlink_to(target)
        except OSError:
            return False
        scratch.replace(path)
        return True
    with _parent(folder, relative, create=True) as (handle, name):
        temporary = _temporary_name()
        try:
            os.symlink(target, temporary, dir_fd=handle)
        except OSError:
            return False
        try:
            _rename(temporary, name, handle, folder, relative)
        except BaseException:
            os.unlink(temporary, dir_fd=handle)
            raise
        return True


def _temporary_name() -> str:
    return f".{secrets.token_hex(8)}.tmp"


def _rename(temporary: str, name: str, handle: int, folder: Path, relative: str) -> None:
    try:
        os.replace(temporary, name, src_dir_fd=handle, dst_dir_fd=handle)
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


@contextmanager
def replacing(path: Path, *, mode: int = 0o644, beside: Path | None = None) -> Iterator[IO[bytes]]:
    """A new file that takes the place of `path` when the block ends, whole; after an error all is as it was.

    mode: its permissions, less nothing (the umask does not count). The folder is created where it is missing.
    beside: a folder of the same file system to write it in, where others would mind a file under another name.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(
        dir=beside or path.parent, prefix=f".{path.name[:100]}.", suffix=".tmp"
    )
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
        temporary.chmod(mode)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_atomically(
    path: Path, content: bytes | str, *, mode: int = 0o644, beside: Path | None = None
) -> None:
    """Write a whole file, or leave what was there. Text is UTF-8."""
    with replacing(path, mode=mode, beside=beside) as file:
        file.write(content.encode() if isinstance(content, str) else content)
