"""Paths of files that an index names: none leads out of its folder."""

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
