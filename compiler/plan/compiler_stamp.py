"""Compiler stamp: tells compilers apart, in keys of caches that only the one that made an entry may use."""

from __future__ import annotations

import functools
import hashlib
import os
from pathlib import Path

import kernels_hub

_OURS = Path(__file__).parents[1]
_SOURCES = (".py", ".h", ".cpp")
_SHARED = tuple(
    Path(kernels_hub.__file__).with_name(name) for name in ("cxx_compiler.py", "escaping.py", "numerics.py")
)
"""What the compiler has in common with the rest of the library, and makes or judges programs by."""


def digest(*parts: object) -> str:
    """sha256 of the parts' representations, in hexadecimal."""
    found = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else repr(part).encode()
        found.update(len(data).to_bytes(8, "little"))
        found.update(data)
    return found.hexdigest()


@functools.cache
def compiler_stamp() -> str:
    """What this compiler is: names, sizes and times of its files."""
    rows = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in _SHARED]
    folders = [("", str(_OURS))]
    while folders:
        below, folder = folders.pop()
        with os.scandir(folder) as found:
            for one in found:
                if one.name.endswith(_SOURCES):
                    stat = one.stat()
                    rows.append((below + one.name, stat.st_size, stat.st_mtime_ns))
                elif one.is_dir() and one.name != "__pycache__":
                    folders.append((f"{below}{one.name}/", one.path))
    return digest(sorted(rows))


@functools.cache
def compiler_digest() -> str:
    """What this compiler is: the content of its files."""
    files = [(path.name, path) for path in _SHARED]
    files += sorted(
        (path.relative_to(_OURS).as_posix(), path)
        for suffix in _SOURCES
        for path in _OURS.rglob(f"*{suffix}")
    )
    return digest(*((name, hashlib.sha256(path.read_bytes()).hexdigest()) for name, path in files))
