"""Shipped native code: a shared object for each instruction set level, of which the best that runs here is used.

native/prebuilt.json says for which program, machine and level each file is, and its digest. The objects have a plain C
interface and link neither torch nor Python, so that they serve any release of both.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from pathlib import Path
from typing import Any

from ...files import read_shipped
from .errors import BuildError
from .indexed_paths import beside
from .toolchain import machine_isas

FOLDER = "native"
INDEX = "prebuilt.json"


def prebuilt(folder: Path, program: str) -> tuple[Path, bytes] | None:
    """The library of a program (its source file's name) for this machine, with its bytes; None where none came along.

    Raises BuildError where some did, and none can be used: they are for other machines, or damaged.
    """
    index = folder / FOLDER / INDEX
    if not index.is_file():
        return None
    try:
        document: Any = json.loads(read_shipped(index))
        rows = {row["isa"]: row for row in document["programs"][program] if row["machine"] == machine()}
        levels = [isa.name for isa in machine_isas() if isa.name in rows]
        if not levels:
            raise BuildError(f"{index} has none for {machine()}")
        row = rows[levels[0]]
        path = beside(folder / FOLDER, row["file"])
        data = read_shipped(path)
        digest = hashlib.sha256(data).hexdigest()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BuildError(f"{index} does not say what it should: {type(error).__name__} {error}") from error
    if digest != row["sha256"]:
        raise BuildError(
            f"{path} is not what was published: its sha256 is {digest[:16]}…, not {row['sha256'][:16]}…"
        )
    return path, data


def machine() -> str:
    """What native code is compiled for: "x86_64-linux"."""
    return f"{platform.machine()}-{sys.platform}"
