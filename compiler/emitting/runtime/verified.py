"""Files that came along, read by the loader that imported this package: the library's gives what it verified, or
raises where a file was changed since; Python's own reads them.
"""

from __future__ import annotations

from pathlib import Path


def beside(folder: Path, name: object) -> Path:
    """A file inside a folder, by the path that an index gives, with "/". Raises ValueError for one that leads out."""
    if (
        not isinstance(name, str)
        or {"", ".", ".."} & set(name.split("/"))
        or not name.isprintable()
        or {"\\", ":"} & set(name)
    ):
        raise ValueError(f"{name!r} is no name of a file in {folder.name}")
    return folder / name


def read(path: Path) -> bytes:
    """A file of this package. Raises OSError, and what the loader raises for a file that was changed."""
    get_data = getattr(None if __spec__ is None else __spec__.loader, "get_data", None)
    return path.read_bytes() if get_data is None else bytes(get_data(str(path)))
