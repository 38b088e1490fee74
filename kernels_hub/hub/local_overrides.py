"""LOCAL_KERNELS: local folders in place of repositories on a Hub.

    LOCAL_KERNELS=org/activation=/home/me/activation:org/rotary=~/rotary

Entries are separated by ":", on Windows also by ";". The ":" of a drive letter is not a separator.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

from kernels_hub.errors import MappingError

VARIABLE = "LOCAL_KERNELS"

# A ":" unless it follows "=<letter>" and precedes a slash: that one belongs to a drive, "repo=C:\path".
_SEPARATOR = re.compile(r"(?<!=[A-Za-z]):|:(?![\\/])")


def local_override(repo_id: str) -> Path | None:
    """The folder that the environment puts in place of a repository, if any.

    Raises MappingError (a ValueError) where LOCAL_KERNELS is not well formed.
    """
    text = os.environ.get(VARIABLE)
    return parse_local_kernels(text).get(repo_id) if text else None


@lru_cache(maxsize=8)
def parse_local_kernels(text: str, pathsep: str = os.pathsep) -> Mapping[str, Path]:
    r"""Repository -> folder, of "repo=path:repo=path".

    pathsep: the system's separator of paths; ";" is accepted where that is one.

    Raises MappingError for an entry without "=", repository or path, or a repository with two paths.

    >>> parse_local_kernels(r"a/b=C:\k:c/d=D:\x")["c/d"]
    PosixPath('D:\\x')
    """
    overrides: dict[str, Path] = {}
    for part in text.split(";") if pathsep == ";" else (text,):
        for entry in _SEPARATOR.split(part):
            if not entry.strip():
                continue
            repo_id, equals, folder = (piece.strip() for piece in entry.partition("="))
            if not (repo_id and equals and folder):
                raise MappingError(
                    f"{VARIABLE}: entry {entry!r} is not of the form repo_id=path (in {text!r})"
                )
            path = Path(os.path.expanduser(folder))  # noqa: PTH111 (leaves an unknown user as it is)
            if overrides.setdefault(repo_id, path) != path:
                raise MappingError(
                    f"{VARIABLE}: {repo_id!r} is given two paths, {overrides[repo_id]} and {path}"
                )
    return MappingProxyType(overrides)
